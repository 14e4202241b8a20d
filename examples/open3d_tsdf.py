"""A mesh from the depth of a COLMAP scene, by TSDF fusion in Open3D.

    scalefield colmap sparse/0 images --undistort --out scene
    pip install open3d
    python examples/open3d_tsdf.py scene mesh.ply

Reads transforms.json and depths_npy/ of `scalefield colmap`. The mesh has the unit of the COLMAP
model. Cameras must have no lens distortion, which is what --undistort is for.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

OPENCV_FROM_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])
"""transforms.json has cameras with y up and z backwards; Open3D has y down and z forwards."""


@dataclass(frozen=True, eq=False)
class View:
    """One image of a scene with its depth and camera."""

    image: np.ndarray
    """uint8 RGB."""
    depth: np.ndarray
    """float32 in the unit of the model; 0 where unknown."""
    focal_px: tuple[float, float]
    centre_px: tuple[float, float]
    """Principal point, with pixel centres at integers as Open3D has them."""
    camera_from_world: np.ndarray
    """4×4, x right, y down, z forwards."""


def read_views(scene: Path) -> Iterator[View]:
    """The images of a transforms.json that have a depth, one at a time."""
    content = json.loads((scene / "transforms.json").read_text())
    for frame in content["frames"]:
        values = {**content, **frame}
        if any(values.get(name) for name in ("k1", "k2", "k3", "k4", "p1", "p2")):
            raise SystemExit("the cameras have lens distortion: run scalefield colmap --undistort")
        depth = np.load(scene / values["depth_file_path"])
        if not depth.any():
            continue
        with Image.open(scene / values["file_path"]) as image:
            pixels = np.asarray(image.convert("RGB"))
        world_from_camera = np.array(values["transform_matrix"]) @ OPENCV_FROM_OPENGL
        yield View(
            np.ascontiguousarray(pixels),
            depth,
            (values["fl_x"], values["fl_y"]),
            (values["cx"] - 0.5, values["cy"] - 0.5),  # COLMAP's pixel centres are at halves
            np.linalg.inv(world_from_camera),
        )


def far_depth(scene: Path, percentile: float = 95) -> float:
    """A depth behind which little of the scene lies; farther pixels are not fused."""
    files = sorted((scene / "depths_npy").rglob("*.npy"))
    depths = [depth[depth > 0][::97] for depth in map(np.load, files)]
    return float(np.percentile(np.concatenate(depths), percentile))


def fuse(scene: Path, voxels: int = 512) -> Any:
    """The triangle mesh of a scene whose far depth is divided into this many voxels.

    Uses VoxelBlockGrid: ScalableTSDFVolume returns empty meshes in Open3D 0.20.
    """
    import open3d as o3d

    tensor, float32 = o3d.core.Tensor, o3d.core.float32
    far = far_depth(scene)
    grid = o3d.t.geometry.VoxelBlockGrid(
        attr_names=("tsdf", "weight", "color"),
        attr_dtypes=(float32, float32, float32),
        attr_channels=(1, 1, 3),
        voxel_size=far / voxels,
        block_resolution=16,
        block_count=10_000,
    )
    for view in read_views(scene):
        (fx, fy), (cx, cy) = view.focal_px, view.centre_px
        intrinsics = tensor(np.array([[fx, 0.0, cx], [0.0, fy, cy], [0.0, 0.0, 1.0]]))
        pose = tensor(view.camera_from_world)
        depth = o3d.t.geometry.Image(tensor(view.depth))
        colour = o3d.t.geometry.Image(tensor(view.image.astype(np.float32) / 255))
        blocks = grid.compute_unique_block_coordinates(depth, intrinsics, pose, 1.0, far)
        grid.integrate(blocks, depth, colour, intrinsics, intrinsics, pose, 1.0, far)
    return grid.extract_triangle_mesh(weight_threshold=1.0)


def main() -> None:
    """Read the flags, fuse, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scene", type=Path, help="output folder of scalefield colmap")
    parser.add_argument("mesh", type=Path, help="output file, .ply")
    parser.add_argument("--voxels", type=int, default=512, help="voxels along the far depth")
    flags = parser.parse_args()
    import open3d as o3d

    mesh = fuse(flags.scene, flags.voxels)
    o3d.t.io.write_triangle_mesh(str(flags.mesh), mesh)
    print(f"{flags.mesh}: {len(mesh.triangle.indices)} triangles")


if __name__ == "__main__":
    main()
