"""Damage to a valid file: a piece, a word or a JSON value of it is replaced by another."""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any

TEXTS = (
    b"0", b"-1", b"1", b"2", b"255", b"65536", b"2147483648", b"4294967295", b"1000000000000",
    b"9223372036854775807", b"99999999999999999999999", b"-0.0", b"1e-320", b"1e308", b"1e999",
    b"nan", b"inf", b"-inf", b"1_0", b"0x10", b"", b"1.5.2", b"\xd9\xa3", b"9" * 5000, b"[" * 5000,
)  # fmt: skip
INTEGERS = tuple((1 << bits) + offset for bits in (0, 7, 8, 15, 16, 30, 31, 32, 40, 62, 63)
                 for offset in (-1, 0, 1))  # fmt: skip
FLOATS = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-38, 1e38, 1e-45, -1.0, 1e12)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2.5, 10**12, 1e308, -1e-320, 10**400, "", "x", "../../x", "\x00",
    "\ud800", [], {}, [[]], [1, "a"], {"a": 1}, float("nan"), float("inf"),
)  # fmt: skip
TOKENS = (rb"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", rb"[A-Za-z_]{2,}", rb"[^\n]*\n")
"""A number, a word, a line."""
HEADER = 128
"""Bytes at the beginning, where files state their sizes; half of the damage is done there."""


def mutate(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """The content after one to four random replacements; pieces of `others` are put into it."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        replace = rng.choice((replace_bytes, replace_bytes, replace_token, replace_json))
        data = replace(data or rng.choice(others), rng, others)
    return data


def replace_bytes(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """The content with a bit flipped, a binary number changed, or a piece removed, repeated,
    inserted or replaced by the end of another content."""
    at = rng.randrange(rng.choice((len(data), min(len(data), HEADER))))
    piece = data[at : at + rng.randint(1, 64)]
    replaced, new = rng.choice((
        (1, bytes([data[at] ^ 1 << rng.randrange(8)])),
        (len(number := packed_number(rng)), number),
        (len(piece), b""),
        (len(data), b""),
        (0, piece * rng.randint(1, 20)),
        (0, rng.randbytes(len(piece))),
        (len(data), (other := rng.choice(others))[rng.randrange(len(other) + 1) :]),
    ))  # fmt: skip
    return data[:at] + new + data[at + replaced :]


def packed_number(rng: random.Random) -> bytes:
    """An integer or float near a limit, of one to eight bytes in either order."""
    width, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
    if width >= 4 and rng.random() < 0.4:
        packed = struct.pack("<f" if width == 4 else "<d", rng.choice(FLOATS))
        return packed if order == "little" else packed[::-1]
    return (rng.choice(INTEGERS) % (1 << 8 * width)).to_bytes(width, order)


def replace_token(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """The content with a number, word or line removed, doubled, or replaced by a number near a
    limit or by another of its kind."""
    found = list(re.finditer(rng.choice(TOKENS), data[:20_000]))
    if not found:
        return replace_bytes(data, rng, others)
    token, other = rng.choice(found), rng.choice(found)
    new = rng.choice((b"", 2 * token[0], rng.choice(TEXTS), rng.choice(TEXTS), other[0]))
    return data[: token.start()] + new + data[token.end() :]


def replace_json(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """The content with a JSON value removed, doubled, or replaced by another."""
    try:
        root = [json.loads(data)]
        places = list(members(root))
    except (ValueError, RecursionError):
        return replace_token(data, rng, others)
    (node, key), (other, other_key) = rng.choice(places), rng.choice(places)
    match rng.randrange(6):
        case 0:
            del node[key]
        case 1 if isinstance(node, dict):
            node[f"{key}_"] = node[key]
        case 1:
            node.insert(key, node[key])
        case 2:
            node[key] = json.loads(json.dumps(other[other_key]))
        case _:
            node[key] = rng.choice(VALUES)
    return json.dumps(root[0]).encode() if root else b""


def members(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every dict or list below a JSON value, with each key or index of it."""
    if isinstance(node, (dict, list)):
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            yield node, key
            yield from members(node[key])
