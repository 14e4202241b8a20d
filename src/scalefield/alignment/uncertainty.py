"""Standard deviation of a linear fit: noise from leave-one-out residuals, propagated to pixels.

An aligner is, or is nearly, linear in its anchors: ŷ(q) = Σ S_i(q) y_i. Log-depths at anchors
scatter about it with variances v + τ_i², where v is that of the MDE and the model, the same for
all, and τ_i = σ_m / depth is that of the measurement, where it is known. To first order in
log-depth, in whichever space the fit is,

    Var[log D(q) − log D̂(q)] = v + Σ (S_i(q) g_i / g(q))² (v + τ_i²),

where g is y in depth and in disparity, and 1 in logarithms. Errors of an MDE are not independent
noise: neighbouring pixels have similar errors. v is therefore estimated from residuals at anchors
that were left out of the fit, because they have the errors of an unmeasured pixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

PRIOR_STD = 0.3
"""Prior of √v, used alone with one anchor: the typical error of MDEs after scaling."""
PRIOR_COUNT = 1.0
"""Number of residuals that the prior counts for; it keeps v above zero for a perfect fit."""
LARGEST_STD = 3.0
"""Largest standard deviation, a factor of 20: the first-order formula is not valid beyond it."""
EXACT = 1e-6
"""Anchors with 1 − leverage below this determine their own fit and are not used to estimate v."""
LEFT_OUT = 128
"""Largest number of anchors left out in turn by local fits; v is then known to a few per cent."""
STEP = 16
"""Distance in pixels between the positions at which std_log is computed; it is interpolated
bilinearly between them."""


@dataclass(frozen=True, eq=False)
class LinearSmoother:
    """The linear estimator θ = gain · y that minimises Σ w (y − Xθ)² + θᵀPθ."""

    design: Float64[np.ndarray, "n k"]
    gain: Float64[np.ndarray, "k n"]

    @classmethod
    def of(
        cls,
        design: Float64[np.ndarray, "n k"],
        weight: Float64[np.ndarray, " n"],
        penalty: Float64[np.ndarray, "k k"] | None = None,
    ) -> LinearSmoother:
        """The smoother of a design X; without a penalty P, θ has minimum norm if X is singular."""
        root = np.sqrt(weight)[:, None]
        if penalty is None:
            units = np.abs(design).max(axis=0)
            units[units == 0] = 1.0
            gain = np.linalg.pinv(root * (design / units), rcond=1e-9) * root.T / units[:, None]
        else:
            rows = root * design
            normal = product(rows.T, rows) + penalty
            solved = torch.linalg.solve(torch.from_numpy(normal), torch.from_numpy(rows.T))
            gain = solved.numpy() * root.T
        return cls(design, gain)

    @property
    def leverage(self) -> Float64[np.ndarray, " n"]:
        """∂ŷ_i / ∂y_i, the diagonal of X · gain."""
        return (self.design * self.gain.T).sum(axis=1)

    def variance(
        self,
        design: Float64[np.ndarray, "p k"],
        noise: Float64[np.ndarray, " n"],
        unit: Float64[np.ndarray, " p"],
    ) -> Float64[np.ndarray, " p"]:
        """Variance of design · θ in these units, if each y has the standard deviation `noise`."""
        moved = self.gain * noise
        with np.errstate(all="ignore"):  # a prediction of zero has infinite relative variance
            covariance = product(moved, moved.T)
            variance = (product(design, covariance) * design).sum(axis=1)
            # Of an ill-conditioned fit rounding may leave less than nothing; squares cannot.
            negative = variance < 0
            if negative.any():
                variance[negative] = np.square(product(design[negative], moved)).sum(axis=1)
            return variance / unit**2


def product(
    a: Float64[np.ndarray, "n m"], b: Float64[np.ndarray, "m k"]
) -> Float64[np.ndarray, "n k"]:
    """a · b computed by torch, because NumPy's threads would compete with torch's for the cores."""
    return (torch.from_numpy(a) @ torch.from_numpy(b)).numpy()


def log_residuals(
    y: Float64[np.ndarray, " n"], fitted: Float64[np.ndarray, " n"]
) -> Float64[np.ndarray, " n"]:
    """log y − log ŷ, limited to ±`LARGEST_STD`; ŷ may be zero or negative."""
    ratio = np.maximum(fitted, 0) / y
    return -np.log(np.clip(ratio, np.exp(-LARGEST_STD), np.exp(LARGEST_STD)))


def noise_variance(
    left_out: Float64[np.ndarray, " n"],
    inflation: Float64[np.ndarray, " n"],
    tau: Float64[np.ndarray, " n"],
) -> float:
    """v from log-residuals at left-out anchors; `inflation` is their variance divided by v + τ²."""
    total = PRIOR_COUNT * PRIOR_STD**2 + float((left_out**2 / inflation).sum())
    least = PRIOR_COUNT * PRIOR_STD**2 / (PRIOR_COUNT + len(left_out))
    return max((total - float((tau**2).sum())) / (PRIOR_COUNT + len(left_out)), least)


def fit_variance(
    residuals: Float64[np.ndarray, " n"],
    leverage: Float64[np.ndarray, " n"],
    propagated: Float64[np.ndarray, " n"],
    tau: Float64[np.ndarray, " n"],
) -> float:
    """v of a fit to all anchors, from S_ii and Σ_j (S_ij g_j / g_i)² at each of them.

    r / (1 − S_ii) is the residual of a fit without the anchor. Of unit noise the residual r has
    the variance 1 − 2 S_ii + Σ_j …, which for least squares is 1 − S_ii.
    """
    one_minus_leverage, residual_variance = 1 - leverage, 1 - 2 * leverage + propagated
    informative = (one_minus_leverage > EXACT) & (residual_variance > EXACT)
    left_out = residuals[informative] / one_minus_leverage[informative]
    return noise_variance(
        left_out,
        residual_variance[informative] / one_minus_leverage[informative] ** 2,
        tau[informative],
    )


def fit_std(
    smoother: LinearSmoother,
    residuals: Float64[np.ndarray, " n"],
    tau: Float64[np.ndarray, " n"],
    slopes: tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " p"]],
    design: Float64[np.ndarray, "p k"],
) -> Float64[np.ndarray, " p"]:
    """std_log at pixels with these rows of the design; `slopes` are g at anchors and at pixels."""
    at_anchors, at_pixels = slopes
    unit = smoother.variance(smoother.design, at_anchors, at_anchors)
    variance = fit_variance(residuals, smoother.leverage, unit, tau)
    noise = at_anchors * np.sqrt(variance + tau**2)
    return total_std(variance, smoother.variance(design, noise, at_pixels))


def total_std(variance: float, propagated: Any) -> Any:
    """√(v + Σ (S g/g)² (v + τ²)), limited to `LARGEST_STD`; `propagated` is that sum."""
    return np.fmin(np.sqrt(variance + propagated), LARGEST_STD)


def coarse_positions(size: int) -> Int64[np.ndarray, " m"]:
    """Rows or columns of the pixels at which std_log is computed, a `STEP` apart."""
    return np.arange(min(STEP // 2, size - 1), size, STEP)


def coarse_pixels(
    shape: tuple[int, int],
) -> tuple[Int64[np.ndarray, " p"], Int64[np.ndarray, " p"]]:
    """Row and column of each pixel at which std_log is computed, in row order."""
    rows, columns = np.meshgrid(*map(coarse_positions, shape), indexing="ij")
    return rows.reshape(-1), columns.reshape(-1)


def at_coarse_pixels(mde_map: Float[Tensor, "h w"]) -> Float64[np.ndarray, " p"]:
    """The map's values at `coarse_pixels`; unknown values are replaced by the median."""
    first = (min(STEP // 2, n - 1) for n in mde_map.shape)
    rows, columns = (slice(start, None, STEP) for start in first)
    values = mde_map[rows, columns].double().cpu().numpy().reshape(-1)
    finite = np.isfinite(values)
    if finite.all():
        return values
    return np.where(finite, values, np.median(values[finite]) if finite.any() else 1.0)


def to_image(
    std_log: Float64[np.ndarray, " p"], shape: tuple[int, int], device: torch.device
) -> Float[Tensor, "h w"]:
    """Values at `coarse_pixels` interpolated bilinearly to every pixel, constant beyond them."""
    down, across = (_between(n).to(device) for n in shape)
    coarse = torch.from_numpy(std_log.astype(np.float32)).to(device)
    return down @ coarse.view(down.shape[1], across.shape[1]) @ across.T


@lru_cache(maxsize=16)
def _between(size: int) -> Float32[Tensor, "size m"]:
    """The matrix that interpolates values at `coarse_positions` to 0 … size − 1."""
    return torch.from_numpy(interpolation_matrix(coarse_positions(size), size).astype(np.float32))


def interpolation_matrix(
    nodes: Float64[np.ndarray, " m"] | Int64[np.ndarray, " m"], size: int
) -> Float64[np.ndarray, "size m"]:
    """The matrix that interpolates values at nodes linearly to 0 … size − 1, constant beyond."""
    weights = [np.interp(np.arange(size), nodes, unit) for unit in np.eye(len(nodes))]
    return np.stack(weights, axis=1)


def left_out_indices(n: int) -> Int64[np.ndarray, " m"]:
    """Indices of the anchors that are left out in turn: all, or `LEFT_OUT` of them."""
    return np.unique(np.linspace(0, n - 1, min(n, LEFT_OUT)).round().astype(np.int64))
