"""Output folders of `scalefield evaluate`, read one by one or pooled by image."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from scalefield.anchor_sampling import REGIMES
from scalefield.benchmark.report import paper
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
        """The estimator's label."""
        return self.results["config"]["mde"]

    @property
    def heading(self) -> str:
        """The estimator's label, its source where it has another name, and its weights."""
        source = self.results["config"].get("source") or self.mde
        weights = {model.rpartition(" ")[2] for model in self.results["data"]["mde"]}
        own = "" if source.replace(":", "-") == self.mde.replace(":", "-") else f" = {source}"
        return f"{self.mde}{own} [{' '.join(sorted(weights)) or 'unknown weights'}]"

    @property
    def published(self) -> str | None:
        """What the paper calls this estimator, if its source is that model's own; a label is not
        believed."""
        source = (self.results["config"].get("source") or "").removeprefix("median:")
        return next((theirs for theirs, ours in paper.MDES.items() if ours == source), None)

    @property
    def name(self) -> str:
        """Dataset and estimator, the beginning of titles."""
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


def by_mde(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs by the heading of their estimator, in order of appearance."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.heading, []).append(run)
    return found


def together(runs: Sequence[Run]) -> str:
    """The names of the runs' data."""
    return " + ".join(dict.fromkeys(run.dataset for run in runs))


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


def basis_label(label: str) -> tuple[int, bool, int] | None:
    """K, whether F = 0, and the seed of a row of a reproduction; None for any other row.

    >>> basis_label("Basis K=8, F = 0, seed 2")
    (8, True, 2)
    """
    match = re.fullmatch(r"Basis K=(\d+)(, F = 0)?(?:, seed (\d+))?", label)
    return None if match is None else (int(match[1]), bool(match[2]), int(match[3] or 0))


def later_seeds(labels: Sequence[str]) -> set[str]:
    """The labels of a reproduction's Basis rows that repeat another row with a later seed.

    >>> later_seeds(["Basis K=8, seed 2", "Basis K=8, seed 1", "LWLR"])
    {'Basis K=8, seed 2'}
    """
    parsed = {label: about for label in labels if (about := basis_label(label)) is not None}
    first = {about[:2]: about[2] for about in sorted(parsed.values(), reverse=True)}
    return {label for label, about in parsed.items() if about[2] > first[about[:2]]}


def first_seeds(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells without those of later seeds; labels of the first seed do not name it."""
    later = later_seeds([cell["method"] for cell in cells])
    return [
        {**cell, "method": re.sub(r", seed \d+$", "", cell["method"])}
        for cell in cells
        if cell["method"] not in later
    ]


def seeds_of(runs: Sequence[Run], condition: str) -> dict[tuple[int, bool], list[dict[str, Any]]]:
    """The cells of a reproduction's Basis rows by K and F = 0, one cell a seed, runs pooled."""
    cells, _ = pooled(runs, EVERYWHERE)
    by_row: dict[tuple[int, bool], list[dict[str, Any]]] = {}
    for cell in cells:
        about = basis_label(cell["method"])
        if about is not None and cell["condition"] == condition:
            by_row.setdefault(about[:2], []).append(cell)
    return by_row


def feature_differences(runs: Sequence[Run]) -> dict[int, dict[str, float]]:
    """AbsRel with F less that with F = 0 with medium anchors, by K and place, mean over the seeds
    that have both."""
    found: dict[tuple[int, bool, int, str], float] = {}
    for run in runs:
        for cell in run.results["cells"]:
            about = basis_label(cell["method"])
            if about and cell["condition"] == "medium" and cell["group"] != EVERYWHERE:
                found[*about, cell["group"]] = cell["clamped"]["abs_rel"][0]
    differences: dict[int, dict[str, list[float]]] = {}
    for (k, zero, seed, place), error in found.items():
        if not zero and (k, True, seed, place) in found:
            by_place = differences.setdefault(k, {}).setdefault(place, [])
            by_place.append(error - found[k, True, seed, place])
    return {k: {g: fmean(v) for g, v in by.items()} for k, by in sorted(differences.items())}


@dataclass(frozen=True)
class RowModel:
    """The model behind a row of a table."""

    row: str
    conditions: tuple[str, ...]
    without_features: bool
    universal: bool
    """Shipped, and made for no MDE in particular."""
    description: str


def row_models(run: Run) -> list[RowModel]:
    """The generators of a run's basis rows, in the order of the rows.

    A shipped generator is described by its name, others by the end of their folder's path, alone if
    the generator cannot be read any more.
    """
    from scalefield.basis.generator import read_config
    from scalefield.io.weights import WEIGHTS
    from scalefield.methods.basis import Basis

    models = []
    for method in run.results["config"]["methods"]:
        if method["method"] != "basis":
            continue
        given = str(method["options"].get("generator", "auto"))
        k = method["options"].get("k", Basis.k)
        name = f"basis-depth-k{k}" if given == "auto" else given
        shipped = WEIGHTS / name / "config.json"
        universal = shipped.is_file() and name.startswith("basis-depth")
        file = shipped if shipped.is_file() else Path(name) / "config.json"
        description = "/".join([part for part in Path(name).parts if part != "model"][-2:])
        without_features = False
        if file.is_file():
            config = read_config(file)
            without_features = config.zero_features or config.feature_channels == 0
            features = "F = 0" if without_features else "with F"
            ending = ", universal" if universal else ""
            description += f" (K = {config.k}, {features}{ending})"
        conditions = tuple(method["conditions"])
        models.append(
            RowModel(method["label"], conditions, without_features, universal, description)
        )
    return models
