"""EXIF's orientation: how the pixels of a file become the upright picture, and back.

Cameras store what the sensor saw and note how they were held. `files.read_image` gives the upright
picture, as viewers do; programs that care for the sensor's geometry, as COLMAP does, take the
pixels as they are stored.
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
    """The stored picture is upright once it is transposed, and then its rows and columns reversed,
    each if so said."""

    transposed: bool = False
    rows_reversed: bool = False
    columns_reversed: bool = False

    @classmethod
    def of(cls, path: Path) -> Orientation:
        """What the EXIF of an image file says."""
        tag = exif_orientation(path)
        return cls(tag in (5, 6, 7, 8), tag in (3, 4, 7, 8), tag in (2, 3, 6, 7))

    def shape(self, other: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the upright picture from those of the stored one, and back."""
        return (other[1], other[0]) if self.transposed else other

    def stored(self, upright: Shaped[np.ndarray, "h w"]) -> Shaped[np.ndarray, "hs ws"]:
        """A map of the upright picture on the stored pixels."""
        rows, columns = (-1 if back else 1 for back in (self.rows_reversed, self.columns_reversed))
        turned = upright[::rows, ::columns]
        return np.ascontiguousarray(turned.T if self.transposed else turned)

    def upright(self, stored: Anchors, shape: tuple[int, int]) -> Anchors:
        """Anchors on stored pixels as they lie in the upright picture, which has this shape."""
        u, v = (stored.v, stored.u) if self.transposed else (stored.u, stored.v)
        if self.columns_reversed:
            u = _reversed(u, shape[1])
        if self.rows_reversed:
            v = _reversed(v, shape[0])
        return Anchors(u, v, stored.depth_m, stored.sigma_m)


def say_if_turned(path: Path) -> None:
    """A notice where EXIF makes a difference: positions and maps are the upright picture's."""
    if Orientation.of(path) != Orientation():
        warnings.warn(
            f"{path}: its EXIF turns the photograph; u, v, maps and intrinsics are those of the "
            "upright picture",
            Notice,
            stacklevel=2,
        )


def _reversed(along: np.ndarray, size: int) -> np.ndarray:
    """A pixel has its lower border and not its upper one: what is on the first stays inside."""
    return np.minimum(size - 1 - along, np.nextafter(size - 0.5, 0))
