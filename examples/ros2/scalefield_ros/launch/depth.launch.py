"""The depth node with its topics as arguments."""

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

TOPICS = {
    "image": "/camera/image_rect",
    "camera_info": "/camera/camera_info",
    "points": "/lidar/points",
    "depth_sparse": "/tof/depth_registered",
    "depth": "depth",
    "uncertainty": "uncertainty",
}


def generate_launch_description() -> LaunchDescription:
    """One node; `params:=FILE` replaces the parameters."""
    params = f"{get_package_share_directory('scalefield_ros')}/config/depth.yaml"
    arguments = {**TOPICS, "params": params}
    node = Node(
        package="scalefield_ros",
        executable="depth_node",
        name="scalefield_depth",
        parameters=[LaunchConfiguration("params")],
        remappings=[(topic, LaunchConfiguration(topic)) for topic in TOPICS],
        output="screen",
    )
    declared = [DeclareLaunchArgument(name, default_value=v) for name, v in arguments.items()]
    return LaunchDescription([*declared, node])
