"""Piecewise affine alignment (Aamir et al. 2025): scale and shift depend on relative depth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from scalefield.alignment.affine import Affine, Samples, curve_std, fit_affine, fit_ransac
from scalefield.anchors import Anchors
from scalefield.errors import counted
from scalefield.mde.output import MDEOutput, Space
from scalefield.recovery import Method, Recovery
from scalefield.report import Fallback
from scalefield.validation import require, require_choice

Variant = Literal["bins", "continuous"]
Edges = Literal["quantile", "equal_width"]

MIN_BIN_ANCHORS = 3
BREAKPOINT_QUANTILES = np.linspace(0.1, 0.9, 81)

Design = Callable[[np.ndarray], np.ndarray]
Curve = tuple[Callable[[Tensor], Tensor], list[Fallback], Design]
"""The curve from relative to metric values, the fallbacks used, and its design (the functions that
it is linear in)."""


@dataclass(frozen=True)
class Piecewise(Method):
    """Separate scale and shift over intervals of relative depth."""

    variant: Variant = "bins"
    """bins: an independent least-squares line in each interval, as in the paper. continuous: two
    joined segments with one free breakpoint, as in the authors' code."""
    space: Space | None = None
    """Space of the fit. None: disparity for affine-invariant disparity; for other maps that of the
    sources, which is depth for bins and disparity for continuous."""
    bins: int = 3
    """Number of intervals, 2 to 5, if `edges` is a rule."""
    edges: Edges | tuple[float, ...] = "quantile"
    """Boundaries of the intervals: quantiles of the anchors' x, equal widths of their range, or
    fixed values of the relative map."""
    seed: int = 0
    """Seed of the RANSAC that replaces a continuous fit without two rising segments."""

    def __post_init__(self) -> None:
        require_choice("variant", self.variant, get_args(Variant))
        if self.space is not None:
            require_choice("space", self.space, get_args(Space))
        require(self.bins in range(2, 6), "bins", "a whole number from 2 to 5", self.bins)
        if isinstance(self.edges, str):
            require_choice("edges", self.edges, get_args(Edges))
        else:
            rising = len(self.edges) > 0 and bool(np.all(np.diff(self.edges) > 0))
            finite = bool(np.all(np.isfinite(self.edges)))
            require(rising and finite, "edges", "one or more rising finite numbers", self.edges)

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery[Tensor]:
        """Recover from one anchor or more."""
        published: Space = "disparity" if self.variant == "continuous" else "depth"
        space = mde_output.space_of_fit(self.space, published)
        samples = Samples.at(mde_output, anchors, space)
        curve, fallbacks, design = (
            fit_bins(samples, self._edges(samples.x))
            if self.variant == "bins"
            else fit_continuous(samples, self.seed)
        )
        prediction = curve(mde_output.in_space(space).double())
        return Recovery.from_space(
            mde_output,
            anchors,
            prediction,
            space,
            std_log=curve_std(mde_output, samples, space, curve=curve, design=design),
            fallbacks=tuple(fallbacks),
        )

    def _edges(self, x: np.ndarray) -> list[float]:
        """The K − 1 values at which intervals meet; an interval contains its lower edge."""
        if not isinstance(self.edges, str):
            return list(self.edges)
        inner = np.linspace(0, 1, self.bins + 1)[1:-1]
        values = np.quantile(x, inner) if self.edges == "quantile" else x.min() + inner * np.ptp(x)
        return [float(edge) for edge in values]


def fit_bins(samples: Samples, edges: list[float]) -> Curve:
    """A least-squares line in each interval; the end intervals extend to infinity.

    While an interval has fewer than 3 anchors, no range of x, or s ≤ 0, the one with the fewest
    anchors is joined with its neighbour of fewer anchors. If one interval is left, it has the
    fallbacks of Global.
    """
    edges = list(edges)
    interval = np.searchsorted(edges, samples.x, side="right")
    members = [np.flatnonzero(interval == k) for k in range(len(edges) + 1)]
    fallbacks = []
    while len(members) > 1:
        flaws = [_flaw(samples, inside) for inside in members]
        flawed = [k for k, flaw in enumerate(flaws) if flaw]
        if not flawed:
            break
        k = min(flawed, key=lambda k: len(members[k]))
        neighbours = [n for n in (k - 1, k + 1) if 0 <= n < len(members)]
        left, right = sorted((k, min(neighbours, key=lambda n: len(members[n]))))
        text = f"two depth intervals joined at x = {edges[left]:.4g}: {flaws[k]}"
        fallbacks.append(Fallback("joined_intervals", text))
        members[left : right + 1] = [np.concatenate(members[left : right + 1])]
        del edges[left]
    if not edges:
        text = "one line for all depths: every interval was joined"
        fallbacks.append(Fallback("one_line", text))
    lines = [fit_affine(samples[np.sort(inside)]) for inside in members]
    fallbacks += [line.fallback for line in lines if line.fallback]

    def curve(x: Tensor) -> Tensor:
        def table(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=x.dtype, device=x.device)

        interval = torch.searchsorted(table(edges), x.contiguous(), right=True)
        scale, shift = table([f.scale for f in lines]), table([f.shift for f in lines])
        return scale[interval] * x + shift[interval]

    def design(x: np.ndarray) -> np.ndarray:
        interval = np.searchsorted(edges, x, side="right")
        columns = [(interval == k)[:, None] * line.design(x) for k, line in enumerate(lines)]
        return np.concatenate(columns, axis=1)

    return curve, fallbacks, design


def _flaw(samples: Samples, inside: np.ndarray) -> str:
    """Why an interval cannot have a line of its own; empty if it can."""
    if len(inside) < MIN_BIN_ANCHORS:
        return f"{counted(len(inside), 'anchor')} in one, fewer than {MIN_BIN_ANCHORS}"
    return fit_affine(samples[inside]).reason


def fit_continuous(samples: Samples, seed: int) -> Curve:
    """The least squares of y on [1, x, (x − b)₊] with both slopes above zero and the best b.

    b runs over quantiles of the anchors' x with two different x on both sides. Fallbacks: RANSAC's
    line if no b gives two rising segments; Global for fewer than 4 anchors.
    """
    if len(samples) < 4:
        text = "one line for all depths: fewer than 4 anchors"
        return one_line(fit_affine(samples), Fallback("one_line", text))
    x, y, root = samples.x, samples.y, np.sqrt(samples.weight)
    unit = np.abs(x).max() or 1.0
    best: tuple[float, float, np.ndarray] | None = None  # error, b, coefficients
    for b in np.unique(np.quantile(x, BREAKPOINT_QUANTILES)):
        if len(np.unique(x[x <= b])) < 2 or len(np.unique(x[x >= b])) < 2:
            continue
        design = hinge(x, b, unit)
        beta, _, rank, _ = np.linalg.lstsq(root[:, None] * design, root * y, rcond=None)
        if rank < 3 or beta[1] <= 0 or beta[1] + beta[2] <= 0:
            continue
        error = float(np.sum((root * (y - design @ beta)) ** 2))
        if best is None or error < best[0]:
            best = (error, float(b), beta)
    if best is None:
        line, inliers = fit_ransac(samples, seed)
        why = f"no breakpoint gives two rising segments; {inliers.sum()} of {len(x)} anchors agree"
        return one_line(line, Fallback("ransac_line", f"RANSAC's line for all depths: {why}"))
    _, b, (constant, slope, bend) = best
    below = Affine(slope / unit, constant)

    def curve(x: Tensor) -> Tensor:
        return below(x) + (bend / unit) * (x - b).clamp(min=0)

    return curve, [], lambda x: hinge(x, b, unit)


def hinge(x: np.ndarray, b: float, unit: float) -> np.ndarray:
    """The columns 1, x and (x − b)₊, in this unit of x: functions that are linear on both sides of
    b and continuous."""
    return np.stack([np.ones_like(x), x / unit, np.maximum(x - b, 0) / unit], axis=1)


def one_line(line: Affine, fallback: Fallback) -> Curve:
    """A curve that is a line, with the fallbacks that led to it."""
    return line, [fallback, *([line.fallback] if line.fallback else [])], line.design
