"""Output folders of `scalefield evaluate`, read one by one or pooled by image."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalefield.anchor_sampling import REGIMES
from scalefield.benchmark.score import EVERYWHERE, Scores, aggregate, read_scores
from scalefield.errors import InputError
from scalefield.io import read_json


@dataclass(frozen=True, eq=False)
class Run:
    """The content of one output folder of `scalefield evaluate`."""

    folder: Path
    results: dict[str, Any]
    scores: Scores
    timings: dict[str, float]

    @property
    def dataset(self) -> str:
        """The data's name and, unless it is the usual one, split."""
        config = self.results["config"]
        return config["name"] + ("" if config["split"] == "test" else f" ({config['split']})")

    @property
    def mde(self) -> str:
        """The estimator's name."""
        return self.results["config"]["mde"]

    @property
    def name(self) -> str:
        """Both of them, as titles begin."""
        return f"{self.dataset}, {self.mde}"

    @property
    def regimes(self) -> list[str]:
        """The anchor regimes that were run."""
        return [c for c in self.scores.conditions if c in REGIMES]


def load_run(path: str | Path) -> Run:
    """Read an output folder of evaluate, given itself or by its results.json."""
    path = Path(path)
    folder = path.parent if path.name == "results.json" else path
    results = read_json(folder / "results.json")
    try:
        labels = [method["label"] for method in results["config"]["methods"]]
        results["config"]["name"], results["cells"], results["data"]["evaluated"]
    except (KeyError, TypeError) as e:
        raise InputError(f"{folder}/results.json: not results of evaluate ({e!r})") from None
    timings = folder / "timings.json"
    return Run(
        folder=folder,
        results=results,
        scores=Scores.of(read_scores(folder / "images.csv"), labels),
        timings=read_json(timings) if timings.exists() else {},
    )


def pooled(runs: Sequence[Run], group: str) -> tuple[list[dict[str, Any]], int]:
    """Cells over the images of several runs together, and how many images those are."""
    if not runs:
        return [], 0
    if len(runs) == 1:
        cells = [c for c in runs[0].results["cells"] if c["group"] == group]
        return cells, int(runs[0].scores.within(group).sum())
    rows = [
        row
        for run in runs
        for row in read_scores(run.folder / "images.csv")
        if group in (EVERYWHERE, row.group)
    ]
    if not rows:
        return [], 0
    together = Scores.of(rows, [method for run in runs for method in run.scores.methods])
    return aggregate(together, group), len(together.images)


def ablation_series(
    runs: Sequence[Run], condition: str = "medium"
) -> dict[str, dict[int, dict[str, Any]]]:
    """Cells by series and K: rows whose labels differ in their K alone are one series."""
    ks = {(s["method"], s["condition"]): s["k"] for run in runs for s in run.results["spectral"]}
    cells, _ = pooled(runs, EVERYWHERE)
    series: dict[str, dict[int, dict[str, Any]]] = {}
    for cell in cells:
        k = ks.get((cell["method"], condition))
        if cell["condition"] == condition and k is not None:
            series.setdefault(_without_k(cell["method"]), {})[k] = cell
    return {label: dict(sorted(by_k.items())) for label, by_k in series.items()}


def _without_k(label: str) -> str:
    """`Basis (F=0, K=8)` → `Basis (F=0)`."""
    rest = re.sub(r"[,\s]*\bK\s?=\s?\d+", "", label, flags=re.IGNORECASE)
    return re.sub(r"\(\s*,\s*", "(", rest).replace("()", "").strip() or label
