"""A reader for one numeric matrix of a MATLAB file (version 5, which MATLAB writes up to 7.2), also
as the field of a struct.

scipy's reader is not used because damaged files crash it. Format:
https://www.mathworks.com/help/pdf_doc/matlab/matfile_format.pdf
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

import numpy as np

from scalefield.io.disk import MEMORY_ALWAYS, MEMORY_TIMES

HEADER = 128
MATRIX, COMPRESSED = 14, 15
NUMBERS = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8",
}  # fmt: skip
"""Types of stored numbers; MATLAB stores them as small as they fit."""
NUMERIC_CLASSES = range(6, 16)


def read_matrix(data: bytes, name: str, field: str | None = None) -> np.ndarray:
    """The matrix of that name, or a field of the struct of that name; ValueError if there is none
    or the file is damaged."""
    order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    if order is None:
        raise ValueError("no MATLAB file of version 5")
    for kind, body in _unpacked(data[HEADER:], order):
        if kind == MATRIX:
            flags, shape, title, *values = _elements(body, order)
            if title[1] == name.encode():
                if field is not None:
                    flags, shape, values = _field(values, field, order)
                return _matrix(flags[1], shape[1], values[0], order)
    raise ValueError(f"no matrix {name!r}")


def _field(values: list[tuple[int, bytes]], field: str, order: str) -> tuple:
    """Flags, shape and values of the field of a struct."""
    if len(values) < 2 or len(values[0][1]) != 4:
        raise ValueError("it is no struct")
    width = int(np.frombuffer(values[0][1], f"{order}i4")[0])
    text = values[1][1]
    names = [text[i : i + width].split(b"\0")[0] for i in range(0, len(text), max(width, 1))]
    if field.encode() not in names or names.index(field.encode()) + 2 >= len(values):
        raise ValueError(f"the struct has no field {field!r}")
    kind, body = values[2 + names.index(field.encode())]
    parts = list(_elements(body, order))
    if kind != MATRIX or len(parts) < 4:
        raise ValueError(f"the field {field!r} is no matrix")
    flags, shape, _, *numbers = parts
    return flags, shape, numbers


def _unpacked(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """The elements, with those inside of compressed ones in their place."""
    for kind, body in _elements(data, order):
        if kind != COMPRESSED:
            yield kind, body
            continue
        stream = zlib.decompressobj()
        most = max(MEMORY_ALWAYS, MEMORY_TIMES * len(data)) // 4  # it is copied while it is read
        unpacked = stream.decompress(body, most)
        if stream.unconsumed_tail:
            raise ValueError(f"a matrix of more than {most} bytes")
        yield from _elements(unpacked, order)


def _elements(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """Type and content of one element after the other; short ones have both in eight bytes."""
    at = 0
    while at + 8 <= len(data):
        kind, size = np.frombuffer(data, f"{order}u4", 2, at).tolist()
        if kind >> 16:
            kind, size = kind & 0xFFFF, kind >> 16
            yield kind, data[at + 4 : at + 4 + min(size, 4)]
            at += 8
            continue
        body = data[at + 8 : at + 8 + size]
        if len(body) < size:
            raise ValueError("it ends too early")
        yield kind, body
        # Everything but compressed elements is filled up to eight bytes.
        at += 8 + (size if kind == COMPRESSED else -(-size // 8) * 8)


def _matrix(flags: bytes, shape: bytes, values: tuple[int, bytes], order: str) -> np.ndarray:
    kind = int(np.frombuffer(flags, f"{order}u4", 1)[0]) & 0xFF
    if kind not in NUMERIC_CLASSES or values[0] not in NUMBERS:
        raise ValueError("it is no matrix of numbers")
    sides = np.frombuffer(shape, f"{order}i4").tolist()
    numbers = np.frombuffer(values[1], order + NUMBERS[values[0]])
    if min(sides, default=0) < 0 or math.prod(sides) != len(numbers):
        raise ValueError(f"{len(numbers)} numbers for the shape {sides}")
    return numbers.reshape(sides, order="F")
