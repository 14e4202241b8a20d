"""Cost of `field` against the number of anchors and of pixels, from results of benchmarks/lidar.py.

    python benchmarks/plot_lidar.py results/lidar results/lidar-cuda --out results/lidar/cost.png

Each folder is one curve in each panel: medians, with the quartiles as a band.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from scalefield.benchmark.report.figures import pyplot
from scalefield.io import read_json


def curves(record: dict[str, Any]) -> dict[str, dict[float, list[float]]]:
    """Median and quartiles in milliseconds by number of anchors and by number of pixels."""
    measured = record["measured"]
    anchors = measured.get("recover at 480×640, ms") or measured["recover, ms"]
    by_anchors = {float(n): times for n, times in anchors.items() if n.isdigit()}
    by_pixels = {
        float(math.prod(map(int, size.split("×")))): times
        for size, times in measured.get("recover with 520 anchors, ms", {}).items()
    }
    return {"anchors": by_anchors, "pixels (520 anchors)": by_pixels}


def main() -> None:
    """Read the results, draw both panels."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    flags = parser.parse_args()
    figure, axes = pyplot().subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for folder in flags.results:
        record = read_json(folder / "results.json")
        for axis, (what, curve) in zip(axes, curves(record).items(), strict=True):
            axis.set(xscale="log", yscale="log", xlabel=what, ylabel="recover, ms")
            x = sorted(curve)
            median, low, high = ([curve[n][i] for n in x] for i in range(3))
            axis.plot(x, median, marker="o", label=folder.name)
            axis.fill_between(x, low, high, alpha=0.2)
            axis.grid(visible=True, alpha=0.3)
            axis.legend()
    flags.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(flags.out, dpi=120)


if __name__ == "__main__":
    main()
