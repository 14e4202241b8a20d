"""Surface normals as a picture and as numbers."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from jaxtyping import Float
from PIL import Image

from scalefield.io import write_atomic, write_image


def write_normals(path: str | Path, normals: Float[np.ndarray, "h w 3"]) -> None:
    """Write a normal map as a picture, and the exact values beside it as .npy.

    Red, green and blue are right, up and towards the viewer, −1 … 1 as 0 … 255; black is unknown.
    The .npy keeps the camera's frame: x right, y down, z forward.
    """
    path = Path(path)
    pixels = np.round(255 * (normals * [1, -1, -1] + 1) / 2)
    pixels = np.where(np.isnan(normals), 0, pixels).astype(np.uint8)
    exact = io.BytesIO()
    np.save(exact, normals.astype(np.float32), allow_pickle=False)
    write_atomic(path.with_suffix(".npy"), exact.getvalue())
    write_image(path, Image.fromarray(pixels))
