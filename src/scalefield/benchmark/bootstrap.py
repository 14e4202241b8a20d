"""Confidence intervals and paired tests that respect near-duplicate frames.

Frames are grouped into blocks of one scene. A stratified block bootstrap gives intervals, and a
sign-flip test over blocks compares two methods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Float64, Int64

from scalefield.errors import InputError
from scalefield.seeding import seeded_rng

BLOCK_FRAMES = 10
"""Largest number of consecutive frames of a scene in a block."""
LEVEL = 0.95
"""Nominal coverage of the intervals."""


def blocks(scenes: Sequence[str]) -> list[str]:
    """A block for each image, given the images' scenes in order.

    Frames of one scene are near-duplicates, so a long scene is cut into runs of equal length of
    at most `BLOCK_FRAMES`, and a short one is a block of its own.
    """
    counts = {scene: scenes.count(scene) for scene in dict.fromkeys(scenes)}
    frames_seen = dict.fromkeys(counts, 0)
    named = []
    for scene in scenes:
        runs = -(-counts[scene] // BLOCK_FRAMES)
        named.append(f"{scene}#{frames_seen[scene] * runs // counts[scene]}")
        frames_seen[scene] += 1
    return named


@dataclass(frozen=True)
class Resampling:
    """The number of times that each bootstrap draw, within strata, contains each block."""

    block_of: Int64[np.ndarray, " images"]
    times: Int64[np.ndarray, "draws blocks"]

    @classmethod
    def make(
        cls, blocks: Sequence[str], strata: Sequence[str], *, seed: int = 0, draws: int = 2000
    ) -> Resampling:
        """Blocks are drawn with replacement from those of their stratum (place group).

        A single block shows no variation, so strata of one block are pooled.
        """
        names, block_of = np.unique(np.array(blocks), return_inverse=True)
        stratum_of = dict(zip(blocks, strata, strict=True))
        sizes = Counter(stratum_of.values())
        stratum_of = {b: s if sizes[s] > 1 else "alone" for b, s in stratum_of.items()}
        times = np.zeros((draws, len(names)), np.int64)
        for stratum in sorted(set(stratum_of.values())):
            members = [i for i, name in enumerate(names) if stratum_of[str(name)] == stratum]
            rng = seeded_rng(seed, "bootstrap", stratum)
            equal = np.full(len(members), 1 / len(members))
            times[:, members] = rng.multinomial(len(members), equal, size=draws)
        return cls(block_of.astype(np.int64), times)

    def interval(self, values: Float64[np.ndarray, " images"]) -> tuple[float, float] | None:
        """Percentile interval of the mean over images; NaN marks an image without a value.

        None where all values are of one block: its frames are near-duplicates, and no evidence.
        """
        finite = np.isfinite(values)
        if len(np.unique(self.block_of[finite])) < 2:
            return None
        size = self.times.shape[1]
        total = np.bincount(self.block_of[finite], values[finite], minlength=size)
        count = np.bincount(self.block_of[finite], minlength=size)
        images_drawn = self.times @ count
        means = (self.times @ total)[images_drawn > 0] / images_drawn[images_drawn > 0]
        low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return float(low), float(high)


EXACT_BLOCKS = 14
"""Up to this many blocks all 2ⁿ signs are tried; beyond, `RANDOM_SIGNS` random ones."""
RANDOM_SIGNS = 20_000


@dataclass(frozen=True)
class PairedTest:
    """Mean of a − b over the images that have both, its interval, and the p-value of a zero
    mean."""

    images: int
    difference: float
    interval: tuple[float, float] | None
    p_value: float


def paired_test(
    a: Float64[np.ndarray, " images"],
    b: Float64[np.ndarray, " images"],
    blocks: Sequence[str],
    strata: Sequence[str],
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
    resampling = Resampling.make(chosen, strata_chosen)
    per_block = np.bincount(resampling.block_of, difference)
    if len(per_block) <= EXACT_BLOCKS:
        signs = np.array(list(product((1, -1), repeat=len(per_block))))
    else:
        rng = seeded_rng(0, "signs")
        signs = rng.choice([1, -1], size=(RANDOM_SIGNS, len(per_block)))
        signs[0] = 1  # the one seen is one of those that were possible
    flipped = np.abs(signs @ per_block)
    observed = abs(per_block.sum())
    p_value = float(np.mean(flipped >= observed - 1e-12 * np.abs(per_block).sum()))
    interval = resampling.interval(difference)
    return PairedTest(len(difference), float(difference.mean()), interval, p_value)
