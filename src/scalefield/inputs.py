"""Checks of what users give: images, depth maps and estimators."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from scalefield.defaults import MDE_NAME
from scalefield.errors import InputError, one_line, size_text
from scalefield.io import read_image, rgb, rgb_pixels
from scalefield.io.maps import without_unit_axes
from scalefield.mde import MDE, Kind, MDEOutput, load_mde
from scalefield.mde.output import affine_by_default


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
    return estimate(pixels, mde, kind, device, affine=affine)


def estimate(
    image: np.ndarray,
    mde: str | MDE,
    kind: Kind | None = None,
    device: str = "cpu",
    *,
    affine: bool | None = None,
) -> MDEOutput:
    """The output of an MDE, given as an object or by name, for a uint8 RGB image."""
    estimator = load_mde(mde, device=device, kind=kind) if isinstance(mde, str) else mde
    mde_output = estimator(image) if callable(estimator) else estimator
    if not isinstance(mde_output, MDEOutput):
        found = type(mde_output).__name__
        raise InputError(
            f"an MDE must be a name or return an MDEOutput for an image, found {found}"
        )
    if kind not in (None, mde_output.kind):
        raise InputError(f"{mde_output.model} gives {mde_output.kind}, but kind={kind} was given")
    return mde_output if affine is None else dataclasses.replace(mde_output, affine=affine)


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


def from_array(
    mde_depth: np.ndarray | Tensor,
    kind: Kind | None,
    image: np.ndarray | None = None,
    *,
    affine: bool | None = None,
    resize: bool = False,
) -> MDEOutput:
    """A user's own depth or disparity map as an `MDEOutput`.

    `affine`: whether a shift of the map is unknown too; by default that of disparity is.
    """
    if kind not in ("depth", "disparity"):
        raise InputError(
            'kind is required with your own map: "depth" (grows with distance) or '
            f'"disparity" (falls with it), found {kind!r}'
        )
    try:
        values = _plain(mde_depth) if isinstance(mde_depth, Tensor) else _native(mde_depth)
    except (TypeError, ValueError, RuntimeError) as e:
        raise InputError(f"the depth map must be an array of numbers: {one_line(e)}") from None
    shape = tuple(values.shape)
    values = values.reshape(without_unit_axes(shape))
    if values.ndim != 2 or 0 in shape:
        raise InputError(f"a depth map must have shape (height, width), found {shape}")
    if values.dtype.itemsize == 1 and kind == "depth":
        raise InputError(
            "8-bit depth has too few steps and is usually a picture of depth; "
            "give the float or 16-bit map itself"
        )
    # float16 and integer maps become float32; float64 keeps its range.
    prediction = values.to(torch.float64 if values.dtype == torch.float64 else torch.float32)
    pixels = None
    if image is not None:
        pixels = torch.tensor(image, device=prediction.device)
        prediction = _fitted(prediction, image.shape[:2], resize=resize)
    affine = affine_by_default(kind) if affine is None else affine
    output = MDEOutput(prediction, kind, affine=affine, image=pixels)
    output.require_usable()
    return output


def _fitted(
    prediction: Float[Tensor, "_ _"], shape: tuple[int, int], *, resize: bool
) -> Float[Tensor, "h w"]:
    """The map at the image's size; a map of another size is refused unless `resize` is set."""
    if prediction.shape == shape:
        return prediction
    found, wanted = map(size_text, (prediction.shape, shape))
    if prediction.shape == shape[::-1]:
        raise InputError(
            f"the depth map is {found} pixels and the image {wanted}: one of them is rotated, "
            "for example because EXIF rotates the photograph; rotate the map"
        )
    if not resize:
        raise InputError(
            f"the depth map is {found} pixels and the image {wanted}; make the sizes equal, or "
            "allow resizing the map with resize=True (--resize)"
        )
    # Nearest keeps holes and edges: it invents no value between foreground and background.
    maps = torch.nn.functional.interpolate(prediction[None, None], shape, mode="nearest-exact")
    return maps[0, 0]


def _plain(values: Tensor) -> Tensor:
    """The detached tensor; rejects sparse, quantised, complex, boolean and meta tensors."""
    unusual = values.layout != torch.strided or values.is_quantized or values.is_meta
    if unusual or values.is_complex() or values.dtype == torch.bool:
        raise TypeError(f"found a tensor of {values.dtype}, {values.layout}, on {values.device}")
    return values.detach()


def _native(values: Any) -> Tensor:
    """A tensor with its own memory; accepts flipped, read-only and byte-swapped arrays."""
    if np.ma.isMaskedArray(values):
        values = np.ma.filled(values.astype(np.float64), np.nan)  # masked pixels are unknown
    array = np.array(values, order="C")
    if array.dtype.kind not in "fiu":
        raise TypeError(f"found {array.dtype}")
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
