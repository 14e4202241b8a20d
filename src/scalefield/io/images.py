"""Photographs and label images; a file that declares too many pixels for its size is refused."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

from scalefield.errors import FileError, InputError, MissingExtra, one_line
from scalefield.io.arrays import read_npy
from scalefield.io.disk import check_memory, read_bytes, write_atomic

IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "JPEG2000")
"""Accepted formats. Pillow supports more, and starts other programs for some of them."""

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".heic", ".heif")
"""Suffixes of photographs when a folder is searched."""

HEIC_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
"""Brands of the first box of a HEIC or HEIF file, as iPhones write it."""

HALF_OF_16_BITS = 1 << 15
"""A grey image of 16 bits whose largest value is below this is not taken for a photograph: depth
maps and images of 12 bits end below it."""

ORIENTATION = 0x0112
"""EXIF tag of the orientation: 1 is upright, 2 to 8 are rotated or mirrored."""

STORED = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2}
"""Bytes of a pixel in Pillow by mode; all others take four."""
RGB_WORK, NUMBERS_WORK = 4, 16
"""Bytes for each pixel beside the image in Pillow: for a rotated copy or the array of `rgb`, and
for arrays of wider numbers."""
STRIP = 2**20
"""Pixels that are converted at a time."""

# Errors that damaged files cause in Pillow, found by fuzzing.
IMAGE_ERRORS = (
    OSError, ValueError, SyntaxError, TypeError, KeyError, IndexError, AttributeError,
    OverflowError, EOFError, struct.error, zlib.error, Image.DecompressionBombError,
)  # fmt: skip


def rgb(image: Image.Image) -> UInt8[np.ndarray, "h w 3"]:
    """The image in 8-bit RGB; see `rgb_pixels` for what is refused."""
    if image.mode.startswith(("I", "F")):  # grey of 16 or 32 bits
        values = np.asarray(image)
        if values.dtype.kind in "iu" and not (values.min() >= 0 and values.max() <= 65535):
            raise InputError(f"a grey image must have 8 or 16 bits, found mode {image.mode}")
        return rgb_pixels(values.astype(np.uint16) if values.dtype.kind in "iu" else values)
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    for rows in _strips(pixels.shape):  # Pillow would convert and copy all at once
        strip = image.crop((0, rows.start, image.width, rows.stop))
        pixels[rows] = np.asarray(strip.convert("RGB"))
    return pixels


def _strips(shape: Sequence[int]) -> Iterator[slice]:
    """The rows of an image of this shape in parts of about `STRIP` pixels."""
    height, width = shape[:2]
    step = max(1, STRIP // max(1, width))
    return (slice(top, min(top + step, height)) for top in range(0, height, step))


def rgb_pixels(values: np.ndarray) -> np.ndarray:
    """An array of any accepted shape and type as uint8 RGB of shape (h, w, 3).

    Shapes are (h, w), (h, w, c) and (c, h, w) with 1, 3 or 4 channels; the fourth, opacity, is
    dropped. Values are uint8, uint16 or floats of 0 … 1. Grey images of 16 bits, which may be
    depth maps, must use more than half of the range.
    """
    shape, pixels = values.shape, values
    if pixels.ndim == 3 and shape[2] not in (1, 3, 4) and shape[0] in (1, 3, 4):
        pixels = np.moveaxis(pixels, 0, 2)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.ndim != 3 or 0 in shape or pixels.shape[2] not in (1, 3, 4):
        raise InputError(
            "an image array must have the shape (height, width, 3), (3, height, width) or "
            f"(height, width), found {values.dtype} of shape {shape}"
        )
    pixels = _eight_bits(pixels[..., : 1 if pixels.shape[2] == 1 else 3])
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


def _eight_bits(pixels: np.ndarray) -> np.ndarray:
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype not in (np.uint16, np.float16, np.float32, np.float64):
        raise InputError(
            f"an image array must be uint8, uint16 or floats of 0 … 1, found {pixels.dtype}"
        )
    low, high = float(pixels.min()), float(pixels.max())
    if pixels.dtype == np.uint16:
        if pixels.shape[2] == 1 and high < HALF_OF_16_BITS:
            raise InputError(
                f"a grey image of 16 bits must use the range 0 … 65535, found values up to "
                f"{high:g}; is it a depth map, or an image of fewer bits to be scaled?"
            )
        return _by_strips(pixels, 1 / 257)
    if not (low >= 0 and high <= 1):  # NaN fails too
        hint = "; divide by 255?" if low >= 0 and 1 < high <= 255 else "; is it normalised?"
        raise InputError(
            f"an image of floats must have values of 0 … 1, found {low:.3g} … {high:.3g}{hint}"
        )
    return _by_strips(pixels, 255.0)


def _by_strips(pixels: np.ndarray, factor: float) -> np.ndarray:
    """The pixels times a factor, rounded to 8 bits."""
    scaled = np.empty(pixels.shape, np.uint8)
    for rows in _strips(pixels.shape):
        scaled[rows] = np.round(pixels[rows].astype(np.float64) * factor)
    return scaled


def open_image(data: bytes, work: int = RGB_WORK) -> Image.Image:
    """An opened image whose pixels are not decoded yet.

    A file that declares too many pixels for its size is refused. `work` is the memory that the
    caller needs for each pixel beside the decoded image.
    """
    heic = is_heic(data)
    if heic:
        register_heic()
    try:
        image = Image.open(io.BytesIO(data), formats=("HEIF",) if heic else IMAGE_FORMATS)
    except Image.UnidentifiedImageError:
        known = ", ".join((*IMAGE_FORMATS, "HEIC"))
        raise ValueError(f"{len(data)} bytes that are none of {known}") from None
    work = max(work, NUMBERS_WORK if image.mode.startswith(("I", "F")) else 0, _decoder_work(image))
    needed = image.width * image.height * (STORED.get(image.mode, 4) + work)
    check_memory(f"{image.width}×{image.height} pixels", needed, len(data))
    return image


def _decoder_work(image: Image.Image) -> int:
    """Bytes for each pixel that the decoder takes beside the image, as measured."""
    match image.format:
        case "JPEG2000":  # all samples in 32 bits, and those of a tile
            return 6 * len(image.getbands()) + 2
        case "WEBP":  # two canvases and the file's own frame
            return 12
        case "TIFF":  # a strip may be the whole image, with 16 bits a sample
            return 8
        case _:  # a progressive JPEG keeps the coefficients of all samples
            return 6 if "progressive" in image.info else 4


def is_heic(data: bytes) -> bool:
    """Whether bytes start as a HEIC or HEIF file."""
    return data[4:8] == b"ftyp" and data[8:12] in HEIC_BRANDS


def register_heic() -> None:
    """Let Pillow read HEIC; raises `InputError` with the remedy if the extra is missing."""
    try:
        import pillow_heif
    except ImportError:
        install = MissingExtra("pillow-heif", "heic", "reading HEIC")
        raise InputError(
            f"this is a HEIC photo; {install}; or choose JPEG on the phone "
            "(Settings, Camera, Formats, Most Compatible)"
        ) from None
    pillow_heif.register_heif_opener(thumbnails=False)


@contextmanager
def opened_image(path: Path, kind: str = "image", work: int = RGB_WORK) -> Iterator[Image.Image]:
    """The opened image of a file (see `open_image`); what fails in the block becomes a
    `FileError`."""
    data = read_bytes(path)
    try:
        with open_image(data, work) as image:
            yield image
    except InputError as e:
        raise FileError(path, str(e)) from None
    except IMAGE_ERRORS as e:
        raise FileError(path, f"not a readable {kind} ({one_line(e)})") from None


def read_image(path: str | Path) -> np.ndarray:
    """An image file as uint8 RGB, upright (EXIF orientation applied)."""
    with opened_image(Path(path)) as image:
        ImageOps.exif_transpose(image, in_place=True)
        return rgb(image)


def image_bytes(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The content of an image file; `kind` and `options` are those of `Image.save`."""
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def write_image(path: str | Path, image: Image.Image) -> None:
    """Write a PNG."""
    write_atomic(path, image_bytes(image))


def exif_orientation(path: Path) -> int:
    """The EXIF orientation of a file: 1 if stored upright, 2 to 8 if `read_image` rotates or
    mirrors it."""
    with opened_image(path) as image:
        tag = image.getexif().get(ORIENTATION, 1)
    return int(tag) if tag in range(2, 9) else 1


def read_labels(path: str | Path) -> np.ndarray:
    """An integer label map of shape (h, w): `.npy`, or a one-channel image of 8 or 16 bits."""
    path = Path(path)
    if path.suffix.lower() == ".npy":
        labels = read_npy(path)
    else:
        with opened_image(path, work=NUMBERS_WORK) as image:
            labels = np.asarray(image)  # a palette's indices are the labels, not its colours
    if labels.ndim != 2 or 0 in labels.shape or labels.dtype.kind not in "iub":
        raise FileError(
            path,
            f"labels must be integers of shape (height, width), found {labels.dtype} of "
            f"shape {labels.shape}",
        )
    return labels.astype(np.int64)
