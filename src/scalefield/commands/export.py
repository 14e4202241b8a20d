"""`scalefield export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class ExportCommand:
    """Write a network of `basis` or `field` as ONNX, to run it without torch.

    examples/onnx_consumer.py contains the remaining steps of `basis` in numpy: resampling and the
    solve for the anchors. The graph of `field` gives the inputs of the kernel.
    """

    network: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """A shipped network such as basis-depth-k8 or field, or a folder that training wrote."""
    out: Path
    """Output file, .onnx."""

    def run(self) -> None:
        """Export and print the inputs of the graph."""
        from scalefield.basis.pretrained import load_generator
        from scalefield.export.onnx import OPSET, export_field_onnx, export_onnx
        from scalefield.field.model import load_field
        from scalefield.field.network import FieldNet

        if self.is_field():
            model = load_field(self.network)
            export_field_onnx(model, self.out)
            assert isinstance(model.net, FieldNet)  # others are not exported
            features, sizes = model.net.config.feature_channels, "the kernel's inputs"
            wants = "log-depth, RGB"
        else:
            generator = load_generator(self.network)
            export_onnx(generator, self.out)
            config = generator.config
            features, sizes = config.feature_channels, f"K = {config.k}"
            features = 0 if config.zero_features else features
            wants = "log-depth"
        wants += f" and {features} feature channels" if features else " alone"
        print(f"{self.out}: {self.network}, {sizes}, from {wants}, opset {OPSET}")

    def is_field(self) -> bool:
        """Whether the name is that of a field model; its configuration has a kernel."""
        from scalefield.io import read_json
        from scalefield.io.weights import WEIGHTS

        for folder in (WEIGHTS / self.network, Path(self.network)):
            if (folder / "config.json").is_file():
                return "kernel" in read_json(folder / "config.json")
        return self.network.startswith("field")
