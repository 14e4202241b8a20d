"""The border to the disk: atomic writes, and depth maps with their units said aloud."""

from __future__ import annotations

import io
import json
import math
import os
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image, PngImagePlugin

from scalefield.ending import tidied, uninterrupted
from scalefield.errors import InputError, MissingExtra, brief

T = TypeVar("T")

MOST_UNPACKED = 2**29
"""Bytes that the arrays of a compressed file may have; a few kilobytes can promise terabytes."""
MOST_TIMES = 16
"""… or so many times the file's own bytes, where that is more."""

IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "JPEG2000")
"""What photographs come in. Pillow knows more, and starts other programs for some of them."""

ORIENTATION = 0x0112
"""EXIF's tag: 1 is upright, 2 to 8 are turned or mirrored."""

UNITS_TAG = "scalefield:units_per_metre"
"""PNG text chunk in which our own 16-bit depth files state their scale."""

PACKED = {"PNG": 1032, "JPEG": 2048, "MPO": 2048, "WEBP": 8192, "BMP": 256}
"""Bytes of pixels that a byte of a photograph can hold: deflate's most, 64 pixels in a bit of a
JPEG and 256 in 1.6 of a WebP (more only in flat ones without loss), a run in a BMP."""

# What damaged files make the libraries say, as fuzzing found it; the last of numpy's come from
# its parsing of headers, the last but one from members that are encrypted or packed strangely.
IMAGE_ERRORS = (
    OSError, ValueError, SyntaxError, TypeError, KeyError, IndexError, AttributeError,
    OverflowError, EOFError, struct.error, zlib.error, Image.DecompressionBombError,
)  # fmt: skip
NUMPY_ERRORS = (
    ValueError, OSError, EOFError, KeyError, TypeError, OverflowError, RecursionError, struct.error,
    zlib.error, zipfile.BadZipFile, RuntimeError, SyntaxError, tokenize.TokenError,
)  # fmt: skip


def read_bytes(path: Path) -> bytes:
    """The file's content, or a sentence about why there is none."""
    try:
        device = path.is_char_device() or path.is_block_device()
        content = b"" if device else path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from None
    except ValueError as e:  # no system has such a name
        raise InputError(f"{brief(path)!r} cannot be the name of a file ({brief(e)})") from None
    if device:
        raise InputError(f"{path}: a device, which has no end; give a file")
    return content


def files_below(folder: Path) -> list[Path]:
    """Every file in a folder and in those inside it, in order; none is passed over unread."""

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read ({error.strerror})")

    return sorted(
        Path(where, name) for where, _, names in os.walk(folder, onerror=refuse) for name in names
    )


def read_text(path: Path) -> str:
    """The content of a UTF-8 file, with or without a byte order mark."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a UTF-8 text file") from None


def read_json(path: Path) -> Any:
    """The values of a JSON file."""
    try:
        return json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as e:
        raise InputError(f"{path}: not a JSON file ({brief(e)})") from None
    except ValueError as e:  # a whole number of thousands of digits
        raise e if isinstance(e, InputError) else InputError(f"{path}: {brief(e)}") from None


@uninterrupted()
def write_atomic(path: str | Path, data: bytes) -> None:
    """Write all of `data` under `path`, or leave what was there untouched."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_hidden(path))
    except OSError as e:
        raise _unwritable(path, e) from None
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
        raise _unwritable(path, e) from None
    finally:
        Path(temporary).unlink(missing_ok=True)


@contextmanager
def write_folder(path: str | Path) -> Iterator[Path]:
    """A folder to write into, whose files move to `path` when the block ends well, else vanish."""
    path = Path(path)
    with uninterrupted():  # but for the caller's block
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            staging = tempfile.TemporaryDirectory(dir=path.parent, prefix=_hidden(path))
        except OSError as e:
            raise _unwritable(path, e) from None
        try:
            with staging as folder:
                with tidied(staging.cleanup), uninterrupted(held=False):
                    yield Path(folder)
                path.mkdir(exist_ok=True)
                files = sorted(Path(folder).iterdir())
                for file in files:
                    if (path / file.name).is_dir():
                        raise InputError(f"{path / file.name}: cannot be written (it is a folder)")
                for file in files:
                    os.replace(file, path / file.name)
        except OSError as e:
            raise _unwritable(path, e) from None


def _hidden(path: Path) -> str:
    """How the temporary name of a file begins; a system's longest name leaves no room for more."""
    return f".{path.name[:40]}."


def _unwritable(path: Path, error: OSError) -> InputError:
    in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
    why = "a file is in the place of a folder" if in_the_way else error.strerror
    return InputError(f"{path}: cannot be written ({why})")


def spare_inputs(outputs: Iterable[Path], inputs: Iterable[Path | None]) -> None:
    """Refuse to write over what is read."""
    read = [path for path in inputs if path is not None and os.path.exists(path)]
    for output in outputs:
        if os.path.exists(output) and any(os.path.samefile(output, path) for path in read):
            raise InputError(f"{output} is read, and would be written over; give another --out")


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, keys in the order given; NaN and infinities are refused."""
    write_atomic(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def read_npz(path: Path, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict:
    """The named arrays of an NPZ file; pickled objects are refused."""
    with _npz(path) as members:
        missing = [name for name in required if name not in members]
        if missing:
            raise InputError(
                f"{path}: lacks the array {missing[0]!r}, has {brief(sorted(members))}"
            )
        return {name: members[name]() for name in (*required, *optional) if name in members}


def write_npz(path: str | Path, **arrays: np.ndarray) -> None:
    """Write named arrays, compressed."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_atomic(path, buffer.getvalue())


def rgb(image: Image.Image) -> Image.Image:
    """The image in 8-bit RGB; a depth map or another 16-bit image would be cut off, so refused."""
    if image.mode.startswith(("I", "F")):
        raise InputError(
            f"an image must have 8 bits a channel, found mode {image.mode}; is it a depth map?"
        )
    return image.convert("RGB")


def open_image(data: bytes) -> Image.Image:
    """An image whose pixels are not decoded yet; a file that cannot have so many is refused.

    Where it promises more than `PACKED` allows, Pillow would make room for the rest of the pixels
    or make them up, a gigabyte of them out of a few hundred bytes.
    """
    try:
        image = Image.open(io.BytesIO(data), formats=IMAGE_FORMATS)
    except Image.UnidentifiedImageError:
        known = ", ".join(IMAGE_FORMATS)
        raise ValueError(f"{len(data)} bytes that are none of {known}") from None
    bits = {"I": 16, "I;16": 16, "I;16B": 16, "LA": 16, "RGB": 24, "RGBA": 32}.get(image.mode, 1)
    packed = PACKED.get(image.format or "", math.inf)
    if image.width * image.height * bits / 8 > packed * len(data):
        found = f"{image.width}×{image.height}"
        raise ValueError(f"{found} pixels are promised, and {len(data)} bytes cannot hold them")
    return image


def read_image(path: str | Path) -> np.ndarray:
    """An image file as uint8 RGB, upright (EXIF orientation applied)."""
    from PIL import ImageOps

    path = Path(path)
    data = read_bytes(path)
    try:
        with open_image(data) as image:
            upright = ImageOps.exif_transpose(image)
            return np.asarray(rgb(upright))
    except InputError as e:
        raise InputError(f"{path}: {e}") from None
    except IMAGE_ERRORS as e:
        raise InputError(f"{path}: not a readable image ({brief(e)})") from None


def exif_orientation(path: Path) -> int:
    """1 for a picture that is stored upright, 2 to 8 for one that `read_image` turns or mirrors."""
    with open_image(read_bytes(path)) as image:
        tag = image.getexif().get(ORIENTATION, 1)
    return int(tag) if tag in range(2, 9) else 1


def read_labels(path: str | Path) -> np.ndarray:
    """An integer label map of shape (h, w): `.npy`, or a one-channel image of 8 or 16 bits."""
    path = Path(path)
    if path.suffix.lower() == ".npy":
        labels = read_npy(path)
    else:
        data = read_bytes(path)
        try:
            with open_image(data) as image:
                labels = np.asarray(image)  # a palette's indices are the labels, not its colours
        except IMAGE_ERRORS as e:
            raise InputError(f"{path}: not a readable image ({brief(e)})") from None
    if labels.ndim != 2 or 0 in labels.shape or labels.dtype.kind not in "iub":
        raise InputError(
            f"{path}: labels must be integers of shape (height, width), found {labels.dtype} of "
            f"shape {labels.shape}"
        )
    return labels.astype(np.int64)


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
        with open_image(data) as image:
            mode, tags = image.mode, dict(getattr(image, "text", {}))
            values = np.asarray(image)
    except IMAGE_ERRORS as e:
        raise InputError(f"{path}: not a readable PNG ({brief(e)})") from None
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
    tags.add_text(UNITS_TAG, repr(float(units_per_metre)))
    buffer = io.BytesIO()
    Image.fromarray(units.astype(np.uint16)).save(buffer, format="PNG", pnginfo=tags)
    write_atomic(path, buffer.getvalue())
    return int(np.count_nonzero(overflow))


MAP_SUFFIXES = (".npy", ".npz", ".png", ".exr", ".pfm")


def read_map(path: Path, *, key: str | None = None, scale: float = 1.0) -> np.ndarray:
    """A depth or disparity map of shape (h, w) times `scale`, in float32, or float64 if it was.

    `key` names the array of an NPZ or the channel of an EXR that holds several. Zeros of a
    16-bit PNG, which mean unknown, become NaN. No file says whether it holds depth or
    disparity, so the caller must.
    """
    path = Path(path)
    if not (np.isfinite(scale) and scale > 0):
        raise InputError(f"{path}: the scale must be a number above zero, found {scale:g}")
    match path.suffix.lower():
        case ".npy" | ".npz":
            values = _read_numpy(path, key)
        case ".exr":
            values = _only(path, _read_exr(path), key)
        case ".pfm":
            values = _only(path, {"": _read_pfm(path)}, key)
        case ".png":
            units = _only(path, {"": read_png16(path)[0]}, key)
            values = np.where(units > 0, units, np.nan).astype(np.float32)
        case suffix:
            raise InputError(
                f"{path}: a map is read from {', '.join(MAP_SUFFIXES)}, not {suffix!r}"
            )
    if values.dtype.itemsize == 1 and values.dtype.kind in "iu":
        raise InputError(f"{path}: 8-bit depth is usually a picture of depth; give the map itself")
    if values.dtype.kind not in "fiu":
        raise InputError(f"{path}: a map must hold real numbers, found {values.dtype}")
    if values.ndim == 3 and 1 in (values.shape[0], values.shape[2]):  # (1, h, w) or (h, w, 1)
        values = values[0] if values.shape[0] == 1 else values[:, :, 0]
    if values.ndim != 2 or 0 in values.shape:
        raise InputError(f"{path}: a map must have shape (height, width), found {values.shape}")
    # What float32 holds exactly stays small; 32-bit integers and doubles keep their digits.
    wide = (values.dtype.kind in "iu" and values.dtype.itemsize > 2) or values.dtype.itemsize > 4
    return np.multiply(values, scale, dtype=np.float64 if wide else np.float32)


def write_map(path: str | Path, values: np.ndarray) -> None:
    """Write a map as it is: `.npy` keeps its type, `.pfm` and `.exr` (channel Z) are float32."""
    path = Path(path)
    if values.ndim != 2 or 0 in values.shape:
        raise InputError(f"{path}: a map must have shape (height, width), found {values.shape}")
    buffer = io.BytesIO()
    match path.suffix.lower():
        case ".npy":
            np.save(buffer, values, allow_pickle=False)
        case ".pfm":  # a negative scale says little-endian; rows go from the bottom up
            buffer.write(f"Pf\n{values.shape[1]} {values.shape[0]}\n-1.0\n".encode())
            buffer.write(values[::-1].astype("<f4").tobytes())
        case ".exr":
            with tempfile.TemporaryDirectory() as folder:  # OpenEXR writes to named files only
                pixels = np.ascontiguousarray(values, np.float32)
                with _import_openexr().File({}, {"Z": pixels}) as file:
                    file.write(f"{folder}/map.exr")
                buffer.write(Path(folder, "map.exr").read_bytes())
        case suffix:
            raise InputError(f"{path}: a map is written as .npy, .pfm or .exr, not {suffix!r}")
    write_atomic(path, buffer.getvalue())


def _only(path: Path, arrays: dict[str, T], key: str | None) -> T:
    """The array called `key`, or the only one there is."""
    named = brief(", ".join(sorted(arrays)))
    if key is None and len(arrays) == 1:
        return next(iter(arrays.values()))
    if not arrays:
        raise InputError(f"{path}: holds no array")
    if key is None:
        raise InputError(f"{path}: holds {len(arrays)} arrays; say which one: {named}")
    if key not in arrays:
        raise InputError(f"{path}: has nothing called {key!r}" + (f", only {named}" * bool(named)))
    return arrays[key]


def _read_numpy(path: Path, key: str | None) -> np.ndarray:
    """The array of an NPY, or that of an NPZ; what else an NPZ holds is not looked at."""
    if path.suffix.lower() == ".npz":
        with _npz(path) as members:
            return _only(path, members, key)()
    return _only(path, {"": read_npy(path)}, key)


def read_npy(path: Path) -> np.ndarray:
    """The array of an NPY file; pickled objects are refused."""
    with _reading(path, "NPY"):
        return _parse_npy(read_bytes(path))


def _parse_npy(data: bytes) -> np.ndarray:
    """The array in NPY's bytes; one that promises more than there is allocates nothing."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    headers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in headers:  # the third is for records with names outside of ASCII
        raise ValueError(f"version {version[0]}.{version[1]} of the format")
    shape, _, dtype = headers[version](file)
    if dtype.hasobject:
        raise ValueError("pickled Python objects, which may be programs")
    promised, found = math.prod(shape) * dtype.itemsize, len(data) - file.tell()
    if min(shape, default=0) < 0 or promised > found:
        raise ValueError(f"{dtype} of shape {shape} in {found} bytes")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


@contextmanager
def _npz(path: Path) -> Iterator[dict[str, Callable[[], np.ndarray]]]:
    """The arrays of an NPZ by name, each read when it is called."""
    data = read_bytes(path)
    most = max(MOST_UNPACKED, MOST_TIMES * len(data))
    with _reading(path, "NPZ"), zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = [e for e in archive.infolist() if e.filename.endswith(".npy")]
        unpacked = sum(e.file_size for e in entries)
        if unpacked > most:
            raise ValueError(f"{unpacked} bytes packed into {len(data)}, at most {most} are read")

        def member(entry: zipfile.ZipInfo) -> Callable[[], np.ndarray]:
            return lambda: _parse_npy(archive.read(entry))

        yield {e.filename.removesuffix(".npy"): member(e) for e in entries}


@contextmanager
def _reading(path: Path, kind: str) -> Iterator[None]:
    """Whatever damage makes numpy and zipfile say becomes one sentence."""
    try:
        yield
    except InputError:
        raise
    except NUMPY_ERRORS as e:
        raise InputError(f"{path}: not a readable {kind} file ({brief(e)})") from None


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
        raise InputError(f"{path}: not a readable PFM file (no header of three lines)") from None
    if header[0].strip() != b"Pf":
        raise InputError(f"{path}: wanted a one-channel PFM (Pf), found {header[0][:8]!r}")
    if width < 1 or height < 1 or len(body) != 4 * width * height:
        raise InputError(
            f"{path}: a PFM of {width}×{height} has {4 * width * height} bytes of pixels, "
            f"found {len(body)}"
        )
    pixels = np.frombuffer(body, "<f4" if byte_order < 0 else ">f4").reshape(height, width)
    return pixels[::-1].astype(np.float32)


def _read_exr(path: Path) -> dict[str, np.ndarray]:
    """The channels of an EXR by name."""
    openexr = _import_openexr()
    if not path.is_file():
        read_bytes(path)  # says what there is instead
    with exr_unheard() as said:
        try:
            with openexr.File(str(path), separate_channels=True) as file:
                return {name: channel.pixels for name, channel in file.channels().items()}
        except (RuntimeError, ValueError, TypeError) as e:
            why = brief(said.getvalue() or e)
            raise InputError(f"{path}: not a readable EXR file ({why})") from None


@contextmanager
def exr_unheard() -> Iterator[io.StringIO]:
    """OpenEXR prints what it dislikes in a damaged file: to stdout, which is returned, and more
    to the process's stderr, which is lost."""
    said = io.StringIO()
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        with redirect_stdout(said):
            yield said
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def _import_openexr() -> Any:
    try:
        import OpenEXR
    except ImportError:
        raise MissingExtra("OpenEXR", "exr", "reading or writing EXR") from None
    return OpenEXR
