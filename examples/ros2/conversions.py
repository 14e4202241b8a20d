"""ROS 2 messages to arrays and back, and the recovery of one frame. Needs no ROS.

Messages are read by their attributes, so that objects of sensor_msgs and plain test objects work
in the same way. `depth_node.py` connects these functions to topics.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scalefield import Anchors, Camera, InputError, Stream
from scalefield.geometry.point_clouds import anchors_from_points
from scalefield.mde import MDE

CHANNELS = {"rgb8": 3, "bgr8": 3, "rgba8": 4, "bgra8": 4, "mono8": 1}
"""Encodings of sensor_msgs/Image that are accepted as photographs."""
DEPTH_TYPES = {"32FC1": ("f4", 1.0), "16UC1": ("u2", 1e-3)}
"""Encodings of depth images (REP 118) with the metres of one unit."""
POINT_TYPES = {7: "f4", 8: "f8"}
"""FLOAT32 and FLOAT64 of sensor_msgs/PointField."""


def image_array(message: Any) -> np.ndarray:
    """A sensor_msgs/Image as uint8 RGB of shape (h, w, 3)."""
    if message.encoding not in CHANNELS:
        raise InputError(
            f"an image of encoding {message.encoding}; wanted is one of {', '.join(CHANNELS)}"
        )
    channels = CHANNELS[message.encoding]
    pixels = _rows(message, np.dtype("u1"), channels).reshape(
        message.height, message.width, channels
    )
    if channels == 1:
        return np.repeat(pixels, 3, axis=2)
    pixels = pixels[..., :3]
    return np.ascontiguousarray(pixels[..., ::-1] if message.encoding[0] == "b" else pixels)


def depth_array(message: Any) -> np.ndarray:
    """A depth image, 32FC1 in metres or 16UC1 in millimetres, as metres; NaN where unknown."""
    if message.encoding not in DEPTH_TYPES:
        raise InputError(f"a depth image of encoding {message.encoding}; wanted is 32FC1 or 16UC1")
    kind, unit_m = DEPTH_TYPES[message.encoding]
    order = ">" if message.is_bigendian else "<"
    depth_m = _rows(message, np.dtype(order + kind), 1).astype(np.float64) * unit_m
    return np.where(np.isfinite(depth_m) & (depth_m > 0), depth_m, np.nan)


def points_array(message: Any) -> np.ndarray:
    """x, y, z of the finite points of a sensor_msgs/PointCloud2, of shape (n, 3)."""
    fields = {each.name: each for each in message.fields}
    order = ">" if message.is_bigendian else "<"
    try:
        formats = [order + POINT_TYPES[fields[axis].datatype] for axis in "xyz"]
    except KeyError:
        raise InputError("a point cloud needs x, y and z as float32 or float64") from None
    record = np.dtype(
        {
            "names": list("xyz"),
            "formats": formats,
            "offsets": [fields[axis].offset for axis in "xyz"],
            "itemsize": message.point_step,
        }
    )
    data = np.frombuffer(bytes(message.data), np.uint8)
    rows = data[: message.height * message.row_step].reshape(message.height, message.row_step)
    packed = np.ascontiguousarray(rows[:, : message.width * message.point_step])
    points = packed.reshape(-1).view(record)
    xyz = np.stack([points[axis].astype(np.float64) for axis in "xyz"], axis=1)
    return xyz[np.isfinite(xyz).all(axis=1)]


def camera_of(message: Any) -> Camera:
    """The camera of a sensor_msgs/CameraInfo with the distortion model plumb_bob, or none."""
    if message.distortion_model not in ("", "plumb_bob") and any(message.d):
        raise InputError(
            f"a lens of model {message.distortion_model}; wanted is plumb_bob or a rectified image"
        )
    fx, _, cx, _, fy, cy = (float(value) for value in list(message.k)[:6])
    distortion = tuple(float(value) for value in message.d)
    return Camera(fx, fy, cx, cy, distortion if any(distortion) else ())


def rigid(transform: Any) -> np.ndarray:
    """The 4×4 matrix of a geometry_msgs/Transform."""
    q, t = transform.rotation, transform.translation
    x, y, z, w = np.array([q.x, q.y, q.z, q.w]) / np.linalg.norm([q.x, q.y, q.z, q.w])
    matrix = np.eye(4)
    matrix[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    matrix[:3, 3] = t.x, t.y, t.z
    return matrix


def image_fields(values: np.ndarray) -> dict[str, Any]:
    """The fields of a sensor_msgs/Image of encoding 32FC1, without its header."""
    height, width = values.shape
    data = np.ascontiguousarray(values, np.float32)
    return {
        "height": height,
        "width": width,
        "encoding": "32FC1",
        "is_bigendian": int(sys.byteorder == "big"),
        "step": 4 * width,
        "data": data.tobytes(),
    }


@dataclass
class FrameRecovery:
    """Depth and its standard deviation in metres for the successive frames of one camera."""

    mde: MDE
    stream: Stream = field(default_factory=Stream)
    """Keeps the scale from frame to frame, so that a frame may come without measurements."""

    def from_points(
        self,
        image: np.ndarray,
        points_m: np.ndarray,
        camera: Camera,
        camera_from_points: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The frame's depth and its standard deviation, from points in their sensor's frame."""
        shape = image.shape[0], image.shape[1]
        anchors = anchors_from_points(
            points_m, camera, shape, camera_from_points=camera_from_points
        )
        return self(image, anchors)

    def from_depth(self, image: np.ndarray, depth_m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The frame's depth and its standard deviation, from a sparse depth image in register."""
        if depth_m.shape != image.shape[:2]:
            found, wanted = (f"{s[1]}×{s[0]}" for s in (depth_m.shape, image.shape))
            raise InputError(f"the depth image is {found} and the photograph {wanted}")
        return self(image, Anchors.from_map(depth_m))

    def __call__(self, image: np.ndarray, anchors: Anchors) -> tuple[np.ndarray, np.ndarray]:
        """The frame's depth and its standard deviation, both float32 in metres."""
        recovery = self.stream(self.mde(image), anchors).numpy()
        assert recovery.std_log is not None  # `field` has one
        depth_m = recovery.depth_m.astype(np.float32)
        return depth_m, (depth_m * recovery.std_log).astype(np.float32)


def _rows(message: Any, kind: np.dtype, channels: int) -> np.ndarray:
    """The pixels of an image message without the padding of its rows."""
    used = message.width * channels * kind.itemsize
    data = np.frombuffer(bytes(message.data), np.uint8)
    if message.step < used or len(data) < message.height * message.step:
        raise InputError(
            f"an image of {message.width}×{message.height} pixels in {len(data)} bytes, "
            f"{message.step} a row; wanted are {used} a row or more"
        )
    rows = data[: message.height * message.step].reshape(message.height, message.step)
    packed = np.ascontiguousarray(rows[:, :used])
    return packed.view(kind).reshape(message.height, message.width * channels)
