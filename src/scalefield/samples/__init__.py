"""The bundled sample, a rendered room with its true depth.

scripts/render_sample.py at commit 1fe63ba of this repository rendered it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64, UInt8

from scalefield.anchors import Anchors
from scalefield.errors import InputError
from scalefield.io import read_depth_png, read_image

FOLDER = Path(__file__).parent
SAMPLES = ("room",)


@dataclass(frozen=True, eq=False)
class Sample:
    """An image, a few anchors as from a tape measure, and the exact z-depth."""

    image_path: Path
    anchors_path: Path
    image: UInt8[np.ndarray, "h w 3"]
    depth_m: Float64[np.ndarray, "h w"]
    anchors: Anchors
    suggested: Anchors
    """The same, and nine more to the centimetre at pixels that `scalefield suggest` chose then."""


def load(name: str = SAMPLES[0]) -> Sample:
    """The bundled scene of that name."""
    if name not in SAMPLES:
        raise InputError(f"no sample {name!r}; there are {', '.join(SAMPLES)}")
    image_path, anchors_path = FOLDER / f"{name}.jpg", FOLDER / f"{name}_anchors.csv"
    return Sample(
        image_path=image_path,
        anchors_path=anchors_path,
        image=read_image(image_path),
        depth_m=read_depth_png(FOLDER / f"{name}_depth.png"),
        anchors=Anchors.read(anchors_path),
        suggested=Anchors.read(FOLDER / f"{name}_suggested.csv"),
    )
