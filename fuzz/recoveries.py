"""Bytes as calls of `recover`: every method, odd sizes, odd types, numbers of every kind."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import scalefield as sf
from scalefield.errors import InputError
from scalefield.methods import METHODS

VALUES = (
    1.0, 1.5, 2.0, 3.7, 0.5, 10.0, 100.0, 0.0, -0.0, -1.0, np.nan, np.inf, -np.inf, 5e-324, 1e-308,
    1e-45, 1e-38, 1e-20, 1e-6, 1e-3, 1e3, 1e6, 65504.0, 7e4, 1e20, 3e38, 1e39, 1e300, 1.7e308,
)  # fmt: skip
"""From which the harmless ones, the first seven, are drawn more often."""
DTYPES = ("f4", "f8", "f2", "u2", "i4", "i8", ">f4", "u1", "?")
SIZES = (1, 2, 3, 4, 5, 7, 8, 11, 16, 24)
METHOD_NAMES = tuple(METHODS)


class Choices:
    """Decisions read from bytes; where they end, all further ones are the first."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        """The next byte."""
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def pick(self, options: Sequence) -> object:
        """One of the options."""
        return options[self.byte() % len(options)]

    def number(self) -> float:
        """Any float: harmless, telling, or straight from the bytes."""
        kind = self.byte()
        if kind < 120:
            return 0.5 + kind / 20
        if kind < 160:
            return VALUES[kind % 7]
        if kind < 230:
            return VALUES[kind % len(VALUES)]
        return struct.unpack("<d", bytes(self.byte() for _ in range(8)))[0]


def call_of(data: bytes) -> tuple[dict, tuple[int, int]]:
    """The arguments of one call, and the map's shape."""
    choose = Choices(data)
    method = choose.pick(METHOD_NAMES)
    shape = (choose.pick(SIZES), choose.pick(SIZES))
    kind = choose.pick(("depth", "disparity"))
    dtype = choose.pick(DTYPES)
    options = choose.pick(({}, {}, {"space": "disparity"}, {"space": "depth"}))
    count = choose.byte() % 12
    columns: dict[str, list] = {"u": [], "v": [], "depth_m": [], "sigma_m": []}
    for _ in range(count):
        inside = choose.byte() % 16
        for name, side in (("u", shape[1]), ("v", shape[0])):
            columns[name].append(choose.byte() % side if inside else choose.number())
        columns["depth_m"].append(choose.number())
        columns["sigma_m"].append(choose.number())
    if choose.byte() % 3:
        del columns["sigma_m"]
    tile = [choose.number() for _ in range(1 + choose.byte() % 40)]
    with np.errstate(all="ignore"):
        mde_depth = np.resize(np.array(tile), shape).astype(dtype)
    image = np.full((*shape, 3), 7, np.uint8) if choose.byte() % 2 else None
    call = {"image": image, "columns": columns, "mde_depth": mde_depth, "kind": kind}
    return {**call, "method": method, "options": options}, shape


def check_recovery(path: Path) -> None:
    """Depth is finite and positive where the map has a value, NaN elsewhere, or all is refused."""
    check_call(path.read_bytes())


def check_call(data: bytes) -> None:
    """The same, from bytes."""
    call, shape = call_of(data)
    anchors = sf.Anchors(**call["columns"])
    before = call["mde_depth"].copy()
    try:
        recovery = sf.recover(
            call["image"],
            anchors,
            mde_depth=call["mde_depth"],
            kind=call["kind"],
            method=call["method"],
            **call["options"],
        )
    except InputError:
        raise
    finally:
        np.testing.assert_array_equal(before, call["mde_depth"])
    depth_m, report = recovery.depth_m, recovery.report
    assert depth_m.shape == shape
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


def seeds_of_recover(folder: Path) -> list[bytes]:
    """Calls of every method that give depth."""
    rng = random.Random(0)
    return [_good_call(i, rng) for i in range(len(METHOD_NAMES)) for _ in range(2)]


def _good_call(method: int, rng: random.Random) -> bytes:
    while True:
        data = bytes([method, 5, 5, rng.randrange(2), 0, 0, 8]) + rng.randbytes(160)
        try:
            check_call(data)
        except InputError:
            continue
        return data
