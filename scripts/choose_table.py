"""Write the table of docs/choose.md from the committed measurements; a test checks that it is done.

python scripts/choose_table.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "choose.md"
ERRORS = {"lite": "places-lite", "FastDepth": "places-fastdepth"}
"""Estimators and the records of their errors."""
CONDITIONS = {"drop-3": "3", "low": "10–15", "medium": "100–120", "high": "500–530"}
ROWS = {  # label in the errors, step in the times: name in the table
    ("Field", "field: a new image"): "`field`",
    ("Basis K=50", "generator, solve and apply, K = 50"): "`basis`, K = 50",
    ("lwlr", "lwlr every 32 pixels"): "`lwlr`",
    ("knn", "knn"): "`knn`",
    ("log_kernel", "log_kernel"): "`log_kernel`",
    ("interpolate", "interpolate"): "`interpolate`",
    ("grid", "grid"): "`grid`",
    ("piecewise", "piecewise"): "`piecewise`",
    ("global", "global"): "`global`",
    ("median", "median"): "`median`",
}
SIZE, THREADS = "480×640", 2
MARKS = re.compile(r"(<!-- choose:begin -->\n).*?(<!-- choose:end -->)", re.DOTALL)


def table() -> str:
    """AbsRel by estimator and number of anchors, and time, for each method."""
    errors = {}
    for estimator, folder in ERRORS.items():
        record = json.loads((ROOT / "results" / folder / "results.json").read_text())
        for cell in record["cells"]:
            if cell["group"] == "all":
                key = estimator, cell["method"], cell["condition"]
                errors[key] = cell["clamped"]["abs_rel"][0]
    bench = json.loads((ROOT / "results" / "bench" / "bench.json").read_text())
    times = {
        entry["name"]: 100 * entry["share"][0]
        for entry in bench["ratios"]
        if entry["size"] == SIZE and entry["threads"] == THREADS
    }
    columns = [(e, c) for e in ERRORS for c in CONDITIONS]
    names = [f"{estimator}, {CONDITIONS[condition]}" for estimator, condition in columns]
    lines = [
        "| | " + " | ".join(names) + " | time |",
        "|---|" + "---:|" * (len(names) + 1),
    ]
    for (label, step), name in ROWS.items():
        cells = [errors.get((e, label, c)) for e, c in columns]
        shown = ["" if f is None else f"{f:.3f}".removeprefix("0") for f in cells]
        lines.append(f"| {name} | " + " | ".join(shown) + f" | {times[step]:.2g} |")
    return "\n".join(lines)


def filled(text: str) -> str:
    """The page with its table written anew; the words around it stay."""
    return MARKS.sub(lambda m: m[1] + table() + "\n" + m[2], text)


if __name__ == "__main__":
    DOCS.write_text(filled(DOCS.read_text()))
