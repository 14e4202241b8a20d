"""Metric depth from the output of a depth-estimation pipeline of the transformers library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from scalefield.anchors import AnchorsLike
from scalefield.api import recover
from scalefield.defaults import METHOD_NAME
from scalefield.errors import InputError, import_extra, one_line
from scalefield.mde import Kind
from scalefield.mde.transformers_mde import model_kind
from scalefield.recovery import MethodLike, Recovery


def recover_from_pipeline(
    output: Any,
    anchors: AnchorsLike = None,
    *,
    model: Any = None,
    kind: Kind | None = None,
    image: str | Path | Image.Image | np.ndarray | None = None,
    method: str | MethodLike = METHOD_NAME,
    **options: Any,
) -> Recovery[np.ndarray]:
    """Metric depth from what a depth-estimation pipeline returned for one image.

    The map is `output["predicted_depth"]`, resized to the image if the pipeline has not done so.
    Whether it is depth or disparity follows from the architecture of `model`, which is the
    pipeline, its model or the hub id "owner/name", or is given as `kind`. The image itself is
    optional; methods that use colours are more accurate with it. `anchors`, `method` and further
    options are those of `recover`.

        pipe = transformers.pipeline("depth-estimation", "Intel/dpt-large")
        r = sf.recover_from_pipeline(pipe(photo), anchors, model=pipe, image=photo)
    """
    prediction = predicted_depth(output).numpy()
    kind = kind or pipeline_kind(model)
    recovery: Any = recover(
        image, anchors, mde_depth=prediction, kind=kind, method=method, **options
    )
    return recovery


def predicted_depth(output: Any) -> Float[Tensor, "h w"]:
    """The predicted map of a pipeline's output, of the size of its image, on the CPU."""
    if isinstance(output, list):
        raise InputError(f"the pipeline returned {len(output)} results; give them one by one")
    values = output.get("predicted_depth") if isinstance(output, Mapping) else None
    if not isinstance(values, Tensor):
        keys = sorted(output) if isinstance(output, Mapping) else type(output).__name__
        raise InputError(
            'wanted the output of pipeline("depth-estimation"), a dict whose predicted_depth is a '
            f"tensor; found {keys}"
        )
    values = values.detach().cpu().float().squeeze()
    if values.ndim != 2:
        raise InputError(f"predicted_depth must be one map, found shape {tuple(values.shape)}")
    picture = output.get("depth")
    if not isinstance(picture, Image.Image) or picture.size == tuple(values.shape[::-1]):
        return values
    # Older versions resize only the picture of the depth, not the map.
    shape = picture.height, picture.width
    resized = torch.nn.functional.interpolate(
        values[None, None], shape, mode="bilinear", align_corners=False
    )
    return resized[0, 0]


def pipeline_kind(model: Any) -> Kind:
    """The kind of the map of a pipeline, depth or disparity, given the pipeline or its model."""
    wanted = 'kind="depth" or kind="disparity"'
    if model is None:
        raise InputError(f"is the map depth or disparity? give model=pipe, or {wanted}")
    owner: Any = model if hasattr(model, "config") else getattr(model, "model", None)
    config = hub_config(model) if isinstance(model, str) else getattr(owner, "config", None)
    architecture = getattr(config, "model_type", None)
    if architecture is None:
        found = one_line(repr(model), 60)
        raise InputError(
            f"model must be the pipeline, its model or its hub id, found {found}; or give {wanted}"
        )
    # The pipeline inverts the inverse depth of Depth Pro.
    kind = "depth" if architecture == "depth_pro" else model_kind(config)
    if kind is None:
        raise InputError(
            f"whether a {architecture} model gives depth or disparity is not known: {wanted}"
        )
    return kind


def hub_config(name: str) -> Any:
    """The configuration of a model on the hub or in a folder, as transformers reads it."""
    transformers = import_extra("transformers", "mde", "naming a model")
    try:
        return transformers.AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as e:
        raise InputError(
            f"model={name!r}: its configuration cannot be read ({one_line(e, 100)}); give the "
            'pipeline as model, or kind="depth" or kind="disparity"'
        ) from None
