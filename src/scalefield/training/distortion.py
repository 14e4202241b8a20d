"""Synthetic biases of relative depth: what MDEs do wrong, drawn at random.

A distortion is a function of log-depth and position, so that the grid a network sees and the pixels
a loss looks at are distorted alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as nnf
from jaxtyping import Float
from torch import Tensor

KNOTS = 8
STEPS = 3


@dataclass(frozen=True, eq=False)
class Distortion:
    """One random bias for each of b images."""

    stretch: Float[Tensor, "b knots"]
    """Slopes of a monotone, piecewise linear warp of log-depth over −2 … 2."""
    shift: Float[Tensor, " b"]
    """Added to disparity, in units of the median's."""
    smooth: Float[Tensor, "b 1 4 5"]
    """A smooth field over the image."""
    boxes: Float[Tensor, "b steps 6"]
    """Centre and half-size in −1 … 1, and a range of log-depth: an object, …"""
    offsets: Float[Tensor, "b steps"]
    """… and its step."""

    @classmethod
    def draw(
        cls, count: int, rng: torch.Generator, device: torch.device, strength: Float[Tensor, " b"]
    ) -> Distortion:
        """Biases of the given strengths: 0 for none, 1 for what weak MDEs have."""

        def normal(*shape: int) -> Tensor:
            return torch.randn(count, *shape, generator=rng)

        def on(chance: float) -> Tensor:
            return strength.cpu() * (torch.rand(count, generator=rng) < chance)

        stretch = (0.15 * normal(1) + 0.2 * normal(KNOTS)) * on(0.6)[:, None]
        shift = (0.25 * normal() + 0.1) * on(0.4)
        smooth = 0.12 * normal(1, 4, 5) * on(0.5)[:, None, None, None]
        centre, size = torch.rand(count, STEPS, 2, generator=rng) * 2 - 1, normal(STEPS, 2).abs()
        depth = normal(STEPS)
        slab = torch.stack([depth - 0.4, depth + 0.4], dim=-1)
        boxes = torch.cat([centre, 0.1 + 0.4 * size, slab], dim=-1)
        offsets = 0.15 * normal(STEPS) * on(0.5)[:, None]
        drawn = (stretch.exp(), shift, smooth, boxes, offsets)
        return cls(*(values.to(device) for values in drawn))

    def __call__(
        self, log_depth: Float[Tensor, "b n"], position: Float[Tensor, "b n 2"]
    ) -> Float[Tensor, "b n"]:
        """Distorted log-depth of pixels at positions in −1 … 1; log_depth is around its median."""
        d = log_depth
        step = 4 / KNOTS
        warped = (d + 2).clamp(max=0) + (d - 2).clamp(min=0) - 2
        for i in range(KNOTS):
            warped = warped + self.stretch[:, i, None] * (d + 2 - i * step).clamp(0, step)
        inverse = (-warped).exp() + self.shift[:, None]
        warped = -inverse.clamp(min=0.02).log()
        where = position[:, None].to(self.smooth.dtype)
        field = nnf.grid_sample(self.smooth, where, "bicubic", "border", align_corners=False)
        warped = warped + field[:, 0, 0]
        for i in range(STEPS):
            u, v, half_u, half_v, near, far = (x[:, None] for x in self.boxes[:, i].unbind(-1))
            inside = ((position[..., 0] - u).abs() < half_u) & (
                (position[..., 1] - v).abs() < half_v
            )
            inside &= (d > near) & (d < far)
            warped = warped + self.offsets[:, i, None] * inside
        return warped
