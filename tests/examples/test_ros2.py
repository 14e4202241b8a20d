"""ROS 2 messages, a rosbag2 and the node, on objects with the attributes of messages."""

import re
import sys
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import ClassVar
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from program_modules import EXAMPLES, load_example
from scalefield import Anchors, Camera, InputError, MDEOutput, cli
from scalefield.geometry import ros

PACKAGE = EXAMPLES / "ros2" / "scalefield_ros"
recovery_module = load_example("ros2/scalefield_ros/scalefield_ros/recovery.py")


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


def camera_info(**changes: object) -> SimpleNamespace:
    """A usual calibration of a monocular camera, whose P differs from K."""
    k = [430.0, 0, 320, 0, 431, 240, 0, 0, 1]
    p = [352.0, 0, 318, 0, 0, 395, 236, 0, 0, 0, 1, 0]
    plain = {"k": k, "p": p, "r": np.eye(3).ravel().tolist(), "d": [-0.3, 0.09, 0, 0, 0]}
    return SimpleNamespace(**{**plain, "distortion_model": "plumb_bob", **changes})


def test_camera_of_rectified_images_is_the_projection_and_of_raw_ones_k_and_d():
    rectified, raw = ros.camera_of(camera_info()), ros.camera_of(camera_info(), raw=True)
    assert (rectified.intrinsics, rectified.distortion) == ((352, 395, 318, 236), ())
    assert (raw.intrinsics, raw.distortion) == ((430, 431, 320, 240), (-0.3, 0.09, 0, 0, 0))
    wide = camera_info(distortion_model="rational_polynomial", d=[0.1] * 8)
    assert ros.camera_of(wide).intrinsics == (352, 395, 318, 236)
    with pytest.raises(InputError, match="lens of model rational_polynomial"):
        ros.camera_of(wide, raw=True)
    with pytest.raises(InputError, match="no projection P of rectified images; are they raw"):
        ros.camera_of(camera_info(p=[0.0] * 12))


@pytest.mark.parametrize("point", [(1.0, 0.6, 2.0), (0.5, 0.3, 2.0), (-1.5, 1.0, 3.0)])
def test_points_land_where_opencv_rectifies_their_pixel(point):
    """The review's case: K and D put them 14 to 17 pixels off in a rectified image."""
    cv2 = pytest.importorskip("cv2")
    info = camera_info()
    K, P = np.reshape(info.k, (3, 3)), np.reshape(info.p, (3, 4))
    pixel, _ = cv2.projectPoints(np.array([point]), np.zeros(3), np.zeros(3), K, np.array(info.d))
    expected = cv2.undistortPoints(pixel, K, np.array(info.d), R=np.eye(3), P=P)[0, 0]
    u, v, _ = ros.camera_of(info).project(np.array([point]))
    np.testing.assert_allclose([u[0], v[0]], expected, atol=0.5)
    off_u, off_v, _ = ros.camera_of(info, raw=True).project(np.array([point]))
    assert np.hypot(off_u[0] - expected[0], off_v[0] - expected[1]) > 5


def test_rectified_from_camera_has_the_rotation_and_the_baseline():
    turned = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    p = list(camera_info().p)
    p[3] = -352 * 0.12  # the right camera of a stereo pair
    matrix = ros.rectified_from_camera(camera_info(r=turned.ravel().tolist(), p=p))
    np.testing.assert_allclose(matrix @ [1, 0, 2, 1], [-0.12, 1, 2, 1])
    np.testing.assert_array_equal(ros.rectified_from_camera(camera_info(r=[0.0] * 9)), np.eye(4))


def test_rigid_of_a_transform():
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
    camera = Camera(60.0, 60.0, 31.5, 23.5)
    x, y = np.meshgrid([-1.5, -0.5, 0.5, 1.5], [-1.0, 1.0])
    in_camera = np.stack([x.ravel(), y.ravel(), np.full(8, 4.0)], axis=1)
    pose = np.eye(4)
    pose[:3, :3] = [[0, -1, 0], [0, 0, -1], [1, 0, 0]]  # x forward, as a LiDAR has it
    in_lidar = in_camera @ pose[:3, :3]
    recovery = recovery_module.FrameRecovery(lambda image: flat)
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
    """The node with stand-ins for ROS and for the estimator."""
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
        "scalefield_ros": {},
        "scalefield_ros.recovery": vars(recovery_module),
    }
    for name, members in modules.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    flat = MDEOutput(torch.ones(48, 64), "depth", model="flat")
    monkeypatch.setattr("scalefield.mde.load_mde", lambda name, device: lambda image: flat)
    return load_example("ros2/scalefield_ros/scalefield_ros/depth_node.py")


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
    sent = recovery_module.Newest()
    node.depth = SimpleNamespace(publish=sent.put)

    def recovered(*pair: object) -> object:
        node.newest.put(pair)
        return sent.take()

    k = [60.0, 0, 31.5, 0, 60, 23.5, 0, 0, 1]
    p = [60.0, 0, 31.5, 0, 0, 60, 23.5, 0, 0, 0, 1, 0]
    node.on_camera(camera_info(k=k, p=p))
    depth = recovered(image, cloud)
    assert depth.header is header
    np.testing.assert_allclose(ros.depth_array(depth), 4, rtol=0.02)
    node.stop()
    cloud.header.frame_id = "elsewhere"
    with pytest.raises(LookupError, match="no transform from elsewhere to camera"):
        node.from_points(image, cloud)
    node.camera_info = None
    with pytest.raises(InputError, match="no camera_info yet"):
        node.from_points(image, cloud)


def test_ros2_depth_node_takes_sparse_depth_and_logs_what_it_cannot_use(node_module, monkeypatch):
    monkeypatch.setattr(FakeNode, "parameters", {"source": "depth"})
    node = node_module.DepthNode()
    sent = recovery_module.Newest()
    node.uncertainty = SimpleNamespace(publish=sent.put)
    image = image_message(np.zeros((48, 64, 3), np.uint8), "rgb8")
    image.header = SimpleNamespace(frame_id="camera", stamp=0)
    sparse = np.zeros((48, 64), np.uint16)
    sparse[10, 10] = sparse[40, 50] = 4000
    node.newest.put((image, image_message(sparse, "16UC1")))
    assert np.all(ros.depth_array(sent.take()) < 4)
    np.testing.assert_allclose(ros.depth_array(node.published["depth"][0]), 4, rtol=0.05)
    node.get_logger = lambda: SimpleNamespace(warning=lambda text, **_: sent.put(text))
    node.newest.put((image, image_message(sparse, "8UC1")))
    assert "encoding 8UC1" in sent.take()
    node.stop()


def test_newest_drops_what_was_not_taken_in_time():
    newest = recovery_module.Newest()
    for i in range(5):
        newest.put(i)
    assert newest.take() == 4
    waiting = Thread(target=lambda: taken.append(newest.take()))
    taken: list = []
    waiting.start()
    newest.put(7)
    waiting.join()
    assert taken == [7]
    newest.close()
    assert newest.take() is None


def test_ros2_package_names_what_it_holds():
    tree = ElementTree.parse(PACKAGE / "package.xml").getroot()
    assert tree.findtext("name") == "scalefield_ros"
    assert tree.findtext("export/build_type") == "ament_python"
    setup = (PACKAGE / "setup.py").read_text()
    for name in ("package.xml", "launch/depth.launch.py", "config/depth.yaml"):
        assert name in setup
        assert (PACKAGE / name).is_file()
    assert (PACKAGE / "resource" / "scalefield_ros").is_file()
    node = (PACKAGE / "scalefield_ros" / "depth_node.py").read_text()
    config = (PACKAGE / "config" / "depth.yaml").read_text()
    declared = re.findall(r'declare_parameter\("(\w+)"', node)
    assert sorted(declared) == sorted(re.findall(r"^    (\w+):", config, re.MULTILINE))


@pytest.fixture
def bag(tmp_path):
    """A rosbag2 of four images and two scans of a plane at 4 m, 10 ms after the image."""
    rosbag2 = pytest.importorskip("rosbags.rosbag2")
    typesys = pytest.importorskip("rosbags.typesys")
    types = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
    make = {name.rpartition("/")[2]: kind for name, kind in types.types.items()}

    def header(frame: str, ns: int) -> object:
        return make["Header"](make["Time"](ns // 10**9, ns % 10**9), frame)

    x, y = np.meshgrid([-1.5, -0.5, 0.5, 1.5], [-1.0, 1.0])
    in_camera = np.stack([x.ravel(), y.ravel(), np.full(8, 4.0)], axis=1)
    in_lidar = in_camera[:, [2, 0, 1]] * [1, -1, -1] - [0.5, 0, 0]  # x forward, 0.5 m ahead
    fields = [make["PointField"](axis, 4 * i, 7, 1) for i, axis in enumerate("xyz")]
    messages = []
    for i, ns in enumerate(range(0, 400_000_000, 100_000_000)):
        pixels = np.full((48, 64, 3), 60 * i, np.uint8)
        image = make["Image"](header("camera", ns), 48, 64, "rgb8", 0, 192, pixels.ravel())
        messages.append(("/camera/image_rect", ns, image))
        if i in (1, 3):
            data = np.frombuffer(in_lidar.astype("<f4").tobytes(), np.uint8)
            cloud = make["PointCloud2"](
                header("lidar", ns + 10_000_000), 1, 8, fields, False, 12, 96, data, True
            )
            messages.append(("/lidar/points", ns + 10_000_000, cloud))
    no_region = make["RegionOfInterest"](0, 0, 0, 0, False)
    matrices = [np.array(a, float) for a in (
        [60, 0, 31.5, 0, 60, 23.5, 0, 0, 1], np.eye(3).ravel(),
        [60, 0, 31.5, 0, 0, 60, 23.5, 0, 0, 0, 1, 0],
    )]  # fmt: skip
    info = make["CameraInfo"](
        header("camera", 0), 48, 64, "plumb_bob", np.zeros(5), *matrices, 0, 0, no_region
    )
    turn = make["Quaternion"](0.5, -0.5, 0.5, 0.5)  # camera from base, whose x is forward
    poses = [
        ("base", "lidar", make["Vector3"](0.5, 0.0, 0.0), make["Quaternion"](0.0, 0.0, 0.0, 1.0)),
        ("camera", "base", make["Vector3"](0.0, 0.0, 0.0), turn),
    ]
    transforms = [
        make["TransformStamped"](header(parent, 0), child, make["Transform"](shift, rotation))
        for parent, child, shift, rotation in poses
    ]
    messages = [
        ("/camera/camera_info", 0, info), ("/tf_static", 0, make["TFMessage"](transforms)),
        *messages,
    ]  # fmt: skip
    with rosbag2.Writer(tmp_path / "bag", version=9) as writer:
        connections = {}
        for topic, ns, message in messages:
            kind = message.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=types)
            writer.write(connections[topic], ns, types.serialize_cdr(message, kind))
    return tmp_path / "bag"


def test_read_bag_gives_images_with_the_points_of_the_same_time(bag):
    frames = list(ros.read_bag(bag))
    assert [frame.image[0, 0, 0] for frame in frames] == [60, 180]
    assert [frame.stamp_ns for frame in frames] == [100_000_000, 300_000_000]
    for frame in frames:
        np.testing.assert_allclose(frame.anchors.depth_m, 4, rtol=1e-6)
        assert sorted(set(frame.anchors.u)) == [9, 24, 39, 54]
    assert list(ros.read_bag(bag, slop_s=0.005)) == []
    with pytest.raises(InputError, match=r"/camera/image_rect of type .*; choose one with --image"):
        list(ros.read_bag(bag, image_topic="/other"))


def test_anchors_command_writes_the_frames_of_a_bag_that_recover_takes(bag, tmp_path, capsys):
    out = tmp_path / "frames"
    assert cli.main(["anchors", str(bag), "--out", str(out)]) == 0
    assert "2 frames, 8 anchors each" in capsys.readouterr().out
    assert len(list(out.glob("*.png"))) == 2
    first = sorted(out.glob("*.anchors.npz"))[0]
    np.testing.assert_allclose(Anchors.read(first).depth_m, 4, rtol=1e-6)
    words = ["recover", str(out), "--stream", "on", "--out", str(tmp_path / "depth")]
    assert cli.main(words) == 0
    assert cli.main(["recover", str(bag)]) == 2
    assert "is a rosbag2; `scalefield anchors" in capsys.readouterr().err


def test_static_transform_follows_the_tree_in_both_directions():
    turn = SimpleNamespace(x=0, y=0, z=np.sqrt(0.5), w=np.sqrt(0.5))

    def link(parent: str, child: str, x: float) -> SimpleNamespace:
        shift = SimpleNamespace(x=x, y=0, z=0)
        return SimpleNamespace(
            header=SimpleNamespace(frame_id=parent), child_frame_id=child,
            transform=SimpleNamespace(rotation=turn, translation=shift),
        )  # fmt: skip

    links = [link("base", "lidar", 1.0), link("base", "/camera", 2.0)]
    found = ros.static_transform(links, "camera", "lidar")
    expected = np.linalg.inv(ros.rigid(links[1].transform)) @ ros.rigid(links[0].transform)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    with pytest.raises(InputError, match="does not connect lidar with wheel"):
        ros.static_transform(links, "wheel", "lidar")
