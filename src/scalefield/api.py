"""The one door: an image or a depth map, anchors, a method; metric depth comes out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.defaults import MDE_NAME, METHOD_NAME
from scalefield.errors import InputError, brief
from scalefield.io import read_image, rgb
from scalefield.mde import MDE, Kind, MDEOutput, load_mde
from scalefield.methods import Method, make_method, method_name
from scalefield.recovery import Recovery, Rejection

FAR_M = 500.0
"""Anchors are farther than this in few photographs, and in many files of millimetres."""
MOST_LOST = 0.01
"""Share of a disparity map below zero from which on it is spoken of; some models miss by a bit."""
RELATIVE = (1e-20, 1e20)
"""Between these lies the median of a map, so that metres over it are a number in float32."""


def recover(
    image: str | Path | Image.Image | np.ndarray | Tensor | None,
    anchors: Anchors | None = None,
    *,
    mde: str | MDE = MDE_NAME,
    mde_depth: np.ndarray | Tensor | None = None,
    kind: Kind | None = None,
    method: str | Method = METHOD_NAME,
    resize: bool = False,
    **options: Any,
) -> Recovery:
    """Metric depth of `image` from a few `anchors`; from none, what `field` expects of it.

    The relative depth comes from `mde`, or is brought along as `mde_depth` with its `kind` said:
    "depth" grows with distance, "disparity" falls with it (an `mde` knows its kind, unless it is
    a foreign file). `resize` allows a map of another size than the image to be brought to the
    image's. Further `options` go to the method.

    >>> import numpy as np, scalefield as sf
    >>> relative = np.linspace(1, 2, 12).reshape(3, 4)
    >>> r = sf.recover(None, sf.Anchors([0], [0], [5.0]), mde_depth=relative, kind="depth",
    ...                method="median")
    >>> float(r.depth_m[2, 3])
    10.0
    """
    mde_output = relative_depth(image, mde, mde_depth, kind, resize=resize)
    given = Anchors([], [], []) if anchors is None else anchors
    require_anchors("anchors", given)
    result = recover_from(mde_output, given, make_method(method, **options))
    as_torch = isinstance(mde_depth, Tensor) or isinstance(image, Tensor)
    return result if as_torch else result.numpy()


def relative_depth(
    image: str | Path | Image.Image | np.ndarray | Tensor | None,
    mde: str | MDE,
    mde_depth: np.ndarray | Tensor | None,
    kind: Kind | None,
    *,
    resize: bool,
) -> MDEOutput:
    """What the estimator says of an image, or the user's own map; see `recover`."""
    pixels = None if image is None else load_image(image)
    if mde_depth is not None:
        if mde != MDE_NAME:
            raise InputError("mde_depth brings your own map and mde makes one; give one of them")
        return bring_depth(mde_depth, kind, pixels, resize=resize)
    if resize:
        raise InputError("resize speaks of a map of your own; give it as mde_depth")
    if pixels is None:
        raise InputError("nothing to look at: give an image, or mde_depth with its kind")
    device = str(image.device) if isinstance(image, Tensor) else "cpu"
    return estimate(pixels, mde, kind, device)


def require_anchors(name: str, given: object) -> None:
    """Refuse what is no Anchors."""
    if not isinstance(given, Anchors):
        found = type(given).__name__
        raise InputError(f"{name} must be an Anchors (Anchors.read reads files), found {found}")


def estimate(
    image: np.ndarray, mde: str | MDE, kind: Kind | None = None, device: str = "cpu"
) -> MDEOutput:
    """What the MDE, given itself or by name, says about a uint8 RGB image."""
    estimator = load_mde(mde, device=device, kind=kind) if isinstance(mde, str) else mde
    mde_output = estimator(image) if callable(estimator) else estimator
    if not isinstance(mde_output, MDEOutput):
        found = type(mde_output).__name__
        raise InputError(f"an MDE is a name, or gives an MDEOutput for an image; found {found}")
    if kind not in (None, mde_output.kind):
        raise InputError(f"{mde_output.model} gives {mde_output.kind}, and not {kind} as was said")
    return mde_output


def recover_from(mde_output: MDEOutput, anchors: Anchors, method: Method) -> Recovery:
    """`recover` once the MDE has spoken: check the anchors, run the method, complete the report."""
    if len(anchors) < getattr(method, "least_anchors", 1):
        raise InputError("no anchors: at least one pixel of known metric depth is wanted")
    rows, columns = anchors.pixels(mde_output.shape)
    usable = mde_output.valid[rows, columns].cpu().numpy()
    if len(anchors) and not usable.any():
        raise InputError(
            f"none of the {len(anchors)} anchors lies on a pixel with a relative depth "
            "(the map there is not finite, or not above zero)"
        )
    kept = anchors if usable.all() else anchors[usable]
    recovery = method(mde_output, kept)
    if not isinstance(recovery, Recovery):
        found = type(recovery).__name__
        raise InputError(f"method {method_name(method)} must give a Recovery, found {found}")
    indices = np.flatnonzero(usable)
    report = dataclasses.replace(
        recovery.report,
        method=method_name(method),
        options=_options(method),
        anchors_given=len(anchors),
        rejected=(
            *(Rejection(int(i), "no relative depth here") for i in np.flatnonzero(~usable)),
            # A method counts the anchors it was handed; the user counts those that were given.
            *(Rejection(int(indices[r.anchor]), r.reason) for r in recovery.report.rejected),
        ),
        warnings=(*_doubts(mde_output, kept), *recovery.report.warnings),
    )
    return dataclasses.replace(recovery, report=report)


def load_image(image: str | Path | Image.Image | np.ndarray | Tensor) -> np.ndarray:
    """Any accepted image as uint8 RGB of shape (h, w, 3)."""
    if isinstance(image, (str, Path)):
        return read_image(image)
    if isinstance(image, Image.Image):
        pixels = np.asarray(rgb(image))
    else:
        pixels = image.detach().cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
        raise InputError(
            f"an image array must be uint8 of shape (height, width, 3), found {pixels.dtype} "
            f"of shape {pixels.shape}"
        )
    return np.ascontiguousarray(pixels)  # torch takes no mirrored arrays, as BGR[..., ::-1] is


def bring_depth(
    mde_depth: np.ndarray | Tensor,
    kind: Kind | None,
    image: np.ndarray | None = None,
    *,
    resize: bool = False,
) -> MDEOutput:
    """A user's own depth or disparity map as an `MDEOutput`."""
    if kind not in ("depth", "disparity"):
        raise InputError(
            'kind must be said for a map of your own: "depth" (grows with distance) or '
            f'"disparity" (falls with it), found {kind!r}'
        )
    try:
        values = _plain(mde_depth) if isinstance(mde_depth, Tensor) else _native(mde_depth)
    except (TypeError, ValueError, RuntimeError) as e:
        raise InputError(f"the depth map must be an array of numbers: {brief(e)}") from None
    if values.ndim != 2 or 0 in values.shape:
        raise InputError(
            f"a depth map must have shape (height, width), found {tuple(values.shape)}"
        )
    if values.dtype.itemsize == 1:
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
    output = MDEOutput(prediction, kind, image=pixels)
    if not bool(output.valid.any()):
        raise InputError("the depth map has no usable value: all are NaN, infinite, or not above 0")
    typical = float(output.prediction[output.valid].abs().median())
    if typical and not RELATIVE[0] <= typical <= RELATIVE[1]:
        raise InputError(
            f"the depth map's values have a median of {typical:g}, wanted is one between "
            f"{RELATIVE[0]:g} and {RELATIVE[1]:g}; multiply the map, its unit does not matter"
        )
    return output


def _fitted(
    prediction: Float[Tensor, "_ _"], shape: tuple[int, int], *, resize: bool
) -> Float[Tensor, "h w"]:
    """The map at the image's size, which it must have or be allowed to be brought to."""
    if prediction.shape == shape:
        return prediction
    found, wanted = (f"{size[1]}×{size[0]}" for size in (prediction.shape, shape))
    if prediction.shape == shape[::-1]:
        raise InputError(
            f"the depth map is {found} pixels and the image {wanted}: one of them lies on its "
            "side, as where EXIF turns the photograph; turn the map"
        )
    if not resize:
        raise InputError(
            f"the depth map is {found} pixels and the image {wanted}; make them equal, or "
            "allow scaling the map to the image with resize=True (--resize)"
        )
    # Nearest keeps holes and edges: no value is invented between foreground and background.
    maps = torch.nn.functional.interpolate(prediction[None, None], shape, mode="nearest-exact")
    return maps[0, 0]


def _plain(values: Tensor) -> Tensor:
    """The tensor without its history; sparse, quantised, complex and empty-handed ones are none."""
    odd = values.layout != torch.strided or values.is_quantized or values.is_meta
    if odd or values.is_complex() or values.dtype == torch.bool:
        raise TypeError(f"found a tensor of {values.dtype}, {values.layout}, on {values.device}")
    return values.detach()


def _native(values: Any) -> Tensor:
    """A tensor with its own memory; flipped, read-only and byte-swapped arrays are fine."""
    if np.ma.isMaskedArray(values):
        values = np.ma.filled(values.astype(np.float64), np.nan)  # hidden is unknown
    array = np.array(values, order="C")
    if array.dtype.kind not in "fiu":
        raise TypeError(f"found {array.dtype}")
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))


def _doubts(mde_output: MDEOutput, anchors: Anchors) -> Iterator[str]:
    """Warnings where map and anchors can hardly be what they were declared to be."""
    if len(anchors) and (typical_m := float(np.median(anchors.depth_m))) > FAR_M:
        yield (
            f"half of the anchors are {typical_m:.0f} m away or more; depth_m is in metres, are "
            "they millimetres?"
        )
    if mde_output.lost_share > MOST_LOST:
        yield (
            f"{100 * mde_output.lost_share:.0f} % of the disparity map is not above zero and "
            "counts as equally far; does it lack a shift that makes infinity zero?"
        )
    rows, columns = anchors.pixels(mde_output.shape)
    mde_depth = mde_output.mde_depth[rows, columns].cpu().numpy()
    if len(np.unique(mde_depth)) < 4 or len(np.unique(anchors.depth_m)) < 4:
        return
    correlation = rank_correlation(mde_depth, anchors.depth_m)
    if correlation < 0:
        other = "disparity" if mde_output.kind == "depth" else "depth"
        yield (
            f"the map was declared {mde_output.kind}, but over {len(anchors)} anchors the depth it "
            f"implies falls as measured depth grows (rank correlation {correlation:+.2f}); is it "
            f"{other}?"
        )


def rank_correlation(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> float:
    """Spearman's, ties at their mean rank. (scipy.stats has it too, and takes long to load.)"""

    def ranks(values: np.ndarray) -> np.ndarray:
        _, place, count = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(count) - (count - 1) / 2)[place]

    return float(np.corrcoef(ranks(x), ranks(y))[0, 1])


def _options(method: Method) -> dict[str, Any]:
    if not dataclasses.is_dataclass(method):
        return {}
    values = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    plain = (str, int, float, bool, tuple, type(None))
    return {k: v if isinstance(v, plain) else type(v).__name__ for k, v in values.items()}
