"""Uploaded files and typed text: sizes are checked before anything is decoded."""

from __future__ import annotations

import io
import math
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

from scalefield.anchors import Anchors
from scalefield.errors import FileError, InputError, one_line
from scalefield.geometry.exif import EXIF_IFD, FOCAL_35MM_TAG, fov_from_exif
from scalefield.io import IMAGE_ERRORS, MAP_SUFFIXES, NUMPY_ERRORS, read_map, rgb
from scalefield.io.anchor_tables import decode_text, parse_anchor_table
from scalefield.io.exr import exr_parts
from scalefield.io.images import is_heic, register_heic
from scalefield.io.lengths import METRES_PER_UNIT, parse_length

IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "AVIF")
LEAST_SIDE = 4
"""Pixels along the shorter side of a photograph."""
LENGTH_CHARACTERS = 100
LINE_CHARACTERS = 1000
"""Of a line of a table; the time to read one grows with the square of its length."""


@dataclass(frozen=True)
class Limits:
    """Limits of the server."""

    upload_bytes: int = 64 * 2**20
    pixels: int = 50_000_000
    sessions: int = 12
    session_bytes: int = 4 * 2**30
    """Memory of all sessions together and of the work on one of them."""
    work_bytes_per_pixel: int = 50
    """Memory that an estimator, a method or an export takes while it works on a photograph."""
    anchors: int = 5000
    waiting_jobs: int = 64
    """Photographs, exports and slow methods that may wait for their turn."""
    waiting_edits: int = 512
    export_points: int = 2_000_000
    """Points of an exported cloud at most."""


@dataclass(frozen=True, eq=False)
class Photo:
    """An upright uint8 RGB image and, where its EXIF has it, the horizontal field of view."""

    pixels: UInt8[np.ndarray, "h w 3"]
    fov_deg: float | None


def read_photo(data: bytes, limits: Limits) -> Photo:
    """Decode an image of at most `limits.pixels`; InputError for anything else."""
    Image.init()
    formats: tuple[str, ...] = tuple(form for form in IMAGE_FORMATS if form in Image.OPEN)
    if is_heic(data):
        register_heic()
        formats = ("HEIF",)
    try:
        with Image.open(io.BytesIO(data), formats=formats) as image:
            check_pixels("the image", *image.size, limits)
            if min(image.size) < LEAST_SIDE:
                width, height = image.size
                raise InputError(
                    f"a photo has {LEAST_SIDE} pixels or more a side, found {width}×{height}"
                )
            focal_35mm = image.getexif().get_ifd(EXIF_IFD).get(FOCAL_35MM_TAG)
            upright = ImageOps.exif_transpose(image)
            return Photo(np.asarray(rgb(upright)), fov_from_exif(focal_35mm, upright.size))
    except InputError:
        raise
    except Image.UnidentifiedImageError:
        known = ", ".join((*IMAGE_FORMATS, "HEIC"))
        raise InputError(f"this file is not an image in {known}") from None
    except Image.DecompressionBombError:
        raise InputError(f"the image has more than {limits.pixels / 1e6:g} megapixels") from None
    except IMAGE_ERRORS as e:
        raise InputError(f"the image cannot be decoded ({one_line(e)})") from None


class SeveralArrays(InputError):
    """A depth file with several arrays, of which one must be named."""

    def __init__(self, names: list[str]) -> None:
        listed = one_line(", ".join(names))
        super().__init__(f"the depth file holds {len(names)} arrays; choose one: {listed}")
        self.names = names


def read_depth(
    data: bytes,
    suffix: str,
    limits: Limits,
    key: str | None = None,
    *,
    disparity: bool = False,
) -> np.ndarray:
    """A depth or disparity map in one of `MAP_SUFFIXES`, from bytes; `key` names one of several.

    Disparity has an unknown shift here: its zeros are the farthest pixels.
    """
    if suffix not in MAP_SUFFIXES:
        raise InputError(f"a depth map is read from {', '.join(MAP_SUFFIXES)}, not {suffix!r}")
    # The readers take paths. The client's file name is not used.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"map{suffix}")
        path.write_bytes(data)
        try:
            check_map_size(path, data, limits)
            names = array_names(path, data)
            if key is None and len(names) > 1:
                raise SeveralArrays(names)
            return read_map(path, key=key if names else None, zero_is_far=disparity)
        except FileError as e:
            raise e.renamed("the depth file") from None


def array_names(path: Path, data: bytes) -> list[str]:
    """The arrays of an NPZ or the channels of an EXR; none for files that hold one map."""
    if path.suffix == ".npz":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return sorted(name.removesuffix(".npy") for name in archive.namelist())
    if path.suffix == ".exr":
        return sorted({name for part in exr_parts(path) for name in part.channels})
    return []


def check_map_size(path: Path, data: bytes, limits: Limits) -> None:
    """Refuse a map that would unpack to more than the limit, from its header alone."""
    match path.suffix:
        case ".npz":
            try:
                with zipfile.ZipFile(io.BytesIO(data)) as archive:
                    unpacked = sum(entry.file_size for entry in archive.infolist())
            except NUMPY_ERRORS as e:
                why = one_line(e)
                raise InputError(f"the depth file is not a readable NPZ file ({why})") from None
            check_pixels("the depth file", 1, unpacked // 8, limits)
        case ".npy":
            try:
                header = np.lib.format.read_magic(file := io.BytesIO(data))
                read = np.lib.format.read_array_header_1_0 if header == (1, 0) else None
                shape = (read or np.lib.format.read_array_header_2_0)(file)[0]
            except NUMPY_ERRORS as e:
                why = one_line(e)
                raise InputError(f"the depth file is not a readable NPY file ({why})") from None
            check_pixels("the depth file", 1, math.prod(shape), limits)
        case ".png":
            try:
                with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
                    check_pixels("the depth file", *image.size, limits)
            except IMAGE_ERRORS as e:
                raise InputError(f"the depth file is not a readable PNG ({one_line(e)})") from None
        case ".exr":
            samples = sum(part.width * part.height * len(part.channels) for part in exr_parts(path))
            check_pixels("the depth file, all channels and parts together,", 1, samples, limits)


def check_pixels(name: str, width: int, height: int, limits: Limits) -> None:
    """InputError for an image with more pixels than the limit."""
    if width * height > limits.pixels:
        raise InputError(
            f"{name} has {width * height / 1e6:.1f} megapixels, and this server takes at most "
            f"{limits.pixels / 1e6:g}; make it smaller"
        )


def read_length(body: Any) -> float:
    """The metres of a typed length, from JSON: {"text", "unit" of a number that has none}."""
    fields = body if isinstance(body, dict) else {}
    text, unit = fields.get("text"), fields.get("unit", "m")
    if not isinstance(text, str):
        raise InputError('wanted a JSON object with "text", a length such as "8 ft 3 in"')
    if len(text) > LENGTH_CHARACTERS:
        raise InputError(f"a length such as 2.4 m is wanted, found {len(text)} characters")
    if not isinstance(unit, str) or unit not in METRES_PER_UNIT:
        raise InputError(f"no unit {str(unit)[:40]!r}; there are {', '.join(METRES_PER_UNIT)}")
    # JSON may hold halves of surrogate pairs, which no answer could repeat.
    return parse_length(text.encode("utf-8", "replace").decode(), unit)


def read_anchor_table(data: bytes, shape: tuple[int, int], limits: Limits) -> Anchors:
    """The anchors of a table in UTF-8 or UTF-16; all must lie in an image of that shape."""
    text = decode_text(data)
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > LINE_CHARACTERS:
            raise InputError(
                f"line {number} has {len(line)} characters, and at most {LINE_CHARACTERS} are read"
            )
    table = parse_anchor_table(text)
    anchors = Anchors(table.u, table.v, table.depth_m, table.sigma_m, lines=table.lines)
    if not len(anchors):
        raise InputError("there is no line with an anchor")
    if len(anchors) > limits.anchors:
        raise InputError(f"{len(anchors)} anchors, and this server takes at most {limits.anchors}")
    anchors.pixels(shape)
    return anchors
