"""Synthetic scenes that several tests share: relative maps, and anchors on a metric truth."""

import numpy as np
import torch

from scalefield import Anchors, MDEOutput


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
