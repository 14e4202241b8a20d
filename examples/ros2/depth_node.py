"""A ROS 2 node: an image with LiDAR points or sparse depth in, dense metric depth out.

    python examples/ros2/depth_node.py --ros-args -r image:=/camera/image_rect \
        -r camera_info:=/camera/camera_info -r points:=/lidar/points
    python examples/ros2/depth_node.py --ros-args -p source:=depth -r image:=/camera/image_rect \
        -r depth_sparse:=/tof/depth_registered

Publishes `depth` and `uncertainty` (standard deviation), both 32FC1 in metres with the header of
the image. Messages are matched by time within `slop_s`. Points are moved into the frame of the
image by tf2. A message that cannot be used is logged and left out.
"""

from __future__ import annotations

from typing import Any

import message_filters
import rclpy
import tf2_ros
from conversions import (
    FrameRecovery,
    camera_of,
    depth_array,
    image_array,
    image_fields,
    points_array,
    rigid,
)
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import CameraInfo, Image, PointCloud2

from scalefield import InputError
from scalefield.mde import load_mde


class DepthNode(Node):
    """Recovers depth for every image that comes with a measurement."""

    def __init__(self) -> None:
        super().__init__("scalefield_depth")
        source = self.declare_parameter("source", "points").value
        slop_s = self.declare_parameter("slop_s", 0.05).value
        mde = self.declare_parameter("mde", "lite").value
        device = self.declare_parameter("device", "cpu").value
        self.recovery = FrameRecovery(load_mde(mde, device=device))
        self.camera = None
        self.depth = self.create_publisher(Image, "depth", 5)
        self.uncertainty = self.create_publisher(Image, "uncertainty", 5)
        self.transforms = tf2_ros.Buffer()
        self.listener = tf2_ros.TransformListener(self.transforms, self)
        self.create_subscription(CameraInfo, "camera_info", self.on_camera, qos_profile_sensor_data)
        kind, topic, callback = {
            "points": (PointCloud2, "points", self.on_points),
            "depth": (Image, "depth_sparse", self.on_depth),
        }[source]
        images, measured = (
            message_filters.Subscriber(self, each, name, qos_profile=qos_profile_sensor_data)
            for each, name in ((Image, "image"), (kind, topic))
        )
        self.sync = message_filters.ApproximateTimeSynchronizer(
            [images, measured], queue_size=5, slop=slop_s
        )
        self.sync.registerCallback(callback)

    def on_camera(self, message: CameraInfo) -> None:
        """Keep the intrinsics."""
        self.camera = camera_of(message)

    def on_points(self, image: Image, cloud: PointCloud2) -> None:
        """Recover an image with a point cloud."""
        if self.camera is None:
            self.get_logger().warning("no camera_info yet", throttle_duration_sec=5.0)
            return
        try:
            transform = self.transforms.lookup_transform(
                image.header.frame_id, cloud.header.frame_id, cloud.header.stamp
            )
            maps = self.recovery.from_points(
                image_array(image), points_array(cloud), self.camera, rigid(transform.transform)
            )
        except (InputError, tf2_ros.TransformException) as error:
            self.get_logger().warning(str(error), throttle_duration_sec=5.0)
            return
        self.publish(image.header, *maps)

    def on_depth(self, image: Image, depth: Image) -> None:
        """Recover an image with a sparse depth image of the same pixels."""
        try:
            maps = self.recovery.from_depth(image_array(image), depth_array(depth))
        except InputError as error:
            self.get_logger().warning(str(error), throttle_duration_sec=5.0)
            return
        self.publish(image.header, *maps)

    def publish(self, header: Any, depth_m: Any, std_m: Any) -> None:
        """Send both maps with the header of their image."""
        self.depth.publish(Image(header=header, **image_fields(depth_m)))
        self.uncertainty.publish(Image(header=header, **image_fields(std_m)))


def main() -> None:
    """Run the node until it is interrupted."""
    rclpy.init()
    node = DepthNode()
    try:
        rclpy.spin(node)
    except KeyboardInterrupt:
        pass
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    main()
