"""Depth at single pixels by matching a view with its neighbours along the epipolar lines.

Patches of a view are moved through the depths that its recovery leaves open, and compared with the
neighbours by normalised cross-correlation (plane sweep: Collins, 1996; Gallup et al., 2007). A
patch has the recovered relief of its pixels, so that slanted surfaces match too. Only peaks that
are high and single in several views become anchors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64
from scipy.ndimage import gaussian_filter, sobel

from scalefield.scene.view import NEAREST, Estimate, View, bilinear, cells

POINTS_AT_ONCE = 64
"""Patches that are compared at once, which bounds the memory."""


@dataclass(frozen=True)
class StereoConfig:
    """Settings of the matching."""

    views: int = 5
    """Neighbours that a view is matched with, at most."""
    grid: tuple[int, int] = (18, 24)
    """Cells of the image, each with one pixel at most: the one with the strongest corner."""
    corner: float = 30.0
    """Least smaller eigenvalue of the structure tensor of a corner, in squared grey levels."""
    patch: int = 3
    """Pixels of a patch on each side of its middle."""
    hypotheses: int = 96
    """Depths that are tried."""
    range_std: float = 3.0
    """Half of their range, in standard deviations of the log-depth."""
    least_std: float = 0.05
    """Least deviation for that range."""
    relief: float = 0.15
    """Pixels of a patch whose log-depth differs more from its middle are taken as level with it."""
    peak: float = 0.8
    """Least correlation of the best depth."""
    gap: float = 0.12
    """Least distance of its correlation from that of any other depth some pixels away."""
    separation_px: float = 3.0
    """How far apart two depths must be in the images to be others."""
    least_share: float = 0.05
    """Least share of a view's corners that must match: among fewer, wrong peaks are not rare."""
    sigma_px: float = 1.5
    """Standard deviation of a match along the epipolar line."""
    least_sigma: float = 0.005
    """Least standard deviation of the log-depth."""


@dataclass(frozen=True, eq=False)
class Matches:
    """Log-depths that were measured by matching."""

    rows: Int64[np.ndarray, " n"]
    columns: Int64[np.ndarray, " n"]
    log_depth: Float64[np.ndarray, " n"]
    sigma: Float64[np.ndarray, " n"]

    @classmethod
    def of(cls, table: Float64[np.ndarray, "n 4"]) -> Matches:
        """The matches of a `table`."""
        rows, columns, log_depth, sigma = np.ascontiguousarray(table.T)
        return cls(rows.astype(np.int64), columns.astype(np.int64), log_depth, sigma)

    @classmethod
    def none(cls) -> Matches:
        """No match."""
        return cls.of(np.zeros((0, 4)))

    def table(self) -> Float64[np.ndarray, "n 4"]:
        """The matches as rows of numbers, to be stored."""
        return np.stack([self.rows, self.columns, self.log_depth, self.sigma], axis=1)


def match(
    view: View,
    grey: Float32[np.ndarray, "h w"],
    estimate: Estimate,
    others: Mapping[str, tuple[View, Float32[np.ndarray, "_ _"]]],
    config: StereoConfig,
) -> Matches:
    """The depths of a view's corners that its neighbours confirm; `others` are their images."""
    rows, columns = cells(corners(grey) - config.corner, config.grid, 2 * config.patch)
    parts = [
        _match(view, grey, estimate, others, config, pixels)
        for i in range(0, len(rows) if others else 0, POINTS_AT_ONCE)
        for pixels in [(rows[i : i + POINTS_AT_ONCE], columns[i : i + POINTS_AT_ONCE])]
    ]
    found = np.concatenate(parts) if parts else np.zeros((0, 4))
    few = len(found) < config.least_share * len(rows)
    return Matches.none() if few else Matches.of(found)


def corners(grey: Float32[np.ndarray, "h w"]) -> Float[np.ndarray, "h w"]:
    """The smaller eigenvalue of the structure tensor (Shi and Tomasi, 1994)."""
    smooth = gaussian_filter(grey.astype(np.float64), 0.8)
    dx, dy = sobel(smooth, 1), sobel(smooth, 0)
    xx, xy, yy = (gaussian_filter(product, 2.0) for product in (dx * dx, dx * dy, dy * dy))
    return (xx + yy) / 2 - np.hypot((xx - yy) / 2, xy)


def _match(  # noqa: PLR0917
    view: View,
    grey: Float32[np.ndarray, "h w"],
    estimate: Estimate,
    others: Mapping[str, tuple[View, Float32[np.ndarray, "_ _"]]],
    config: StereoConfig,
    pixels: tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " m"]],
) -> Float64[np.ndarray, "n 4"]:
    """Row, column, log-depth and deviation of those of these pixels that have a match."""
    rows, columns = pixels
    m, h = len(rows), config.hypotheses
    std = np.maximum(estimate.std[rows, columns], config.least_std).astype(np.float64)
    steps = np.linspace(-1, 1, h) * (config.range_std * std)[:, None]
    score, seen, px_per_log = [], [], []
    patch = _patch(view, grey, estimate, config, pixels)
    for other in others.values():
        correlation, speed = _correlate(view, patch, steps, *other)
        score.append(np.nan_to_num(correlation, nan=-1.0))
        seen.append(~np.isnan(correlation))
        px_per_log.append(speed)
    # The better half of the views decides, at least two: the others may be occluded or misplaced.
    count = np.sum(seen, axis=0)
    voting = np.where(count >= 2, np.maximum((count + 1) // 2, 2), 1)
    best_first = -np.sort(-np.stack(score), axis=0)
    sums = np.cumsum(best_first, axis=0)
    index = np.minimum(voting, len(others)) - 1
    mean = np.where(count >= 2, np.take_along_axis(sums, index[None], axis=0)[0] / voting, -1.0)
    peak, each = mean.argmax(axis=1), np.arange(m)
    middle = peak.clip(1, h - 2)
    before, at, after = (mean[each, middle + k] for k in (-1, 0, 1))
    offset = (0.5 * (before - after) / np.minimum(before - 2 * at + after, -1e-9)).clip(-0.5, 0.5)
    spacing = steps[:, 1] - steps[:, 0]
    speed = np.nan_to_num(_median(np.stack(px_per_log)))
    speed = np.maximum(speed, NEAREST)
    apart = np.maximum(2, np.ceil(config.separation_px / speed / spacing))
    elsewhere = np.abs(np.arange(h) - peak[:, None]) > apart[:, None]
    rival = np.where(elsewhere, mean, -1.0).max(axis=1)
    good = (mean[each, peak] > config.peak) & (mean[each, peak] - rival > config.gap)
    good &= (peak == middle) & (apart < h / 4) & (count[each, peak] >= 2)
    log_depth = estimate.log_depth[rows, columns] + steps[each, middle] + offset * spacing
    sigma = np.hypot(config.sigma_px / speed, config.least_sigma)
    return np.stack([rows, columns, log_depth, sigma], axis=1)[good]


@dataclass(frozen=True, eq=False)
class _Patches:
    values: Float64[np.ndarray, "m p"]
    """Grey levels with mean 0 and deviation 1."""
    rays: Float64[np.ndarray, "m p 3"]
    depth: Float64[np.ndarray, "m p"]


def _patch(
    view: View,
    grey: Float32[np.ndarray, "h w"],
    estimate: Estimate,
    config: StereoConfig,
    pixels: tuple[Int64[np.ndarray, " m"], Int64[np.ndarray, " m"]],
) -> _Patches:
    rows, columns = pixels
    around = np.arange(-config.patch, config.patch + 1)
    down, across = (x.ravel() for x in np.meshgrid(around, around, indexing="ij"))
    v, u = rows[:, None] + down, columns[:, None] + across
    middle = estimate.log_depth[rows, columns][:, None].astype(np.float64)
    log_depth = estimate.log_depth[v, u].astype(np.float64)
    log_depth = np.where(np.abs(log_depth - middle) < config.relief, log_depth, middle)
    rays = view.camera.rays(u.astype(np.float64), v.astype(np.float64))
    rays = np.concatenate([rays, np.ones_like(rays[..., :1])], axis=-1)
    return _Patches(_normalised(grey[v, u].astype(np.float64)), rays, np.exp(log_depth))


def _correlate(
    view: View,
    patches: _Patches,
    steps: Float64[np.ndarray, "m s"],
    other: View,
    grey: Float32[np.ndarray, "_ _"],
) -> tuple[Float64[np.ndarray, "m s"], Float64[np.ndarray, " m"]]:
    """Correlation of patches at changes of their log-depth with another view, NaN outside of it;
    and pixels in that view for a change of log-depth by one."""
    (m, p), s = patches.depth.shape, steps.shape[1]
    to_other = np.linalg.inv(other.camera_to_world) @ view.camera_to_world
    turned = patches.rays @ to_other[:3, :3].T * patches.depth[..., None]
    points = turned[:, None] * np.exp(steps)[:, :, None, None] + to_other[:3, 3]
    u, v, _ = (x.reshape(m, s, p) for x in other.camera.project(points.reshape(-1, 3)))
    height, width = grey.shape
    inside = ((u > 0) & (u < width - 1) & (v > 0) & (v < height - 1)).all(axis=2)
    seen = bilinear(grey, np.nan_to_num(u), np.nan_to_num(v)).astype(np.float64)
    correlation = np.einsum("mp,msp->ms", patches.values, _normalised(seen)) / p
    moved = np.hypot(np.diff(u[..., p // 2], axis=1), np.diff(v[..., p // 2], axis=1))
    per_log = np.where(inside[:, 1:], moved / np.diff(steps, axis=1), np.nan)
    return np.where(inside, correlation, np.nan), _median(per_log.T)


def _median(values: Float64[np.ndarray, "v n"]) -> Float64[np.ndarray, " n"]:
    """Median of the known values of each column; NaN without any."""
    known = np.isfinite(values).any(axis=0)
    median = np.full(values.shape[1], np.nan)
    median[known] = np.nanmedian(values[:, known], axis=0)
    return median


def _normalised(values: Float64[np.ndarray, "*n p"]) -> Float64[np.ndarray, "*n p"]:
    values = values - values.mean(axis=-1, keepdims=True)
    # Half a grey level is noise: a patch without texture correlates with nothing.
    return values / np.hypot(values.std(axis=-1, keepdims=True), 0.5)
