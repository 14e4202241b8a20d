"""The networks of `basis` and `field` as ONNX, for machines with onnxruntime but no torch.

A graph contains the part with weights, from cues to maps, with free sizes. Resampling before it and
the solve after it are linear algebra and are not in the graph; `examples/onnx_consumer.py` has them
in numpy for `basis`.
"""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scalefield.basis.generator import BasisMaps, Generator
from scalefield.basis.grids import LOG_DEPTH_LIMIT, geometric_cues
from scalefield.errors import InputError, import_extra
from scalefield.field.model import FieldModel
from scalefield.field.network import FieldNet
from scalefield.io import write_atomic

OPSET = 18
GRID = (24, 32)
"""Height and width of the example that the exporter traces; the graph allows any size."""


def resized(
    features: Float[Tensor, "b c hf wf"],
    rows: Float[Tensor, "h hf"],
    columns: Float[Tensor, "w wf"],
) -> Float[Tensor, "b c h w"]:
    """rows · F · columnsᵀ, which can be an average over cells and a bilinear interpolation.

    A matrix product allows free sizes, and ONNX's pooling does not.
    """
    return torch.matmul(torch.matmul(rows, features), columns.mT)


class GeneratorGraph(nn.Module):
    """A generator: log_depth and, if it uses them, features in; basis_maps and gating out."""

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.generator = generator

    def forward(
        self,
        log_depth: Float[Tensor, "b 1 h w"],
        features: Float[Tensor, "b c hf wf"] | None = None,
        rows: Float[Tensor, "h hf"] | None = None,
        columns: Float[Tensor, "w wf"] | None = None,
    ) -> BasisMaps:
        """The maps of `Generator.forward`, if the matrices represent `trunk.resize`."""
        cues, channels = geometric_cues(log_depth), self.generator.config.feature_channels
        if features is not None and rows is not None and columns is not None:
            reduced = resized(self.generator.feature_projection.reduce(features), rows, columns)
            cues = torch.cat([reduced, cues], dim=1)
        elif channels:
            constant = self.generator.feature_projection.reduce(
                log_depth.new_zeros(1, channels, 1, 1)
            )
            constant = constant.expand(log_depth.shape[0], -1, *log_depth.shape[2:])
            cues = torch.cat([constant, cues], dim=1)
        return self.generator.from_cues(cues)


class FieldGraph(nn.Module):
    """A `FieldNet`: log_depth, image and, if it uses them, features in; maps and
    expected_log_depth out."""

    def __init__(self, net: FieldNet) -> None:
        super().__init__()
        self.net = net

    def forward(
        self,
        log_depth: Float[Tensor, "b 1 h w"],
        image: Float[Tensor, "b 3 h w"],
        features: Float[Tensor, "b c hf wf"] | None = None,
        rows: Float[Tensor, "h hf"] | None = None,
        columns: Float[Tensor, "w wf"] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The maps of `FieldNet.forward`, if the matrices represent `trunk.resize`; an image of NaN
        is no image."""
        if features is None or rows is None or columns is None:
            maps = self.net(log_depth, image)
        else:
            reduced = resized(self.net.feature_projection.reduce(features), rows, columns)
            maps = self.net.from_cues(log_depth, image, reduced)
        return maps.maps, maps.expected_log_depth


def export_field_onnx(model: FieldModel, path: str | Path) -> None:
    """Write the network of a field model as ONNX, opset 18, with its kernel in the metadata.

    Inputs: log_depth (b, 1, h, w), image (b, 3, h, w) in −1 … 1 or NaN for none; where the network
    uses features also features (b, c, hf, wf), rows (h, hf) and columns (w, wf). Outputs: maps
    (b, channels, h, w), divided into modes, embedding, amplitude and mean by the metadata, and
    expected_log_depth (b).
    """
    net = model.net
    if not isinstance(net, FieldNet):
        raise InputError("only a model with a FieldNet can be exported")
    config = net.config
    metadata = {
        "network": "field",
        "cells": config.cells,
        "log_depth_limit": LOG_DEPTH_LIMIT,
        "feature_channels": config.feature_channels,
        "layout": json.dumps(dataclasses.asdict(config.layout)),
        "kernel": json.dumps(dataclasses.asdict(model.kernel)),
        "model": json.dumps(
            {
                f.name: getattr(model, f.name)
                for f in dataclasses.fields(model)
                if f.name not in ("kernel", "net")
            }
        ),
    }
    _export(
        FieldGraph(net),
        path,
        maps={"image": torch.zeros(2, 3, *GRID)},
        feature_channels=config.feature_channels,
        outputs=["maps", "expected_log_depth"],
        metadata=metadata,
    )


def export_onnx(generator: Generator, path: str | Path) -> None:
    """Write the generator as ONNX, opset 18, with all that a consumer needs in its metadata.

    Inputs: log_depth (b, 1, h, w); where the generator uses features also features (b, c, hf, wf),
    rows (h, hf) and columns (w, wf). Outputs: basis_maps and gating (b, k, h, w).
    """
    config = generator.config
    features = 0 if config.zero_features else config.feature_channels
    metadata = {
        "network": "basis",
        "k": config.k,
        "cells": config.cells,
        "log_depth_limit": LOG_DEPTH_LIMIT,
        "feature_channels": features,
        "ridge": config.ridge.ridge,
        "ridge_global": config.ridge.ridge_global,
        "centre": config.ridge.centre,
    }
    _export(
        GeneratorGraph(generator),
        path,
        maps={},
        feature_channels=features,
        outputs=["basis_maps", "gating"],
        metadata=metadata,
    )


def _export(
    graph: nn.Module,
    path: str | Path,
    *,
    maps: dict[str, Tensor],
    feature_channels: int,
    outputs: list[str],
    metadata: Mapping[str, object],
) -> None:
    """Write a graph whose inputs are log_depth, further maps of its size, and features if any."""
    onnx = import_extra("onnx", "export", "exporting to ONNX")
    import_extra("onnxscript", "export", "exporting to ONNX")  # torch's exporter works through it
    from torch.export import Dim

    # Sizes that are equal in the example would be taken for equal always.
    b, h, w = Dim("b", min=1), Dim("h", min=2), Dim("w", min=2)
    example = {"log_depth": torch.zeros(2, 1, *GRID), **maps}
    shapes: dict[str, dict] = {name: {0: b, 2: h, 3: w} for name in example}
    if feature_channels:
        hf, wf = Dim("hf", min=2), Dim("wf", min=2)
        example["features"] = torch.zeros(2, feature_channels, 9, 11)
        example |= {"rows": torch.zeros(GRID[0], 9), "columns": torch.zeros(GRID[1], 11)}
        shapes |= {"features": {0: b, 2: hf, 3: wf}, "rows": {0: h, 1: hf}}
        shapes |= {"columns": {0: w, 1: wf}}
    with _quiet():
        program = torch.onnx.export(
            graph.eval(),
            kwargs=example,
            dynamic_shapes=shapes,
            input_names=list(example),
            output_names=outputs,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    for key, value in metadata.items():
        model.metadata_props.add(key=f"scalefield:{key}", value=str(value))
    onnx.checker.check_model(model)
    buffer = io.BytesIO()
    onnx.save(model, buffer)
    write_atomic(path, buffer.getvalue())


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings of torch's exporter about its own deprecations and about torchvision."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
