"""`scalefield anchors`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from scalefield.commands.data import Intrinsics, check_camera_flags, check_counts
from scalefield.errors import InputError, size_text

if TYPE_CHECKING:
    import numpy as np

    from scalefield.anchors import Anchors
    from scalefield.geometry.camera import Camera


@dataclass(frozen=True)
class AnchorsCommand:
    """Make anchors for an image from a point cloud or from a depth camera's frame.

    Points are transformed into the camera and projected. The nearest point of each pixel is kept,
    and points behind a nearer surface are removed. The camera looks along z, with x right and y
    down.
    """

    image: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE")]
    """The photograph, of which only the size is used; or a rosbag2 with images and point clouds."""
    out: Path
    """Output file: .csv, .npz, or a sparse 16-bit .png in millimetres. For a rosbag2 a folder with
    an image and its anchors for each frame, which `recover` and `label` take."""
    image_topic: str = ""
    """Topic of the images of a rosbag2, if it has several; their camera_info is beside it."""
    points_topic: str = ""
    """Topic of the point clouds of a rosbag2, if it has several."""
    raw_images: bool = False
    """The images of the rosbag2 are not rectified: K and D of camera_info are used, and not P."""
    points: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Point cloud in metres: .ply, .pcd, .bin (KITTI), .npz (array points) or .npy."""
    depth: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Depth frame instead of a point cloud: .png, .npy, .npz, .exr or .pfm. It has the image's
    size, unless --depth-intrinsics give it a camera of its own."""
    depth_key: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Name of the array of an .npz, or of the channel of an .exr, given as --depth."""
    depth_units: Annotated[float | None, tyro.conf.arg(metavar="PER_METRE")] = None
    """Units per metre of --depth: 1000 for millimetres, 5000 for TUM; 1 for metres."""
    ray: bool = False
    """--depth holds distances along the ray instead of z along the optical axis."""
    intrinsics: Intrinsics = None
    """Intrinsics of the photograph's camera, in pixels."""
    fov_deg: Annotated[float | None, tyro.conf.arg(metavar="DEGREES")] = None
    """Horizontal field of view of the photograph, if the intrinsics are not known."""
    distortion: Annotated[tuple[float, ...], tyro.conf.arg(metavar="K1 K2 P1 P2 [K3]")] = ()
    """Lens distortion of the photograph in OpenCV's order; none for a rectified image."""
    depth_intrinsics: Intrinsics = None
    """Intrinsics of the depth camera, if it is another camera."""
    extrinsics: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Text file with the 4×4 or 3×4 matrix from the points to the photograph's camera."""
    pose: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Text file with the inverse of --extrinsics: the pose of the camera among the points."""
    kitti: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """KITTI calibration instead of intrinsics and extrinsics: the folder of a date, or an object or
    odometry file."""
    kitti_camera: int = 2
    """Number of KITTI's camera; 2 is the left colour camera."""
    bin_columns: int = 4
    """Numbers per point of a .bin: 4 for KITTI, 5 for nuScenes."""
    keep_edges: bool = False
    """Keep pixels of a depth frame at depth discontinuities, which may lie between two surfaces."""
    keep_hidden: bool = False
    """Keep points that lie behind a nearer surface."""
    window: Annotated[tuple[int, int] | None, tyro.conf.arg(metavar="ROWS COLUMNS")] = None
    """Window in which a nearer point hides a farther one. The default suits a LiDAR of 64 beams;
    sparser clouds need a larger one."""
    limit: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Keep at most N anchors, evenly distributed over the image."""

    def run(self) -> None:
        """Project the points, write the anchors and print their number."""
        import numpy as np

        from scalefield.anchor_sampling import sample_anchors
        from scalefield.geometry.exif import notify_if_rotated
        from scalefield.geometry.ros import is_bag
        from scalefield.io import read_image, spare_inputs

        if is_bag(self.image):
            self.from_bag()
            return
        self.check()
        given = (self.image, self.points, self.depth, self.extrinsics, self.pose)
        spare_inputs([self.out], given)
        shape = read_image(self.image).shape[:2]
        notify_if_rotated(self.image)
        anchors = self.from_points(shape) if self.points else self.from_depth(shape)
        if not len(anchors):
            raise InputError(
                f"nothing of {self.points or self.depth} lands in the image of "
                f"{size_text(shape)} pixels; are the extrinsics the other way round?"
            )
        projected = len(anchors)
        if self.limit is not None:
            depth_m = np.zeros(shape)
            depth_m[anchors.pixels(shape)] = anchors.depth_m
            name = self.image.name
            anchors = sample_anchors(depth_m, depth_m > 0, self.limit, seed=0, name=name)
        anchors.write(self.out, shape=shape)
        near, far = anchors.depth_m.min(), anchors.depth_m.max()
        kept = f" of {projected}" if len(anchors) < projected else ""
        print(f"{self.out}: {len(anchors)}{kept} anchors, {near:.2f} … {far:.2f} m")

    def from_bag(self) -> None:
        """Write the frames of a rosbag2 and print their number."""
        from PIL import Image

        from scalefield.geometry.ros import read_bag
        from scalefield.io import write_image

        check_counts(self, "limit")
        frames, anchors = 0, 0
        for frame in read_bag(
            self.image,
            image_topic=self.image_topic,
            points_topic=self.points_topic,
            raw=self.raw_images,
        ):
            if not len(frame.anchors):
                continue
            name = self.out / f"{frame.stamp_ns:019d}"  # in the order of time
            write_image(name.with_suffix(".png"), Image.fromarray(frame.image))
            frame.anchors.write(name.with_suffix(".anchors.npz"))
            frames, anchors = frames + 1, anchors + len(frame.anchors)
            if frames == self.limit:
                break
        if not frames:
            raise InputError(f"{self.image}: no image has points in it at about the same time")
        print(f"{self.out}: {frames} frames, {anchors / frames:.0f} anchors each")
        print(f"  scalefield recover {self.out} --stream on")

    def check(self) -> None:
        """Refuse contradictory flags before anything is read."""
        if (self.points is None) == (self.depth is None):
            raise InputError("give --points FILE or --depth FILE, one of them")
        of_depth = {
            "--depth-key": self.depth_key,
            "--depth-units": self.depth_units,
            "--depth-intrinsics": self.depth_intrinsics,
            "--ray": self.ray or None,
        }
        for flag, value in of_depth.items():
            if self.points and value is not None:
                raise InputError(f"{flag} applies only to --depth FILE; --points are in metres")
        if self.depth_key is not None and str(self.depth).lower().endswith(".png"):
            raise InputError(f"--depth-key is for .npz and .exr; {self.depth} holds one map")
        if self.extrinsics and self.pose:
            raise InputError("--extrinsics and --pose are inverses; give one of them")
        others = self.intrinsics or self.fov_deg or self.extrinsics or self.pose or self.distortion
        if self.kitti and (others or self.depth):
            raise InputError("--kitti has intrinsics and extrinsics for --points; give it alone")
        check_camera_flags(self.intrinsics, self.fov_deg)
        if self.depth_units is not None and not 1e-9 <= self.depth_units <= 1e9:
            raise InputError(f"--depth-units must be 1e-9 … 1e9, found {self.depth_units:g}")
        check_counts(self, "limit")

    def from_points(self, shape: tuple[int, int]) -> Anchors:
        """Anchors from the point cloud."""
        from scalefield.geometry.point_clouds import read_points

        assert self.points is not None
        return self.project(read_points(self.points, bin_columns=self.bin_columns), shape)

    def from_depth(self, shape: tuple[int, int]) -> Anchors:
        """Anchors from the depth frame; as points if it belongs to another camera."""
        import numpy as np

        from scalefield.anchors import Anchors
        from scalefield.geometry.camera import Camera, depth_edges, ray_length, unproject
        from scalefield.io import read_depth_png, read_map

        assert self.depth is not None
        if self.depth.suffix.lower() == ".png":
            depth_m = read_depth_png(self.depth, units_per_metre=self.depth_units)
        else:
            scale = 1.0 if self.depth_units is None else 1 / self.depth_units
            depth_m = read_map(self.depth, key=self.depth_key, scale=scale).astype("float64")
        if not (depth_m > 0).any():
            raise InputError(f"{self.depth}: holds no depth above zero")
        if not self.keep_edges:
            depth_m = np.where(depth_edges(depth_m), np.nan, depth_m)
        other_camera = self.depth_intrinsics or self.extrinsics or self.pose
        if not other_camera and depth_m.shape != shape:
            found, wanted = map(size_text, (depth_m.shape, shape))
            raise InputError(
                f"{self.depth} is {found} and the image {wanted}; give --depth-intrinsics and "
                "--extrinsics to bring one into the other"
            )
        if not other_camera and not self.ray:
            return Anchors.from_map(depth_m)
        own = Camera(*self.depth_intrinsics) if self.depth_intrinsics else self.camera(shape)
        if self.ray:
            depth_m = depth_m / ray_length(depth_m.shape, own)
        if not other_camera:
            return Anchors.from_map(depth_m)
        return self.project(unproject(depth_m, own)[depth_m > 0], shape)

    def camera(self, shape: tuple[int, int]) -> Camera:
        """The photograph's camera."""
        from dataclasses import replace

        from scalefield.geometry.camera import find_camera

        camera = find_camera(self.intrinsics, self.fov_deg, shape)
        if camera is None:
            raise InputError("the camera is not known: give --intrinsics, --fov-deg or --kitti")
        return replace(camera, distortion=self.distortion)

    def project(self, points_m: np.ndarray, shape: tuple[int, int]) -> Anchors:
        """The pixels of the photograph that points fall in, with their depth."""
        import numpy as np

        from scalefield.datasets.kitti import read_calibration
        from scalefield.geometry.camera import read_rigid
        from scalefield.geometry.point_clouds import SeeThrough, anchors_from_points

        if self.kitti:
            calibration = read_calibration(self.kitti, self.kitti_camera)
            camera, motion = calibration.camera, calibration.camera_from_velo
        else:
            camera, motion = self.camera(shape), None
        if self.pose:
            motion = np.linalg.inv(read_rigid(self.pose))
        elif self.extrinsics:
            motion = read_rigid(self.extrinsics)
        rule = SeeThrough(self.window) if self.window else SeeThrough()
        return anchors_from_points(
            points_m,
            camera,
            shape,
            camera_from_points=motion,
            see_through=None if self.keep_hidden else rule,
        )
