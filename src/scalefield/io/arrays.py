"""NPY and NPZ files; a file that declares more data than it contains is refused before memory is
allocated."""

from __future__ import annotations

import io
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from scalefield.errors import FileError, InputError, one_line
from scalefield.io.disk import check_memory, read_bytes, write_atomic

# Errors that damaged files cause in numpy and zipfile, found by fuzzing: SyntaxError and TokenError
# come from numpy's parsing of headers, RuntimeError from encrypted or unusually packed members.
NUMPY_ERRORS = (
    ValueError, OSError, EOFError, KeyError, TypeError, OverflowError, RecursionError, struct.error,
    zlib.error, zipfile.BadZipFile, RuntimeError, SyntaxError, tokenize.TokenError,
)  # fmt: skip


def read_npy(path: Path) -> np.ndarray:
    """The array of an NPY file; pickled objects are refused."""
    with _reading(path, "NPY"):
        return _parse_npy(read_bytes(path))


def read_npz(path: Path, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict:
    """The named arrays of an NPZ file; pickled objects are refused."""
    with npz_members(path) as members:
        missing = [name for name in required if name not in members]
        if missing:
            raise FileError(
                path, f"lacks the array {missing[0]!r}, has {one_line(sorted(members))}"
            )
        return {name: members[name]() for name in (*required, *optional) if name in members}


def write_npz(path: str | Path, **arrays: np.ndarray) -> None:
    """Write named arrays, compressed."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_atomic(path, buffer.getvalue())


def _parse_npy(data: bytes) -> np.ndarray:
    """The array in the bytes of an NPY file; refused before allocation if the bytes are too few."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    headers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in headers:  # the third is for records with names outside of ASCII
        raise ValueError(f"version {version[0]}.{version[1]} of the format")
    shape, fortran, dtype = headers[version](file)
    if dtype.hasobject:
        raise ValueError("pickled Python objects, which may be programs")
    promised, found = math.prod(shape) * dtype.itemsize, len(data) - file.tell()
    if min(shape, default=0) < 0 or promised > found:
        raise ValueError(f"{dtype} of shape {shape} in {found} bytes")
    values = np.frombuffer(data, dtype, math.prod(shape), file.tell())  # without a copy
    return values.reshape(shape, order="F" if fortran else "C")


@contextmanager
def npz_members(path: Path) -> Iterator[dict[str, Callable[[], np.ndarray]]]:
    """The arrays of an NPZ by name, each read when it is called."""
    data = read_bytes(path)
    with _reading(path, "NPZ"), zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = [e for e in archive.infolist() if e.filename.endswith(".npy")]
        check_memory("its arrays", sum(e.file_size for e in entries), len(data))

        def member(entry: zipfile.ZipInfo) -> Callable[[], np.ndarray]:
            return lambda: _parse_npy(archive.read(entry))

        yield {e.filename.removesuffix(".npy"): member(e) for e in entries}


@contextmanager
def _reading(path: Path, kind: str) -> Iterator[None]:
    """Turn the errors of numpy and zipfile into one `InputError`."""
    try:
        yield
    except InputError:
        raise
    except NUMPY_ERRORS as e:
        raise FileError(path, f"not a readable {kind} file ({one_line(e)})") from None
