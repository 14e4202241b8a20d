"""Binary format of maps for the page: a JSON header, then each map as 16-bit steps in a range.

uint32 (little-endian)  length of the header
JSON                    the header, padded with spaces to a multiple of 4 bytes; its "maps" are
                        [{"name", "shape", "low", "high"}, …] in the order of the bytes
uint16 (little-endian)  of each map, row by row: low + q · (high − low) / 65534; 65535 is a hole
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

HOLE = 65535
STEPS = 65534


def pack(header: Mapping[str, Any], maps: Mapping[str, np.ndarray]) -> bytes:
    """The header and the maps in one body."""
    entries, bodies = [], []
    for name, values in maps.items():
        finite = np.isfinite(values)
        low, high = (float(f(values[finite])) if finite.any() else 0.0 for f in (np.min, np.max))
        span = max(high - low, 1e-12)
        steps = np.round((np.where(finite, values, low) - low) * (STEPS / span))
        bodies.append(np.where(finite, steps, HOLE).astype("<u2").tobytes())
        entries.append({"name": name, "shape": list(values.shape), "low": low, "high": low + span})
    text = json.dumps({**header, "maps": entries}, allow_nan=False).encode()
    text += b" " * (-len(text) % 4)
    return b"".join([len(text).to_bytes(4, "little"), text, *bodies])


def unpack(body: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Inverse of `pack`, exact to half a step."""
    length = int.from_bytes(body[:4], "little")
    header = json.loads(body[4 : 4 + length])
    maps, start = {}, 4 + length
    for entry in header["maps"]:
        count = int(np.prod(entry["shape"]))
        steps = np.frombuffer(body, "<u2", count, start).reshape(entry["shape"]).astype(np.float64)
        values = entry["low"] + steps * ((entry["high"] - entry["low"]) / STEPS)
        maps[entry["name"]] = np.where(steps == HOLE, np.nan, values)
        start += 2 * count
    return header, maps
