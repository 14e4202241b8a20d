"""The part of the ROS 2 node that needs no ROS, on objects with the attributes of messages."""

import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

from program_modules import load_example
from scalefield import InputError, MDEOutput

ros = load_example("ros2/conversions.py")


def image_message(pixels: np.ndarray, encoding: str, padding: int = 0) -> SimpleNamespace:
    rows = pixels.reshape(pixels.shape[0], -1).view(np.uint8)
    rows = np.pad(rows, ((0, 0), (0, padding)))
    return SimpleNamespace(
        height=pixels.shape[0],
        width=pixels.shape[1],
        encoding=encoding,
        is_bigendian=int(pixels.dtype.byteorder == ">"),
        step=rows.shape[1],
        data=rows.tobytes(),
    )


def cloud_message(points: np.ndarray, kind: str = "<f4", row_padding: int = 3) -> SimpleNamespace:
    """x, y, z with an intensity before them, two rows of points, padded rows."""
    record = np.dtype([("intensity", "u1"), ("pad", "V3"), *((axis, kind) for axis in "xyz")])
    packed = np.zeros(len(points), record)
    for i, axis in enumerate("xyz"):
        packed[axis] = points[:, i]
    rows = packed.view(np.uint8).reshape(2, -1)
    rows = np.pad(rows, ((0, 0), (0, row_padding)))
    code = {"f4": 7, "f8": 8}[kind[1:]]
    return SimpleNamespace(
        height=2,
        width=len(points) // 2,
        fields=[
            SimpleNamespace(name="intensity", offset=0, datatype=2),
            *(
                SimpleNamespace(name=axis, offset=record.fields[axis][1], datatype=code)
                for axis in "xyz"
            ),
        ],
        is_bigendian=kind[0] == ">",
        point_step=record.itemsize,
        row_step=rows.shape[1],
        data=rows.tobytes(),
    )


@pytest.mark.parametrize("padding", [0, 5])
def test_image_array_of_every_encoding_is_rgb(padding):
    rgb = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    alpha = np.full((4, 6, 1), 9, np.uint8)
    for encoding, pixels in {
        "rgb8": rgb,
        "bgr8": np.ascontiguousarray(rgb[..., ::-1]),
        "rgba8": np.concatenate([rgb, alpha], axis=2),
        "bgra8": np.concatenate([rgb[..., ::-1], alpha], axis=2),
    }.items():
        found = ros.image_array(image_message(pixels, encoding, padding))
        np.testing.assert_array_equal(found, rgb)
    grey = ros.image_array(image_message(rgb[..., :1].copy(), "mono8", padding))
    np.testing.assert_array_equal(grey, np.repeat(rgb[..., :1], 3, axis=2))
    with pytest.raises(InputError, match="encoding yuv422; wanted is one of rgb8"):
        ros.image_array(image_message(rgb, "yuv422"))
    short = image_message(rgb, "rgb8")
    short.data = short.data[:-1]
    with pytest.raises(InputError, match="6×4 pixels in 71 bytes"):
        ros.image_array(short)


@pytest.mark.parametrize("order", ["<", ">"])
def test_depth_array_is_metres_with_nan_where_unknown(order):
    metres = np.array([[0.0, 1.5], [np.nan, 2.25]])
    floats = ros.depth_array(image_message(metres.astype(order + "f4"), "32FC1", padding=4))
    np.testing.assert_array_equal(floats, [[np.nan, 1.5], [np.nan, 2.25]])
    millimetres = (np.nan_to_num(metres) * 1000).astype(order + "u2")
    found = ros.depth_array(image_message(millimetres, "16UC1"))
    np.testing.assert_allclose(found, floats)
    with pytest.raises(InputError, match="wanted is 32FC1 or 16UC1"):
        ros.depth_array(image_message(millimetres, "8UC1"))


@pytest.mark.parametrize("kind", ["<f4", "<f8", ">f4"])
def test_points_array_reads_fields_at_their_offsets(kind):
    points = np.arange(18, dtype=np.float64).reshape(6, 3)
    points[4, 1] = np.nan
    found = ros.points_array(cloud_message(points, kind))
    np.testing.assert_array_equal(found, np.delete(points, 4, axis=0))
    message = cloud_message(points, kind)
    message.fields = message.fields[:2]
    with pytest.raises(InputError, match="x, y and z as float32 or float64"):
        ros.points_array(message)


def test_camera_of_camera_info_and_rigid_of_transform():
    k = [500.0, 0, 320, 0, 510, 240, 0, 0, 1]
    info = SimpleNamespace(k=k, d=[0.1, 0.2, 0, 0, 0], distortion_model="plumb_bob")
    assert ros.camera_of(info).distortion == (0.1, 0.2, 0, 0, 0)
    rectified = SimpleNamespace(k=k, d=[0.0] * 8, distortion_model="rational_polynomial")
    assert ros.camera_of(rectified).intrinsics == (500, 510, 320, 240)
    rectified.d = [0.1] * 8
    with pytest.raises(InputError, match="lens of model rational_polynomial"):
        ros.camera_of(rectified)
    half = np.sqrt(0.5)
    quarter = SimpleNamespace(
        rotation=SimpleNamespace(x=0, y=0, z=half, w=half),
        translation=SimpleNamespace(x=1, y=2, z=3),
    )
    np.testing.assert_allclose(ros.rigid(quarter) @ [1, 0, 0, 1], [1, 3, 3, 1], atol=1e-12)


def test_frame_recovery_from_points_and_depth_and_image_fields():
    """A plane at 4 m whose relative depth is constant comes back from eight points on it."""
    shape = (48, 64)
    flat = MDEOutput(torch.ones(shape), "depth", model="flat")
    image = np.zeros((*shape, 3), np.uint8)
    camera = ros.Camera(60.0, 60.0, 31.5, 23.5)
    x, y = np.meshgrid([-1.5, -0.5, 0.5, 1.5], [-1.0, 1.0])
    in_camera = np.stack([x.ravel(), y.ravel(), np.full(8, 4.0)], axis=1)
    pose = np.eye(4)
    pose[:3, :3] = [[0, -1, 0], [0, 0, -1], [1, 0, 0]]  # x forward, as a LiDAR has it
    in_lidar = in_camera @ pose[:3, :3]
    recovery = ros.FrameRecovery(lambda image: flat)
    depth_m, std_m = recovery.from_points(image, in_lidar, camera, pose)
    np.testing.assert_allclose(depth_m, 4, rtol=0.02)
    assert depth_m.dtype == std_m.dtype == np.float32
    assert np.all((std_m > 0) & (std_m < 4))
    sparse = np.full(shape, np.nan)
    sparse[10, 10] = sparse[40, 50] = 4.0
    again, _ = recovery.from_depth(image, sparse)
    np.testing.assert_allclose(again, 4, rtol=0.05)
    with pytest.raises(InputError, match="depth image is 10×10 and the photograph 64×48"):
        recovery.from_depth(image, np.ones((10, 10)))
    fields = SimpleNamespace(**ros.image_fields(depth_m))
    assert fields.encoding == "32FC1"
    np.testing.assert_array_equal(ros.depth_array(fields).astype(np.float32), depth_m)


class FakeNode:
    """rclpy's Node as far as the example uses it; keeps what is published and logged."""

    parameters: ClassVar[dict] = {}

    def __init__(self, name: str) -> None:
        self.published: dict[str, list] = {}
        self.logged: list[str] = []

    def declare_parameter(self, name: str, default: object) -> SimpleNamespace:
        return SimpleNamespace(value=self.parameters.get(name, default))

    def create_publisher(self, kind: object, topic: str, depth: int) -> SimpleNamespace:
        return SimpleNamespace(publish=self.published.setdefault(topic, []).append)

    def create_subscription(self, kind: object, topic: str, callback: object, qos: object) -> None:
        assert topic == "camera_info"

    def get_logger(self) -> SimpleNamespace:
        return SimpleNamespace(warning=lambda text, throttle_duration_sec: self.logged.append(text))


class FakeBuffer:
    """tf2's buffer, which knows one pose."""

    def lookup_transform(self, target: str, source: str, stamp: object) -> SimpleNamespace:
        if source != "lidar":
            raise LookupError(f"no transform from {source} to {target}")
        still = SimpleNamespace(x=0, y=0, z=0)
        turn = SimpleNamespace(x=0, y=0, z=0, w=1)
        return SimpleNamespace(transform=SimpleNamespace(rotation=turn, translation=still))


@pytest.fixture
def node_module(monkeypatch):
    """examples/ros2/depth_node.py with stand-ins for ROS and for the estimator."""
    synchronizer = SimpleNamespace(registerCallback=lambda callback: None)
    modules = {
        "rclpy": {},
        "rclpy.node": {"Node": FakeNode},
        "rclpy.qos": {"qos_profile_sensor_data": "sensor data"},
        "message_filters": {
            "Subscriber": lambda node, kind, topic, qos_profile: topic,
            "ApproximateTimeSynchronizer": lambda topics, queue_size, slop: synchronizer,
        },
        "tf2_ros": {
            "Buffer": FakeBuffer,
            "TransformListener": lambda buffer, node: None,
            "TransformException": LookupError,
        },
        "sensor_msgs": {},
        "sensor_msgs.msg": dict.fromkeys(("CameraInfo", "Image", "PointCloud2"), SimpleNamespace),
        "conversions": vars(ros),
    }
    for name, members in modules.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    flat = MDEOutput(torch.ones(48, 64), "depth", model="flat")
    monkeypatch.setattr("scalefield.mde.load_mde", lambda name, device: lambda image: flat)
    return load_example("ros2/depth_node.py")


def test_ros2_depth_node_publishes_depth_and_uncertainty_with_the_header_of_the_image(
    node_module, monkeypatch
):
    header = SimpleNamespace(frame_id="camera", stamp=0)
    image = image_message(np.zeros((48, 64, 3), np.uint8), "rgb8")
    image.header = header
    x, y = np.meshgrid([-1.5, -0.5, 0.5, 1.5], [-1.0, 1.0])
    cloud = cloud_message(np.stack([x.ravel(), y.ravel(), np.full(8, 4.0)], axis=1))
    cloud.header = SimpleNamespace(frame_id="lidar", stamp=0)
    node = node_module.DepthNode()
    node.on_points(image, cloud)
    assert node.logged == ["no camera_info yet"]
    k = [60.0, 0, 31.5, 0, 60, 23.5, 0, 0, 1]
    node.on_camera(SimpleNamespace(k=k, d=[], distortion_model=""))
    node.on_points(image, cloud)
    (depth,), (uncertainty,) = node.published["depth"], node.published["uncertainty"]
    assert depth.header is uncertainty.header is header
    np.testing.assert_allclose(ros.depth_array(depth), 4, rtol=0.02)
    assert np.all(ros.depth_array(uncertainty) < 4)
    cloud.header.frame_id = "elsewhere"
    node.on_points(image, cloud)
    assert node.logged[-1] == "no transform from elsewhere to camera"
    monkeypatch.setattr(FakeNode, "parameters", {"source": "depth"})
    node = node_module.DepthNode()
    sparse = np.zeros((48, 64), np.uint16)
    sparse[10, 10] = sparse[40, 50] = 4000
    node.on_depth(image, image_message(sparse, "16UC1"))
    np.testing.assert_allclose(ros.depth_array(node.published["depth"][0]), 4, rtol=0.05)
    node.on_depth(image, image_message(sparse, "8UC1"))
    assert "encoding 8UC1" in node.logged[-1]
