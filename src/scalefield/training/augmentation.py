"""Random crops for the training of an estimator: window, colours, and an erased rectangle."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as nnf
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from scalefield.mde.lite import PREPROCESS


@dataclass(frozen=True, eq=False)
class FrameBank:
    """All frames on the device, each in the top-left corner of one common canvas."""

    images: UInt8[Tensor, "n 3 h w"]
    log_depth: Float[Tensor, "n 1 h w"]
    """float16; NaN where unknown."""
    sizes: Float[Tensor, "n 2"]
    """Height and width of each frame (on the CPU)."""
    sources: tuple[str, ...]
    scenes: tuple[str, ...]


def random_crops(
    bank: FrameBank,
    chosen: Int64[Tensor, " b"],
    crop: tuple[int, int],
    rng: torch.Generator,
    *,
    stride: int = 2,
) -> tuple[Float[Tensor, "b 3 h w"], Float[Tensor, "b 1 h2 w2"]]:
    """Random windows (place, scale, aspect, roll, mirror) with colours in −1 … 1, and their
    log-depth at every `stride`-th pixel."""
    sizes = bank.sizes[chosen]
    draw = torch.rand(6, len(chosen), generator=rng)
    working = torch.tensor([PREPROCESS.target((int(h), int(w)))[0] for h, w in sizes.tolist()])
    density = working / sizes[:, 0] * 2 ** (1.4 * draw[0] - 0.6)
    aspect = 1.5 ** (draw[1] - 0.5)
    window = torch.stack([crop[0] * aspect, crop[1] / aspect], dim=1) / density[:, None]
    window *= (sizes / window).amin(dim=1, keepdim=True).clamp(max=1)  # it must fit
    centre = window / 2 + (sizes - window) * draw[2:4].T  # in pixels, as (v, u)
    roll = (draw[4] - 0.5) * 0.2
    mirror = torch.where(draw[5] < 0.5, -1.0, 1.0)
    half_v, half_u = (window / 2).unbind(1)
    cos, sin = roll.cos(), roll.sin()
    # Rows give (u, v) in pixels for crop coordinates in −1 … 1; then the canvas's −1 … 1.
    theta = torch.stack(
        [
            torch.stack([mirror * half_u * cos, -half_v * sin, centre[:, 1]], dim=1),
            torch.stack([mirror * half_u * sin, half_v * cos, centre[:, 0]], dim=1),
        ],
        dim=1,
    )
    canvas = torch.tensor([bank.images.shape[3], bank.images.shape[2]]).float()
    theta = theta * (2 / canvas)[:, None]
    theta[:, :, 2] -= 1
    device = bank.images.device
    theta = theta.to(device, non_blocking=True)
    limits = sizes.flip(1) * 2 / canvas - 1  # the frame's far corner
    last = (limits - 2 / canvas).to(device, non_blocking=True)[:, None, None]
    limits = limits.to(device, non_blocking=True)[:, None, None]
    chosen = chosen.to(device, non_blocking=True)

    image_at = nnf.affine_grid(theta, [len(chosen), 1, *crop], align_corners=False)
    images = nnf.grid_sample(
        bank.images[chosen].float(),
        torch.minimum(image_at, last),
        "bilinear",
        "border",
        align_corners=False,
    )
    depth_size = [len(chosen), 1, crop[0] // stride, crop[1] // stride]
    depth_at = nnf.affine_grid(theta, depth_size, align_corners=False)
    inside = ((depth_at > -1) & (depth_at < limits)).all(dim=-1)[:, None]
    log_depth = nnf.grid_sample(
        bank.log_depth[chosen].float(), depth_at, "nearest", "border", align_corners=False
    )
    return images / 127.5 - 1, torch.where(inside, log_depth, torch.nan)


def colour_jitter(
    images: Float[Tensor, "b 3 h w"], rng: torch.Generator
) -> Float[Tensor, "b 3 h w"]:
    """Random exposure, contrast, gamma, white balance, saturation, blur and noise an image."""
    batch = images.shape[0]

    def draw(*shape: int) -> Tensor:
        drawn = torch.rand(batch, *shape, 1, 1, generator=rng)
        return drawn.to(images.device, non_blocking=True)

    x = (images + 1) / 2
    x = x.clamp(1e-3, 1) ** (2 ** ((draw(1) - 0.5) * 1.4))  # gamma
    x = x * (0.75 + 0.5 * draw(1)) * (0.85 + 0.3 * draw(3))  # exposure, white balance
    mean = x.mean(dim=(2, 3), keepdim=True)
    x = mean + (x - mean) * (0.6 + 0.8 * draw(1))  # contrast
    grey = x.mean(dim=1, keepdim=True)
    saturation = 1.6 * draw(1) * (draw(1) > 0.1)  # one in ten is grey
    x = grey + (x - grey) * saturation
    blurred = nnf.avg_pool2d(nnf.pad(x, (2, 2, 2, 2), mode="replicate"), 5, 1)
    x = x + (blurred - x) * (draw(1) - 0.4).clamp(min=0) * 1.5
    x = x + torch.randn_like(x) * 0.04 * draw(1)
    return x.clamp(0, 1) * 2 - 1


def random_erasing(
    images: Float[Tensor, "b 3 h w"], rng: torch.Generator
) -> Float[Tensor, "b 3 h w"]:
    """Half of the images lose a rectangle to one colour: its depth must come from around it."""
    batch, _, height, width = images.shape
    drawn = torch.rand(8, batch, 1, 1, generator=rng).to(images.device, non_blocking=True)
    half_v, half_u = 0.05 + 0.15 * drawn[:2]  # a tenth to four tenths of each side
    v = (torch.arange(height, device=images.device)[:, None] + 0.5) / height
    u = (torch.arange(width, device=images.device)[None, :] + 0.5) / width
    inside = ((v - drawn[2]).abs() < half_v) & ((u - drawn[3]).abs() < half_u) & (drawn[4] < 0.5)
    return torch.where(inside[:, None], drawn[5:].transpose(0, 1) * 2 - 1, images)
