"""Draw the pictures of docs/paper.md and docs/explain.md from the bundled sample.

python scripts/draw_paper.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from scalefield import samples
from scalefield.api import recover_from
from scalefield.benchmark.gallery import first_component
from scalefield.benchmark.report.figures import pyplot, show_map
from scalefield.explanation import Explanation
from scalefield.export.explanation import jpeg
from scalefield.io import write_atomic
from scalefield.mde import load_mde
from scalefield.methods.basis import Basis
from scalefield.methods.field import Field

DOCS = Path(__file__).parent.parent / "docs" / "paper"


def draw_overview(path: Path, explanation: Explanation, feature: np.ndarray) -> None:
    """Estimator, basis maps, least squares at the anchors, scale field and depth, from the left."""
    plt = pyplot()
    recovery = explanation.recovery
    figure = plt.figure(figsize=(13, 3.3), layout="none")

    def place(x: float, y: float, width: float, height: float) -> Any:
        return figure.add_axes((x, y, width, height))

    def arrow(x: float, text: str) -> None:
        figure.text(x, 0.56, text, ha="center", va="bottom", fontsize=7)
        figure.text(x, 0.50, "→", ha="center", va="center", fontsize=18)

    factor = {"cmap": "RdBu_r", "vmin": -0.35, "vmax": 0.35, "bar": False}
    mde_depth = recovery.depth_m / np.exp(recovery.log_scale)
    show_map(place(0.005, 0.25, 0.13, 0.5), recovery.image, "photograph", bar=False)
    arrow(0.157, "estimator,\nfrozen")
    show_map(place(0.18, 0.53, 0.11, 0.40), mde_depth, "relative depth D", bar=False)
    show_map(place(0.18, 0.03, 0.11, 0.40), feature, "features F", bar=False, cmap="viridis")
    arrow(0.312, "generator")
    for i, (name, gate) in enumerate(explanation.gating.items()):
        axis = place(0.336 + 0.068 * (i % 4), 0.53 - 0.5 * (i // 4), 0.062, 0.40)
        basis_map = explanation.parts[name] / explanation.weights[name]
        limit = {"vmin": -np.abs(basis_map).max(), "vmax": np.abs(basis_map).max()}
        shown = f"{name}, w = {explanation.weights[name]:.2f}"
        show_map(axis, basis_map if i else gate, shown, bar=False, cmap="PuOr", **limit)
    arrow(0.637, "least squares\nat anchors")
    axis = place(0.665, 0.25, 0.13, 0.5)
    log_scale = recovery.log_scale - np.median(recovery.log_scale)
    show_map(axis, log_scale, "log-scale ℓ = Eᵀw, anchors", **factor)
    axis.plot(explanation.anchors.u, explanation.anchors.v, "k+", ms=7)
    arrow(0.825, "D · exp ℓ")
    show_map(place(0.855, 0.25, 0.13, 0.5), recovery.depth_m, "metric depth", bar=False)
    figure.canvas.draw()
    from PIL import Image

    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3]
    write_atomic(path, jpeg(Image.fromarray(pixels)))
    plt.close(figure)


def main(folder: Path) -> None:
    """Draw all pictures."""
    room = samples.load()
    output = load_mde("lite")(room.image)
    for name, method in (("basis", Basis(k=8)), ("field", Field())):
        explanation = recover_from(output, room.anchors, method, image=room.image).explain()
        write_atomic(folder / f"explain-{name}.jpg", jpeg(explanation.picture()))
        if name == "basis":
            draw_overview(folder / "overview.jpg", explanation, first_component(output))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS)
