"""Draw the pictures of docs/gallery.md from the bundled sample: errors by method and by anchors.

python scripts/draw_gallery.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import scalefield as sf
from scalefield import samples
from scalefield.api import recover_from
from scalefield.mde import MDEOutput, load_mde
from scalefield.methods import make_method

DOCS = Path(__file__).parent.parent / "docs" / "gallery"
METHODS = ("median", "global", "lwlr", "basis", "field")
COUNTS = (1, 6, 30, 200)
ERROR_LIMIT = 25.0
"""Percent at which the colours of errors end."""
STD_LIMIT = 25.0
"""Percent at which the colours of standard deviations end."""


def anchors_of(room: samples.Sample, count: int, seed: int = 0) -> sf.Anchors:
    """Random pixels of the sample with their true depth."""
    rng = np.random.default_rng(seed)
    rows, columns = np.nonzero(np.isfinite(room.depth_m) & (room.depth_m > 0))
    chosen = rng.choice(len(rows), count, replace=False)
    v, u = rows[chosen], columns[chosen]
    return sf.Anchors(u, v, room.depth_m[v, u])


def error_percent(room: samples.Sample, recovery: Any) -> np.ndarray:
    """Signed relative error at every pixel, in percent."""
    return 100 * (recovery.depth_m / room.depth_m - 1)


def draw_methods(path: Path, room: samples.Sample, output: MDEOutput, count: int = 30) -> None:
    """Errors of several methods with the same anchors."""
    import matplotlib.pyplot as plt

    anchors = anchors_of(room, count)
    figure, axes = plt.subplots(2, 3, figsize=(12, 6.4), layout="constrained")
    places = axes.ravel()
    places[0].imshow(room.image)
    places[0].plot(anchors.u, anchors.v, "r+")
    places[0].set_title(f"{count} anchors")
    for place, method in zip(places[1:], METHODS, strict=True):
        error = error_percent(room, recover_from(output, anchors, make_method(method)).numpy())
        shown = place.imshow(error, cmap="RdBu", vmin=-ERROR_LIMIT, vmax=ERROR_LIMIT)
        place.set_title(f"{method}: mean error {np.nanmean(np.abs(error)):.1f} %")
    figure.colorbar(shown, ax=axes, label="error of depth in %", shrink=0.7)
    save(figure, axes, path)


def draw_counts(path: Path, room: samples.Sample, output: MDEOutput) -> None:
    """Error and standard deviation of `field` with more and more anchors."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(COUNTS), figsize=(14, 5.6), layout="constrained")
    for (above, below), count in zip(axes.T, COUNTS, strict=True):
        anchors = anchors_of(room, count)
        recovery = recover_from(output, anchors, make_method("field")).numpy()
        error = error_percent(room, recovery)
        errors = above.imshow(error, cmap="RdBu", vmin=-ERROR_LIMIT, vmax=ERROR_LIMIT)
        above.plot(anchors.u, anchors.v, "k+", markersize=4)
        above.set_title(f"{count} anchors: mean error {np.nanmean(np.abs(error)):.1f} %")
        std = below.imshow(100 * np.asarray(recovery.std_log), cmap="magma", vmin=0, vmax=STD_LIMIT)
    figure.colorbar(errors, ax=axes[0], label="error in %")
    figure.colorbar(std, ax=axes[1], label="standard deviation in %")
    save(figure, axes, path)


def save(figure: Any, axes: Any, path: Path) -> None:
    """Write the figure as JPEG without axes."""
    import matplotlib.pyplot as plt

    for axis in axes.ravel():
        axis.axis("off")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90, pil_kwargs={"quality": 85})
    plt.close(figure)


def main(folder: Path) -> None:
    """Draw all pictures."""
    import matplotlib as mpl

    mpl.use("Agg")
    room = samples.load()
    output = load_mde("lite")(room.image)
    draw_methods(folder / "methods.jpg", room, output)
    draw_counts(folder / "anchors.jpg", room, output)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS)
