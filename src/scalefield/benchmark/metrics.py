"""Error metrics of a depth map, computed from sums that files can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64

from scalefield.errors import InputError
from scalefield.recovery import interval_factor


@dataclass(frozen=True)
class Metric:
    """Title, definition, direction and unit of a metric."""

    title: str
    formula: str
    higher_is_better: bool = False
    unit: str = ""


METRICS: dict[str, Metric] = {
    "abs_rel": Metric("AbsRel", "mean |p − t| / t"),
    "delta1": Metric("δ1", "share of max(p/t, t/p) < 1.25", higher_is_better=True),
    "delta2": Metric("δ2", "share of max(p/t, t/p) < 1.25²", higher_is_better=True),
    "delta3": Metric("δ3", "share of max(p/t, t/p) < 1.25³", higher_is_better=True),
    "rmse": Metric("RMSE", "√ mean (p − t)²", unit="m"),
    "mae": Metric("MAE", "mean |p − t|", unit="m"),
    "log10": Metric("log10", "mean |log₁₀ p − log₁₀ t|"),
    "silog": Metric("SILog", "100 · √ var(ln p − ln t)"),
    "irmse": Metric("iRMSE", "√ mean (1/p − 1/t)²", unit="1/km"),
}
"""The metrics: p is predicted and t true depth in metres, over the pixels of one image."""

LEVELS = (50, 80, 90, 95)
"""Nominal coverage, in per cent, of the intervals of a recovery around ln p."""
WIDTHS = {level: interval_factor(level / 100) for level in LEVELS}
"""Half of each interval, in standard deviations."""
COVERAGE = (*(f"coverage_{level}" for level in LEVELS), "std_log")
"""Metrics of uncertainty: the shares of pixels that the intervals cover, and their width, the mean
standard deviation of log-depth."""


@dataclass(frozen=True)
class Truth:
    """True depth of an image's scored pixels, with derived values that every comparison needs."""

    depth_m: Float64[np.ndarray, " n"]
    log: Float64[np.ndarray, " n"]
    inverse: Float64[np.ndarray, " n"]

    @classmethod
    def of(cls, depth_m: Float[np.ndarray, " n"]) -> Truth:
        """The truth of one or more depths, all above zero."""
        depth = np.asarray(depth_m, np.float64)
        _require(depth, "true")
        return cls(depth, np.log(depth), 1 / depth)


LOG_DELTA = float(np.log(1.25))
CHUNK = 8192
"""Pixels compared at once: they stay in the processor's cache, and no threads share a sum."""


def sums(depth_m: Float[np.ndarray, " n"], truth: Truth) -> dict[str, float | int]:
    """Sufficient statistics of the metrics: sums over pixels, which add up over sets of them."""
    p = np.asarray(depth_m, np.float64)
    _require(p, "predicted")
    parts = []
    for start in range(0, len(p), CHUNK):
        chunk = slice(start, start + CHUNK)
        error = np.abs(p[chunk] - truth.depth_m[chunk])
        log_error = np.log(p[chunk]) - truth.log[chunk]
        spread = np.abs(log_error)
        parts.append(
            {
                "pixels": len(error),
                "relative": float((error * truth.inverse[chunk]).sum()),
                "absolute": float(error.sum()),
                "square": float((error * error).sum()),
                "log": float(log_error.sum()),
                "log_absolute": float(spread.sum()),
                "log_square": float((log_error * log_error).sum()),
                "inverse_square": float(((1 / p[chunk] - truth.inverse[chunk]) ** 2).sum()),
                **{f"within{k}": int(np.count_nonzero(spread < k * LOG_DELTA)) for k in (1, 2, 3)},
            }
        )
    return {name: sum(part[name] for part in parts) for name in parts[0]}


def metrics(sums: Mapping[str, float | int]) -> dict[str, float]:
    """The metrics, from their sufficient statistics."""
    n = sums["pixels"]
    if n < 1:
        raise InputError("a metric over zero pixels has no value")
    variance = sums["log_square"] / n - (sums["log"] / n) ** 2
    return {
        "abs_rel": sums["relative"] / n,
        **{f"delta{k}": sums[f"within{k}"] / n for k in (1, 2, 3)},
        "rmse": (sums["square"] / n) ** 0.5,
        "mae": sums["absolute"] / n,
        "log10": sums["log_absolute"] / n / float(np.log(10)),
        "silog": 100 * max(variance, 0.0) ** 0.5,
        "irmse": 1000 * (sums["inverse_square"] / n) ** 0.5,
    }


def coverage_sums(
    depth_m: Float[np.ndarray, " n"], std_log: Float[np.ndarray, " n"], truth: Truth
) -> dict[str, float | int]:
    """Sufficient statistics of the coverage: pixels within each interval, and the sum of widths."""
    p, std = np.asarray(depth_m, np.float64), np.asarray(std_log, np.float64)
    _require(p, "predicted")
    bad = ~(np.isfinite(std) & (std >= 0))
    if bad.any():
        raise InputError(
            f"std_log must be finite and not below zero, found {std[bad][0]:g} "
            f"at {np.count_nonzero(bad)} of {std.size} pixels"
        )
    error = np.abs(np.log(p) - truth.log)
    return {
        "pixels": len(p),
        **{f"within{k}": int(np.count_nonzero(error <= z * std)) for k, z in WIDTHS.items()},
        "std_log": float(std.sum()),
    }


def coverage(sums: Mapping[str, float | int]) -> dict[str, float]:
    """Shares of covered pixels and mean width, from their sufficient statistics."""
    n = sums["pixels"]
    shares = {f"coverage_{level}": sums[f"within{level}"] / n for level in LEVELS}
    return {**shares, "std_log": sums["std_log"] / n}


def score(
    depth_m: Float[np.ndarray, "h w"],
    true_m: Float[np.ndarray, "h w"],
    mask: Bool[np.ndarray, "h w"],
    clamp_m: tuple[float, float] | None = None,
) -> dict[str, float]:
    """The metrics of one image over the mask's pixels, clamped to a range first if one is given."""
    predicted = depth_m[mask] if clamp_m is None else np.clip(depth_m[mask], *clamp_m)
    return metrics(sums(predicted, Truth.of(true_m[mask])))


def _require(depth_m: np.ndarray, name: str) -> None:
    if depth_m.size == 0:
        raise InputError("a metric over zero pixels has no value")
    bad = ~(np.isfinite(depth_m) & (depth_m > 0))
    if bad.any():
        example = depth_m[bad][0]
        raise InputError(
            f"{name} depth must be finite and above zero, found {example:g} "
            f"at {np.count_nonzero(bad)} of {depth_m.size} pixels"
        )
