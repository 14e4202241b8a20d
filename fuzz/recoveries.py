"""Bytes as calls of `recover`: every method, odd sizes, odd types, numbers of every kind."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import numpy as np

import scalefield as sf
from scalefield.methods import METHODS

ODD_NUMBERS = (
    0.0, -0.0, -1.0, np.nan, np.inf, -np.inf, 5e-324, 1e-308, 1e-45, 1e-38, 1e-20, 1e-6, 1e-3, 1e3,
    1e6, 65504.0, 7e4, 1e20, 3e38, 1e39, 1e300, 1.7e308,
)  # fmt: skip
DTYPES = ("f8", "f2", "u2", "i4", "i8", ">f4", "u1", "?")
SIZES = (1, 2, 3, 4, 7, 8, 16, 24)
ANCHORS_ODDITIES, MAP_ODDITIES = (0.0, 0.0, 0.03, 0.3), (0.0, 0.03, 0.3, 0.6)
"""Probabilities that a value of the anchors or the map is odd."""
SEEDS = tuple(bytes([0, method, repeat]) for method in range(len(METHODS)) for repeat in range(2))
"""Calls of every method without an odd value, which give depth."""


def another_call(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Random bytes, since any stand for a call."""
    return rng.randbytes(8)


def check_call(data: bytes) -> None:
    """Raise AssertionError unless depth is finite and positive where the map has a value, and NaN
    elsewhere.

    The first bytes give the oddity of the call and its method, all of them the seed of its numbers.
    """
    rng = random.Random(data)
    any_odd = bool(data) and data[0] > 0
    anchors_oddity = rng.choice(ANCHORS_ODDITIES) if any_odd else 0.0
    map_oddity = rng.choice(MAP_ODDITIES) if any_odd else 0.0
    method = tuple(METHODS)[data[1] % len(METHODS) if len(data) > 1 else 0]

    def odd(oddity: float) -> bool:
        return rng.random() < oddity

    def number(oddity: float) -> float:
        if not odd(oddity):
            return rng.uniform(0.5, 6.5)
        return rng.choice((*ODD_NUMBERS, struct.unpack("<d", rng.randbytes(8))[0]))

    def pixel(side: int) -> float:
        return number(1) if odd(anchors_oddity) else rng.randrange(side)

    height, width = rng.choices(SIZES, k=2) if any_odd else (8, 8)
    count = rng.randrange(12) if any_odd else 8
    columns = {
        "u": [pixel(width) for _ in range(count)],
        "v": [pixel(height) for _ in range(count)],
        "depth_m": [number(anchors_oddity) for _ in range(count)],
    }
    if rng.random() < 0.3:
        columns["sigma_m"] = [number(anchors_oddity) for _ in range(count)]
    with np.errstate(all="ignore"):
        tile = np.array([number(map_oddity) for _ in range(rng.randint(1, 40))])
        mde_depth = np.resize(tile, (height, width))
        mde_depth = mde_depth.astype(rng.choice(DTYPES) if odd(map_oddity) else "f4")
    image = None if odd(map_oddity) else np.full((height, width, 3), 7, np.uint8)
    kind = rng.choice(("depth", "disparity"))
    options = {"space": rng.choice(("depth", "disparity"))} if odd(anchors_oddity) else {}
    before = mde_depth.copy()
    try:
        recovery = sf.recover(
            image, sf.Anchors(**columns), mde_depth=mde_depth, kind=kind, method=method, **options
        )
    finally:
        np.testing.assert_array_equal(before, mde_depth)
    depth_m, report = recovery.depth_m, recovery.report
    assert depth_m.shape == (height, width)
    assert depth_m.dtype == np.float32
    finite = ~np.isnan(depth_m)
    assert finite.any()
    assert np.isfinite(depth_m[finite]).all()
    assert (depth_m[finite] > 0).all()
    assert np.count_nonzero(~finite) == report.hole_pixels
    assert np.isfinite(recovery.log_scale[finite]).all()
    assert np.isfinite(report.residuals_log).all()
    assert report.anchors_used > 0 or report.anchors_given == 0  # `field` also works without
    if recovery.std_log is not None:
        assert np.isfinite(recovery.std_log[finite]).all()
        assert (recovery.std_log[finite] >= 0).all()
