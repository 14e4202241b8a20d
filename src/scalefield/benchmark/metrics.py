"""Errors of a depth map, and how sure one may be of their mean over images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

from scalefield.anchor_sampling import generator
from scalefield.errors import InputError


@dataclass(frozen=True)
class Metric:
    """How a metric is shown and which way is better."""

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
"""p predicted and t true depth in metres; each is taken over one image's pixels."""

LEVELS = (50, 80, 90, 95)
"""Per cent that the central intervals of a normal distribution around ln p promise to cover."""
WIDTHS = {level: NormalDist().inv_cdf(0.5 + level / 200) for level in LEVELS}
"""Half of each interval, in standard deviations."""
COVERAGE = (*(f"coverage_{level}" for level in LEVELS), "std_log")
"""What is known of a method that says how sure it is: the shares of pixels that its intervals
cover, and their width, the mean standard deviation of log-depth; wide enough covers anything."""


@dataclass(frozen=True)
class Truth:
    """True depth of an image's scored pixels, with what every comparison needs of it."""

    depth_m: Float64[np.ndarray, " n"]
    log: Float64[np.ndarray, " n"]
    inverse: Float64[np.ndarray, " n"]

    @classmethod
    def of(cls, depth_m: Float[np.ndarray, " n"]) -> Truth:
        """From the depths themselves; there must be one, and all above zero."""
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


def _require(depth_m: np.ndarray, which: str) -> None:
    if depth_m.size == 0:
        raise InputError("a metric over zero pixels has no value")
    bad = ~(np.isfinite(depth_m) & (depth_m > 0))
    if bad.any():
        example = depth_m[bad][0]
        raise InputError(
            f"{which} depth must be finite and above zero, found {example:g} "
            f"at {np.count_nonzero(bad)} of {depth_m.size} pixels"
        )


BLOCK_FRAMES = 10
"""Consecutive frames of a scene, at most so many, are drawn together."""


def blocks(scenes: Sequence[str]) -> list[str]:
    """A block for each image, given the images' scenes in order.

    Frames of one scene are near-duplicates, so a long scene is cut into runs of equal length of
    at most `BLOCK_FRAMES`, and a short one is a block of its own.
    """
    counts = {scene: scenes.count(scene) for scene in dict.fromkeys(scenes)}
    seen = dict.fromkeys(counts, 0)
    named = []
    for scene in scenes:
        runs = -(-counts[scene] // BLOCK_FRAMES)
        named.append(f"{scene}#{seen[scene] * runs // counts[scene]}")
        seen[scene] += 1
    return named


@dataclass(frozen=True)
class Resampling:
    """How often each block is drawn in each of many bootstrap draws, within its stratum."""

    block_of: Int64[np.ndarray, " images"]
    times: Int64[np.ndarray, "draws blocks"]

    @classmethod
    def make(
        cls, blocks: Sequence[str], strata: Sequence[str], *, seed: int = 0, draws: int = 2000
    ) -> Resampling:
        """Blocks are drawn with replacement from those of their stratum (place group).

        One block alone shows no spread, so strata of a single block are drawn from together.
        """
        names, block_of = np.unique(np.array(blocks), return_inverse=True)
        stratum_of = dict(zip(blocks, strata, strict=True))
        sizes = Counter(stratum_of.values())
        stratum_of = {b: s if sizes[s] > 1 else "alone" for b, s in stratum_of.items()}
        times = np.zeros((draws, len(names)), np.int64)
        for stratum in sorted(set(stratum_of.values())):
            members = [i for i, name in enumerate(names) if stratum_of[str(name)] == stratum]
            rng = generator(seed, "bootstrap", stratum)
            equal = np.full(len(members), 1 / len(members))
            times[:, members] = rng.multinomial(len(members), equal, size=draws)
        return cls(block_of.astype(np.int64), times)

    def interval(
        self, values: Float64[np.ndarray, " images"], level: float = 0.95
    ) -> tuple[float, float] | None:
        """Percentile interval of the mean over images; NaN marks an image without a value.

        None where all values are of one block: its frames are near-duplicates, and no evidence.
        """
        known = np.isfinite(values)
        if len(np.unique(self.block_of[known])) < 2:
            return None
        size = self.times.shape[1]
        total = np.bincount(self.block_of[known], values[known], minlength=size)
        count = np.bincount(self.block_of[known], minlength=size)
        drawn = self.times @ count
        means = (self.times @ total)[drawn > 0] / drawn[drawn > 0]
        low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)


EXACT_BLOCKS = 14
"""Up to so many blocks all 2ⁿ signs are tried; beyond, this many random ones."""
RANDOM_SIGNS = 20_000


@dataclass(frozen=True)
class PairedTest:
    """Mean of a − b over the images that have both, and how surely it differs from zero."""

    images: int
    difference: float
    interval: tuple[float, float] | None
    p_value: float


def paired_test(
    a: Float64[np.ndarray, " images"],
    b: Float64[np.ndarray, " images"],
    blocks: Sequence[str],
    strata: Sequence[str],
    *,
    seed: int = 0,
) -> PairedTest:
    """Sign-flip test over blocks, two-sided, with a bootstrap interval of the difference.

    If a and b are alike, each block's summed difference is as likely to have either sign. The
    p-value is the share of sign choices whose sum is at least as far from zero as the one seen.
    """
    both = np.isfinite(a) & np.isfinite(b)
    if not both.any():
        raise InputError("a paired test needs an image that both methods have a value for")
    chosen, strata_chosen = (
        [x for x, keep in zip(names, both, strict=True) if keep] for names in (blocks, strata)
    )
    difference = (a - b)[both]
    resampling = Resampling.make(chosen, strata_chosen, seed=seed)
    per_block = np.bincount(resampling.block_of, difference)
    if len(per_block) <= EXACT_BLOCKS:
        signs = np.array(list(product((1, -1), repeat=len(per_block))))
    else:
        rng = generator(seed, "signs")
        signs = rng.choice([1, -1], size=(RANDOM_SIGNS, len(per_block)))
        signs[0] = 1  # the one seen is one of those that were possible
    flipped = np.abs(signs @ per_block)
    seen = abs(per_block.sum())
    p_value = float(np.mean(flipped >= seen - 1e-12 * np.abs(per_block).sum()))
    interval = resampling.interval(difference)
    return PairedTest(len(difference), float(difference.mean()), interval, p_value)
