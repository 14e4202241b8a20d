"""Ways of damaging a valid file: bits, bytes, numbers, words, lines, JSON values."""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

NUMBERS = (
    b"0", b"-1", b"1", b"2", b"255", b"65536", b"2147483648", b"4294967295", b"1000000000000",
    b"9223372036854775807", b"99999999999999999999999", b"-0.0", b"1e-320", b"1e308", b"1e999",
    b"nan", b"inf", b"-inf", b"1_0", b"0x10", b"", b"1.5.2", b"\xd9\xa3", b"9" * 5000, b"[" * 5000,
)  # fmt: skip
INTEGERS = (
    0, 1, 2, 3, 127, 128, 255, 256, 1000, 32767, 65535, 65536, 10**6, 2**31 - 1, 2**31, 2**32 - 1,
    10**9, 10**12, 2**40, 2**62, 2**63, 2**64 - 1,
)  # fmt: skip
FLOATS = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-38, 1e38, 1e-45, -1.0, 1e12)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2.5, 10**12, 1e308, -1e-320, 10**400, "", "x", "../../x", "\x00",
    "\ud800", [], {}, [[]], [1, "a"], {"a": 1}, float("nan"), float("inf"),
)  # fmt: skip

Mutator = Callable[[bytes, random.Random, Sequence[bytes]], bytes]


def flip_bits(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """One to eight bits."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(out))
        out[at] ^= 1 << rng.randrange(8)
    return bytes(out)


def truncate(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """The end is missing."""
    return data[: rng.randrange(len(data))]


def remove(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """A piece is missing."""
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.randint(1, 64) :]


def repeat(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Repeat a piece."""
    start = rng.randrange(len(data))
    piece = data[start : start + rng.randint(1, 64)]
    return data[:start] + piece * rng.randint(2, 20) + data[start:]


def insert(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Random bytes in between."""
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.randint(1, 32)) + data[at:]


def splice(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """The beginning of this file and the end of another."""
    other = rng.choice(others)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def overwrite_number(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """A binary integer or float of telling size."""
    width = rng.choice((1, 2, 4, 8))
    order = rng.choice(("<", ">"))
    if width >= 4 and rng.random() < 0.4:
        packed = struct.pack(order + ("f" if width == 4 else "d"), rng.choice(FLOATS))
    else:
        value = rng.choice(INTEGERS) % (1 << 8 * width)
        packed = value.to_bytes(width, "little" if order == "<" else "big")
    # Headers are at the beginning, and that is where sizes are.
    reach = len(data) if rng.random() < 0.5 else min(len(data), 128)
    at = rng.randrange(reach)
    return data[:at] + packed + data[at + width :]


def replace_number(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """A number in text becomes another, or none."""
    matches = list(re.finditer(rb"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", data[:20_000]))
    if not matches:
        return overwrite_number(data, rng, others)
    start, end = rng.choice(matches).span()
    return data[:start] + rng.choice(NUMBERS) + data[end:]


def swap_words(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """A word takes the place of another."""
    matches = list(re.finditer(rb"[A-Za-z_]{2,}", data[:20_000]))
    if len(matches) < 2:
        return flip_bits(data, rng, others)
    (start, end), word = rng.choice(matches).span(), rng.choice(matches).group()
    return data[:start] + word + data[end:]


def shuffle_lines(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """A line is dropped, doubled or moved."""
    lines = data.split(b"\n")
    line = lines.pop(rng.randrange(len(lines)))
    for _ in range(rng.randint(0, 2)):
        lines.insert(rng.randrange(len(lines) + 1), line)
    return b"\n".join(lines)


def replace_json(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """A value somewhere in the JSON becomes another, is dropped, or gets company."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return replace_number(data, rng, others)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    if isinstance(tree, (dict, list)):
        walk(tree)
    if not places:
        return json.dumps(rng.choice(VALUES)).encode(errors="surrogatepass")
    node, key = rng.choice(places)
    match rng.randrange(8):
        case 0:
            del node[key]
        case 1 if isinstance(node, dict):
            node[f"{key}_"] = node[key]
        case 2 if isinstance(node, list):
            node.insert(key, node[key])
        case 3:
            other, other_key = rng.choice(places)
            node[key] = (
                json.loads(json.dumps(other[other_key])) if other_key in _keys(other) else None
            )
        case _:
            node[key] = rng.choice(VALUES)
    return json.dumps(tree).encode()


def _keys(node: Any) -> Any:
    return node if isinstance(node, dict) else range(len(node))


MUTATORS: tuple[Mutator, ...] = (
    flip_bits, truncate, remove, repeat, insert, splice, overwrite_number, overwrite_number,
    replace_number, replace_number, swap_words, shuffle_lines, replace_json, replace_json,
)  # fmt: skip


def mutate(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """The file after one to four such accidents."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        if not data:
            return rng.choice(others)[: rng.randint(1, 100)]
        data = rng.choice(MUTATORS)(data, rng, others)
    return data
