"""Tiny datasets in the three layouts of the paper, and small DA3 and DPT networks."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

CAM_TO_CAM = """R_rect_00: 1 0 0 0 1 0 0 0 1
P_rect_02: 60 0 64 0 0 60 20 0 0 0 1 0
"""
VELO_TO_CAM = """R: 0 -1 0 0 0 -1 1 0 0
T: 0 0 0
"""
DRIVES = (1, 2, 5, 9, 11, 13)
"""Of the category City: four go to train, one to val and one to test."""


def picture(depth_m, rng):
    """Nearer is brighter, with noise."""
    grey = 255 * depth_m.min() / depth_m + rng.normal(0, 6, depth_m.shape)
    return np.stack([grey, grey[::-1], grey], axis=2).clip(0, 255).astype(np.uint8)


def wall(shape, rng, far):
    """A slanted wall with a box in front of it."""
    v, u = np.mgrid[: shape[0], : shape[1]]
    depth_m = far * (0.3 + 0.5 * u / shape[1] * rng.uniform(0.3, 1) + 0.2 * v / shape[0])
    top, left = rng.integers(0, shape[0] // 2), rng.integers(0, shape[1] // 2)
    depth_m[top : top + shape[0] // 3, left : left + shape[1] // 4] *= 0.6
    return depth_m


def write_kitti(root: Path) -> Path:
    """Six drives of two frames; depth comes from points that fill the image."""
    rng = np.random.default_rng(1)
    date = root / "2011_09_26"
    for number in DRIVES:
        drive = date / f"2011_09_26_drive_{number:04d}_sync"
        for folder in ("image_02/data", "velodyne_points/data"):
            (drive / folder).mkdir(parents=True)
        for frame in range(2):
            depth_m = wall((40, 128), rng, 40.0)
            name = f"{frame:010d}"
            Image.fromarray(picture(depth_m, rng)).save(drive / f"image_02/data/{name}.png")
            v, u = (x.ravel() for x in np.mgrid[4:40:2, 0:128:2])
            z = depth_m[v, u]
            # Camera (x right, y down, z ahead) to velodyne (x ahead, y left, z up).
            points = np.stack([z, -(u - 64) * z / 60, -(v - 20) * z / 60, np.ones_like(z)], axis=1)
            points.astype("<f4").tofile(drive / f"velodyne_points/data/{name}.bin")
    (date / "calib_cam_to_cam.txt").write_text(CAM_TO_CAM)
    (date / "calib_velo_to_cam.txt").write_text(VELO_TO_CAM)
    return root


def write_urbansyn(root: Path, frames: int = 10) -> Path:
    """EXR depth, labels with sky, camera metadata."""
    import OpenEXR

    rng = np.random.default_rng(2)
    for folder in ("rgb", "depth", "ss"):
        (root / folder).mkdir(parents=True)
    for i in range(1, frames + 1):
        depth_m = wall((48, 96), rng, 60.0)
        Image.fromarray(picture(depth_m, rng)).save(root / "rgb" / f"rgb_{i:04d}.png")
        header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage}
        with OpenEXR.File(header, {"V": (depth_m / 1e5).astype(np.float32)}) as file:
            file.write(str(root / "depth" / f"depth_{i:04d}.exr"))
        labels = np.zeros((48, 96, 4), np.uint8)
        labels[:4, :, 0] = 10
        labels[20:, 48:, 0] = 13
        Image.fromarray(labels).save(root / "ss" / f"ss_{i:04d}.png")
    camera = {"focalLength_mm": 18.0, "sensorWidth_mm": 36.0, "sensorHeight_mm": 18.0}
    (root / "camera_metadata.json").write_text(json.dumps({"parameters": [{"Camera": camera}]}))
    return root


def write_sunrgbd(root: Path, frames: int = 10) -> Path:
    """Rotated 16-bit depth, intrinsics, labels."""
    from scipy.io import savemat

    rng = np.random.default_rng(3)
    for i in range(frames):
        frame = root / "SUNRGBD" / "kv1" / "NYUdata" / f"NYU{i:04d}"
        for folder in ("image", "depth_bfx"):
            (frame / folder).mkdir(parents=True)
        depth_m = wall((48, 64), rng, 9.5)
        Image.fromarray(picture(depth_m, rng)).save(frame / "image" / "a.jpg", quality=95)
        millimetres = np.round(1000 * depth_m).astype(np.uint32)
        stored = ((millimetres << 3) | (millimetres >> 13)).astype(np.uint16)
        Image.fromarray(stored).save(frame / "depth_bfx" / "a.png")
        (frame / "intrinsics.txt").write_text("50 0 32 0 50 24 0 0 1")
        labels = np.where(np.arange(64) > 30, 2, 1).astype(np.uint16)[None].repeat(48, 0)
        savemat(frame / "seg.mat", {"seglabel": labels})
    return root


MDES = '''
"""Small networks of the paper's two kinds with random weights."""
import torch
import transformers

from scalefield.mde.da3 import DA3, DA3Config
from scalefield.mde.estimator import Estimator
from scalefield.mde.estimator import Preprocess
from scalefield.mde.transformers_mde import TransformersNetwork


def make_da3():
    torch.manual_seed(0)
    net = DA3(DA3Config(32, 6, 2, (2, 3, 4, 5), 2, (8, 12, 16, 20), 16, grid=5))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    net = net.requires_grad_(False).eval()
    return Estimator("da3-base", "random", "depth", Preprocess((56, 56), "inside", 14), net)


def make_dpt():
    torch.manual_seed(1)
    config = transformers.DPTConfig(
        hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=32,
        patch_size=16, image_size=64, neck_hidden_sizes=[8, 8, 16, 16], fusion_hidden_size=8,
        backbone_out_indices=[0, 1, 2, 3], is_hybrid=False,
    )
    net = transformers.DPTForDepthEstimation(config)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        net.head.head[4].bias.fill_(2.0)
    network = TransformersNetwork(net).requires_grad_(False).eval()
    return Estimator("midas-hybrid", "random", "disparity", Preprocess((64, 64), "inside", 32),
                     network)


da3, dpt = make_da3(), make_dpt()
'''
