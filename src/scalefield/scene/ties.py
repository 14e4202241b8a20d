"""Views tied where they see one surface, and the joint solution of all their fields.

A point of view i at the depth of its recovery falls on a pixel of view j. The residual is

    r = log z_j(point of i) − log D_j = r₀ + g δᵢ − δⱼ,

where δ are changes of the log-depths and g is measured by moving the point along its ray, so
that it contains what the slope of the other surface does. A priori the changes of a view are normal
with the covariance S of its field given its own measurements, and those of different views are
independent.
With ties r ~ N(0, τ²) the posterior mean is δ = S Aᵀ (A S Aᵀ + τ² I)⁻¹ y, solved by conjugate
gradients: S has one block for each view, and A two entries in a row.

The errors of neighbouring ties are correlated, and some correspondences are wrong; therefore τ is
much larger than the deviation of a correct tie, and only ties whose views nearly agree are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64, Int64

from scalefield.scene.view import Estimate, View, bilinear, cells

TOLERANCE = 1e-5
"""Norm of the residual of conjugate gradients, relative to the right side, at which they end."""
MOST_STEPS = 300
"""Steps of conjugate gradients at most."""


@dataclass(frozen=True)
class TieConfig:
    """Settings of the ties between views."""

    views: int = 4
    """Neighbours that a view is tied to, at most."""
    grid: tuple[int, int] = (10, 13)
    """Cells of the image, each with one tie pixel at most, where the depth has little slope."""
    most_slope: float = 0.06
    """Change of log-depth from pixel to pixel beyond which a pixel lies on an edge."""
    gate: float = 1.0
    """Largest residual of a tie, in standard deviations."""
    least_share: float = 0.5
    """Least share of the ties between two views that the gate must let through: of fewer, many are
    wrong ones, as with a wrong pose."""
    std: float = 0.25
    """τ."""
    gain: tuple[float, float] = (0.2, 2.5)
    """Limits of g."""
    bend: float = 0.5
    """How far the residual may be from linear in δ, as a share of the change of δ."""
    margin_px: int = 4
    """Distance from the border of the image."""
    level_range: float = 1.2
    """Largest change of the log-scale of a view without anchors that is tried."""
    level_step: float = 0.04
    """Step between the changes that are tried."""
    level_error: float = 0.08
    """Deviation of a residual at the right scale, in log-depth."""
    level_share: float = 0.25
    """Least agreement of the tie pixels at the best scale; 1 if all residuals are 0."""
    level_contrast: float = 1.5
    """Least ratio of that to the median over all scales."""
    level_std: float = 0.12
    """Standard deviation of the scale that is found."""


@dataclass(frozen=True, eq=False)
class Ties:
    """Pairs of pixels of two views that may see one point, as columns."""

    other: list[str]
    """Names of the other views."""
    rows: Int64[np.ndarray, " t"]
    columns: Int64[np.ndarray, " t"]
    other_rows: Int64[np.ndarray, " t"]
    other_columns: Int64[np.ndarray, " t"]
    gain: Float64[np.ndarray, " t"]
    residual: Float64[np.ndarray, " t"]


def find_ties(
    view: View,
    estimate: Estimate,
    others: Mapping[str, tuple[View, Estimate]],
    config: TieConfig,
    rng: np.random.Generator,
) -> Ties:
    """The ties from a view to its neighbours."""
    rows, columns = tie_pixels(estimate, config, rng)
    log_depth = estimate.log_depth[rows, columns].astype(np.float64)
    std = estimate.std[rows, columns].astype(np.float64)
    step = np.clip(0.5 * std, 0.01, 0.1)
    names: list[str] = []
    found: list[tuple[np.ndarray, ...]] = []
    for name, (other, other_estimate) in others.items():

        def residual(
            change: Float[np.ndarray, " n"] | float,
            other: View = other,
            other_estimate: Estimate = other_estimate,
        ) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
            points = view.world(
                columns.astype(np.float64), rows.astype(np.float64), np.exp(log_depth + change)
            )
            u, v, depth = other.project(points)
            inside = other_estimate.inside(u, v, config.margin_px) & (depth > 0)
            u, v = np.where(inside, u, 0.0), np.where(inside, v, 0.0)
            there = bilinear(other_estimate.log_depth, u, v)
            apart = np.log(np.where(inside, depth, 1.0)) - there
            return np.where(inside, apart, np.nan), u, v

        (now, u, v), (after, _, _), (before, _, _) = map(residual, (0.0, step, -step))
        gain = (after - before) / (2 * step)
        variance = (gain * std) ** 2 + bilinear(other_estimate.std, u, v).astype(np.float64) ** 2
        bent = np.abs(after - 2 * now + before) > config.bend * step + 0.02
        linear = (gain > config.gain[0]) & (gain < config.gain[1]) & ~bent  # false for NaN
        good = linear & (now**2 < config.gate**2 * variance)
        if good.sum() < config.least_share * linear.sum():
            continue
        names += [name] * int(good.sum())
        pixel = np.rint(v).astype(np.int64), np.rint(u).astype(np.int64)
        columns_of = (rows, columns, *pixel, gain, now)
        found.append(tuple(column[good] for column in columns_of))
    if not found:
        whole, real = np.zeros(0, np.int64), np.zeros(0)
        return Ties([], whole, whole, whole, whole, real, real)
    return Ties(names, *map(np.concatenate, zip(*found, strict=True)))


def find_level(
    view: View,
    estimate: Estimate,
    others: Mapping[str, tuple[View, Estimate]],
    config: TieConfig,
    rng: np.random.Generator,
) -> float | None:
    """The change of a view's log-scale at which most of its points lie on the surfaces that other
    views see; None if no scale stands out.

    Far from the right scale nearly all correspondences are wrong, so that ties would mislead; wrong
    ones do not agree on a scale. Maximises mean exp(−r²/2ε²) · exp(−s²/2σ²) over s, with σ the
    deviation of the view's own scale.
    """
    rows, columns = tie_pixels(estimate, config, rng)
    if not len(rows):
        return None
    log_depth = estimate.log_depth[rows, columns].astype(np.float64)
    count = round(config.level_range / config.level_step)
    changes = config.level_step * np.arange(-count, count + 1)
    depth = np.exp(log_depth + changes[:, None])
    u, v = (np.broadcast_to(x.astype(np.float64), depth.shape) for x in (columns, rows))
    points = view.world(u.ravel(), v.ravel(), depth.ravel())
    agreement, seen = np.zeros(depth.shape), np.zeros(depth.shape)
    for other, there in others.values():
        x, y, z = other.project(points)
        inside = there.inside(x, y, config.margin_px) & (z > 0)
        x, y, z = (np.where(inside, values, 1.0) for values in (x, y, z))
        residual = np.log(z) - bilinear(there.log_depth, x, y)
        agree = np.where(inside, np.exp(-0.5 * (residual / config.level_error) ** 2), 0.0)
        agreement += agree.reshape(depth.shape)
        seen += inside.reshape(depth.shape)
    visible = seen.sum(axis=1)
    share = agreement.sum(axis=1) / np.maximum(visible, max(1.0, 0.5 * visible.max()))
    std = float(np.median(estimate.std))
    best = int(np.argmax(share * np.exp(-0.5 * (changes / std) ** 2)))
    high = max(config.level_share, config.level_contrast * float(np.median(share)))
    return float(changes[best]) if share[best] > high else None


def tie_pixels(
    estimate: Estimate, config: TieConfig, rng: np.random.Generator
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """Row and column of pixels spread over a view where its depth has little slope."""
    slope = sum(np.abs(g) for g in np.gradient(estimate.log_depth))
    flat = (config.most_slope - slope) * rng.uniform(0.5, 1, estimate.shape)
    return cells(flat, config.grid, config.margin_px)


@dataclass(frozen=True, eq=False)
class TiedPixels:
    """The pixels of a view that ties refer to, and the covariance of its field there."""

    rows: Int64[np.ndarray, " p"]
    columns: Int64[np.ndarray, " p"]
    covariance: Float64[np.ndarray, "p p"]
    """S, given the view's own measurements."""
    change: Float64[np.ndarray, " p"]
    """Log-depth that the residuals of the ties refer to, minus the mean of the field."""


@dataclass(frozen=True, eq=False)
class JointSystem:
    """All ties of a scene as rows of A, in the pixels of all views one after the other."""

    names: list[str]
    start: Int64[np.ndarray, " v_1"]
    """Where the pixels of each view begin, and where the last end."""
    first: Int64[np.ndarray, " t"]
    second: Int64[np.ndarray, " t"]
    """The two pixels of each tie."""
    gain: Float64[np.ndarray, " t"]
    residual: Float64[np.ndarray, " t"]
    pixels: dict[str, tuple[Int64[np.ndarray, " p"], Int64[np.ndarray, " p"]]]
    """Row and column of each view's pixels, each once."""

    @classmethod
    def of(cls, ties: Mapping[str, Ties], widths: Mapping[str, int]) -> JointSystem:
        """The system of the ties of each view; `widths` are the images' widths."""
        names = list(ties)
        order = {name: i for i, name in enumerate(names)}
        view, key = [], []
        for name, each in ties.items():
            other = np.array([order[o] for o in each.other], np.int64)
            view += [np.full(len(other), order[name]), other]
            width = np.array([widths[o] for o in each.other], np.int64)
            key += [each.rows * widths[name] + each.columns,
                    each.other_rows * width + each.other_columns]  # fmt: skip
        pairs = np.stack([np.concatenate(view), np.concatenate(key)], axis=1)
        unique, index = np.unique(pairs, axis=0, return_inverse=True)
        index = index.reshape(-1)
        start = np.searchsorted(unique[:, 0], np.arange(len(names) + 1))
        pixels = {}
        for i, name in enumerate(names):
            rows, columns = np.divmod(unique[start[i] : start[i + 1], 1], widths[name])
            pixels[name] = rows, columns
        sizes = np.repeat([len(t.other) for t in ties.values()], 2)
        parts = np.split(index, np.cumsum(sizes)[:-1])
        return cls(
            names,
            start,
            np.concatenate(parts[::2]),
            np.concatenate(parts[1::2]),
            np.concatenate([t.gain for t in ties.values()]),
            np.concatenate([t.residual for t in ties.values()]),
            pixels,
        )

    def solve(
        self, pixels: Mapping[str, TiedPixels], std: float
    ) -> dict[str, tuple[Float64[np.ndarray, " p"], float]]:
        """The change of each view's log-depth at its tied pixels from the mean of its field, and
        the factor of its standard deviation there."""
        blocks = [pixels[name].covariance for name in self.names]
        size = int(self.start[-1])
        spans = [slice(a, b) for a, b in zip(self.start[:-1], self.start[1:], strict=True)]

        def smoothed(weights: Float64[np.ndarray, " t"]) -> Float64[np.ndarray, " p"]:
            """S Aᵀ weights."""
            spread = np.bincount(self.first, self.gain * weights, size)
            spread -= np.bincount(self.second, weights, size)
            return np.concatenate([S @ spread[s] for S, s in zip(blocks, spans, strict=True)])

        def applied(values: Float64[np.ndarray, " p"]) -> Float64[np.ndarray, " t"]:
            """A values."""
            return self.gain * values[self.first] - values[self.second]

        change = np.concatenate([pixels[name].change for name in self.names])
        wanted = applied(change) - self.residual
        weights = conjugate_gradients(lambda w: applied(smoothed(w)) + std**2 * w, wanted)
        delta = smoothed(weights)
        variance = np.concatenate([S.diagonal() for S in blocks])
        solved = {}
        for name, block, span in zip(self.names, blocks, spans, strict=True):
            factor = self._std_factor(block, span, variance, std) if len(block) else 1.0
            solved[name] = delta[span], factor
        return solved

    def _std_factor(
        self,
        block: Float64[np.ndarray, "p p"],
        span: slice,
        variance: Float64[np.ndarray, " n"],
        std: float,
    ) -> float:
        """Median ratio of the standard deviations given the ties to those without, where the other
        ends of the ties have the variance of their own views."""
        rows, noise = [], []
        pairs = ((self.first, self.gain, self.second, np.ones_like(self.gain)),
                 (self.second, np.ones_like(self.gain), self.first, self.gain))  # fmt: skip
        for own, weight, other, other_weight in pairs:
            inside = (own >= span.start) & (own < span.stop)
            row = np.zeros((int(inside.sum()), len(block)))
            row[np.arange(len(row)), own[inside] - span.start] = weight[inside]
            rows.append(row)
            noise.append(std**2 + other_weight[inside] ** 2 * variance[other[inside]])
        A, N = np.concatenate(rows), np.concatenate(noise)
        # In the information form, whose size is that of the pixels and not that of the ties.
        root = np.linalg.cholesky(block + 1e-9 * np.trace(block) / len(block) * np.eye(len(block)))
        inner = np.eye(len(block)) + root.T @ (A.T / N) @ A @ root
        after = np.square(np.linalg.solve(np.linalg.cholesky(inner), root.T)).sum(axis=0)
        return float(np.median(np.sqrt(after / np.maximum(block.diagonal(), 1e-12))).clip(0.1, 1))


def conjugate_gradients(
    multiply: Callable[[Float64[np.ndarray, " t"]], Float64[np.ndarray, " t"]],
    right: Float64[np.ndarray, " t"],
) -> Float64[np.ndarray, " t"]:
    """The solution of a symmetric positive definite system."""
    from scipy.sparse.linalg import LinearOperator, cg

    if not len(right):
        return right
    operator = LinearOperator((len(right), len(right)), matvec=multiply, dtype=np.float64)
    solution, _ = cg(operator, right, rtol=TOLERANCE, maxiter=MOST_STEPS)
    return solution
