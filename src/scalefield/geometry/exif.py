"""EXIF orientation: the mapping between the stored pixels of a file and the upright picture.

Cameras store the sensor's pixels and record how they were held. `io.read_image` returns the upright
picture, as viewers show it. Programs that use the sensor's geometry, such as COLMAP, read the
stored pixels.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from scalefield.anchors import Anchors
from scalefield.errors import Notice
from scalefield.io import exif_orientation


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
