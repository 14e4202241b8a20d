"""Anchors as samples of y ≈ s·x + t, and affine fits with their fallbacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from scipy.spatial import cKDTree
from torch import Tensor

from scalefield.alignment.uncertainty import (
    LinearSmoother,
    at_coarse_pixels,
    fit_std,
    log_residuals,
    to_image,
)
from scalefield.anchors import Anchors
from scalefield.mde.output import MDEOutput, Space
from scalefield.report import Fallback

MIN_RELATIVE_RANGE = 1e-6
"""Samples whose x differ by less than this fraction of the largest do not determine a shift."""

RANSAC_HYPOTHESES = 2000
"""Number of pairs of anchors that RANSAC tries; with fewer pairs all are tried."""


@dataclass(frozen=True, eq=False)
class Samples:
    """The anchors as samples y ≈ s·x + t, in one space and in float64.

    Samples are sorted by pixel, then by y, so that no method depends on the order of the anchors.
    `weight` is 1/σ² of y, with σ propagated to the space to first order (σ_m / depth_m² for
    disparity, σ_m / depth_m for logarithms), scaled to a mean of one. If no anchor has a σ, the
    weights are ones; if some have none, `Anchors.complete_sigma_m` gives them a typical one.
    """

    x: Float64[np.ndarray, " n"]
    y: Float64[np.ndarray, " n"]
    weight: Float64[np.ndarray, " n"]
    rows: Int64[np.ndarray, " n"]
    columns: Int64[np.ndarray, " n"]
    index: Int64[np.ndarray, " n"]
    """Index of each sample in the given anchors."""
    tau: Float64[np.ndarray, " n"]
    """Standard deviation of the measured log-depth; 0 where it is not known."""

    @classmethod
    def at(cls, mde_output: MDEOutput, anchors: Anchors, space: Space | Literal["log"]) -> Samples:
        """The samples in "depth", in "disparity" (1/m), or with log depth on both sides."""
        rows, columns = anchors.pixels(mde_output.shape)
        mde_map = mde_output.in_space("disparity" if space == "disparity" else "depth")
        x = mde_map[rows, columns].double().cpu().numpy()
        y = anchors.depth_m
        sigma_m = anchors.complete_sigma_m()
        sigma = np.ones(len(anchors)) if sigma_m is None else sigma_m
        if space == "disparity":
            y = 1 / anchors.depth_m
            sigma = sigma if sigma_m is None else sigma * y**2
        elif space == "log":
            x, y = np.log(x), np.log(anchors.depth_m)
            sigma = sigma if sigma_m is None else sigma / anchors.depth_m
        weight = (sigma.min() / sigma) ** 2
        order = np.lexsort((weight, y, columns, rows))
        return cls(
            x[order],
            y[order],
            (weight / weight.mean())[order],
            rows[order],
            columns[order],
            order.astype(np.int64),
            anchors.sigma_log(0.0)[order],
        )

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: np.ndarray) -> Samples:
        """The samples selected by a mask or an index array, in the order given."""
        return Samples(*(getattr(self, field.name)[index] for field in fields(self)))

    @property
    def pixels(self) -> Float64[np.ndarray, "n 2"]:
        """Row and column of each sample."""
        return np.stack([self.rows, self.columns], axis=1).astype(np.float64)

    def merged(self) -> Samples:
        """One sample per pixel: the weighted mean of anchors on the same pixel."""
        _, first, pixel = np.unique(self.pixels, axis=0, return_index=True, return_inverse=True)
        pixel = pixel.reshape(-1)
        weight = np.bincount(pixel, self.weight)
        y = np.bincount(pixel, self.weight * self.y) / weight
        return replace(self[first], y=y, weight=weight)

    @property
    def spacing_px(self) -> float:
        """Median distance between an anchor's pixel and the nearest other one; infinite for one
        anchor."""
        pixels = np.unique(self.pixels, axis=0)
        distances, _ = cKDTree(pixels).query(pixels, k=2)
        return float(np.median(distances[:, 1]))


@dataclass(frozen=True)
class Affine:
    """y = scale·x + shift, and which of these two parameters were fitted."""

    scale: float
    shift: float = 0.0
    model: Literal["affine", "scale", "constant"] = "affine"
    """The parameters that were fitted: scale and shift, scale only, or shift only."""
    reason: str = ""
    """Why less than scale and shift was fitted; empty for the full fit."""

    @property
    def fallback(self) -> Fallback | None:
        """The fallback to report; None for the full fit."""
        match self.model:
            case "affine":
                return None
            case "scale":
                return Fallback("scale_only", f"scale only: {self.reason}")
            case "constant":
                return Fallback("constant_depth", f"constant depth: {self.reason}")

    def __call__(self, x: Any) -> Any:
        """The metric value of x, a number, an array or a tensor."""
        return self.scale * x + self.shift

    def design(self, x: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, "n k"]:
        """The columns that y is linear in: x and one, x alone, or one alone."""
        match self.model:
            case "affine":
                return np.stack([x, np.ones_like(x)], axis=1)
            case "scale":
                return x[:, None]
            case "constant":
                return np.ones((len(x), 1))


def curve_std(
    mde_output: MDEOutput,
    samples: Samples,
    space: Space,
    *,
    curve: Callable[[Any], Any],
    design: Callable[[Float64[np.ndarray, " n"]], Float64[np.ndarray, "n k"]],
) -> Float[Tensor, "h w"]:
    """std_log of a function of x, linear in the columns of a design, fitted by least squares."""
    x = at_coarse_pixels(mde_output.in_space(space))
    fitted, predicted = (curve(torch.from_numpy(each)).numpy() for each in (samples.x, x))
    std_log = fit_std(
        LinearSmoother.of(design(samples.x), samples.weight),
        log_residuals(samples.y, fitted),
        samples.tau,
        (samples.y, predicted),
        design(x),
    )
    return to_image(std_log, mde_output.shape, mde_output.prediction.device)


def fit_affine(samples: Samples) -> Affine:
    """The (s, t) that minimises Σ w (y − s·x − t)² (Eq. 2), or a simpler fit.

    Fallbacks: scale only, s = median(y/x), for one sample, for x without range and for s ≤ 0; the
    constant median(y) if no x is above zero.
    """
    x, y, w = samples.x, samples.y, samples.weight
    if len(samples) == 1:
        return fit_scale(samples, "one anchor")
    if relative_range(x) < MIN_RELATIVE_RANGE:
        return fit_scale(samples, "the relative depth is the same at every anchor")
    # Units of the largest values keep squares of extreme maps finite; centring keeps digits
    # that the textbook determinant N·Σx² − (Σx)² would lose.
    x_unit, y_unit = np.abs(x).max(), np.abs(y).max()
    x, y, w = x / x_unit, y / y_unit, w / w.sum()
    x_mean, y_mean = w @ x, w @ y
    scale = (w * (x - x_mean)) @ (y - y_mean) / (w @ (x - x_mean) ** 2)
    if not scale > 0:
        return fit_scale(samples, "the least-squares scale was not positive")
    return Affine(float(scale * y_unit / x_unit), float((y_mean - scale * x_mean) * y_unit))


def fit_scale(samples: Samples, reason: str) -> Affine:
    """Scale only: s = median(y/x) over the samples with x above zero, t = 0."""
    positive = samples.x > 0
    if not positive.any():
        why = "no anchor has a relative disparity above zero"
        return Affine(0.0, float(np.median(samples.y)), "constant", why)
    ratio = samples.y[positive] / samples.x[positive]
    return Affine(float(np.median(ratio)), 0.0, "scale", reason)


def fit_ransac(samples: Samples, seed: int) -> tuple[Affine, Bool[np.ndarray, " n"]]:
    """The least-squares line of RANSAC's consensus, and the mask of its inliers.

    Lines with s > 0 through two anchors are scored by Σ w min(|r|, τ). The threshold τ is the mean
    absolute deviation from the residuals' median (Depth Anything 3, Eq. 8) of the least-squares fit
    to all anchors. Outliers increase it, so it is computed again on the residuals of the best
    line's consensus as long as that keeps more than half of the anchors.
    """
    first = fit_affine(samples)
    all_inliers = np.ones(len(samples), dtype=bool)
    if len(samples) < 3:
        return first, all_inliers
    x, y, w = samples.x, samples.y, samples.weight
    i, j = _pairs(len(samples), seed)
    distinct = np.abs(x[j] - x[i]) > np.finfo(np.float64).eps * np.abs(x).max()
    rising = distinct & (np.sign(x[j] - x[i]) == np.sign(y[j] - y[i]))
    threshold = _mean_absolute_deviation(y - first(x))
    if threshold == 0 or not rising.any():
        return first, all_inliers
    i, j = i[rising], j[rising]
    scales = (y[j] - y[i]) / (x[j] - x[i])
    lines = [Affine(s, t) for s, t in zip(scales, y[i] - scales * x[i], strict=True)]
    best = min(lines, key=lambda line: w @ np.minimum(np.abs(y - line(x)), threshold))
    residuals = y - best(x)
    consensus = np.abs(residuals) <= threshold
    while True:
        threshold = _mean_absolute_deviation(residuals[consensus])
        inliers = np.abs(residuals) <= threshold
        if 2 * np.count_nonzero(inliers) <= len(samples) or (inliers >= consensus).all():
            break
        consensus = inliers
    return fit_affine(samples[consensus]), consensus


def relative_range(x: np.ndarray) -> float:
    """The range of x as a fraction of its largest magnitude."""
    return float(np.ptp(x) / max(np.abs(x).max(), np.finfo(np.float64).tiny))


def _mean_absolute_deviation(residuals: np.ndarray) -> float:
    return float(np.abs(residuals - np.median(residuals)).mean())


def _pairs(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    if n * (n - 1) // 2 <= RANSAC_HYPOTHESES:
        pairs = np.array(list(combinations(range(n), 2)))
        return pairs[:, 0], pairs[:, 1]
    rng = np.random.default_rng(seed)
    first = rng.integers(0, n, RANSAC_HYPOTHESES)
    return first, (first + rng.integers(1, n, RANSAC_HYPOTHESES)) % n
