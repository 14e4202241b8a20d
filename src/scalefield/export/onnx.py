"""The generator as ONNX, for machines that have onnxruntime and numpy but no torch.

The graph contains the part with weights, from cues to basis maps, with free sizes. Resampling
before it and the solve after it are a few lines of linear algebra and are not in the graph;
`examples/onnx_consumer.py` has them in numpy.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scalefield.basis.cues import LOG_DEPTH_LIMIT, geometric_cues
from scalefield.basis.generator import BasisMaps, Generator
from scalefield.errors import MissingExtra
from scalefield.io import write_atomic

OPSET = 18


class DepthGraph(nn.Module):
    """A generator that uses no features: log_depth in, basis_maps and gating out."""

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.generator = generator

    def forward(self, log_depth: Float[Tensor, "b 1 h w"]) -> BasisMaps:
        """As `Generator.forward` without features."""
        cues = geometric_cues(log_depth)
        if self.generator.config.feature_channels:
            zeros = log_depth.new_zeros(1, self.generator.config.feature_channels, 1, 1)
            constant = self.generator.feature_projection.reduce(zeros)
            constant = constant.expand(log_depth.shape[0], -1, *log_depth.shape[2:])
            cues = torch.cat([constant, cues], dim=1)
        return self.generator.from_cues(cues)


class FeatureGraph(nn.Module):
    """A generator with features, whose resizing to the grid is given as two matrices.

    Averaging over cells and bilinear interpolation are both `rows · F · columnsᵀ`. A matrix product
    allows free sizes, ONNX's pooling does not.
    """

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.generator = generator

    def forward(
        self,
        log_depth: Float[Tensor, "b 1 h w"],
        features: Float[Tensor, "b c hf wf"],
        rows: Float[Tensor, "h hf"],
        columns: Float[Tensor, "w wf"],
    ) -> BasisMaps:
        """As `Generator.forward`, if the matrices represent `trunk.resize`."""
        reduced = self.generator.feature_projection.reduce(features)
        reduced = torch.matmul(torch.matmul(rows, reduced), columns.mT)
        return self.generator.from_cues(torch.cat([reduced, geometric_cues(log_depth)], dim=1))


def export_onnx(generator: Generator, path: str | Path) -> None:
    """Write the generator as ONNX, opset 18, with all that a consumer needs in its metadata.

    Inputs: log_depth (b, 1, h, w); where the generator uses features also features (b, c, hf, wf),
    rows (h, hf) and columns (w, wf). Outputs: basis_maps and gating (b, k, h, w).
    """
    try:
        import onnx
        import onnxscript  # noqa: F401 - torch's exporter works through it
    except ImportError as e:
        raise MissingExtra(e.name or "onnxscript", "export", "exporting to ONNX") from None
    from torch.export import Dim

    config = generator.config
    # Sizes that are equal in the example would be taken for equal always.
    b, h, w = Dim("b", min=1), Dim("h", min=2), Dim("w", min=2)
    log_depth = torch.zeros(2, 1, 24, 32)
    graph: nn.Module = DepthGraph(generator)
    example: dict[str, Tensor] = {"log_depth": log_depth}
    shapes: dict[str, dict] = {"log_depth": {0: b, 2: h, 3: w}}
    if config.feature_channels and not config.zero_features:
        hf, wf = Dim("hf", min=2), Dim("wf", min=2)
        graph = FeatureGraph(generator)
        example["features"] = torch.zeros(2, config.feature_channels, 9, 11)
        example |= {"rows": torch.zeros(24, 9), "columns": torch.zeros(32, 11)}
        shapes |= {"features": {0: b, 2: hf, 3: wf}, "rows": {0: h, 1: hf}}
        shapes |= {"columns": {0: w, 1: wf}}
    with _quiet():
        program = torch.onnx.export(
            graph.eval(),
            kwargs=example,
            dynamic_shapes=shapes,
            input_names=list(example),
            output_names=["basis_maps", "gating"],
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    metadata = {
        "k": config.k,
        "cells": config.cells,
        "log_depth_limit": LOG_DEPTH_LIMIT,
        "feature_channels": config.feature_channels if "features" in example else 0,
        "ridge": config.ridge.ridge,
        "ridge_global": config.ridge.ridge_global,
        "centre": config.ridge.centre,
    }
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
