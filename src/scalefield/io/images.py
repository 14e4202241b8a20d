"""Photographs and label images; a file too small for the pixels that it declares is refused."""

from __future__ import annotations

import io
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from scalefield.errors import FileError, InputError, one_line
from scalefield.io.arrays import read_npy
from scalefield.io.disk import read_bytes

IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "JPEG2000")
"""Accepted formats. Pillow supports more, and starts other programs for some of them."""

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
"""Suffixes of photographs when a folder is searched."""

ORIENTATION = 0x0112
"""EXIF tag of the orientation: 1 is upright, 2 to 8 are rotated or mirrored."""

PACKED = {"PNG": 1032, "JPEG": 2048, "MPO": 2048, "WEBP": 8192, "BMP": 256}
"""Largest ratio of pixel bytes to file bytes by format: deflate's limit; 64 pixels per bit of a
JPEG; 256 pixels in 1.6 bits of a WebP (more only in flat lossless ones); runs in a BMP."""

# Errors that damaged files cause in Pillow, found by fuzzing.
IMAGE_ERRORS = (
    OSError, ValueError, SyntaxError, TypeError, KeyError, IndexError, AttributeError,
    OverflowError, EOFError, struct.error, zlib.error, Image.DecompressionBombError,
)  # fmt: skip


def rgb(image: Image.Image) -> Image.Image:
    """The image in 8-bit RGB; images of 16 bits, which may be depth maps, are refused."""
    if image.mode.startswith(("I", "F")):
        raise InputError(
            f"an image must have 8 bits a channel, found mode {image.mode}; is it a depth map?"
        )
    return image.convert("RGB")


def open_image(data: bytes) -> Image.Image:
    """An opened image whose pixels are not decoded yet.

    A file too small for the pixels that it declares is refused: Pillow would allocate them all, a
    gigabyte for a few hundred bytes.
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
        raise FileError(path, str(e)) from None
    except IMAGE_ERRORS as e:
        raise FileError(path, f"not a readable image ({one_line(e)})") from None


def exif_orientation(path: Path) -> int:
    """The EXIF orientation of a file: 1 if stored upright, 2 to 8 if `read_image` rotates or
    mirrors it."""
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
            raise FileError(path, f"not a readable image ({one_line(e)})") from None
    if labels.ndim != 2 or 0 in labels.shape or labels.dtype.kind not in "iub":
        raise FileError(
            path,
            f"labels must be integers of shape (height, width), found {labels.dtype} of "
            f"shape {labels.shape}",
        )
    return labels.astype(np.int64)
