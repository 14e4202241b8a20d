"""KITTI Raw: images of the left colour camera, depth from single velodyne scans."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Float32, Float64
from scipy.ndimage import minimum_filter

from scalefield.datasets.frame import Frame
from scalefield.datasets.splits import check_split, split_drives
from scalefield.errors import InputError
from scalefield.files import read_bytes, read_image

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

SEE_THROUGH_WINDOW = (9, 5)
"""Rows and columns of the neighbourhood in which a nearer return hides a farther one."""
SEE_THROUGH_MARGIN = 0.15
"""A return this fraction farther than the nearest in its neighbourhood is behind a surface."""


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

    def load(self, name: str) -> Frame:
        """The frame with the depth of its scan."""
        drive, _, number = name.partition("/")
        date = Path(self.root) / drive[:10]
        image = read_image(date / drive / "image_02" / "data" / f"{number}.png")
        camera = read_calibration(date)
        points_m = read_scan(date / drive / "velodyne_points" / "data" / f"{number}.bin")
        depth_m = remove_see_through(scan_depth(points_m, camera, image.shape[:2]))
        return Frame(
            name=name,
            group=drive_categories().get(drive, "other"),
            scene=drive,
            image=image,
            depth_m=depth_m.astype(np.float32),
            depth_range_m=self.depth_range_m,
            intrinsics=camera.intrinsics,
        )


_IMAGES = "image_02/data/*.png"


@dataclass(frozen=True, eq=False)
class Calibration:
    """The way from a velodyne point to a pixel of the left colour camera."""

    velo_to_image: Float64[np.ndarray, "3 4"]
    """P_rect_02 · R_rect_00 · (R | T): homogeneous pixel and depth of a homogeneous point."""
    intrinsics: tuple[float, float, float, float]


def read_calibration(date: Path) -> Calibration:
    """The calibration of one recording day."""
    camera, velodyne = date / "calib_cam_to_cam.txt", date / "calib_velo_to_cam.txt"
    projection = _matrix(camera, "P_rect_02", (3, 4))
    rectify, rigid = np.eye(4), np.eye(4)
    rectify[:3, :3] = _matrix(camera, "R_rect_00", (3, 3))
    rigid[:3, :3] = _matrix(velodyne, "R", (3, 3))
    rigid[:3, 3] = _matrix(velodyne, "T", (3,))
    fx, fy, cx, cy = projection[[0, 1, 0, 1], [0, 1, 2, 2]].tolist()
    return Calibration(projection @ rectify @ rigid, (fx, fy, cx, cy))


def read_scan(path: Path) -> Float32[np.ndarray, "n 4"]:
    """The scan's returns: x, y, z in metres and reflectance."""
    data = read_bytes(path)
    if len(data) % 16:
        raise InputError(f"{path}: not a velodyne scan: {len(data)} bytes are no whole returns")
    return np.frombuffer(data, "<f4").reshape(-1, 4)


def project(
    points_m: Float32[np.ndarray, "n 4"], camera: Calibration
) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """Pixel u, v and depth z of each return; what lies behind the camera has z ≤ 0."""
    points = points_m[:, :3].astype(np.float64)
    image = points @ camera.velo_to_image[:, :3].T + camera.velo_to_image[:, 3]
    z = image[:, 2]
    with np.errstate(divide="ignore", invalid="ignore"):
        return image[:, 0] / z, image[:, 1] / z, z


def scan_depth(
    points_m: Float32[np.ndarray, "n 4"], camera: Calibration, shape: tuple[int, int]
) -> Float64[np.ndarray, "h w"]:
    """Depth of the nearest return in each pixel, NaN where there is none."""
    u, v, z = project(points_m, camera)
    front = z > 0
    u, v, z = np.floor(u[front] + 0.5), np.floor(v[front] + 0.5), z[front]
    inside = (u >= 0) & (u < shape[1]) & (v >= 0) & (v < shape[0])
    nearest = np.full(shape, np.inf)
    np.minimum.at(nearest, (v[inside].astype(int), u[inside].astype(int)), z[inside])
    return np.where(np.isfinite(nearest), nearest, np.nan)


def remove_see_through(depth_m: Float64[np.ndarray, "h w"]) -> Float64[np.ndarray, "h w"]:
    """Drop returns behind a nearer surface.

    The scanner sits above the camera and looks over edges: its far returns land among the near
    ones. A return is dropped if it is more than 15 % farther than the nearest within 9 rows and
    5 columns around it.
    """
    known = np.where(np.isnan(depth_m), np.inf, depth_m)
    nearest = minimum_filter(known, SEE_THROUGH_WINDOW, mode="constant", cval=np.inf)
    hidden = np.isfinite(known) & (known > (1 + SEE_THROUGH_MARGIN) * nearest)
    return np.where(hidden, np.nan, depth_m)


def _matrix(path: Path, key: str, shape: tuple[int, ...]) -> np.ndarray:
    for line in read_bytes(path).decode(errors="replace").splitlines():
        name, _, values = line.partition(":")
        if name.strip() == key:
            try:
                return np.array([float(value) for value in values.split()]).reshape(shape)
            except ValueError:
                wanted = int(np.prod(shape))
                raise InputError(f"{path}: {key} must be {wanted} numbers") from None
    raise InputError(f"{path}: has no line {key}")
