"""ROS 2 messages as arrays, and the frames of a rosbag2. Needs no ROS.

Messages are read by their attributes, so that objects of sensor_msgs, of the package `rosbags` and
of tests work in the same way. The node in examples/ros2 connects these functions to topics.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, UInt8

from scalefield.anchors import Anchors
from scalefield.errors import InputError, import_extra, one_line
from scalefield.geometry.camera import Camera
from scalefield.geometry.point_clouds import anchors_from_points

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


def camera_of(message: Any, *, raw: bool = False) -> Camera:
    """The camera of a sensor_msgs/CameraInfo for the images of its topic.

    Rectified images have the projection P and no distortion. `raw` ones have K and D, of the
    distortion model plumb_bob or none. See `rectified_from_camera` for the frame of the points.
    """
    if not raw:
        fx, _, cx, _, _, fy, cy, *_ = (float(value) for value in message.p)
        if fx <= 0:
            raise InputError("camera_info has no projection P of rectified images; are they raw?")
        return Camera(fx, fy, cx, cy)
    if message.distortion_model not in ("", "plumb_bob") and any(message.d):
        raise InputError(
            f"a lens of model {message.distortion_model}; wanted is plumb_bob or a rectified image"
        )
    fx, _, cx, _, fy, cy = (float(value) for value in list(message.k)[:6])
    distortion = tuple(float(value) for value in message.d)
    return Camera(fx, fy, cx, cy, distortion if any(distortion) else ())


def rectified_from_camera(message: Any) -> np.ndarray:
    """The 4×4 matrix from the camera's frame to that of its rectified images: R, and for the right
    camera of a stereo pair the baseline in P."""
    matrix = np.eye(4)
    rotation = np.array(message.r, dtype=np.float64).reshape(3, 3)
    matrix[:3, :3] = rotation if rotation.any() else np.eye(3)  # zeros: not calibrated
    matrix[0, 3] = float(message.p[3]) / float(message.p[0])
    return matrix


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


IMAGE, CAMERA, CLOUD, TRANSFORMS = (
    "sensor_msgs/msg/Image",
    "sensor_msgs/msg/CameraInfo",
    "sensor_msgs/msg/PointCloud2",
    "tf2_msgs/msg/TFMessage",
)


def is_bag(path: Path) -> bool:
    """Whether a path is a rosbag2: a folder with metadata.yaml."""
    return (path / "metadata.yaml").is_file()


@dataclass(frozen=True, eq=False)
class BagFrame:
    """An image of a bag with the anchors that its LiDAR measured at about the same time."""

    image: UInt8[np.ndarray, "h w 3"]
    anchors: Anchors
    stamp_ns: int


def read_bag(
    path: Path,
    *,
    image_topic: str = "",
    points_topic: str = "",
    raw: bool = False,
    slop_s: float = 0.05,
) -> Iterator[BagFrame]:
    """Every image of a rosbag2 with the nearest point cloud in time, at most `slop_s` away.

    The camera is that of the camera_info beside the image topic, and the pose of the LiDAR that of
    /tf_static. A topic need not be named if it is the only one of its type.
    """
    highlevel = import_extra("rosbags.highlevel", "ros", "reading a rosbag", package="rosbags")
    stores = import_extra("rosbags.typesys", "ros", "reading a rosbag", package="rosbags")
    with ExitStack() as stack:
        try:
            types = stores.get_typestore(stores.Stores.ROS2_HUMBLE)
            reader = stack.enter_context(highlevel.AnyReader([path], default_typestore=types))
        except (OSError, ValueError, KeyError, highlevel.AnyReaderError) as e:
            raise InputError(f"{path}: not a readable rosbag2 ({one_line(e)})") from None

        def messages(*topics: str) -> Iterator[tuple[str, Any]]:
            chosen = [each for each in reader.connections if each.topic in topics]
            for connection, _, data in reader.messages(chosen):
                yield connection.topic, reader.deserialize(data, connection.msgtype)

        def topic_of(kind: str, given: str, flag: str) -> str:
            found = sorted({each.topic for each in reader.connections if each.msgtype == kind})
            if given in found or (not given and len(found) == 1):
                return given or found[0]
            listed = one_line(", ".join(found)) or "no topic"
            raise InputError(f"{path}: {listed} of type {kind}; choose one with {flag}")

        image_topic = topic_of(IMAGE, image_topic, "--image-topic")
        points_topic = topic_of(CLOUD, points_topic, "--points-topic")
        beside = image_topic.rpartition("/")[0] + "/camera_info"
        recorded = any(each.topic == beside for each in reader.connections)
        info_topic = topic_of(CAMERA, beside if recorded else "", f"--image-topic, beside {beside}")
        info = next((message for _, message in messages(info_topic)), None)
        if info is None:
            raise InputError(f"{path}: {info_topic} has no message")
        static = [t for _, message in messages("/tf_static") for t in message.transforms]
        camera = camera_of(info, raw=raw)
        into = np.eye(4) if raw else rectified_from_camera(info)
        waiting: list[Any] = []
        clouds: list[Any] = []
        slop_ns, newest = round(slop_s * 1e9), {image_topic: 0, points_topic: 0}

        def finished(image: Any) -> BagFrame | None:
            near = min(clouds, key=lambda c: abs(_stamp_ns(c) - _stamp_ns(image)), default=None)
            if near is None or abs(_stamp_ns(near) - _stamp_ns(image)) > slop_ns:
                return None
            pixels = image_array(image)
            motion = into @ static_transform(static, image.header.frame_id, near.header.frame_id)
            anchors = anchors_from_points(
                points_array(near), camera, pixels.shape[:2], camera_from_points=motion
            )
            return BagFrame(pixels, anchors, _stamp_ns(image))

        for topic, message in messages(image_topic, points_topic):
            (waiting if topic == image_topic else clouds).append(message)
            newest[topic] = _stamp_ns(message)
            # An image is complete once no later cloud can be nearer.
            while waiting and newest[points_topic] >= _stamp_ns(waiting[0]) + slop_ns:
                if (frame := finished(waiting.pop(0))) is not None:
                    yield frame
            oldest = _stamp_ns(waiting[0]) if waiting else newest[image_topic]
            clouds = [cloud for cloud in clouds if _stamp_ns(cloud) >= oldest - slop_ns]
        for image in waiting:
            if (frame := finished(image)) is not None:
                yield frame


def static_transform(transforms: list[Any], target: str, source: str) -> Float64[np.ndarray, "4 4"]:
    """The matrix from one frame to another, through the frames of geometry_msgs/TransformStamped
    that connect them."""
    edges: dict[str, list[tuple[str, np.ndarray]]] = {}
    for each in transforms:
        parent, child = (name.strip("/") for name in (each.header.frame_id, each.child_frame_id))
        parent_from_child = rigid(each.transform)
        edges.setdefault(child, []).append((parent, parent_from_child))
        edges.setdefault(parent, []).append((child, np.linalg.inv(parent_from_child)))
    reached = {source.strip("/"): np.eye(4)}
    frames = [source.strip("/")]
    for frame in frames:
        for other, other_from_frame in edges.get(frame, []):
            if other not in reached:
                reached[other] = other_from_frame @ reached[frame]
                frames.append(other)
    if target.strip("/") not in reached:
        raise InputError(f"/tf_static does not connect {source} with {target}")
    return reached[target.strip("/")]


def _stamp_ns(message: Any) -> int:
    stamp = message.header.stamp
    return int(stamp.sec) * 10**9 + int(stamp.nanosec)
