"""The border to the disk: atomic writes, and depth maps with their units said aloud."""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin

from scalefield.errors import InputError

UNITS_TAG = "scalefield:units_per_metre"
"""PNG text chunk in which our own 16-bit depth files state their scale."""


def read_bytes(path: Path) -> bytes:
    """The file's content, or a sentence about why there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from None


def write_atomic(path: str | Path, data: bytes) -> None:
    """Write all of `data` under `path`, or leave what was there untouched."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as e:
        raise InputError(f"{path}: cannot be written ({e.strerror})") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files private; an output is as public as the user's umask says.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as e:
        raise InputError(f"{path}: cannot be written ({e.strerror})") from None
    finally:
        Path(temporary).unlink(missing_ok=True)


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, keys in the order given; NaN and infinities are refused."""
    write_atomic(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def read_npz(path: Path, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict:
    """The named arrays of an NPZ file; pickled objects are refused."""
    try:
        with np.load(io.BytesIO(read_bytes(path)), allow_pickle=False) as file:
            names = set(getattr(file, "files", ()))
            missing = [name for name in required if name not in names]
            if missing:
                raise InputError(f"{path}: lacks the array {missing[0]!r}, has {sorted(names)}")
            return {name: file[name] for name in (*required, *optional) if name in names}
    except InputError:
        raise
    except (ValueError, OSError, EOFError, KeyError, TypeError, zipfile.BadZipFile) as e:
        raise InputError(f"{path}: not a readable NPZ file ({e})") from None


def write_npz(path: str | Path, **arrays: np.ndarray) -> None:
    """Write named arrays, compressed."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_atomic(path, buffer.getvalue())


def read_image(path: str | Path) -> np.ndarray:
    """An image file as uint8 RGB, upright (EXIF orientation applied)."""
    from PIL import ImageOps

    path = Path(path)
    try:
        with Image.open(io.BytesIO(read_bytes(path))) as image:
            return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as e:
        raise InputError(f"{path}: not a readable image ({e})") from None


def read_depth_png(path: str | Path, units_per_metre: float | None = None) -> np.ndarray:
    """A 16-bit depth PNG in metres (float64); zero, meaning unknown, becomes NaN.

    `units_per_metre` may be left out only for files that scalefield wrote itself.
    """
    path = Path(path)
    values, tags = read_png16(path)
    if units_per_metre is None:
        try:
            units_per_metre = float(tags.get(UNITS_TAG, ""))
        except ValueError:
            raise InputError(
                f"{path}: a PNG does not say its units; give the units per metre "
                "(1000 for millimetres, 256 for KITTI, 5000 for TUM)"
            ) from None
    if not (np.isfinite(units_per_metre) and units_per_metre > 0):
        raise InputError(f"{path}: units per metre must be above zero, found {units_per_metre:g}")
    return np.where(values > 0, values / units_per_metre, np.nan)


def read_png16(path: Path) -> tuple[np.ndarray, dict[str, str]]:
    """The raw values and text tags of a one-channel 16-bit PNG; 8-bit files are refused."""
    data = read_bytes(path)
    try:
        with Image.open(io.BytesIO(data)) as image:
            mode, tags = image.mode, dict(getattr(image, "text", {}))
            values = np.asarray(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as e:
        raise InputError(f"{path}: not a readable PNG ({e})") from None
    if not mode.startswith("I"):
        raise InputError(
            f"{path}: depth must be a one-channel 16-bit PNG, found mode {mode} with 8 bits "
            "a channel, which is usually a picture of depth and not depth"
        )
    return values.astype(np.float64), tags


def write_depth_png(path: str | Path, depth_m: np.ndarray, units_per_metre: float) -> int:
    """Write metres as 16-bit PNG, its scale in the metadata; returns how many pixels overflowed.

    Zero means unknown: invalid pixels, and those beyond 65535 units, are written as zero.
    """
    units = np.round(np.nan_to_num(depth_m, nan=0, posinf=0, neginf=0) * units_per_metre)
    overflow = units > 65535
    units = np.where(overflow | (units < 0), 0, units)
    tags = PngImagePlugin.PngInfo()
    tags.add_text(UNITS_TAG, f"{units_per_metre:g}")
    buffer = io.BytesIO()
    Image.fromarray(units.astype(np.uint16)).save(buffer, format="PNG", pnginfo=tags)
    write_atomic(path, buffer.getvalue())
    return int(np.count_nonzero(overflow))
