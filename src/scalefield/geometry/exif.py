"""EXIF orientation: the mapping between the stored pixels of a file and the upright picture.

Cameras store the sensor's pixels and record how they were held. `io.read_image` returns the upright
picture, as viewers show it. Programs that use the sensor's geometry, such as COLMAP, read the
stored pixels.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from scalefield.anchors import Anchors
from scalefield.errors import InputError, Notice
from scalefield.geometry.camera import Camera
from scalefield.io import exif_orientation
from scalefield.io.images import opened_image

FOCAL_35MM_TAG, EXIF_IFD = 41989, 0x8769
DIAGONAL_35MM = math.hypot(36, 24)


@dataclass(frozen=True)
class Orientation:
    """Steps from the stored to the upright picture: transpose, then reverse rows and columns."""

    transposed: bool = False
    rows_reversed: bool = False
    columns_reversed: bool = False

    @classmethod
    def of(cls, path: Path) -> Orientation:
        """The orientation of an image file."""
        tag = exif_orientation(path)
        return cls(tag in (5, 6, 7, 8), tag in (3, 4, 7, 8), tag in (2, 3, 6, 7))

    def shape(self, other: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the upright picture from those of the stored one, or the reverse."""
        return (other[1], other[0]) if self.transposed else other

    def stored(self, upright: Shaped[np.ndarray, "h w"]) -> Shaped[np.ndarray, "hs ws"]:
        """A map of the upright picture, on the stored pixels."""
        rows, columns = (-1 if back else 1 for back in (self.rows_reversed, self.columns_reversed))
        turned = upright[::rows, ::columns]
        return np.ascontiguousarray(turned.T if self.transposed else turned)

    def upright(self, stored: Anchors, shape: tuple[int, int]) -> Anchors:
        """Anchors on stored pixels, moved to the upright picture, which has this shape."""
        u, v = (stored.v, stored.u) if self.transposed else (stored.u, stored.v)
        if self.columns_reversed:
            u = _reversed(u, shape[1])
        if self.rows_reversed:
            v = _reversed(v, shape[0])
        return stored.moved(u, v)


def photo_fov_deg(path: Path) -> float | None:
    """Horizontal field of view of a photograph in degrees, from the 35 mm equivalent of its focal
    length, which is for the diagonal; None if it has none."""
    with opened_image(path) as image:
        focal_35mm = image.getexif().get_ifd(EXIF_IFD).get(FOCAL_35MM_TAG)
        height, width = Orientation.of(path).shape((image.height, image.width))
    return fov_from_exif(focal_35mm, (width, height))


def fov_from_exif(focal_35mm: object, size: tuple[int, int]) -> float | None:
    """Horizontal field of view in degrees of an upright picture of this width and height."""
    if not isinstance(focal_35mm, int) or not 4 <= focal_35mm <= 1000:
        return None
    focal_px = focal_35mm / DIAGONAL_35MM * math.hypot(*size)
    return math.degrees(2 * math.atan(size[0] / 2 / focal_px))


def choose_camera(
    camera: Camera | None, fov_deg: float | None, shape: tuple[int, int], image: object
) -> Camera | None:
    """The camera itself, or that of a field of view, or that of the EXIF of an image file."""
    if camera is not None and fov_deg is not None:
        raise InputError("the camera and fov_deg are alternatives; give one of them")
    if camera is None and fov_deg is None and isinstance(image, (str, Path)):
        fov_deg = photo_fov_deg(Path(image))
    return Camera.from_fov(fov_deg, shape) if camera is None and fov_deg is not None else camera


def notify_if_rotated(path: Path) -> None:
    """Warn if EXIF rotates the photograph: positions and maps refer to the upright picture."""
    if Orientation.of(path) != Orientation():
        warnings.warn(
            f"{path}: EXIF rotates the photograph; u, v, maps and intrinsics are those of the "
            "upright picture",
            Notice,
            stacklevel=2,
        )


def _reversed(along: np.ndarray, size: int) -> np.ndarray:
    """Reversed positions; a pixel includes its lower border only, so the first one is kept
    inside."""
    return np.minimum(size - 1 - along, np.nextafter(size - 0.5, 0))
