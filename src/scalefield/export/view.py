"""The contents of exported files: depth with its photograph and, if known, the camera."""

from __future__ import annotations

import io
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

from scalefield.anchors import Anchors
from scalefield.errors import InputError, import_extra
from scalefield.export.cloud import PointCloud
from scalefield.geometry.camera import Camera, normals
from scalefield.io import write_atomic, write_image, write_map
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
        """Write the normals as a picture, and the exact values beside it as .npy.

        Red, green and blue are right, up and towards the viewer, −1 … 1 as 0 … 255; black is
        unknown. The .npy keeps the camera's frame: x right, y down, z forward.
        """
        values = normals(self.depth_m, self.required_camera)
        pixels = np.round(255 * (values * [1, -1, -1] + 1) / 2)
        pixels = np.where(np.isnan(values), 0, pixels).astype(np.uint8)
        exact = io.BytesIO()
        np.save(exact, values.astype(np.float32), allow_pickle=False)
        write_atomic(path.with_suffix(".npy"), exact.getvalue())
        write_image(path, Image.fromarray(pixels))

    def write_recording(self, path: Path) -> None:
        """Write an .rrd file for the rerun viewer: camera/image, camera/depth and anchors.

        The viewer supports pinholes only: its picture of the depth ignores lens distortion.
        """
        rerun = import_extra("rerun", "rerun", "writing a rerun recording", package="rerun-sdk")
        camera, anchors = self.required_camera, self.anchors
        height, width = self.depth_m.shape
        rays = camera.rays(anchors.u, anchors.v)
        points_m = np.c_[rays, np.ones(len(anchors))] * anchors.depth_m[:, None]
        with tempfile.TemporaryDirectory() as folder:  # rerun writes to named files only
            recording = rerun.RecordingStream("scalefield")
            recording.save(f"{folder}/recording.rrd")
            recording.log("/", rerun.ViewCoordinates.RDF, static=True)
            pinhole = rerun.Pinhole(
                resolution=[width, height],
                focal_length=[camera.fx, camera.fy],
                # rerun's pixels have their corners at integers
                principal_point=[camera.cx + 0.5, camera.cy + 0.5],
            )
            recording.log("camera", pinhole, static=True)
            recording.log("camera/image", rerun.Image(self.image), static=True)
            depth_or_zero = np.nan_to_num(self.depth_m).astype(np.float32)  # zero is unknown
            recording.log("camera/depth", rerun.DepthImage(depth_or_zero, meter=1.0), static=True)
            recording.log("anchors", rerun.Points3D(points_m), static=True)
            recording.flush()
            recording.disconnect()
            write_atomic(path, Path(folder, "recording.rrd").read_bytes())
