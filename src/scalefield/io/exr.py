"""EXR files, by OpenEXR, which is an optional dependency."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from scalefield.errors import InputError, MissingExtra, one_line
from scalefield.io.disk import read_bytes


def read_exr(path: Path) -> dict[str, np.ndarray]:
    """The channels of an EXR by name."""
    openexr = import_openexr()
    if not path.is_file():
        read_bytes(path)  # raises the error that describes the path
    with quiet_openexr() as output:
        try:
            with openexr.File(str(path), separate_channels=True) as file:
                return {name: channel.pixels for name, channel in file.channels().items()}
        except (RuntimeError, ValueError, TypeError) as e:
            why = one_line(output.getvalue() or e)
            raise InputError(f"{path}: not a readable EXR file ({why})") from None


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
    try:
        import OpenEXR
    except ImportError:
        raise MissingExtra("OpenEXR", "exr", "reading or writing EXR") from None
    return OpenEXR
