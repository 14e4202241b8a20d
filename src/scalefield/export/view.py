"""The contents of exported files: depth with its photograph and, if known, the camera."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from scalefield.anchors import Anchors
from scalefield.errors import InputError
from scalefield.export.cloud import PointCloud
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
    """The contents of exported files, and the writers of the formats."""

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

    def write_depth(self, path: Path) -> None:
        """Write the depth as float32 EXR or PFM."""
        write_map(path, self.depth_m)

    def write_normals(self, path: Path) -> None:
        """Write the normals as a picture, and their values beside it as .npy."""
        write_normals(path, normals(self.depth_m, self.required_camera))

    def write_recording(self, path: Path) -> None:
        """Write a recording for the rerun viewer."""
        write_recording(path, self.depth_m, self.image, self.anchors, self.required_camera)
