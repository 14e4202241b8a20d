"""The plane cut into patches of few anchors, each with a say in and around its own part."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

OWN = 200
"""Anchors in a patch at most, …"""
NEAR = 400
"""… and those that it hears in and around it."""
OVERLAP = 0.1
"""How far patches reach beyond their borders, in parts of their size, …"""
LEAST_REACH = 1e-6
"""… and at least, which is far less than a pixel."""


class Box(NamedTuple):
    """A part of the plane, or p of them, in the units of `Points.position`."""

    lower: Float[Tensor, "*p 2"]
    upper: Float[Tensor, "*p 2"]
    """Its borders; infinite at the image's."""
    reach: Float[Tensor, "*p 2"]
    """How far beyond its borders it still has a say."""

    def say(self, position: Float[Tensor, "m 2"]) -> Float[Tensor, "*p m"]:
        """Its weight before all of them are made to sum to one: 1 inside, smoothly 0 outside."""
        lower, upper, reach = (side[..., None, :] for side in self)
        within = torch.minimum(position - lower, upper - position)
        ramp = within.mul_(0.5).div_(reach).add_(0.5).clamp_(0, 1)
        across, down = (ramp * ramp * (3 - 2 * ramp)).unbind(dim=-1)
        return across * down

    def reaches(self, lower: Float[Tensor, " 2"], upper: Float[Tensor, " 2"]) -> Bool[Tensor, "*p"]:
        """Whether it may have a say in another box."""
        apart = torch.maximum(self.lower - self.reach - upper, lower - self.upper - self.reach)
        return (apart < 0).all(dim=-1)


class Patch(NamedTuple):
    """A box of the image, the anchors in it and those that it hears."""

    box: Box
    own: Int64[Tensor, " o"]
    near: Int64[Tensor, " n"]


def cut(position: Float[Tensor, "n 2"], far: Int64[Tensor, " f"]) -> Iterator[Patch]:
    """Boxes that fill the plane with at most `OWN` anchors each: larger ones are halved."""
    endless = torch.full_like(position[0], math.inf)
    boxes = [(torch.arange(len(position), device=position.device), -endless, endless)]
    while boxes:
        own, lower, upper = boxes.pop()
        if len(own) <= OWN:
            reach, near = around(position, lower, upper)
            yield Patch(Box(lower, upper, reach), own, torch.cat([near, far]).unique())
            continue
        place = position[own]
        axis = int((place.amax(dim=0) - place.amin(dim=0)).argmax())
        ordered = place[:, axis].sort().values
        middle = (ordered[len(own) // 2 - 1] + ordered[len(own) // 2]) / 2
        below = place[:, axis] <= middle
        if bool(below.all()):  # half of them or more are in the last row or column
            below = place[:, axis] < middle
        halved = torch.arange(2, device=position.device) == axis
        boxes.append((own[below], lower, torch.where(halved, middle, upper)))
        boxes.append((own[~below], torch.where(halved, middle, lower), upper))


def around(
    position: Float[Tensor, "n 2"], lower: Float[Tensor, " 2"], upper: Float[Tensor, " 2"]
) -> tuple[Float[Tensor, " 2"], Int64[Tensor, " near"]]:
    """How far a box reaches, and the anchors nearest to it, first of all those within reach.

    Beside a crowd it reaches less far, and on a crowded border it hears more than `NEAR`: a patch
    must hear every anchor where it has a say.
    """
    inner = torch.maximum(lower, position.amin(dim=0)), torch.minimum(upper, position.amax(dim=0))
    reach = (OVERLAP * (inner[1] - inner[0])).clamp(min=LEAST_REACH)
    while True:
        outside = torch.maximum(lower - reach - position, position - upper - reach)
        across, down = outside.clamp_(min=0).square_().unbind(dim=1)
        distance = across + down
        within = int((distance == 0).sum())
        if within <= NEAR or bool((reach == LEAST_REACH).all()):
            heard = min(max(NEAR, within), len(position))
            return reach, distance.topk(heard, largest=False).indices
        reach = (reach / 2).clamp(min=LEAST_REACH)
