"""A Gaussian process given many anchors, patch by patch: cost and memory grow as their number.

The linear parts (constant, slope, mean, modes) are the same for the whole image, so anchors spread
over it tell them well enough. What is left bends, and near anchors screen off far ones: each patch
is solved by itself with the anchors in and around it, and a few far ones. Neighbouring patches
overlap and are blended, so that nothing jumps.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from scalefield.bends import pairs_at_once
from scalefield.kernel import Kernel, Points
from scalefield.patches import Box, cut
from scalefield.posterior import Linear, Posterior, linear_columns

SPREAD = 2000
"""Anchors, far from one another, from which the linear parts are learned, …"""
FAR = 200
"""… and how many of them every patch hears."""
NOBODY = -1
"""Stands among the anchors of a patch that has fewer than those solved with it."""


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
    boxes: Box
    """Where each patch has its say, …"""
    heard: tuple[Int64[Tensor, " _"], ...]
    """… the anchors that it hears, …"""
    alphas: tuple[Float[Tensor, " _"], ...]
    """… and its `Posterior.alpha`; factors would be too much to keep."""
    left_out: Float[Tensor, "2 n"]

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
        patches = [*cut(anchors.position.cpu(), spread[:FAR].cpu())]
        sides = zip(*(patch.box for patch in patches), strict=True)
        boxes = Box(*(torch.stack(side).to(y.device) for side in sides))
        own = sent([patch.own for patch in patches], y.device)
        heard = sent([patch.near for patch in patches], y.device)
        alphas, left_out = [], y.new_empty(2, len(y))
        for some in together(len(patches), y):
            near = padded(heard[some])
            solved = local(kernel, anchors, residual, noise, near)
            alphas += trimmed(solved.alpha, heard[some])
            found = leave_out(solved, near, padded(own[some]))
            kept = [torch.cat(trimmed(values, own[some])) for values in found]
            left_out[:, torch.cat(own[some])] = torch.stack(kept)
        return cls(
            kernel, anchors, member, part, noise, residual,
            coarse, spread, boxes, heard, tuple(alphas), left_out,
        )  # fmt: skip

    def shares(
        self, position: Float[Tensor, "m 2"]
    ) -> Iterator[tuple[int, Int64[Tensor, " k"], Float[Tensor, " k"]]]:
        """For each patch that has a say: its number, at which positions, and its weights there,
        which over all patches sum to one."""
        said, total = [], torch.zeros_like(position[:, 0])
        reaches = self.boxes.reaches(position.amin(dim=0), position.amax(dim=0))
        step = max(1, pairs_at_once(position) // len(position))
        for some in reaches.nonzero()[:, 0].split(step):
            say = Box(*(side[some] for side in self.boxes)).say(position)
            total += say.sum(dim=0)
            row, where = say.nonzero(as_tuple=True)
            # Asked for together: a GPU is waited for at every question.
            numbers, counts = torch.stack([some, (say > 0).sum(dim=1)]).tolist()
            said.append((numbers, counts, where, say[row, where]))
        for numbers, counts, where, say in said:
            share = say / total[where]
            for one in zip(numbers, where.split(counts), share.split(counts), strict=True):
                if len(one[1]):
                    yield one

    def bends(self, near: Int64[Tensor, "p n"]) -> Posterior:
        """The bends alone, as patches see them that hear these anchors."""
        return local(self.kernel, self.anchors, self.residual, self.noise, near)

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
            cross = bending(points[where], self.anchors[self.heard[number]])
            total[where] += share * (cross @ self.alphas[number])
        return total

    def speakers(self, points: Points) -> Float[Tensor, "m given"]:
        """The smoother's weights, as `Posterior.speakers` has them."""
        points = points.to(torch.float64)
        heard = self.anchors.mean.new_zeros(len(points), len(self.anchors))
        linear = linear_columns(self.kernel, points)
        columns = linear_columns(self.kernel, self.anchors)
        for number, where, share in self.shares(points.position):
            near = self.heard[number]
            bent = share[:, None] * self.bends(near[None])[0].speakers(points[where])
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
        shares = [*self.shares(points.position)]
        for some in together(len(shares), deviation):
            numbers, places, parts = zip(*shares[some], strict=True)
            near, where = padded([self.heard[number] for number in numbers]), padded(places)
            solved, here = self.bends(near), points[where]
            cross = solved.kernel(solved.anchors, here)
            half = torch.linalg.solve_triangular(solved.factor, cross, upper=False)
            bent = solved.kernel.variance(here) - half.square().sum(dim=1)
            # Where the linear parts are wrong, bends make it good as far as there are anchors.
            known = torch.linalg.solve_triangular(solved.factor, columns[near], upper=False)
            left = linear[where] - half.mT @ known
            variance = bent + ((left @ unknown) * left).sum(dim=2)
            deviations = trimmed(variance.clamp(min=0).sqrt(), places)
            # One patch after another, for sums of a fixed order: none has a point twice.
            for place, part, found in zip(places, parts, deviations, strict=True):
                deviation.index_add_(0, place, part * found)
        return deviation.square()

    def covariance(self, points: Points) -> Float[Tensor, "m m"]:
        """Cov[ℓ] of every pair of points, given the anchors far from one another alone."""
        return self.coarse.covariance(points)

    def leave_one_out(self) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """What its patch says of each anchor without it: the residual and its deviation."""
        residual, deviation = self.left_out
        return residual, deviation


def bends_of(kernel: Kernel) -> Kernel:
    """The kernel without its linear parts."""
    return dataclasses.replace(kernel, constant=0.0, linear=0.0, slope=0.0, doubt=0.0)


def local(
    kernel: Kernel,
    anchors: Points,
    residual: Float[Tensor, " n"],
    noise: Float[Tensor, " n"],
    near: Int64[Tensor, "p k"],
) -> Posterior:
    """The bends given what the linear parts leave at the anchors that each of p patches hears.
    `NOBODY` has an amplitude of zero: independent of all others, it changes nothing."""
    heard, nobody = anchors[near], near == NOBODY
    amplitude = heard.amplitude.masked_fill(nobody[..., None], 0)
    heard = dataclasses.replace(heard, amplitude=amplitude)
    said = residual[near].masked_fill(nobody, 0) + heard.mean  # which `fit` takes off again
    apart, zero = noise[near].masked_fill(nobody, 1), residual.new_zeros(len(near))
    return Posterior.fit(bends_of(kernel), heard, said, apart, zero)


def leave_out(
    solved: Posterior, near: Int64[Tensor, "p n"], own: Int64[Tensor, "p o"]
) -> tuple[Float[Tensor, "p o"], Float[Tensor, "p o"]]:
    """`Posterior.leave_one_out` for some of the anchors: of the inverse of LLᵀ, the diagonal holds
    the squared columns of L⁻¹."""
    which = (near[:, :, None] == own[:, None]).to(solved.alpha.dtype)
    columns = torch.linalg.solve_triangular(solved.factor, which, upper=False)
    precision = columns.square().sum(dim=1)
    return (solved.alpha[:, None] @ which)[:, 0] / precision, precision.rsqrt()


def patches_at_once(where: Tensor) -> int:
    """Patches to be solved at once: a processor is busy with one, a GPU is not."""
    return 32 if where.is_cuda else 1


def together(patches: int, where: Tensor) -> Iterator[slice]:
    """All patches, a few at a time."""
    step = patches_at_once(where)
    return (slice(first, first + step) for first in range(0, patches, step))


def sent(rows: list[Int64[Tensor, " _"]], device: torch.device) -> tuple[Tensor, ...]:
    """Rows of any lengths, brought to a device in one piece."""
    return torch.cat(rows).to(device).split([len(row) for row in rows])


def padded(rows: Sequence[Int64[Tensor, " _"]]) -> Int64[Tensor, "p n"]:
    """Rows of any lengths as a table, …"""
    return pad_sequence([*rows], batch_first=True, padding_value=NOBODY)


def trimmed(table: Float[Tensor, "p n"], rows: Sequence[Tensor]) -> list[Float[Tensor, " _"]]:
    """… and a table as rows of these lengths."""
    return [values[: len(row)] for values, row in zip(table, rows, strict=True)]


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
    place = torch.cat([anchors.position, 0.5 * anchors.log_depth[:, None]], dim=1).cpu()
    order = place[:, 0].argsort(stable=True)
    place = place[order]
    at = int((place - place.mean(dim=0)).square().sum(dim=1).argmin())
    u, v, d = place.T.contiguous().numpy()
    nearest, chosen = np.full(len(u), np.inf), []
    for _ in range(min(n, len(u))):
        chosen.append(at)
        # This one was the farthest: whom it comes nearer to is not that far away.
        reach = 1.001 * math.sqrt(nearest[at])
        some = slice(*u.searchsorted((u[at] - reach, u[at] + reach)))
        square = (u[some] - u[at]) ** 2 + (v[some] - v[at]) ** 2 + (d[some] - d[at]) ** 2
        np.minimum(nearest[some], square, out=nearest[some])
        at = int(nearest.argmax())
    return order[chosen].to(anchors.position.device)
