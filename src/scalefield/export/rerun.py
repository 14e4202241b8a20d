"""A recording for the rerun viewer: photograph, depth and anchors in the camera's frame."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from scalefield.anchors import Anchors
from scalefield.errors import import_extra
from scalefield.geometry.camera import Camera
from scalefield.io import write_atomic


def write_recording(
    path: str | Path,
    depth_m: Float[np.ndarray, "h w"],
    image: UInt8[np.ndarray, "h w 3"],
    anchors: Anchors,
    camera: Camera,
) -> None:
    """An `.rrd` file with the entities camera/image, camera/depth and anchors.

    The viewer supports pinholes only: its picture of the depth ignores lens distortion.
    """
    rerun = import_extra("rerun", "rerun", "writing a rerun recording", package="rerun-sdk")
    height, width = depth_m.shape
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
        recording.log("camera/image", rerun.Image(image), static=True)
        depth_or_zero = np.nan_to_num(depth_m).astype(np.float32)  # zero is unknown
        recording.log("camera/depth", rerun.DepthImage(depth_or_zero, meter=1.0), static=True)
        recording.log("anchors", rerun.Points3D(points_m), static=True)
        recording.flush()
        recording.disconnect()
        write_atomic(path, Path(folder, "recording.rrd").read_bytes())
