"""Error metrics of a depth map, computed from sums that files can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64
from scipy.ndimage import binary_dilation, distance_transform_edt

from scalefield.errors import InputError
from scalefield.geometry.camera import Camera, depth_edges, normals
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

STRUCTURE: dict[str, Metric] = {
    "median_rel": Metric("median", "median |p − t| / t"),
    "normal_deg": Metric("normals", "mean angle between the normals of p and t", unit="°"),
    "edge_rel": Metric("edges", "mean |p − t| / t within 2 px of an edge of t"),
    "imprint": Metric("imprint", "mean |p − t| / t at 2–4 px from an anchor, over that beyond"),
}
"""Metrics of single images that the mean error does not show. An imprint near 1 means that an
anchor corrects its own pixel and not the surface around it."""
EDGE_REACH_PX = 2
RING_PX = (2, 4)
NORMAL_PIXELS = 80_000
"""Normals of larger images are compared on every second, third … row and column."""


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


@dataclass(frozen=True, eq=False)
class Structure:
    """What the structure metrics need of the truth of an image."""

    depth_m: Float64[np.ndarray, "h w"]
    """True depth; NaN where it is not scored."""
    camera: Camera
    """Camera of the rows and columns on which normals are compared."""
    step: int
    """Distance between those rows and columns."""
    normals: Float64[np.ndarray, "h2 w2 3"]
    edges: Bool[np.ndarray, "h w"]
    """Scored pixels beside an edge."""

    @classmethod
    def of(
        cls,
        depth_m: Float[np.ndarray, "h w"],
        scored: Bool[np.ndarray, "h w"],
        intrinsics: tuple[float, float, float, float] | None = None,
    ) -> Structure:
        """The truth at the scored pixels; without intrinsics the focal length is the width."""
        known = np.where(scored, depth_m, np.nan).astype(np.float64)
        step = math.ceil(math.sqrt(known.size / NORMAL_PIXELS))
        height, width = known.shape
        fx, fy, cx, cy = intrinsics or (width, width, (width - 1) / 2, (height - 1) / 2)
        camera = Camera(fx / step, fy / step, cx / step, cy / step)
        edges = binary_dilation(depth_edges(known), iterations=EDGE_REACH_PX) & scored
        return cls(known, camera, step, normals(known[::step, ::step], camera), edges)

    def measure(
        self,
        predicted_m: Float[np.ndarray, "h w"],
        anchors: tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]],
    ) -> dict[str, float]:
        """The metrics of a prediction from anchors at these rows and columns, without those that
        the known depths do not determine."""
        relative = np.abs(predicted_m / self.depth_m - 1)
        known = np.isfinite(relative)
        apart = np.ones(known.shape, bool)
        apart[anchors] = False
        distance = distance_transform_edt(apart)
        near, far = RING_PX
        ring, rest = (known & (distance >= near) & (distance <= far)), known & (distance > far)
        found = {"median_rel": float(np.median(relative[known]))} if known.any() else {}
        masked = np.where(known, predicted_m, np.nan)[:: self.step, :: self.step]
        cosine = (normals(masked, self.camera) * self.normals).sum(axis=-1)
        if np.isfinite(cosine).any():
            angle = np.arccos(np.clip(cosine[np.isfinite(cosine)], -1, 1))
            found["normal_deg"] = float(np.degrees(angle.mean()))
        if (self.edges & known).any():
            found["edge_rel"] = float(relative[self.edges & known].mean())
        if ring.any() and rest.any() and relative[rest].any():
            found["imprint"] = float(relative[ring].mean() / relative[rest].mean())
        return found


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
