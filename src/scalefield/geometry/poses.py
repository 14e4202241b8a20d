"""Cameras and their poses from the files that people have.

Every reader returns `PosedCamera`s: COLMAP models, transforms.json of nerfstudio, trajectories of
TUM and KITTI, and the folders of JSON files that 3D Scanner App and Polycam export from ARKit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from jaxtyping import Float64

from scalefield.errors import InputError, one_line, size_text
from scalefield.geometry.camera import Camera, is_rotation
from scalefield.io import read_json, read_text

OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])
"""Turns axes with y up and z backwards (OpenGL, ARKit, Blender) into y down and z forward."""
MOST_APART_S = 0.05
"""Largest difference between the time of an image and that of its pose."""
SAME_SHAPE = 0.02
"""Largest difference between the two scales of an image that is a smaller copy of the camera's."""


@dataclass(frozen=True, eq=False)
class PosedCamera:
    """The camera of an image and where it was."""

    name: str
    """Path of the image below the folder of images, perhaps without its suffix."""
    camera: Camera
    camera_to_world: Float64[np.ndarray, "4 4"]
    """Axes x right, y down, z forward."""
    shape: tuple[int, int] | None = None
    """Height and width of the camera's images; None if the file does not record them."""

    def __post_init__(self) -> None:
        pose = self.camera_to_world
        if not (pose.shape == (4, 4) and np.isfinite(pose).all() and is_rotation(pose[:3, :3])):
            raise InputError(f"{self.name}: its pose is not a rotation and a translation")

    def for_shape(self, shape: tuple[int, int]) -> PosedCamera:
        """The same for images of this size, which may be smaller copies."""
        if self.shape is None or self.shape == shape:
            return dataclasses.replace(self, shape=shape)
        down, across = (found / own for found, own in zip(shape, self.shape, strict=True))
        if abs(math.log(down / across)) > SAME_SHAPE:
            found, wanted = map(size_text, (shape, self.shape))
            raise InputError(f"{self.name} is {found} and its camera {wanted}")
        old = self.camera
        camera = Camera(
            old.fx * across,
            old.fy * down,
            (old.cx + 0.5) * across - 0.5,
            (old.cy + 0.5) * down - 0.5,
            old.distortion,
        )
        return dataclasses.replace(self, camera=camera, shape=shape)


def read_poses(
    path: Path, images: Sequence[str] = (), camera: Camera | None = None
) -> list[PosedCamera]:
    """The posed cameras of a file or folder, whose format follows from its name and content.

    `images` are the images' names in order, which trajectories refer to by time or by number;
    `camera` is that of all images, for files without intrinsics.
    """
    if path.is_dir():
        colmap = any((path / f"cameras.{kind}").is_file() for kind in ("bin", "txt"))
        found = read_colmap(path) if colmap else read_arkit(path)
    elif path.suffix.lower() == ".json":
        found = read_transforms(path)
    else:
        found = read_trajectory(path, images, camera)
    if not found:
        raise InputError(f"{path}: has no pose of an image")
    return found


def read_colmap(path: Path) -> list[PosedCamera]:
    """The registered images of a COLMAP model, text or binary, rigs included."""
    from scalefield.geometry.colmap import read_model

    model = read_model(path)
    found = []
    for image in sorted(model.images.values(), key=lambda image: image.name):
        if not image.has_pose:
            continue
        own = image.camera
        lens: tuple[float, ...]
        match own.model_name:
            case "PINHOLE" | "SIMPLE_PINHOLE":
                lens = ()
            case "SIMPLE_RADIAL" | "RADIAL":
                lens = (*own.params[3:5], 0.0, 0.0, 0.0)[:4] if len(own.params) > 4 else (
                    own.params[3], 0.0, 0.0, 0.0
                )  # fmt: skip
            case "OPENCV":
                lens = tuple(own.params[4:8])
            case other:
                raise InputError(
                    f"{path}: {other} cameras cannot be used; `scalefield colmap --undistort` "
                    "makes pinhole images and their model"
                )
        camera = Camera(
            float(own.focal_length_x),
            float(own.focal_length_y),
            float(own.principal_point_x) - 0.5,  # COLMAP's pixel centres are at halves
            float(own.principal_point_y) - 0.5,
            tuple(map(float, lens)),
        )
        pose = np.linalg.inv(np.vstack([image.cam_from_world().matrix(), [0, 0, 0, 1]]))
        found.append(PosedCamera(image.name, camera, pose, (own.height, own.width)))
    return found


def read_transforms(path: Path) -> list[PosedCamera]:
    """The frames of a transforms.json, whose names are their paths below its folder or below the
    folder of the images."""
    content = read_json(path)
    frames = content.get("frames") if isinstance(content, dict) else None
    if not isinstance(frames, list):
        raise InputError(f"{path}: not a transforms.json: it has no list of frames")

    def posed(frame: Any) -> PosedCamera:
        values = {**content, **frame}
        if values.get("camera_model") in ("OPENCV_FISHEYE", "EQUIRECTANGULAR"):
            raise InputError(f"{path}: {values['camera_model']} cameras cannot be used")
        if "fl_x" not in values and "camera_angle_x" in values:
            values["fl_x"] = values["w"] / 2 / math.tan(values["camera_angle_x"] / 2)
        lens = tuple(float(values.get(name, 0.0)) for name in ("k1", "k2", "p1", "p2"))
        shape = (int(values["h"]), int(values["w"])) if "h" in values else None
        height, width = shape or (0, 0)
        camera = Camera(
            float(values["fl_x"]),
            float(values.get("fl_y", values["fl_x"])),
            float(values.get("cx", width / 2)) - 0.5,
            float(values.get("cy", height / 2)) - 0.5,
            lens if any(lens) else (),
        )
        pose = np.array(values["transform_matrix"], np.float64) @ OPENGL
        return PosedCamera(PurePosixPath(values["file_path"]).as_posix(), camera, pose, shape)

    return _each(path, posed, frames)


def read_arkit(path: Path) -> list[PosedCamera]:
    """The poses that 3D Scanner App (frame_*.json: cameraPoseARFrame, intrinsics) or Polycam
    (cameras/*.json: t_00 … t_23, fx, fy, cx, cy) exported; ARKit's axes are those of OpenGL."""

    def posed(file: Path) -> PosedCamera:
        values = read_json(file)
        if "cameraPoseARFrame" in values:
            pose = np.array(values["cameraPoseARFrame"], np.float64).reshape(4, 4)
            K = np.array(values["intrinsics"], np.float64).reshape(3, 3)
            camera, shape = Camera(K[0, 0], K[1, 1], K[0, 2], K[1, 2]), None
        else:
            pose = np.eye(4)
            pose[:3] = [[values[f"t_{row}{column}"] for column in range(4)] for row in range(3)]
            fx, fy, cx, cy = (float(values[name]) for name in ("fx", "fy", "cx", "cy"))
            camera = Camera(fx, fy, cx, cy)
            shape = int(values["height"]), int(values["width"])
        return PosedCamera(file.stem, camera, pose @ OPENGL, shape)

    files = sorted(path.glob("*.json"))
    if not files:
        raise InputError(
            f"{path}: neither a COLMAP model (cameras.bin or .txt) nor a folder of JSON files with "
            "ARKit poses"
        )
    whole = [file for file in files if file.stem not in ("info", "mesh_info")]
    return _each(path, posed, whole)


def read_trajectory(path: Path, images: Sequence[str], camera: Camera | None) -> list[PosedCamera]:
    """The poses of a text file: TUM's (time tx ty tz qx qy qz qw), each for the image whose name is
    nearest in time, or KITTI's (twelve numbers of a 3×4 matrix), one for each image in order."""
    lines = [line.split() for line in read_text(path).splitlines()]
    rows = [line for line in lines if line and not line[0].startswith("#")]
    widths = {len(row) for row in rows}
    if widths not in ({8}, {12}):
        raise InputError(
            f"{path}: wanted a trajectory with 8 numbers in a line (TUM) or 12 (KITTI), found "
            f"{', '.join(map(str, sorted(widths))) or 'no line'}"
        )
    if camera is None:
        raise InputError(f"{path}: a trajectory has no camera; give its intrinsics")
    try:
        table = np.array(rows, np.float64)
    except ValueError as e:
        raise InputError(f"{path}: not numbers ({one_line(e)})") from None
    if table.shape[1] == 12:
        if len(table) != len(images):
            raise InputError(f"{path}: has {len(table)} poses and there are {len(images)} images")
        matrices = np.tile(np.eye(4), (len(table), 1, 1))
        matrices[:, :3] = table.reshape(-1, 3, 4)
        pairs = zip(images, matrices, strict=True)
        return [PosedCamera(name, camera, pose) for name, pose in pairs]
    found = []
    for name in images:
        try:
            time = float(PurePosixPath(name).name)
        except ValueError:
            raise InputError(
                f"{name}: TUM trajectories need images whose names are their times"
            ) from None
        nearest = int(np.abs(table[:, 0] - time).argmin())
        if abs(table[nearest, 0] - time) <= MOST_APART_S:
            found.append(PosedCamera(name, camera, _from_quaternion(table[nearest, 1:])))
    return found


def _from_quaternion(values: Float64[np.ndarray, " 7"]) -> Float64[np.ndarray, "4 4"]:
    """The pose of tx, ty, tz, qx, qy, qz, qw."""
    x, y, z, w = values[3:] / np.linalg.norm(values[3:])
    pose = np.eye(4)
    pose[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    pose[:3, 3] = values[:3]
    return pose


def _each(
    path: Path, read: Callable[[Any], PosedCamera], entries: Sequence[Any]
) -> list[PosedCamera]:
    """What a reader makes of entries; damaged ones become one sentence."""
    found = []
    for i, entry in enumerate(entries):
        try:
            found.append(read(entry))
        except InputError:
            raise
        except (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError) as e:
            what = entry.name if isinstance(entry, Path) else f"frame {i}"
            raise InputError(
                f"{path}: {what} has no readable camera and pose ({one_line(repr(e))})"
            ) from None
    return found
