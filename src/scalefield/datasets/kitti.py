"""KITTI Raw: images of the left colour camera, depth from single velodyne scans."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Float64

from scalefield.datasets.frame import Frame
from scalefield.datasets.splits import check_split, count_differences, split_drives
from scalefield.errors import InputError
from scalefield.geometry.camera import Camera, depth_map, remove_see_through, transform
from scalefield.geometry.point_clouds import read_points
from scalefield.io import read_bytes, read_image

# The four categories of KITTI's website that the paper uses, by date and drive number.
_CATEGORIES = {
    "City": """2011_09_26: 1 2 5 9 11 13 14 17 18 48 51 56 57 59 60 84 91 93 95 96 104 106 113 117;
               2011_09_28: 1 2; 2011_09_29: 26 71""",
    "Residential": """2011_09_26: 19 20 22 23 35 36 39 46 61 64 79 86 87;
                      2011_09_30: 18 20 27 28 33 34; 2011_10_03: 27 34""",
    "Road": """2011_09_26: 15 27 28 29 32 52 70 101; 2011_09_29: 4; 2011_09_30: 16;
               2011_10_03: 42 47""",
    "Campus": "2011_09_28: 16 21 34 35 37 38 39 43 45 47",
}


def drive_categories() -> dict[str, str]:
    """The category of each of the 71 drives, by folder name."""
    return {
        f"{date.strip()}_drive_{int(number):04d}_sync": category
        for category, text in _CATEGORIES.items()
        for date, numbers in (part.split(":") for part in text.split(";"))
        for number in numbers.split()
    }


@dataclass(frozen=True)
class Kitti:
    """KITTI Raw, synced and rectified, in its own layout.

    Images `DATE/DRIVE/image_02/data/*.png`; scans `velodyne_points/data/*.bin` of little-endian
    float32 (x, y, z, reflectance) in metres, projected with the date's calibration; a scan hits
    3–4 % of the pixels. Licence CC BY-NC-SA 3.0.
    """

    root: Path
    name: ClassVar[str] = "kitti"
    depth_range_m: ClassVar[tuple[float, float]] = (0.1, 80.0)
    split_counts: ClassVar[tuple[int, int, int]] = (1009, 100, 289)

    def names(self, split: str) -> list[str]:
        """`DRIVE/FRAME`, by image; splits are by drive and use the paper's four categories."""
        check_split(split)
        drives = {
            folder.name: [f"{folder.name}/{p.stem}" for p in sorted(folder.glob(_IMAGES))]
            for folder in sorted(Path(self.root).glob("*/*_drive_*_sync"))
        }
        if not drives:
            wanted = Path(self.root) / "DATE" / "DATE_drive_NNNN_sync"
            raise InputError(f"no KITTI drive found; wanted folders like {wanted}")
        if split == "all":
            return [name for frames in drives.values() for name in frames]
        return split_drives(drives, drive_categories(), self.split_counts)[split]

    def incomplete(self) -> str:
        """A sentence if the paper's 71 drives are not all there, by drive."""
        found = {name.partition("/")[0] for name in self.names("all")}
        drives = drive_categories()
        return count_differences(
            dict.fromkeys(found & set(drives), 1), dict.fromkeys(drives, 1), "drives"
        )

    def load(self, name: str) -> Frame:
        """The frame with the depth of its scan."""
        drive, _, number = name.partition("/")
        date = Path(self.root) / drive[:10]
        image = read_image(date / drive / "image_02" / "data" / f"{number}.png")
        calibration = read_calibration(date)
        points_m = read_points(date / drive / "velodyne_points" / "data" / f"{number}.bin")
        seen = calibration.project(points_m)
        depth_m = remove_see_through(depth_map(*seen, image.shape[:2]))
        return Frame(
            name=name,
            group=drive_categories().get(drive, "other"),
            scene=drive,
            image=image,
            depth_m=depth_m.astype(np.float32),
            depth_range_m=self.depth_range_m,
            intrinsics=calibration.camera.intrinsics,
        )


_IMAGES = "image_02/data/*.png"


@dataclass(frozen=True, eq=False)
class Calibration:
    """The projection of velodyne points into a rectified camera."""

    camera: Camera
    camera_from_velo: Float64[np.ndarray, "4 4"]

    def project(
        self, points_m: Float64[np.ndarray, "n 3"]
    ) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
        """Pixel u, v and depth z of each return; u and v are NaN behind the camera (z ≤ 0)."""
        return self.camera.project(transform(points_m, self.camera_from_velo))


def read_calibration(path: Path, camera: int = 2) -> Calibration:
    """The calibration of a recording day's folder (KITTI Raw), or of one file.

    The object benchmark has a file for each image, with P2, R0_rect and Tr_velo_to_cam; odometry
    one for each sequence, with P2 and Tr. Camera 2 is the left colour camera.
    """
    path = Path(path)
    rectify, rigid = np.eye(4), np.eye(4)
    if path.is_dir():
        cameras, velodyne = path / "calib_cam_to_cam.txt", path / "calib_velo_to_cam.txt"
        projection = _matrix(cameras, f"P_rect_0{camera}", (3, 4))
        rectify[:3, :3] = _matrix(cameras, "R_rect_00", (3, 3))
        rigid[:3, :3] = _matrix(velodyne, "R", (3, 3))
        rigid[:3, 3] = _matrix(velodyne, "T", (3,))
    else:
        projection = _matrix(path, f"P{camera}", (3, 4))
        lines = _lines(path)
        if "R0_rect" in lines:
            rectify[:3, :3] = _matrix(path, "R0_rect", (3, 3))
        rigid[:3] = _matrix(path, "Tr" if "Tr" in lines else "Tr_velo_to_cam", (3, 4))
    fx, fy, cx, cy = projection[[0, 1, 0, 1], [0, 1, 2, 2]].tolist()
    try:
        rectified = Camera(fx, fy, cx, cy)
    except InputError as e:
        raise InputError(f"{path}: {e}") from None
    # P = K (I | b) holds the camera's place beside camera 0 in its last column.
    u, v, z = projection[:, 3]
    beside = np.eye(4)
    with np.errstate(all="ignore"):
        beside[:3, 3] = (u - cx * z) / fx, (v - cy * z) / fy, z
        camera_from_velo = beside @ rectify @ rigid
    if not np.isfinite(camera_from_velo).all():
        raise InputError(f"{path}: its values overflow, wanted a rigid motion and a projection")
    return Calibration(rectified, camera_from_velo)


def _lines(path: Path) -> dict[str, str]:
    """A calibration file's values by name."""
    lines = read_bytes(path).decode(errors="replace").splitlines()
    parts = (line.partition(":") for line in lines)
    return {name.strip(): values for name, _, values in parts}


def _matrix(path: Path, key: str, shape: tuple[int, ...]) -> np.ndarray:
    lines = _lines(path)
    if key not in lines:
        raise InputError(f"{path}: has no line {key}")
    try:
        matrix = np.array([float(value) for value in lines[key].split()]).reshape(shape)
        if not np.isfinite(matrix).all():
            raise ValueError
    except ValueError:
        raise InputError(f"{path}: {key} must be {int(np.prod(shape))} numbers") from None
    return matrix
