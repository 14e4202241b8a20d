"""transforms.json of nerfstudio with the depth of every image."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from scalefield.errors import InputError, one_line
from scalefield.export.splatting import SceneFolder
from scalefield.io import read_json
from scalefield.scene.view import View

DISTORTION: dict[str, tuple[str, ...]] = {
    "SIMPLE_PINHOLE": (),
    "PINHOLE": (),
    "SIMPLE_RADIAL": ("k1",),
    "RADIAL": ("k1", "k2"),
    "OPENCV": ("k1", "k2", "p1", "p2"),
    "OPENCV_FISHEYE": ("k1", "k2", "k3", "k4"),
}
"""COLMAP's camera models that nerfstudio has, with the names of their last parameters."""

UNIT_TOLERANCE = 0.01
"""Largest relative difference between the sizes of two models of the same unit."""


MADE_BY = "scalefield colmap"
"""Value of "made_by" in a transforms.json that `make_transforms` made."""


def is_ours(path: Path) -> bool:
    """Whether a transforms.json was made by `make_transforms`, or does not exist yet."""
    if not path.exists():
        return True
    content = read_json(path)
    return isinstance(content, dict) and content.get("made_by") == MADE_BY


def make_transforms(
    model: Any,
    image_files: Mapping[str, Path],
    depth_files: Mapping[str, Path],
    shapes: Mapping[str, tuple[int, int]],
    folder: Path,
) -> dict[str, Any]:
    """The transforms.json of a COLMAP model, for the file `folder`/transforms.json.

    The three mappings go from an image's name in the model to its file, its depth file and its
    height and width, which may be those of a smaller copy. Poses are in the world of the model,
    with the axes of OpenGL (x right, y up, z backwards).
    """
    frames, models = [], set()
    for image in sorted(model.images.values(), key=lambda image: image.name):
        if image.name not in image_files:
            continue
        camera = image.camera
        if camera.model_name not in DISTORTION:
            raise InputError(
                f"nerfstudio has no {camera.model_name} cameras; --undistort makes pinhole images"
            )
        models.add("OPENCV_FISHEYE" if camera.model_name == "OPENCV_FISHEYE" else "OPENCV")
        frame = {
            "file_path": _relative(image_files[image.name], folder),
            "depth_file_path": _relative(depth_files[image.name], folder),
            "transform_matrix": opengl_pose(image).tolist(),
            "colmap_im_id": image.image_id,
        }
        frames.append((frame, _intrinsics(camera, shapes[image.name])))
    if len(models) > 1:
        raise InputError("nerfstudio has one kind of lens in a scene; --undistort makes them equal")
    every = [intrinsics for _, intrinsics in frames]
    shared = every[0] if all(each == every[0] for each in every) else {}
    return {
        "made_by": MADE_BY,
        "camera_model": models.pop(),
        **shared,
        "frames": [frame if shared else {**frame, **own} for frame, own in frames],
    }


def scene_transforms(
    views: Mapping[str, View],
    shapes: Mapping[str, tuple[int, int]],
    files: SceneFolder,
    factor: float,
    cloud: Path | None,
) -> dict[str, Any]:
    """The transforms.json of posed views with their depth, for the folder of `files`; positions are
    multiplied by `factor`."""
    frames = []
    for name, view in views.items():
        camera, (height, width) = view.camera, shapes[name]
        pose = view.camera_to_world @ np.diag([1.0, -1.0, -1.0, 1.0])
        pose[:3, 3] *= factor
        lens = (*camera.distortion, 0.0, 0.0, 0.0, 0.0)[:4]
        frame = {
            "depth_file_path": _relative(files.file(name, ".npy"), files.out),
            "transform_matrix": pose.tolist(),
            "w": width,
            "h": height,
            "fl_x": camera.fx,
            "fl_y": camera.fy,
            "cx": camera.cx + 0.5,
            "cy": camera.cy + 0.5,
            **dict(zip(("k1", "k2", "p1", "p2"), map(float, lens), strict=True)),
        }
        if isinstance(view.image, Path):
            frame["file_path"] = _relative(view.image, files.out)
        frames.append(frame)
    found = {"made_by": "scalefield scene", "camera_model": "OPENCV", "frames": frames}
    return found if cloud is None else {**found, "ply_file_path": _relative(cloud, files.out)}


def add_depth(
    path: Path, model: Any, image_files: Mapping[str, Path], depth_files: Mapping[str, Path]
) -> dict[str, Any]:
    """The content of an existing transforms.json with `depth_file_path` in every frame.

    Its frames must be images of the model, and its poses must have the model's unit.
    """
    content = read_json(path)
    frames = content.get("frames") if isinstance(content, dict) else None
    if not isinstance(frames, list) or not all(
        isinstance(f, dict) and isinstance(f.get("file_path"), str) for f in frames
    ):
        raise InputError(f"{path}: not a transforms.json: frames with a file_path are wanted")
    names = {os.path.realpath(file): name for name, file in image_files.items()}
    matched = [names.get(_real(path.parent / frame["file_path"])) for frame in frames]
    missing = [f["file_path"] for f, name in zip(frames, matched, strict=True) if name is None]
    if missing:
        raise InputError(
            f"{path}: {len(missing)} of its {len(frames)} images are not in the model, the first "
            f"{one_line(missing[0])}; nerfstudio wants depth for every image or for none"
        )
    names_in_model = [name for name in matched if name is not None]
    _require_unit(path, content, model, names_in_model)
    described = [
        {**frame, "depth_file_path": _relative(depth_files[name], path.parent)}
        for frame, name in zip(frames, names_in_model, strict=True)
    ]
    result = {**content, "frames": described}
    try:
        json.dumps(result, allow_nan=False)
    except ValueError:
        raise InputError(f"{path}: has a number that is not finite") from None
    return result


def opengl_pose(image: Any) -> Float64[np.ndarray, "4 4"]:
    """A registered image's camera-to-world matrix with the axes of OpenGL."""
    pose = np.vstack([image.cam_from_world().matrix(), [0, 0, 0, 1]])
    return np.linalg.inv(pose) @ np.diag([1.0, -1.0, -1.0, 1.0])


def _require_unit(path: Path, content: dict[str, Any], model: Any, names: list[str]) -> None:
    """Compare the spread of the camera centres, which does not depend on the axes of the world."""
    try:
        matrices = [np.array(f["transform_matrix"], np.float64) for f in content["frames"]]
        theirs = np.stack([matrix[:3, 3] for matrix in matrices])
        applied = float(content.get("applied_scale", 1.0))
    except (KeyError, ValueError, TypeError, IndexError, OverflowError):
        raise InputError(f"{path}: a frame has no transform_matrix of 4×4 numbers") from None
    by_name = {image.name: image for image in model.images.values()}
    ours = np.stack([by_name[name].projection_center() for name in names])
    spread, wanted = (float(np.linalg.norm(c - c.mean(axis=0))) for c in (theirs, applied * ours))
    if len(names) > 1 and not abs(spread - wanted) <= UNIT_TOLERANCE * wanted:  # or NaN
        ratio = spread / wanted if wanted else math.inf
        raise InputError(
            f"{path}: its cameras are {ratio:.3g} times as far apart as the model's; it was made "
            "from another model"
        )


def _intrinsics(camera: Any, shape: tuple[int, int]) -> dict[str, float | int]:
    """Intrinsics in pixels of an image of this height and width."""
    height, width = shape
    across, down = width / camera.width, height / camera.height
    names = DISTORTION[camera.model_name]
    lens = dict.fromkeys(("k1", "k2", "p1", "p2"), 0.0)
    values = camera.params[len(camera.params) - len(names) :]
    lens |= {name: float(value) for name, value in zip(names, values, strict=True)}
    return {
        "w": width,
        "h": height,
        "fl_x": float(camera.focal_length_x) * across,
        "fl_y": float(camera.focal_length_y) * down,
        "cx": float(camera.principal_point_x) * across,
        "cy": float(camera.principal_point_y) * down,
        **lens,
    }


def _real(path: Path) -> str:
    """The path without links; empty if no file can have this name."""
    try:
        return os.path.realpath(path)
    except (ValueError, OSError):
        return ""


def _relative(path: Path, folder: Path) -> str:
    """The path from the folder if it is inside, the absolute path otherwise."""
    path, folder = path.resolve(), folder.resolve()
    return (path.relative_to(folder) if path.is_relative_to(folder) else path).as_posix()
