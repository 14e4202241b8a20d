"""Depth as trainers of Gaussian splats and radiance fields read it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from jaxtyping import Float
from PIL import Image

from scalefield.io import write_atomic, write_map

LEVELS = 65536
"""The Gaussian-splatting trainer divides 16-bit values by 2¹⁶, not by 65535."""


def write_inverse_depth(
    path: str | Path, depth: Float[np.ndarray, "h w"], largest_inverse: float
) -> int:
    """A 16-bit PNG from which 1/depth = value / 2¹⁶ · `largest_inverse`; holes are 0.

    Returns the number of pixels that are nearer and were clipped. `largest_inverse` is the image's
    "scale" in depth_params.json (its "offset" is 0). Keep it equal over a scene: the trainer gives
    less weight to images whose scale is far from the median.
    """
    with np.errstate(divide="ignore"):
        inverse = np.nan_to_num(1 / depth, nan=0.0, posinf=0.0)  # a hole is NaN, or 0
    values = np.round(LEVELS * inverse / largest_inverse)
    buffer = io.BytesIO()
    Image.fromarray(np.minimum(values, LEVELS - 1).astype(np.uint16)).save(buffer, format="PNG")
    write_atomic(path, buffer.getvalue())
    return int(np.count_nonzero(values > LEVELS - 1))


def write_npy_depth(path: str | Path, depth: Float[np.ndarray, "h w"]) -> None:
    """Float32 depth as nerfstudio loads it, with depth_unit_scale_factor 1; holes are 0."""
    write_map(path, np.nan_to_num(depth).astype(np.float32))
