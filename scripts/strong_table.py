"""Compare `field` with the best aligner by family and number of anchors, and write the tables of
docs/benchmark.md from the committed measurements.

python scripts/strong_table.py            # prints the tables and writes the page
python scripts/strong_table.py RUN …      # only prints those of other results folders
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "benchmark.md"
RUNS = {
    "strong": "strong",
    "strong_affine": "strong-affine",
    "places_affine_lite": "places-affine-lite",
    "places_affine_lite_val": "places-affine-lite-val",
    "places_affine_fastdepth": "places-affine-fastdepth",
    "places_affine_fastdepth_val": "places-affine-fastdepth-val",
}
"""Folder below results/ of each marked table."""
CONDITIONS = {"drop-3": "3", "drop-5": "5", "low": "10–15", "medium": "100–120"}
OURS = ("Field", "Basis")
MARKS = re.compile(
    r"(<!-- (strong\w*|places_affine\w*):begin -->\n).*?(<!-- \2:end -->)", re.DOTALL
)


class Comparison(NamedTuple):
    """AbsRel of `field`, `basis` and the best aligner in one family under one condition."""

    family: str
    images: int
    condition: str
    field: float
    basis: float
    best: float
    aligner: str
    """The aligner of the smallest error, with the space of its fit."""
    coverage: float
    """Share of pixels inside the 90 % intervals of `field`."""

    @property
    def ratio(self) -> float:
        """Error of `field` relative to that of the best aligner."""
        return self.field / self.best


def comparisons(results: dict[str, Any]) -> list[Comparison]:
    """Every family under every condition; an aligner counts in the better of its two spaces."""
    cells = {(c["group"], c["condition"], c["method"]): c for c in results["cells"]}
    methods = list(dict.fromkeys(c["method"] for c in results["cells"]))
    families = sorted({group for group, _, _ in cells} - {"all"})
    found = []
    for family in families or ["all"]:  # a run of one group has no other
        for condition in CONDITIONS:
            errors = {
                method: cells[family, condition, method]["clamped"]["abs_rel"][0]
                for method in methods
                if "clamped" in cells.get((family, condition, method), {})
            }
            aligners = {method: error for method, error in errors.items() if method not in OURS}
            if "Field" not in errors or not aligners:
                continue
            best = min(aligners, key=lambda method: aligners[method])
            ours = cells[family, condition, "Field"]
            found.append(
                Comparison(
                    family,
                    ours["images"],
                    condition,
                    errors["Field"],
                    errors.get("Basis", float("nan")),
                    errors[best],
                    best,
                    ours["coverage"]["coverage_90"][0],
                )
            )
    return found


def mean_ratios(found: Sequence[Comparison]) -> dict[str, float]:
    """The mean of the ratios over families, by condition."""
    return {
        condition: fmean(c.ratio for c in found if c.condition == condition)
        for condition in CONDITIONS
        if any(c.condition == condition for c in found)
    }


def table(results: dict[str, Any]) -> str:
    """One row for each family and number of anchors, and the means of the ratios."""
    found = comparisons(results)
    lines = [
        "| family | images | anchors | `field` | `basis` | best aligner | | ratio | coverage |",
        "|---|---:|---:|---:|---:|---:|---|---:|---:|",
    ]
    for c in found:
        lines.append(
            f"| {c.family} | {c.images} | {CONDITIONS[c.condition]} | {_short(c.field)} | "
            f"{_short(c.basis)} | {_short(c.best)} | {c.aligner} | {c.ratio:.2f} | "
            f"{100 * c.coverage:.0f} % |"
        )
    means = (f"{CONDITIONS[c]} anchors {ratio:.2f}" for c, ratio in mean_ratios(found).items())
    return "\n".join(lines) + f"\n\nMean of the ratios over families: {', '.join(means)}."


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def filled(text: str) -> str:
    """The page with every marked table written anew; the words around them stay."""

    def made(mark: re.Match[str]) -> str:
        results = ROOT / "results" / RUNS[mark[2]] / "results.json"
        return f"{mark[1]}{table(json.loads(results.read_text()))}\n{mark[3]}"

    return MARKS.sub(made, text)


def main(folders: Sequence[str]) -> None:
    """Print the tables of these folders; without any, those of the page, and write the page."""
    chosen = [Path(folder) for folder in folders]
    if not chosen:
        DOCS.write_text(filled(DOCS.read_text()))
        chosen = [ROOT / "results" / name for name in RUNS.values()]
    for folder in chosen:
        print(f"{folder.name}\n\n{table(json.loads((folder / 'results.json').read_text()))}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
