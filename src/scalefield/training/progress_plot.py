"""A picture of a run while it trains: losses, basis maps of one image, and their spectrum."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from scalefield.basis.grids import sample_at
from scalefield.basis.spectral import spectral_statistics
from scalefield.io import write_atomic
from scalefield.training.bank import make_bank
from scalefield.training.data import TrainingFrame

MAPS_SHOWN = 8


class ProgressPicture:
    """The picture of a run, drawn at intervals and at the end; none without a path.

    Drawing may take longer than an epoch of a small set.
    """

    def __init__(
        self, path: Path | None, frame: TrainingFrame, regime: str, every_s: float = 60.0
    ) -> None:
        self.path, self.frame, self.regime, self.every_s = path, frame, regime, every_s
        self.drawn = float("-inf")

    def draw(self, lines: Sequence[dict[str, Any]], generator: nn.Module, *, last: bool) -> None:
        """Draw, if it is time, and if matplotlib, which is optional, is installed."""
        now = time.monotonic()
        if self.path is None or not (last or now - self.drawn >= self.every_s):
            return
        self.drawn = now
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError:
            return
        figure = Figure(figsize=(12, 6.5), layout="constrained")
        plot(figure.subplots(3, 4), lines, generator, self.frame, self.regime)
        buffer = io.BytesIO()
        FigureCanvasAgg(figure).print_png(buffer)
        write_atomic(self.path, buffer.getvalue())


def plot(
    axes: Any,
    lines: Sequence[dict[str, Any]],
    generator: nn.Module,
    frame: TrainingFrame,
    regime: str,
) -> None:
    """Draw losses, spectrum and basis maps into 3 × 4 axes."""
    rows = frame.anchors[regime]
    device = next(generator.parameters()).device
    batch = make_bank([frame]).batch([rows], [rows]).to(device).dequantised()
    with torch.no_grad():
        basis_maps, gating = (x.float() for x in generator(batch.features, batch.log_depth))
    spectrum = spectral_statistics(sample_at(basis_maps, batch.anchors.positions)[0], gating[0])

    steps = [line["step"] for line in lines]
    for axis, name in zip(axes[0], ("dense", "anchor", "absrel"), strict=False):
        for part, colour in (("train", "#9aa5b1"), ("val", "#1f5fa8")):
            values = [line[f"{part}_{name}"] for line in lines]
            axis.plot(steps, values, marker=".", color=colour, label=part)
        axis.set_title(name, loc="left")
        axis.set_xlabel("step")
        axis.set_ylim(bottom=0)
    axes[0, 0].legend(frameon=False)
    eigenvalues = np.array(spectrum.eigenvalues)
    shares = eigenvalues / eigenvalues.sum()
    axes[0, 3].bar(np.arange(1, len(shares) + 1), shares, color="#1f5fa8")
    axes[0, 3].set_xlabel("eigenvalue of MMᵀ")
    title = f"η₁ {spectrum.eta1:.2f}, |v₁ᵀg| {spectrum.similarity:.2f}, G₀ {spectrum.g0_mean:.2f}"
    axes[0, 3].set_title(title, loc="left")
    shown = basis_maps[0, :MAPS_SHOWN].cpu().numpy()
    for k, axis in enumerate(axes[1:].flat):
        axis.axis("off")
        if k < len(shown):
            limit = max(float(np.abs(shown[k]).max()), 1e-9)
            axis.imshow(shown[k], cmap="RdBu_r", vmin=-limit, vmax=limit)
            axis.set_title(f"E{k}", loc="left", fontsize=9)
