"""A Gaussian process given many anchors, patch by patch: cost and memory grow as their number.

The linear parts (constant, slope, mean, modes) are the same for the whole image, so anchors spread
over it tell them well enough. What is left bends, and near anchors screen off far ones: each patch
is solved by itself with the anchors in and around it, and a few far ones. Neighbouring patches
overlap and are blended, so that nothing jumps.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from scalefield.kernel import Kernel, Points
from scalefield.posterior import Linear, Posterior, linear_columns

SPREAD = 2000
"""Anchors, far from one another, from which the linear parts are learned, …"""
FAR = 200
"""… and how many of them every patch hears."""
OWN = 200
"""Anchors in a patch at most, …"""
NEAR = 400
"""… and those that it hears in and around it."""
OVERLAP = 0.1
"""How far patches reach beyond their borders, in parts of their size, …"""
LEAST_REACH = 1e-6
"""… and at least, which is far less than a pixel."""


@dataclass(frozen=True, eq=False)
class Patch:
    """A box of the image, the anchors in it and those that it hears."""

    lower: Float[Tensor, " 2"]
    upper: Float[Tensor, " 2"]
    """Its borders in the units of `Points.position`; infinite at the image's."""
    reach: Float[Tensor, " 2"]
    """How far beyond its borders it still has a say."""
    own: Int64[Tensor, " o"]
    near: Int64[Tensor, " n"]

    def say(self, position: Float[Tensor, "m 2"]) -> Float[Tensor, " m"]:
        """Its weight before all of them are made to sum to one: 1 inside, smoothly 0 outside."""
        within = torch.minimum(position - self.lower, self.upper - position)
        ramp = (0.5 * within / self.reach + 0.5).clamp(0, 1)
        return (ramp * ramp * (3 - 2 * ramp)).prod(dim=1)

    def reaches(self, lower: Float[Tensor, " 2"], upper: Float[Tensor, " 2"]) -> bool:
        """Whether it may have a say in a box."""
        apart = torch.maximum(self.lower - self.reach - upper, lower - self.upper - self.reach)
        return bool((apart < 0).all())


@dataclass(frozen=True, eq=False)
class Patchwork:
    """What `Posterior` says, for any number of anchors.

    Where patches overlap, fields are blended; the deviation given is the blend of deviations, which
    is that of the blended field or above it. All in float64.
    """

    kernel: Kernel
    anchors: Points
    """One for each pixel: those of one pixel are their mean, which says the same."""
    member: Int64[Tensor, " given"]
    """Which of these each given anchor went into, …"""
    part: Float[Tensor, " given"]
    """… and as what share of it."""
    noise: Float[Tensor, " n"]
    residual: Float[Tensor, " n"]
    """y − μ − offset, less the linear parts: what is left to the bends."""
    coarse: Posterior
    """Given anchors far from one another; the linear parts are its own."""
    spread: Int64[Tensor, " s"]
    """Which anchors those are."""
    patches: tuple[Patch, ...]
    alphas: tuple[Float[Tensor, " _"], ...]
    """`Posterior.alpha` of each patch; factors would be too much to keep."""
    left_out: tuple[Float[Tensor, " n"], Float[Tensor, " n"]]

    @classmethod
    def fit(
        cls,
        kernel: Kernel,
        anchors: Points,
        y: Float[Tensor, " n"],
        noise: Float[Tensor, " n"],
        offset: Float[Tensor, ""] | None = None,
    ) -> Patchwork:
        """Condition on y with standard deviations `noise`; `offset` if it is known beforehand."""
        anchors, y, noise, member, part = one_a_pixel(anchors.to(torch.float64), y, noise)
        if offset is None:
            offset = (y - anchors.mean).quantile(0.5)
        spread = far_apart(anchors, SPREAD)
        coarse = Posterior.fit(kernel, anchors[spread], y[spread], noise[spread], offset)
        residual = y - offset - anchors.mean
        residual = residual - linear_columns(kernel, anchors) @ coarse.linear_weights()
        patches = tuple(cut(anchors.position, spread[:FAR]))
        alphas, left_out = [], (torch.empty_like(y), torch.empty_like(y))
        for patch in patches:
            solved = local(kernel, anchors, residual, noise, patch)
            alphas.append(solved.alpha)
            own = torch.searchsorted(patch.near, patch.own)
            for all_of_them, found in zip(left_out, solved.leave_one_out(), strict=True):
                all_of_them[patch.own] = found[own]
        return cls(
            kernel, anchors, member, part, noise, residual,
            coarse, spread, patches, tuple(alphas), left_out,
        )  # fmt: skip

    def shares(
        self, position: Float[Tensor, "m 2"]
    ) -> Iterator[tuple[int, Int64[Tensor, " k"], Float[Tensor, " k"]]]:
        """For each patch that has a say: its number, at which positions, and its weights there,
        which over all patches sum to one."""
        said = []
        total = torch.zeros_like(position[:, 0])
        first, last = position.amin(dim=0), position.amax(dim=0)
        for number, patch in enumerate(self.patches):
            if not patch.reaches(first, last):
                continue
            say = patch.say(position)
            (where,) = say.nonzero(as_tuple=True)
            if len(where):
                said.append((number, where, say[where]))
                total[where] += say[where]
        for number, where, say in said:
            yield number, where, say / total[where]

    def bends(self, number: int) -> Posterior:
        """The bends alone, as a patch sees them."""
        return local(self.kernel, self.anchors, self.residual, self.noise, self.patches[number])

    def linear(self) -> Linear:
        """The parts that do not bend."""
        return self.coarse.linear()

    def weights(self) -> Float[Tensor, " k"]:
        """w, what the linear modes are multiplied by."""
        return self.coarse.weights()

    def linear_covariance(self) -> Float[Tensor, "w w"]:
        """Cov[θ] of the linear parts."""
        return self.coarse.linear_covariance()

    def mean(self, points: Points) -> Float[Tensor, " m"]:
        """E[ℓ] at points."""
        points = points.to(torch.float64)
        columns = linear_columns(self.kernel, points)
        total = points.mean + self.coarse.offset + columns @ self.coarse.linear_weights()
        bending = bends_of(self.kernel)
        for number, where, share in self.shares(points.position):
            cross = bending(points[where], self.anchors[self.patches[number].near])
            total[where] += share * (cross @ self.alphas[number])
        return total

    def speakers(self, points: Points) -> Float[Tensor, "m given"]:
        """The smoother's weights, as `Posterior.speakers` has them."""
        points = points.to(torch.float64)
        heard = self.anchors.mean.new_zeros(len(points), len(self.anchors))
        linear = linear_columns(self.kernel, points)
        columns = linear_columns(self.kernel, self.anchors)
        for number, where, share in self.shares(points.position):
            near = self.patches[number].near
            bent = share[:, None] * self.bends(number).speakers(points[where])
            heard[where[:, None], near] += bent
            linear[where] -= bent @ columns[near]
        # The linear parts are linear in what was said at the anchors far from one another.
        heard[:, self.spread] += linear @ self.coarse.linear_speakers()
        return heard[:, self.member] * self.part

    def variance(self, points: Points) -> Float[Tensor, " m"]:
        """Var[ℓ] at points (without the noise of a measurement)."""
        points = points.to(torch.float64)
        columns, linear = (linear_columns(self.kernel, p) for p in (self.anchors, points))
        unknown = self.linear_covariance()
        deviation = torch.zeros_like(points.mean)
        for number, where, share in self.shares(points.position):
            solved, here = self.bends(number), points[where]
            cross = solved.kernel(solved.anchors, here)
            half = torch.linalg.solve_triangular(solved.factor, cross, upper=False)
            bent = solved.kernel.variance(here) - half.square().sum(dim=0)
            # Where the linear parts are wrong, bends make it good as far as there are anchors.
            near = columns[self.patches[number].near]
            known = torch.linalg.solve_triangular(solved.factor, near, upper=False)
            left = linear[where] - half.mT @ known
            variance = bent + ((left @ unknown) * left).sum(dim=1)
            deviation[where] += share * variance.clamp(min=0).sqrt()
        return deviation.square()

    def covariance(self, points: Points) -> Float[Tensor, "m m"]:
        """Cov[ℓ] of every pair of points, given the anchors far from one another alone."""
        return self.coarse.covariance(points)

    def leave_one_out(self) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """What its patch says of each anchor without it: the residual and its deviation."""
        return self.left_out


def bends_of(kernel: Kernel) -> Kernel:
    """The kernel without its linear parts."""
    return dataclasses.replace(kernel, constant=0.0, linear=0.0, slope=0.0, doubt=0.0)


def local(
    kernel: Kernel,
    anchors: Points,
    residual: Float[Tensor, " n"],
    noise: Float[Tensor, " n"],
    patch: Patch,
) -> Posterior:
    """The bends given what the linear parts leave at the anchors that a patch hears."""
    near, zero = anchors[patch.near], residual.new_zeros(())
    said = residual[patch.near] + near.mean  # which `fit` takes off again
    return Posterior.fit(bends_of(kernel), near, said, noise[patch.near], zero)


def one_a_pixel(
    anchors: Points, y: Float[Tensor, " given"], noise: Float[Tensor, " given"]
) -> tuple[
    Points,
    Float[Tensor, " n"],
    Float[Tensor, " n"],
    Int64[Tensor, " given"],
    Float[Tensor, " given"],
]:
    """Anchors of one pixel as their mean with a mean's noise: for a Gaussian the same thing. And
    which of them each given one went into, and as what share."""
    _, member, counts = anchors.position.unique(dim=0, return_inverse=True, return_counts=True)
    precision = noise.double() ** -2
    total = torch.zeros(len(counts), dtype=y.dtype, device=y.device).index_add(0, member, precision)
    part = precision / total[member]
    level = torch.zeros_like(total).index_add(0, member, part * y)
    first = member.argsort(stable=True)[counts.cumsum(0) - counts]
    return anchors[first], level, total.rsqrt(), member, part


def far_apart(anchors: Points, n: int) -> Int64[Tensor, " s"]:
    """Up to n anchors, each farthest in position and log-depth from those before it."""
    place = torch.cat([anchors.position, 0.5 * anchors.log_depth[:, None]], dim=1)
    nearest = torch.full_like(place[:, 0], torch.inf)
    at = (place - place.mean(dim=0)).square().sum(dim=1).argmin()
    chosen = []
    for _ in range(min(n, len(place))):
        chosen.append(at)
        nearest = torch.minimum(nearest, (place - place[at]).square().sum(dim=1))
        at = nearest.argmax()
    return torch.stack(chosen)


def cut(position: Float[Tensor, "n 2"], far: Int64[Tensor, " f"]) -> Iterator[Patch]:
    """Boxes that fill the plane with at most `OWN` anchors each: larger ones are halved."""
    endless = torch.full_like(position[0], math.inf)
    boxes = [(torch.arange(len(position), device=position.device), -endless, endless)]
    while boxes:
        own, lower, upper = boxes.pop()
        if len(own) <= OWN:
            reach, near = around(position, lower, upper)
            yield Patch(lower, upper, reach, own, torch.cat([near, far]).unique())
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

    Beside a crowd it reaches less far: a patch must hear every anchor where it has a say.
    """
    inner = torch.maximum(lower, position.amin(dim=0)), torch.minimum(upper, position.amax(dim=0))
    reach = (OVERLAP * (inner[1] - inner[0])).clamp(min=LEAST_REACH)
    while True:
        outside = torch.maximum(lower - reach - position, position - upper - reach)
        distance = outside.clamp(min=0).square().sum(dim=1)
        if int((distance == 0).sum()) <= NEAR or bool((reach == LEAST_REACH).all()):
            return reach, distance.topk(min(NEAR, len(position)), largest=False).indices
        reach = (reach / 2).clamp(min=LEAST_REACH)
