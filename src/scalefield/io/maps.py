"""Maps of depth or disparity in several file formats, with explicit units."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, PngImagePlugin

from scalefield.errors import FileError, one_line
from scalefield.io.arrays import npz_members, read_npy
from scalefield.io.disk import check_memory, read_bytes, write_atomic
from scalefield.io.exr import exr_bytes, read_exr
from scalefield.io.images import NUMBERS_WORK, image_bytes, opened_image

T = TypeVar("T")

UNITS_TAG = "scalefield:units_per_metre"
"""PNG text chunk in which scalefield stores the scale of its 16-bit depth files."""
MAP_SUFFIXES = (".npy", ".npz", ".png", ".exr", ".pfm")


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
            raise FileError(
                path,
                "a PNG does not record its units; give the units per metre "
                "(1000 for millimetres, 256 for KITTI, 5000 for TUM)",
            ) from None
    if not (np.isfinite(units_per_metre) and units_per_metre > 0):
        raise FileError(path, f"units per metre must be above zero, found {units_per_metre:g}")
    depth_m = values / units_per_metre
    depth_m[values == 0] = np.nan
    return depth_m


def read_png16(path: Path, *, accept_8_bits: bool = False) -> tuple[np.ndarray, dict[str, str]]:
    """The raw values and text tags of a one-channel 16-bit PNG; 8-bit files are refused unless they
    are accepted, and then three equal channels count as one (Depth Anything's `--grayscale`)."""
    with opened_image(path, "PNG", NUMBERS_WORK) as image:
        mode, tags = image.mode, dict(getattr(image, "text", {}))
        values = np.asarray(image)
    if accept_8_bits and mode == "RGB" and (values == values[..., :1]).all():
        mode, values = "L", values[..., 0]
    if not mode.startswith("I") and not (accept_8_bits and mode == "L"):
        raise FileError(
            path,
            f"depth must be a one-channel 16-bit PNG, found mode {mode} with 8 bits "
            "a channel, which is usually a picture of depth and not depth",
        )
    return values, tags


def write_depth_png(path: str | Path, depth_m: np.ndarray, units_per_metre: float) -> int:
    """Write metres as 16-bit PNG with the scale in its metadata; returns the number of overflowed
    pixels.

    Zero means unknown: invalid pixels, and those beyond 65535 units, are written as zero.
    """
    units = np.round(np.nan_to_num(depth_m, nan=0, posinf=0, neginf=0) * units_per_metre)
    overflow = units > 65535
    units = np.where(overflow | (units < 0), 0, units)
    tags = PngImagePlugin.PngInfo()
    tags.add_text(UNITS_TAG, repr(float(units_per_metre)))
    image = Image.fromarray(units.astype(np.uint16))
    write_atomic(path, image_bytes(image, pnginfo=tags))
    return int(np.count_nonzero(overflow))


def read_map(
    path: Path, *, key: str | None = None, scale: float = 1.0, zero_is_far: bool = False
) -> np.ndarray:
    """A depth or disparity map of shape (h, w) times `scale`, in float32, or float64 if it was.

    `key` names the array of an NPZ or the channel of an EXR with several. Zeros of a PNG mean
    unknown and become NaN, unless `zero_is_far`: in a normalised disparity map they are the
    farthest pixels, and 8 bits are accepted. Files do not record whether they hold depth or
    disparity: the caller must know.
    """
    path = Path(path)
    if not (np.isfinite(scale) and scale > 0):
        raise FileError(path, f"the scale must be a number above zero, found {scale:g}")
    match path.suffix.lower():
        case ".npy":
            values = _only(path, {"": read_npy(path)}, key)
        case ".npz":  # arrays that are not wanted are not read
            with npz_members(path) as members:
                values = _only(path, members, key)()
        case ".exr":
            values = _only(path, read_exr(path), key)
        case ".pfm":
            values = _only(path, {"": _read_pfm(path)}, key)
        case ".png":
            units = _only(path, {"": read_png16(path, accept_8_bits=zero_is_far)[0]}, key)
            values = units.astype(np.float32)
            if not zero_is_far:
                values[units == 0] = np.nan
        case suffix:
            raise FileError(path, f"a map is read from {', '.join(MAP_SUFFIXES)}, not {suffix!r}")
    if values.dtype.itemsize == 1 and values.dtype.kind in "iu" and not zero_is_far:
        raise FileError(path, "8-bit depth is usually a picture of depth; give the map itself")
    if values.dtype.kind not in "fiu":
        raise FileError(path, f"a map must hold real numbers, found {values.dtype}")
    shape = values.shape
    values = values.reshape(without_unit_axes(shape))
    if values.ndim != 2 or 0 in shape:
        raise FileError(path, f"a map must have shape (height, width), found {shape}")
    # What float32 holds exactly stays small; 32-bit integers and doubles keep their digits.
    wide = (values.dtype.kind in "iu" and values.dtype.itemsize > 2) or values.dtype.itemsize > 4
    dtype = np.dtype(np.float64 if wide else np.float32)
    try:
        needed = values.size * (values.itemsize + dtype.itemsize)
        check_memory(f"{shape[1]}×{shape[0]} pixels", needed, path.stat().st_size)
    except ValueError as e:
        raise FileError(path, f"not a readable map ({e})") from None
    return np.multiply(values, scale, dtype=dtype)


def without_unit_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a map without axes of length 1 for batch and channel, before or after height and
    width: (1, h, w), (1, 1, h, w), (h, w, 1) and (1, h, w, 1) become (h, w)."""
    while len(shape) > 2 and 1 in (shape[0], shape[-1]):
        shape = shape[1:] if shape[0] == 1 else shape[:-1]
    return shape


def write_map(path: str | Path, values: np.ndarray) -> None:
    """Write a map as it is: `.npy` keeps its type, `.pfm` and `.exr` (channel Z) are float32."""
    path = Path(path)
    if values.ndim != 2 or 0 in values.shape:
        raise FileError(path, f"a map must have shape (height, width), found {values.shape}")
    buffer = io.BytesIO()
    match path.suffix.lower():
        case ".npy":
            np.save(buffer, values, allow_pickle=False)
        case ".pfm":  # a negative scale means little-endian; rows go from the bottom up
            buffer.write(f"Pf\n{values.shape[1]} {values.shape[0]}\n-1.0\n".encode())
            buffer.write(values[::-1].astype("<f4").tobytes())
        case ".exr":
            buffer.write(exr_bytes(values))
        case suffix:
            raise FileError(path, f"a map is written as .npy, .pfm or .exr, not {suffix!r}")
    write_atomic(path, buffer.getvalue())


def _only(path: Path, arrays: dict[str, T], key: str | None) -> T:
    """The array called `key`, or the only one there is."""
    named = one_line(", ".join(sorted(arrays)))
    if key is None and len(arrays) == 1:
        return next(iter(arrays.values()))
    if not arrays:
        raise FileError(path, "holds no array")
    if key is None:
        raise FileError(path, f"holds {len(arrays)} arrays; choose one of them: {named}")
    if key not in arrays:
        raise FileError(path, f"has nothing called {key!r}" + (f", only {named}" * bool(named)))
    return arrays[key]


def _read_pfm(path: Path) -> np.ndarray:
    """A one-channel PFM: `Pf`, width and height, scale; the scale's sign is the byte order."""
    data = read_bytes(path)
    header = data[:200].split(b"\n", 3)
    try:
        width, height = (int(n) for n in header[1].split())
        byte_order = float(header[2])
        body = data[sum(len(line) + 1 for line in header[:3]) :]
        if not (math.isfinite(byte_order) and byte_order):
            raise ValueError
    except (IndexError, ValueError):
        raise FileError(path, "not a readable PFM file (no header of three lines)") from None
    if header[0].strip() != b"Pf":
        raise FileError(path, f"wanted a one-channel PFM (Pf), found {header[0][:8]!r}")
    if width < 1 or height < 1 or len(body) != 4 * width * height:
        raise FileError(
            path,
            f"a PFM of {width}×{height} has {4 * width * height} bytes of pixels, "
            f"found {len(body)}",
        )
    pixels = np.frombuffer(body, "<f4" if byte_order < 0 else ">f4").reshape(height, width)
    return pixels[::-1].astype(np.float32)
