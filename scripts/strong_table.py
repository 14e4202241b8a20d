"""Compare `field` with the best aligner by family and number of anchors, and write the tables of
docs/benchmark.md and README.md from the committed measurements.

python scripts/strong_table.py            # prints the tables and writes both pages
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
PAGES = (ROOT / "docs" / "benchmark.md", ROOT / "README.md")
RUNS = {
    "strong": "strong",
    "strong_affine": "strong-affine",
    "places_affine_lite": "places-affine-lite/test",
    "places_affine_fastdepth": "places-affine-fastdepth/test",
}
"""Folder below results/ of each marked table; seeds in subfolders are averaged."""
SUMMARY = {
    "strong": "outputs of three published estimators as they are",
    "strong_affine": "the same as affine-invariant disparity",
    "places_affine_lite": "`lite` as affine-invariant disparity, five places",
    "places_affine_fastdepth": "FastDepth as affine-invariant disparity, five places",
}
"""Rows of the README."""
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


def comparisons(runs: Sequence[dict[str, Any]]) -> list[Comparison]:
    """Every family under every condition, averaged over runs that differ in their seed.

    An aligner counts in the better of its two spaces.
    """
    cells: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for cell in (cell for run in runs for cell in run["cells"] if "clamped" in cell):
        cells.setdefault((cell["group"], cell["condition"], cell["method"]), []).append(cell)
    families = sorted({group for group, _, _ in cells} - {"all"})
    compared = []
    for family in families or ["all"]:  # a run of one group has no other
        for condition in CONDITIONS:
            errors = {
                method: fmean(cell["clamped"]["abs_rel"][0] for cell in group)
                for (name, under, method), group in cells.items()
                if (name, under) == (family, condition)
            }
            aligners = {method: error for method, error in errors.items() if method not in OURS}
            if "Field" not in errors or not aligners:
                continue
            best = min(aligners, key=lambda method: aligners[method])
            ours = cells[family, condition, "Field"]
            compared.append(
                Comparison(
                    family=family,
                    images=ours[0]["images"],
                    condition=condition,
                    field=errors["Field"],
                    basis=errors.get("Basis", float("nan")),
                    best=errors[best],
                    aligner=best,
                    coverage=fmean(cell["coverage"]["coverage_90"][0] for cell in ours),
                )
            )
    return compared


def mean_ratios(compared: Sequence[Comparison]) -> dict[str, float]:
    """The mean of the ratios over families, by condition."""
    return {
        condition: fmean(c.ratio for c in compared if c.condition == condition)
        for condition in CONDITIONS
        if any(c.condition == condition for c in compared)
    }


def table(runs: Sequence[dict[str, Any]]) -> str:
    """One row for each family and number of anchors, and the means of the ratios."""
    compared = comparisons(runs)
    lines = [
        "| family | images | anchors | `field` | `basis` | best aligner | | ratio | coverage |",
        "|---|---:|---:|---:|---:|---:|---|---:|---:|",
    ]
    for c in compared:
        lines.append(
            f"| {c.family} | {c.images} | {CONDITIONS[c.condition]} | {_short(c.field)} | "
            f"{_short(c.basis)} | {_short(c.best)} | {c.aligner} | {c.ratio:.2f} | "
            f"{100 * c.coverage:.0f} % |"
        )
    means = (f"{CONDITIONS[c]} anchors {ratio:.2f}" for c, ratio in mean_ratios(compared).items())
    return "\n".join(lines) + f"\n\nMean of the ratios over families: {', '.join(means)}."


def summary() -> str:
    """Error of `field` relative to that of the best aligner, in the mean of families."""
    lines = [
        "| `field` relative to the best aligner | " + " | ".join(CONDITIONS.values()) + " |",
        "|---|" + "---:|" * len(CONDITIONS),
    ]
    for mark, words in SUMMARY.items():
        means = mean_ratios(comparisons(read_runs(ROOT / "results" / RUNS[mark])))
        cells = (f"{means[c]:.2f}".removeprefix("0") for c in CONDITIONS)
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def read_runs(folder: Path) -> list[dict[str, Any]]:
    """The results of a folder, or those of its subfolders."""
    return [json.loads(path.read_text()) for path in sorted(folder.rglob("results.json"))]


def filled(text: str) -> str:
    """The page with every marked table written anew; the words around them stay."""

    def made(mark: re.Match[str]) -> str:
        if mark[2] == "strong_summary":
            return f"{mark[1]}{summary()}\n{mark[3]}"
        return f"{mark[1]}{table(read_runs(ROOT / 'results' / RUNS[mark[2]]))}\n{mark[3]}"

    return MARKS.sub(made, text)


def main(folders: Sequence[str]) -> None:
    """Print the tables of these folders; without any, those of the pages, and write the pages."""
    chosen = [Path(folder) for folder in folders]
    if not chosen:
        for page in PAGES:
            page.write_text(filled(page.read_text()))
        chosen = [ROOT / "results" / name for name in RUNS.values()]
    for folder in chosen:
        print(f"{folder}\n\n{table(read_runs(folder))}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
