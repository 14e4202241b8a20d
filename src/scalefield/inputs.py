"""Checks of what users give: images, depth maps and estimators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from scalefield.defaults import MDE_NAME
from scalefield.errors import InputError
from scalefield.io import read_image, rgb, rgb_pixels
from scalefield.mde import MDE, Kind, MDEOutput
from scalefield.mde.own_maps import RelativeDepth, from_array


def relative_depth(
    image: str | Path | Image.Image | np.ndarray | Tensor | None,
    mde: str | MDE = MDE_NAME,
    mde_depth: np.ndarray | Tensor | None = None,
    kind: Kind | None = None,
    *,
    affine: bool | None = None,
    resize: bool = False,
    device: str = "cpu",
) -> MDEOutput:
    """The MDE's output for an image, or the user's own map; arguments as in `recover`.

    `device` is that of an MDE given by name; a tensor brings its own.
    """
    pixels = None if image is None else load_image(image)
    if mde_depth is not None:
        if mde != MDE_NAME:
            raise InputError(
                "mde_depth is your own depth map and mde computes one; give only one of them"
            )
        return from_array(mde_depth, kind, pixels, affine=affine, resize=resize)
    if resize:
        raise InputError("resize applies only to mde_depth, which is not given")
    if pixels is None:
        raise InputError("no input: give an image, or mde_depth with its kind")
    device = str(image.device) if isinstance(image, Tensor) else device
    return RelativeDepth(mde, kind, affine).load(device)(pixels)


def load_image(image: str | Path | Image.Image | np.ndarray | Tensor) -> np.ndarray:
    """Any accepted image as uint8 RGB of shape (h, w, 3)."""
    if isinstance(image, (str, Path)):
        return read_image(image)
    if isinstance(image, Image.Image):
        return rgb_pixels(rgb(image))
    if isinstance(image, Tensor):
        image = image.detach().cpu()
        image = (image.float() if image.dtype == torch.bfloat16 else image).numpy()
    return rgb_pixels(np.asarray(image))
