"""A check of COLMAP's binary files before COLMAP reads them.

COLMAP trusts the counts in a file. A truncated file makes it allocate memory for missing records,
or loop. Here every count is compared with the bytes of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from scalefield.io import read_bytes


class Reader:
    """Little-endian numbers one after the other; the end of the file is a ValueError."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def skip(self, size: int) -> None:
        """Skip `size` bytes."""
        self.at += size
        if self.at > len(self.data):
            raise ValueError("it ends too early")

    def number(self, form: str) -> int:
        """One number of a struct's form."""
        start = self.at
        self.skip(struct.calcsize(form))
        return struct.unpack_from("<" + form, self.data, start)[0]

    def text(self) -> None:
        """A name up to its zero."""
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise ValueError("a name has no end")
        self.at = end + 1


def camera(reader: Reader) -> None:
    """Id, model, width, height; the parameters' number is the model's, and COLMAP checks it."""
    reader.skip(4 + 4 + 8 + 8)


def image(reader: Reader) -> None:
    """Id, pose, camera, name, and observations of x, y, point."""
    reader.skip(4 + 7 * 8 + 4)
    reader.text()
    reader.skip(24 * reader.number("Q"))


def point(reader: Reader) -> None:
    """Id, place, colour, error, and a track of images and observations."""
    reader.skip(8 + 3 * 8 + 3 + 8)
    reader.skip(8 * reader.number("Q"))


def rig(reader: Reader) -> None:
    """Id, the first sensor, and the others with their poses where they are known."""
    reader.skip(4)
    sensors = reader.number("I")
    reader.skip(8 if sensors else 0)
    for _ in range(sensors - 1):
        reader.skip(8)
        reader.skip(7 * 8 if reader.number("B") else 0)


def frame(reader: Reader) -> None:
    """Id, rig, pose, and the data that belong to it."""
    reader.skip(4 + 4 + 7 * 8)
    reader.skip(16 * reader.number("I"))


RECORDS: dict[str, Callable[[Reader], None]] = {
    "cameras.bin": camera,
    "images.bin": image,
    "points3D.bin": point,
    "rigs.bin": rig,
    "frames.bin": frame,
}


def check_counts(folder: Path) -> None:
    """Raise ValueError if a binary file of the model declares more than it contains."""
    for name, record in RECORDS.items():
        path = folder / name
        if not path.is_file():
            continue
        reader = Reader(read_bytes(path))
        try:
            for _ in range(reader.number("Q")):
                record(reader)
        except ValueError as e:
            raise ValueError(f"{name}: {e}") from None
