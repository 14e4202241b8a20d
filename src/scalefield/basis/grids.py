"""The generator's grid, and interpolation and sampling between grid and image.

Grids follow `interpolate(align_corners=False)`: cell centres are at (i + 0.5) / size of the image.
"""

from __future__ import annotations

import torch
import torch.nn.functional as nnf
from jaxtyping import Float
from torch import Tensor

GRID_CELLS = 160
"""Cells along the image's longer side: a quarter of 640 pixels."""


def grid_shape(height: int, width: int, cells: int = GRID_CELLS) -> tuple[int, int]:
    """The generator's grid for an image: `cells` along the longer side, never finer than pixels."""
    scale = min(1.0, cells / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def upsample(maps: Float[Tensor, "b k hg wg"], shape: tuple[int, int]) -> Float[Tensor, "b k h w"]:
    """Bilinear interpolation from the grid to the image."""
    return nnf.interpolate(maps, size=shape, mode="bilinear", align_corners=False)


def sample(
    maps: Float[Tensor, "b k hg wg"], pixels: Float[Tensor, "b n 2"], shape: tuple[int, int]
) -> Float[Tensor, "b n k"]:
    """Values of `upsample(maps, shape)` at pixels (u, v), without making the large map."""
    return sample_at(maps, to_unit(pixels, shape))


def to_unit(pixels: Float[Tensor, "*b 2"], shape: tuple[int, int]) -> Float[Tensor, "*b 2"]:
    """Pixels (u, v), centres at integers, as positions in −1 … 1 over the image."""
    height, width = shape
    u, v = pixels.unbind(dim=-1)
    return torch.stack([(u + 0.5) * (2 / width) - 1, (v + 0.5) * (2 / height) - 1], dim=-1)


def sample_at(
    maps: Float[Tensor, "b k hg wg"], positions: Float[Tensor, "b n 2"]
) -> Float[Tensor, "b n k"]:
    """Bilinear samples at positions in −1 … 1 over the image."""
    grid = positions[:, None].to(maps.dtype)
    values = nnf.grid_sample(maps, grid, "bilinear", "border", align_corners=False)
    return values[:, :, 0].transpose(1, 2)  # (b, k, 1, n) → (b, n, k)
