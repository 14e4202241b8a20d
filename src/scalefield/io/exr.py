"""EXR files, by OpenEXR, which is an optional dependency."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalefield.errors import FileError, import_extra, one_line
from scalefield.io.disk import check_memory, read_bytes


def read_exr(path: Path) -> dict[str, np.ndarray]:
    """The channels of an EXR by name."""
    openexr = import_openexr()
    if not path.is_file():
        read_bytes(path)  # raises the error that describes the path
    parts = exr_parts(path)
    with quiet_openexr() as output:
        try:
            samples = sum(part.width * part.height * (len(part.channels) + 1) for part in parts)
            check_memory("its channels", 4 * samples, path.stat().st_size)
            with openexr.File(str(path), separate_channels=True) as file:
                return {name: channel.pixels for name, channel in file.channels().items()}
        except (RuntimeError, ValueError, TypeError) as e:
            raise unreadable(path, output.getvalue() or e) from None


@dataclass(frozen=True)
class ExrPart:
    """The size of one part of an EXR, and its channels."""

    width: int
    height: int
    channels: tuple[str, ...]


def exr_parts(path: Path) -> list[ExrPart]:
    """Every part of an EXR, from its headers alone."""
    parts = []
    try:
        with quiet_openexr(), import_openexr().File(str(path), header_only=True) as file:
            for part in file.parts:
                (left, top), (right, bottom) = part.header["dataWindow"]
                channels = tuple(channel.name for channel in part.header["channels"])
                parts.append(ExrPart(int(right - left + 1), int(bottom - top + 1), channels))
    except (RuntimeError, ValueError, TypeError, KeyError) as e:
        raise unreadable(path, e) from None
    return parts


def unreadable(path: Path, problem: object) -> FileError:
    """The error for a damaged file. OpenEXR's text may contain the path; the error names it."""
    text = str(problem).replace(f"'{path}'", "the file").replace(str(path), "the file")
    return FileError(path, f"not a readable EXR file ({one_line(text)})")


def exr_bytes(values: np.ndarray) -> bytes:
    """An EXR file whose one channel, Z, is the map in float32."""
    with tempfile.TemporaryDirectory() as folder:  # OpenEXR writes to named files only
        pixels = np.ascontiguousarray(values, np.float32)
        with import_openexr().File({}, {"Z": pixels}) as file:
            file.write(f"{folder}/map.exr")
        return Path(folder, "map.exr").read_bytes()


@contextmanager
def quiet_openexr() -> Iterator[io.StringIO]:
    """Suppress OpenEXR's messages about damaged files.

    What it prints to stdout is returned; what it writes to the process's stderr is discarded.
    """
    output = io.StringIO()
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        with redirect_stdout(output):
            yield output
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def import_openexr() -> Any:
    """The package, or the command that installs it."""
    return import_extra("OpenEXR", "exr", "reading or writing EXR")
