"""`field` against every aligner by name, on the same images and anchors.

    python -m benchmarks.comparison out/runs/comparison --command "make results-comparison" \\
      --out results/comparison

reads evaluations RUNS/SET/seed-N, which `recipes/evaluate.sh comparison` makes, and writes for each
set, number of anchors and method the mean errors, the paired log-ratio log(error of `field` / error
of the method) with its standard error, and the time. An image counts once: its log-ratio is the
mean over the draws of its anchors, and the standard error is that of the mean over images.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.record import new_record, parser, write_record

from scalefield.benchmark.score import ImageScore, read_scores
from scalefield.errors import InputError
from scalefield.io import read_json

OURS = "field"
ERRORS = {"abs_rel": ("clamped", "abs_rel"), "median_rel": ("structure", "median_rel")}
"""Errors whose ratios are taken: the mean and the median pixel of an image."""
MEANS = {
    **ERRORS,
    **{name: ("structure", name) for name in ("normal_deg", "edge_rel", "imprint")},
}
FLOOR = 1e-6
"""Added to errors, because an exact fit of few pixels has no logarithm."""

Values = dict[str, dict[str, list[float]]]
"""Values by method and image, one for each draw."""


def compared(runs: Path) -> dict[str, Any]:
    """The comparison of each set below a folder of evaluations."""
    sets = sorted(path for path in runs.iterdir() if path.is_dir())
    found = {path.name: of_set(path) for path in sets if any(path.glob("seed-*/images.csv"))}
    if not found:
        raise InputError(f"{runs}: has no SET/seed-N/images.csv; run recipes/evaluate.sh first")
    return found


def of_set(folder: Path) -> dict[str, Any]:
    """The comparison over all draws of one set, by condition."""
    draws = sorted(path.parent for path in folder.glob("seed-*/images.csv"))
    rows = [row for draw in draws for row in read_scores(draw / "images.csv")]
    times = [read_json(draw / "timings.json") for draw in draws]
    conditions = {}
    for condition in dict.fromkeys(row.condition for row in rows):
        under = [row for row in rows if row.condition == condition]
        methods = dict.fromkeys(row.method for row in under)
        ours = {kind: by_image(under, OURS, key) for kind, key in MEANS.items()}
        entries = {}
        for method in methods:
            entry: dict[str, Any] = {}
            for kind, key in MEANS.items():
                theirs = by_image(under, method, key)
                if theirs:
                    entry[kind] = rounded(np.mean([np.mean(each) for each in theirs.values()]))
                if kind in ERRORS and method != OURS and theirs and ours[kind]:
                    entry[f"{kind}_ratio"] = log_ratio(ours[kind], theirs)
            spent = [t[f"{method} / {condition}"] for t in times if f"{method} / {condition}" in t]
            if spent:
                entry["ms"] = rounded(np.median(spent))
            entries[method] = entry
        conditions[condition] = {
            "images": len({row.name for row in under}),
            "anchors": rounded(np.mean([row.anchors for row in under])),
            "methods": entries,
        }
    return {
        "mde": read_json(draws[0] / "config.json")["mde"],
        "draws": len(draws),
        "conditions": conditions,
    }


def by_image(rows: list[ImageScore], method: str, key: tuple[str, str]) -> dict[str, list[float]]:
    """Values of a method by image, one for each draw; images without the value are left out."""
    found = defaultdict(list)
    for row in rows:
        if row.method == method and key in row.values:
            found[row.name].append(row.values[key])
    return dict(found)


def log_ratio(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> dict[str, Any]:
    """Mean log-ratio over the images that both have, its standard error, and the share of images on
    which `field` has the smaller error."""
    ratios = np.array(
        [
            np.mean(np.log(np.add(ours[name], FLOOR) / np.add(theirs[name], FLOOR)))
            for name in ours
            if len(theirs.get(name, ())) == len(ours[name])
        ]
    )
    error = ratios.std(ddof=1) / len(ratios) ** 0.5 if len(ratios) > 1 else None
    return {
        "images": len(ratios),
        "log_ratio": rounded(ratios.mean()),
        "standard_error": None if error is None else rounded(error),
        "better": rounded(np.mean(ratios < 0)),
    }


def rounded(value: Any) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")


def main() -> None:
    """Compare and write the record."""
    flags = parser(__doc__)
    flags.add_argument("runs", type=Path, help="folder of SET/seed-N, evaluations")
    flags.add_argument("--command", help="the command that made the evaluations")
    given = flags.parse_args()
    try:
        sets = compared(given.runs)
    except InputError as e:
        sys.exit(str(e))
    record = new_record({"sets": list(sets), "ours": OURS})
    record["command"] = given.command or record["command"]
    write_record(given.out, {**record, "sets": sets})


if __name__ == "__main__":
    main()
