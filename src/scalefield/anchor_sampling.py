"""Anchors drawn from a known depth map: the depth mask, three regimes, the drop-anchor sequence.

The result depends on the image, its name and a seed only, and not on the order of images, the
number of workers or the batch size.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Float, Int64, Real
from scipy.spatial import cKDTree

from scalefield.anchors import Anchors
from scalefield.errors import InputError
from scalefield.seeding import seeded_rng

REGIMES: dict[str, tuple[int, int]] = {"low": (10, 15), "medium": (100, 120), "high": (500, 530)}
"""Smallest and largest number of anchors of each regime, both included."""

DROP_SEQUENCE = (9, 7, 5, 3, 1)
"""Numbers of anchors of the drop-anchor test, in the order of its steps."""

NUDGE = (1e-5, 3.1e-6)
"""Offset up and left, in pixels, that breaks ties between equally near pixels."""


GAP_SIDE, MOST_TESTED = 20, 100
"""Pixels, as the side of a grid, and anchors whose distances are compared by `block_folds`."""
HELD_OUT_STEPS = {4: 2, 5: 2, 8: 3}
"""Shift of the folds from row to row of squares, by the number of folds; 1 for others."""
NEAR_ENOUGH, FAR_ENOUGH = 0.5, 2.5
"""Distance of an anchor from its neighbours, and of a held-out one, over that of a pixel. The
second was chosen so that the held-out error of 5 and 11 rings of three KITTI scans is that at the
rings between them (tests/test_held_out.py)."""
RING_SLOPE, RING_SHARE, RING_ANCHORS = 0.3, 0.5, 50
"""Anchors come in rings if, of this many or more, this share has its nearest neighbour to the left
or the right, at a smaller slope. Of random ones it is 19 %."""


def depth_mask(
    depth_m: Float[np.ndarray, "h w"],
    range_m: tuple[float, float],
    sky: Bool[np.ndarray, "h w"] | None = None,
) -> Bool[np.ndarray, "h w"]:
    """Pixels that are scored and may become anchors: known, within the range, and not sky."""
    nearest, farthest = range_m
    mask = (depth_m >= nearest) & (depth_m <= farthest)  # False for NaN
    return mask if sky is None else mask & ~sky


@lru_cache(maxsize=4096)  # training asks for the same few, again and again
def anchor_grid_shape(n: int, shape: tuple[int, int]) -> tuple[int, int]:
    """A rows and B columns with A·B ≥ n, nearly square cells and few cells more than n."""

    def cost(rows: int) -> float:
        columns = -(-n // rows)
        stretch = abs(math.log(columns / rows * shape[0] / shape[1]))
        return stretch + (rows * columns - n) / n

    rows = min(range(1, n + 1), key=cost)
    return rows, -(-n // rows)


def sample_anchors(
    depth_m: Float[np.ndarray, "h w"],
    mask: Bool[np.ndarray, "h w"],
    regime: str | int,
    *,
    seed: int,
    name: str,
) -> Anchors:
    """Anchors of a regime, or exactly `regime` anchors, on different pixels and in row order.

    The candidates are the centres of a grid's cells. A candidate outside the mask moves to the
    nearest pixel of the mask. Of two candidates on one pixel, one is replaced by a random pixel of
    the mask. A mask with fewer pixels than anchors wanted gives all of its pixels.
    """
    rng = seeded_rng(seed, name, "anchors", str(regime))
    n = _count(regime, rng)
    if not mask.any():
        raise InputError(f"{name}: no pixel with a known depth in range, so no anchor can be drawn")
    n = min(n, int(np.count_nonzero(mask)))
    height, width = mask.shape
    rows, columns = anchor_grid_shape(n, mask.shape)
    v = ((np.arange(rows) + 0.5) * height / rows).astype(np.int64).repeat(columns)
    u = np.tile(((np.arange(columns) + 0.5) * width / columns).astype(np.int64), rows)
    kept = rng.permutation(rows * columns)[:n]
    v, u = _nearest_valid(mask, v[kept], u[kept])
    chosen = np.unique(v * width + u)
    if len(chosen) < n:
        free = np.setdiff1d(np.flatnonzero(mask), chosen, assume_unique=True)
        spare = rng.choice(free, n - len(chosen), replace=False)
        chosen = np.sort(np.concatenate([chosen, spare]))
    v, u = np.divmod(chosen, width)
    return Anchors(u, v, depth_m[v, u])


def drop_anchors(
    depth_m: Float[np.ndarray, "h w"],
    mask: Bool[np.ndarray, "h w"],
    *,
    seed: int,
    name: str,
) -> dict[int, Anchors]:
    """Nested anchor sets of the sizes in `DROP_SEQUENCE`, as far as there are pixels.

    Each step removes one anchor of the closest pair: the one whose second neighbour (then third, …)
    is nearer, then the first in row order.
    """
    anchors = sample_anchors(depth_m, mask, DROP_SEQUENCE[0], seed=seed, name=name)
    sets = {}
    for n in DROP_SEQUENCE:
        while len(anchors) > n:
            square = (anchors.u[:, None] - anchors.u) ** 2 + (anchors.v[:, None] - anchors.v) ** 2
            # Pixel positions are integers, so equal distances are exactly equal.
            order = np.lexsort(np.sort(square, axis=1).T[::-1])
            anchors = anchors[np.arange(len(anchors)) != order[0]]
        if len(anchors) == n:
            sets[n] = anchors
    return sets


def _count(regime: str | int, rng: np.random.Generator) -> int:
    if isinstance(regime, int):
        if regime < 1:
            raise InputError(f"the number of anchors must be at least 1, found {regime}")
        return regime
    if regime not in REGIMES:
        raise InputError(f"no anchor regime {regime!r}; there are {', '.join(REGIMES)}")
    least, most = REGIMES[regime]
    return int(rng.integers(least, most, endpoint=True))


def _nearest_valid(
    mask: Bool[np.ndarray, "h w"], v: Int64[np.ndarray, " n"], u: Int64[np.ndarray, " n"]
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    outside = ~mask[v, u]
    if not outside.any():
        return v, u
    inner = mask.copy()
    for inside, source in ((inner, mask), (inner.T, mask.T)):
        inside[1:] &= source[:-1]
        inside[:-1] &= source[1:]
    # The nearest pixel of the mask is on its border: any other has a neighbour that is nearer.
    border = np.argwhere(mask & ~inner)
    pixels = np.stack([v, u], axis=1)
    tree = cKDTree(border, balanced_tree=False, compact_nodes=False)
    _, nearest = tree.query(pixels[outside] - NUDGE)
    pixels[outside] = border[nearest]
    return pixels[:, 0], pixels[:, 1]


def block_folds(
    u: Real[np.ndarray, " n"], v: Real[np.ndarray, " n"], folds: int
) -> Int64[np.ndarray, " n"] | None:
    """The fold of each anchor: squares of the image, of which neighbours are in different folds.

    Neighbours on a ring of a LiDAR or in a bunch predict each other and say little about the pixels
    in between (Roberts et al., 2017, cross-validation by blocks). The squares grow until held-out
    anchors are `FAR_ENOUGH` from the others, measured by the distance of pixels from the anchors
    (medians over the anchors' bounding box). None if single anchors have distances like those at
    random positions, and if all are in one place.
    """
    place = np.stack([u, v], axis=1).astype(np.float64)
    low, size = place.min(axis=0), np.ptp(place, axis=0)
    if len(place) < 3 or size.max() < 1:
        return None
    centres = (np.arange(GAP_SIDE) + 0.5) / GAP_SIDE
    pixels = low + size * np.stack(np.meshgrid(centres, centres), axis=-1).reshape(-1, 2)
    gap = np.median(cKDTree(place).query(pixels)[0])
    tested = seeded_rng(0, "held out").permutation(len(place))[:MOST_TESTED]
    offset = np.abs(place[tested, None] - place)
    distance = np.hypot(offset[..., 0], offset[..., 1])

    def reach(same: Bool[np.ndarray, "t n"]) -> float:
        return float(np.median(np.where(same, np.inf, distance).min(axis=1)))

    same_place = distance < 1
    nearest = np.where(same_place, np.inf, distance).argmin(axis=1)
    across, along = offset[np.arange(len(tested)), nearest].T
    rings = len(place) >= RING_ANCHORS and np.mean(along < RING_SLOPE * across) >= RING_SHARE
    if reach(same_place) >= (FAR_ENOUGH if rings else NEAR_ENOUGH) * gap:
        return None
    side, step, best = max(1.0, gap), HELD_OUT_STEPS.get(folds, 1), None
    while side < size.max():
        column, row = np.floor((place - low) / side).astype(np.int64).T
        fold = np.unique((column + step * row) % folds, return_inverse=True)[1]
        if fold.max() > 0:
            best = fold
        if reach(fold[tested, None] == fold) >= FAR_ENOUGH * gap:
            break
        side *= math.sqrt(2)
    return best
