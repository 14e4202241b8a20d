"""A recovery in the files that other tools open, by name of the format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from scalefield.anchors import Anchors
from scalefield.errors import InputError, require_package
from scalefield.export.cloud import PointCloud, write_glb, write_ply
from scalefield.export.normals import write_normals
from scalefield.export.rerun import write_recording
from scalefield.geometry.camera import Camera, normals
from scalefield.io import write_map
from scalefield.recovery import Recovery


def given_anchors(recovery: Recovery) -> Anchors:
    """The anchors that the user gave; none for the result of a method itself."""
    if recovery.anchors is not None:
        return recovery.anchors
    report = recovery.report
    if report.rejected:  # a method's own result: the numbers of the rejected anchors need them
        raise InputError("this recovery has no anchors; it must come from recover or recover_from")
    return Anchors([], [], [])


@dataclass(frozen=True, eq=False)
class View:
    """The contents of exported files: depth with its photograph and, if known, the camera."""

    depth_m: Float[np.ndarray, "h w"]
    image: UInt8[np.ndarray, "h w 3"]
    anchors: Anchors
    camera: Camera | None = None
    std_log: Float[np.ndarray, "h w"] | None = None
    """Standard deviation of log-depth, if the method has one."""
    max_points: int | None = None
    """Points of a cloud at most; by default all for PLY and `GLB_POINTS` for GLB."""

    @classmethod
    def of(
        cls,
        recovery: Recovery,
        camera: Camera | None = None,
        max_points: int | None = None,
    ) -> View:
        """The view of a recovery; grey without a photograph."""
        maps, anchors, image = recovery.numpy(), given_anchors(recovery), recovery.image
        if image is None:
            image = np.full((*maps.depth_m.shape, 3), 190, np.uint8)
        return cls(maps.depth_m, image, anchors, camera, maps.std_log, max_points)

    @property
    def required_camera(self) -> Camera:
        """The camera; InputError if it is not known."""
        if self.camera is None:
            raise InputError("points and normals need the camera: its intrinsics or field of view")
        return self.camera

    def cloud(self, most: int | None = None) -> PointCloud:
        """The pixels as coloured points, without those at depth edges; at most `most` unless
        `max_points` is set."""
        most = self.max_points or most
        return PointCloud.of(
            self.depth_m, self.required_camera, self.image, self.std_log, max_points=most
        )


GLB_POINTS = 500_000
"""Points of a GLB, 24 bytes each, unless a number is given: a file that a phone opens."""

Writer = Callable[[Path, View], None]

FORMATS: dict[str, tuple[tuple[str, ...], Writer]] = {
    "ply": (("cloud.ply",), lambda path, view: write_ply(path, view.cloud())),
    "glb": (("cloud.glb",), lambda path, view: write_glb(path, view.cloud(GLB_POINTS))),
    "exr": (("depth.exr",), lambda path, view: write_map(path, view.depth_m)),
    "pfm": (("depth.pfm",), lambda path, view: write_map(path, view.depth_m)),
    "normals": (
        ("normals.png", "normals.npy"),
        lambda path, view: write_normals(path, normals(view.depth_m, view.required_camera)),
    ),
    "rrd": (
        ("recording.rrd",),
        lambda path, view: write_recording(
            path, view.depth_m, view.image, view.anchors, view.required_camera
        ),
    ),
}
"""File names of each format, and the writer, which is given the path of the first."""

PACKAGES = {
    "exr": ("OpenEXR", "exr", "writing OpenEXR files"),
    "rrd": ("rerun", "rerun", "writing a rerun recording"),
}
"""Optional package, its extra and its purpose, of the formats that need one."""

NEED_CAMERA = ("ply", "glb", "normals", "rrd")
"""Formats that need the camera."""


def write_formats(folder: Path, formats: Sequence[str], view: View) -> list[str]:
    """Write the view in each of the formats; returns the files' names."""
    check_formats(formats)
    for name in formats:
        files, write = FORMATS[name]
        write(folder / files[0], view)
    return format_files(formats)


def format_files(formats: Sequence[str]) -> list[str]:
    """Names of the files that formats have."""
    return [file for name in formats for file in FORMATS[name][0]]


def check_formats(formats: Sequence[str]) -> None:
    """Refuse unknown formats, and those whose optional package is not installed."""
    for name in formats:
        if name not in FORMATS:
            raise InputError(f"no format {name!r}; there are {', '.join(FORMATS)}")
        if name in PACKAGES:
            package, extra, purpose = PACKAGES[name]
            require_package(package, extra, purpose)
