"""`scalefield export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class ExportCommand:
    """Write a basis map generator as ONNX, to run it without torch.

    examples/onnx_consumer.py contains the remaining steps in numpy: resampling and the solve for
    the anchors.
    """

    generator: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """A shipped generator such as basis-depth-k8, or a folder that training wrote."""
    out: Path
    """Output file, .onnx."""

    def run(self) -> None:
        """Export and print the inputs of the graph."""
        from scalefield.basis.pretrained import load_generator
        from scalefield.export.onnx import OPSET, export_onnx

        generator = load_generator(self.generator)
        export_onnx(generator, self.out)
        config = generator.config
        features = 0 if config.zero_features else config.feature_channels
        wants = f"log-depth and {features} feature channels" if features else "log-depth alone"
        print(f"{self.out}: {self.generator}, K = {config.k}, {wants}, opset {OPSET}")
