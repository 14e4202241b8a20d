"""The colcon package: `colcon build --packages-select scalefield_ros`."""

from setuptools import setup

NAME = "scalefield_ros"

setup(
    name=NAME,
    version="0.1.0",
    packages=[NAME],
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (f"share/{NAME}", ["package.xml"]),
        (f"share/{NAME}/launch", ["launch/depth.launch.py"]),
        (f"share/{NAME}/config", ["config/depth.yaml"]),
    ],
    install_requires=["setuptools", "scalefield"],
    zip_safe=True,
    license="Apache-2.0",
    entry_points={"console_scripts": [f"depth_node = {NAME}.depth_node:main"]},
)
