"""Results as a few lines for a terminal, and what they lack."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from scalefield.anchor_sampling import REGIMES
from scalefield.benchmark.metrics import METRICS
from scalefield.benchmark.score import EVERYWHERE


def overview(results: dict[str, Any]) -> str:
    """AbsRel and δ1 of every method for a terminal, and what is missing."""
    regimes = [r for r in REGIMES if any(c["condition"] == r for c in results["cells"])]
    cells = {(c["method"], c["condition"]): c for c in results["cells"] if c["group"] == EVERYWHERE}
    methods = list(dict.fromkeys(m for m, _ in cells))
    left = max(len(m) for m in methods)
    titles = f"{METRICS['abs_rel'].title}/{METRICS['delta1'].title}"
    lines = [f"{titles:{left}}  " + "".join(f"{r:>22}" for r in regimes)]
    for method in methods:
        line = f"{method:{left}}  "
        for regime in regimes:
            shown = "–"
            if (method, regime) in cells:
                clamped = cells[method, regime]["clamped"]
                (mean, low, high), delta = clamped["abs_rel"], clamped["delta1"][0]
                width = f"±{(high - low) / 2:.3f}" if low is not None else ""
                shown = f"{mean:7.3f} {width:6} /{delta:6.3f}"
            line += f"{shown:>22}"
        lines.append(line)
    for method in methods:
        covered = ", ".join(
            f"{regime} {100 * cells[method, regime]['coverage']['coverage_90'][0]:.0f} %"
            for regime in regimes
            if "coverage" in cells.get((method, regime), ())
        )
        if covered:
            lines.append(f"{method}'s 90 % intervals cover: {covered}")
    return "\n".join([*lines, *missing(results)])


def missing(results: dict[str, Any]) -> list[str]:
    """A sentence for everything that a table lacks."""
    data = results["data"]
    lines = [f"{data['evaluated']} of {data['frames']} frames evaluated"]
    lines += [f"no result for {m['name']}: {m['error']}" for m in data["missing"]]

    def reason(failure: dict[str, Any]) -> tuple[str, str, str]:
        return failure["method"], failure["kind"], failure["first"]

    for (method, kind, first), group in groupby(sorted(results["failures"], key=reason), reason):
        parts = ", ".join(f"{f['condition']} {f['images']}" for f in group)
        word = "was not run" if kind == "skipped" else "gave no result"
        lines.append(f"{method} {word} on some images ({parts}); the first: {first}")
    if len(data["mde"]) > 1:
        lines.append(f"frames were seen by several estimators: {', '.join(data['mde'])}")
    if len(data["commits"]) > 1:
        lines.append(f"frames were evaluated by {len(data['commits'])} versions of the code")
    return lines
