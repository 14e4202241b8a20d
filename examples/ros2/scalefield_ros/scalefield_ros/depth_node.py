"""A ROS 2 node: an image with LiDAR points or sparse depth in, dense metric depth out.

    ros2 launch scalefield_ros depth.launch.py image:=/camera/image_rect \\
        camera_info:=/camera/camera_info points:=/lidar/points

Publishes `depth` and `uncertainty` (standard deviation), both 32FC1 in metres with the header of
the image. Messages are matched by time within `slop_s`. Points are moved into the frame of the
image by tf2. Only the newest frame is worked on; the others in between are dropped. A message that
cannot be used is logged and left out.
"""

from __future__ import annotations

from threading import Thread
from typing import Any

import message_filters
import rclpy
import tf2_ros
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CameraInfo, Image, PointCloud2

from scalefield import InputError
from scalefield.geometry.ros import (
    camera_of,
    depth_array,
    image_array,
    image_fields,
    points_array,
    rectified_from_camera,
    rigid,
)
from scalefield.mde import load_mde
from scalefield_ros.recovery import FrameRecovery, Newest


class DepthNode(Node):
    """Recovers depth for every image that comes with a measurement."""

    def __init__(self) -> None:
        super().__init__("scalefield_depth")
        source = self.declare_parameter("source", "points").value
        slop_s = self.declare_parameter("slop_s", 0.05).value
        mde = self.declare_parameter("mde", "lite").value
        device = self.declare_parameter("device", "cpu").value
        self.raw = self.declare_parameter("raw", False).value
        self.recovery = FrameRecovery(load_mde(mde, device=device))
        self.camera_info: Any = None
        self.depth = self.create_publisher(Image, "depth", 5)
        self.uncertainty = self.create_publisher(Image, "uncertainty", 5)
        self.transforms = tf2_ros.Buffer()
        self.listener = tf2_ros.TransformListener(self.transforms, self)
        self.create_subscription(CameraInfo, "camera_info", self.on_camera, qos_profile_sensor_data)
        kind, topic, self.recover = {
            "points": (PointCloud2, "points", self.from_points),
            "depth": (Image, "depth_sparse", self.from_depth),
        }[source]
        images, measured = (
            message_filters.Subscriber(self, each, name, qos_profile=qos_profile_sensor_data)
            for each, name in ((Image, "image"), (kind, topic))
        )
        self.sync = message_filters.ApproximateTimeSynchronizer(
            [images, measured], queue_size=5, slop=slop_s
        )
        self.newest: Newest[tuple[Any, Any]] = Newest()
        self.sync.registerCallback(lambda *pair: self.newest.put(pair))
        self.worker = Thread(target=self.work, daemon=True)
        self.worker.start()

    def work(self) -> None:
        """Recover the newest pair of messages, one after another."""
        while (pair := self.newest.take()) is not None:
            try:
                maps = self.recover(*pair)
            except (InputError, tf2_ros.TransformException) as error:
                self.get_logger().warning(str(error), throttle_duration_sec=5.0)
                continue
            for publisher, values in zip((self.depth, self.uncertainty), maps, strict=True):
                publisher.publish(Image(header=pair[0].header, **image_fields(values)))

    def on_camera(self, message: CameraInfo) -> None:
        """Keep the calibration."""
        self.camera_info = message

    def from_points(self, image: Image, cloud: PointCloud2) -> tuple[Any, Any]:
        """Depth and deviation of an image with a point cloud."""
        info = self.camera_info
        if info is None:
            raise InputError("no camera_info yet")
        transform = self.transforms.lookup_transform(
            image.header.frame_id, cloud.header.frame_id, cloud.header.stamp
        )
        motion = rigid(transform.transform)
        motion = motion if self.raw else rectified_from_camera(info) @ motion
        pixels, points_m = image_array(image), points_array(cloud)
        return self.recovery.from_points(pixels, points_m, camera_of(info, raw=self.raw), motion)

    def from_depth(self, image: Image, depth: Image) -> tuple[Any, Any]:
        """Depth and deviation of an image with a sparse depth image of the same pixels."""
        return self.recovery.from_depth(image_array(image), depth_array(depth))

    def stop(self) -> None:
        """End the worker after its present frame."""
        self.newest.close()
        self.worker.join()


def main() -> None:
    """Run the node until it is interrupted."""
    rclpy.init()
    node = DepthNode()
    try:
        rclpy.spin(node)
    except KeyboardInterrupt:
        pass
    finally:
        node.stop()
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    main()
