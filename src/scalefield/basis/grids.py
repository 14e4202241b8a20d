"""The generator's grid: cues X(x) = [F, log D, ∇log D, x], and sampling between grid and image.

Grids follow `interpolate(align_corners=False)`: cell centres are at (i + 0.5) / size of the image.
"""

from __future__ import annotations

import torch
import torch.nn.functional as nnf
from jaxtyping import Float, UInt8
from torch import Tensor

GRID_CELLS = 160
"""Cells along the image's longer side: a quarter of 640 pixels."""
LOG_DEPTH_LIMIT = 6.0
"""Centred log-depth is limited to ±6, a factor of 400 around the image's median."""


def grid_shape(height: int, width: int, cells: int = GRID_CELLS) -> tuple[int, int]:
    """The generator's grid for an image: `cells` along the longer side, never finer than pixels."""
    scale = min(1.0, cells / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def grid_log_depth(
    mde_depth: Float[Tensor, "b h w"], cells: int = GRID_CELLS
) -> Float[Tensor, "b 1 hg wg"]:
    """log D averaged over each cell and centred on its median, which removes the scale of D."""
    return log_depth_and_level(mde_depth, cells)[0]


def log_depth_and_level(
    mde_depth: Float[Tensor, "b h w"], cells: int = GRID_CELLS
) -> tuple[Float[Tensor, "b 1 hg wg"], Float[Tensor, " b"]]:
    """`grid_log_depth`, and the subtracted median."""
    log_depth = mde_depth.log()[:, None]
    size = grid_shape(mde_depth.shape[1], mde_depth.shape[2], cells)
    if size != mde_depth.shape[1:]:
        log_depth = nnf.interpolate(log_depth, size=size, mode="area")
    centre = log_depth.flatten(1).median(dim=1).values
    log_depth = log_depth - centre[:, None, None, None]
    return log_depth.clamp(-LOG_DEPTH_LIMIT, LOG_DEPTH_LIMIT), centre


def grid_image(image: UInt8[Tensor, "h w 3"], size: tuple[int, ...]) -> Float[Tensor, "3 hg wg"]:
    """RGB averaged over each cell, in −1 … 1."""
    planes = image.permute(2, 0, 1)[None].float()
    return nnf.interpolate(planes, size=size, mode="area")[0] / 127.5 - 1


def geometric_cues(log_depth: Float[Tensor, "b 1 h w"]) -> Float[Tensor, "b 5 h w"]:
    """log D, its gradient by central differences (per cell), and coordinates in −1 … 1."""
    batch, _, height, width = log_depth.shape
    padded = nnf.pad(log_depth, (1, 1, 1, 1), mode="replicate")
    du = (padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]) / 2
    dv = (padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]) / 2
    # Made where they are needed: a CUDA graph holds no copy from the host.
    u = (2 * torch.arange(width, device=log_depth.device).to(log_depth.dtype) + 1) / width - 1
    v = (2 * torch.arange(height, device=log_depth.device).to(log_depth.dtype) + 1) / height - 1
    u, v = (c.expand(batch, 1, height, width) for c in (u, v[:, None]))
    return torch.cat([log_depth, du, dv, u, v], dim=1)


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
