"""Synthetic scenes that several tests share: relative maps, anchors, and frames on disk."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from scalefield import Anchors, MDEOutput

RED_MODULE = """
import torch
from scalefield import MDEOutput

class Red:
    name = "red"

    def __call__(self, image):
        red = torch.tensor(image[..., 0], dtype=torch.float32)
        return MDEOutput((red + 20) ** 1.2 / 300, "depth", model="red")

red = Red()
"""
"""A module with the estimator `red`, for commands that import it in other processes."""


TINY_DINOV2 = {
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "image_size": 42,
    "patch_size": 14,
    "out_indices": [1, 2, 3, 4],
    "reshape_hidden_states": False,
}
"""Options of a small `Dinov2Config` of transformers."""


def relative_map(
    shape: tuple[int, int] = (30, 40), kind: str = "depth", seed: int = 0
) -> MDEOutput:
    """A smooth map between about 0.4 and 3, of either kind, in float64."""
    rng = np.random.default_rng(seed)
    coarse = torch.from_numpy(np.exp(0.4 * rng.standard_normal((5, 6))))
    values = torch.nn.functional.interpolate(
        coarse[None, None], size=shape, mode="bicubic", align_corners=True
    )[0, 0].clamp(min=0.1)
    return MDEOutput(values, kind)


def stepped_ramp(seed: int = 0, shape: tuple[int, int] = (45, 60)) -> MDEOutput:
    """A ramp across the image with a step halfway down."""
    rng = np.random.default_rng(seed)
    v, u = np.mgrid[0 : shape[0], 0 : shape[1]]
    depth = 1 + u / shape[1] * rng.uniform(0.5, 2) + (v > shape[0] // 2) * 0.7
    return MDEOutput(torch.from_numpy(depth).float(), "depth")


def anchors_on(depth_m: np.ndarray, n: int, seed: int = 0, sigma_m: bool = False) -> Anchors:
    """Anchors on n different pixels of a metric map, with or without standard deviations."""
    rng = np.random.default_rng(seed)
    pixel = rng.choice(depth_m.size, n, replace=False)
    v, u = np.divmod(pixel, depth_m.shape[1])
    sigma = rng.uniform(0.01, 0.5, n) if sigma_m else None
    return Anchors(u, v, np.asarray(depth_m)[v, u], sigma)


def random_anchors(shape: tuple[int, int], n: int, seed: int = 0) -> Anchors:
    """Anchors at random pixels, perhaps repeated, with random depths of 1 to 5 m."""
    rng = np.random.default_rng(seed)
    u, v = rng.integers(0, shape[1], n), rng.integers(0, shape[0], n)
    return Anchors(u, v, rng.uniform(1, 5, n))


def write_place(
    folder: Path, frames: Mapping[str, tuple[np.ndarray, np.ndarray]], /, **meta: object
) -> None:
    """Write images and depths in metres by name as a place of the folder layout.

    `meta` is added to meta.json. Depths are stored in millimetres; 0 is unknown.
    """
    for sub in ("rgb", "depth"):
        (folder / sub).mkdir(parents=True)
    for name, (image, depth_m) in frames.items():
        Image.fromarray(image).save(folder / "rgb" / f"{name}.png")
        stored = np.round(1000 * depth_m).astype(np.uint16)
        Image.fromarray(stored).save(folder / "depth" / f"{name}.png")
    (folder / "meta.json").write_text(json.dumps({"depth_scale_per_metre": 1000, **meta}))
