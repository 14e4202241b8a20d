"""Tables of results as plain values; `text` and `page` write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalefield.anchor_sampling import DROP_SEQUENCE, REGIMES
from scalefield.benchmark.metrics import COVERAGE, LEVELS, METRICS
from scalefield.benchmark.report import paper
from scalefield.benchmark.report.runs import (
    Run,
    ablation_series,
    basis_label,
    by_mde,
    first_seeds,
    later_seeds,
    pooled,
    row_models,
    seeds_of,
)
from scalefield.benchmark.score import CLAMPING, EVERYWHERE
from scalefield.errors import counted

MAIN_METRICS = ("abs_rel", "delta1")
REGIME_TITLES = {"low": "Low", "medium": "Med", "high": "High"}
SPECTRAL_TITLES = {
    "eta1": "η₁",
    "similarity": "|v₁ᵀg|",
    "g0_mean": "mean G₀",
    "g0_var": "var G₀",
    "alpha1_share": "α₁² / ‖y‖²",
    "alpha1_first": "|α₁| largest",
}


@dataclass(frozen=True)
class Cell:
    """A number of a table, or a word."""

    value: float | None
    low: float | None = None
    high: float | None = None
    rank: int = 0
    """1 for the best of its column, 2 for the second best, else 0."""
    digits: int = 3
    text: str = ""
    """Shown instead of the number, if there is any."""
    note: str = ""

    def __str__(self) -> str:
        if self.text or self.value is None:
            return self.text or "–"
        if self.value and (abs(self.value) < 10**-self.digits or abs(self.value) >= 1e5):
            return f"{self.value:.2g}"
        return f"{self.value:.{self.digits}f}"


Rows = tuple[tuple[str, tuple[Cell, ...]], ...]
"""Rows of cells with their labels."""


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns whose titles have one or more levels."""

    name: str
    """Stem of the files it is written to."""
    title: str
    caption: str
    corner: str
    """Title of the column of row labels."""
    columns: tuple[tuple[str, ...], ...]
    rows: Rows


def main_table(runs: Sequence[Run], group: str = EVERYWHERE, clamping: str = "clamped") -> Table:
    """Low/Med/High × MDE × method, the paper's form; runs of one MDE are pooled by image."""
    heads, images = [], {}
    for mde, members in by_mde(runs).items():
        cells, images[mde] = pooled(members, group)
        for regime, short in REGIME_TITLES.items():
            if by_method := _under(regime, cells):
                heads.append(((mde, short), by_method, images[mde]))
    columns, rows = _main_metrics(runs, heads, clamping)
    counts = "; ".join(f"{mde}: {counted(n, 'image')}" for mde, n in images.items())
    regimes = ", ".join(f"{REGIME_TITLES[r]} {low}–{high}" for r, (low, high) in REGIMES.items())
    several = later_seeds([m for run in runs for m in run.scores.methods])
    seeds = " Basis rows are of the first seed of the training; a table below has all seeds."
    caption = (
        f"Mean over images ({counts}), {_clamping_words(clamping)}. Anchors an image: {regimes}. "
        "Best bold, second underlined; a method with fewer images has their number beside it and "
        f"no rank.{_row_notes(runs)}{seeds if several else ''}"
    )
    data, images_of = _together(runs), "all images" if group == EVERYWHERE else group
    name, title = f"main-{_stem(data, group)}", f"{data}: {images_of}"
    if clamping == "raw":
        name, title = f"{name}-raw", f"{title}, not clamped"
    return Table(name, title, caption, "Method", columns, rows)


def _row_notes(runs: Sequence[Run]) -> str:
    """Notes on some rows: the bandwidth of LWLR, and generators that do not use F."""
    notes = []
    for run in runs:
        bandwidths: dict[tuple[float, float], list[str]] = {}
        for method in run.results["config"]["methods"]:
            options = method["options"]
            if "reference_bandwidth_px" in options:
                key = options["reference_bandwidth_px"], options["reference_width_px"]
                bandwidths.setdefault(key, []).append(method["label"])
        image_width = {"urbansyn": 2048}.get(run.results["config"]["dataset"])
        for (bandwidth, width), labels in bandwidths.items():
            at_width = ""
            if image_width:
                at_width = f", {bandwidth * image_width / width:g} px at {image_width} px"
            notes.append(
                f"{' and '.join(dict.fromkeys(labels))} on {run.dataset}: a bandwidth of "
                f"{bandwidth:g} px at an image width of {width:g} px, in proportion at "
                f"others{at_width}"
            )
        for model in row_models(run):
            if model.without_features and (model.universal or "F = 0" not in model.row):
                notes.append(f"{model.row}: {model.description}")
    return "".join(f" {note}." for note in dict.fromkeys(notes))


Head = tuple[tuple[str, ...], dict[str, dict[str, Any]], int]
"""Titles of a group of columns, its cells by method, and the number of images of a full cell."""


def _main_metrics(
    runs: Sequence[Run], heads: Sequence[Head], clamping: str
) -> tuple[tuple[tuple[str, ...], ...], Rows]:
    """AbsRel and δ1 under each head: the columns, and the rows of methods that have any of them.

    Of several seeds of a generator the first has a row; `seeds_table` has their spread.
    """
    methods = list(dict.fromkeys(m for run in runs for m in run.scores.methods))
    later = later_seeds(methods)
    values: dict[str, list[Cell]] = {m: [] for m in methods if m not in later}
    for _, by_method, total in heads:
        for metric in MAIN_METRICS:
            column = _column(list(values), by_method, metric, clamping, total)
            for method, cell in zip(values, column, strict=True):
                values[method].append(cell)
    columns = tuple((*title, METRICS[m].title) for title, _, _ in heads for m in MAIN_METRICS)
    return columns, _rows(_known(values))


def metric_table(run: Run, condition: str, clamping: str) -> Table:
    """Every metric of every method under one condition."""
    cells, total = pooled([run], EVERYWHERE)
    by_method = _under(condition, cells)
    methods = list(by_method)
    columns = [_column(methods, by_method, metric, clamping, total) for metric in METRICS]
    titles = tuple((f"{m.title} [{m.unit}]" if m.unit else m.title,) for m in METRICS.values())
    rows = _rows({m: [column[i] for column in columns] for i, m in enumerate(methods)})
    return Table(
        f"metrics-{_stem(run.dataset, run.mde, condition, clamping)}",
        f"{run.name}: all metrics, {condition} anchors, all images, {clamping}",
        f"Mean over {counted(total, 'image')}, {_clamping_words(clamping)}.",
        "Method",
        titles,
        rows,
    )


def drop_table(runs: Sequence[Run]) -> Table | None:
    """The drop-anchor test of one MDE: error over the number of anchors that are left."""
    cells, total = pooled(runs, EVERYWHERE)
    conditions = {c["condition"] for c in cells if c["condition"].startswith("drop-")}
    if not conditions:
        return None
    left = sorted((c.removeprefix("drop-") for c in conditions), key=int)
    heads = [((n,), _under(f"drop-{n}", cells), total) for n in left]
    columns, rows = _main_metrics(runs, heads, "clamped")
    return Table(
        f"drop-{_stem(_together(runs), runs[0].mde)}",
        f"{_together(runs)}, {runs[0].mde}: drop-anchor test",
        f"Mean over {counted(total, 'image')}, clamped, by the number of anchors left.",
        "Method",
        columns,
        rows,
    )


def ablation_table(runs: Sequence[Run]) -> Table | None:
    """AbsRel and δ1 over K for one MDE, one row a series (full, F = 0)."""
    series = ablation_series(runs)
    ks = sorted({k for by_k in series.values() for k in by_k})
    if len(ks) < 2:
        return None
    rows = {
        label: [
            _cell(by_k[k], metric, "clamped") if k in by_k else Cell(None)
            for k in ks
            for metric in MAIN_METRICS
        ]
        for label, by_k in series.items()
    }
    return Table(
        f"ablation-{_stem(_together(runs), runs[0].mde)}",
        f"{_together(runs)}, {runs[0].mde}: number of basis maps and features",
        "Mean over images, medium anchors, clamped.",
        "Generator",
        tuple((f"K = {k}", METRICS[metric].title) for k in ks for metric in MAIN_METRICS),
        _rows(rows),
    )


def spectral_table(run: Run) -> Table | None:
    """η₁, |v₁ᵀg| and the statistics of G₀ with low anchors, by method and group."""
    statistics = [s for s in run.results["spectral"] if s["condition"] == "low"]
    methods = run.scores.methods
    if not statistics:
        return None
    rows = {
        f"{s['method']} · {s['group']}": [
            *(Cell(s.get(key), digits=3) for key in SPECTRAL_TITLES),
            Cell(float(s["images"]), digits=0),
        ]
        for s in sorted(
            statistics, key=lambda s: (methods.index(s["method"]), s["group"] != EVERYWHERE)
        )
    }
    theirs = ", ".join(f"{title} {value}" for title, value in paper.SPECTRAL.items())
    return Table(
        f"spectral-{_stem(run.dataset, run.mde)}",
        f"{run.name}: spectral structure, low anchors",
        "Medians over images. α₁² / ‖y‖² is the share of the targets' energy along the leading "
        "eigenvector of C. The column after it is the share of images in which |α₁| is the "
        f"largest coefficient. The paper, for K = 8 and DA3: {theirs}, and |α₁| is expected to "
        "dominate.",
        "Method and place",
        (*((title,) for title in SPECTRAL_TITLES.values()), ("images",)),
        _rows(rows),
    )


def coverage_table(run: Run) -> Table | None:
    """The coverage of the intervals, by method and group."""
    cells = [c for c in run.results["cells"] if "coverage" in c and c["condition"] in REGIMES]
    if not cells:
        return None
    conditions = run.regimes
    by_row: dict[str, dict[str, dict[str, Any]]] = {}
    order = (EVERYWHERE, *run.scores.groups)
    methods = run.scores.methods
    for c in sorted(cells, key=lambda c: (methods.index(c["method"]), order.index(c["group"]))):
        by_row.setdefault(f"{c['method']} · {c['group']}", {})[c["condition"]] = c
    rows = {
        label: [
            _cell(by_condition[condition], column, "coverage")
            if condition in by_condition
            else Cell(None)
            for condition in conditions
            for column in COVERAGE
        ]
        for label, by_condition in by_row.items()
    }
    titles = (*(f"{level} %" for level in LEVELS), "std")
    return Table(
        f"coverage-{_stem(run.dataset, run.mde)}",
        f"{run.name}: what intervals cover",
        "Share of pixels whose true log-depth lies within the central interval of a normal "
        "distribution around the predicted one, mean over images, not clamped; std is the mean "
        "standard deviation of log-depth that the method gives. Only methods that give one.",
        "Method and place",
        tuple((REGIME_TITLES[condition], title) for condition in conditions for title in titles),
        _rows(rows),
    )


def paired_table(run: Run, condition: str) -> Table | None:
    """p-values of the row's method against the column's, with the sign of the difference."""
    tests = [t for t in run.results["paired"] if t["condition"] == condition]
    if not tests:
        return None
    both = {(t["a"], t["b"]): (t["difference"][0], t["p"], t["images"]) for t in tests}
    both |= {(b, a): (-d, p, n) for (a, b), (d, p, n) in both.items()}
    methods = [m for m in run.scores.methods if any(m in pair for pair in both)]
    rows = {}
    for a in methods:
        cells = []
        for b in methods:
            if (a, b) not in both:
                cells.append(Cell(None, text="·"))
                continue
            difference, p, n = both[a, b]
            better = difference < 0
            note = f"AbsRel {difference:+.4f} over {counted(n, 'image')}, p = {p:.3g}"
            text = f"{'better' if better else 'worse'} {p:.2g}" if p < 0.05 else "n.s."
            cells.append(Cell(p, rank=int(better and p < 0.05), text=text, note=note))
        rows[a] = cells
    return Table(
        f"paired-{_stem(run.dataset, run.mde, condition)}",
        f"{run.name}: paired tests, {condition} anchors",
        "Is the row's AbsRel below the column's? Sign-flip test over blocks of neighbouring "
        "frames, two-sided, not corrected for the number of comparisons; n.s. at 0.05 or more.",
        "Method",
        tuple((m,) for m in methods),
        _rows(rows),
    )


def timing_table(run: Run) -> Table | None:
    """Median milliseconds an image, without the MDE."""
    conditions = run.regimes
    rows = {
        method: [Cell(run.timings.get(f"{method} / {c}"), digits=1) for c in conditions]
        for method in run.scores.methods
    }
    if not _known(rows):
        return None
    return Table(
        f"timing-{_stem(run.dataset, run.mde)}",
        f"{run.name}: milliseconds an image",
        f"Medians on one thread; the MDE itself took {run.timings.get('mde', 0):.0f} ms.",
        "Method",
        tuple((REGIME_TITLES[c],) for c in conditions),
        _rows(_known(rows)),
    )


def paper_table(runs: Sequence[Run], title: str) -> Table | None:
    """The paper's figures with ours in brackets, and beside them ours with other MDEs."""
    members = [r for r in runs if r.results["config"]["dataset"] in paper.DATASETS[title]]
    if not members:
        return None
    theirs = {mde: rows for (dataset, mde), rows in paper.MAIN.items() if dataset == title}
    names = {paper.MDES[mde]: mde for mde in theirs}
    columns: list[tuple[str, ...]] = []
    values: dict[str, list[Cell]] = {m: [] for rows in theirs.values() for m in rows}
    for mde in dict.fromkeys([*names, *(run.mde for run in members)]):
        cells, _ = pooled([run for run in members if run.mde == mde], EVERYWHERE)
        cells = first_seeds(cells)
        ours = {(c["method"].casefold(), c["condition"]): c["clamped"] for c in cells}
        figures = theirs.get(names.get(mde, ""), {})
        for i, regime in enumerate(REGIMES):
            for j, metric in enumerate(MAIN_METRICS):
                head = names.get(mde, f"{mde} (not in the paper)")
                columns.append((head, REGIME_TITLES[regime], METRICS[metric].title))
                for method, row in values.items():
                    printed = figures[method][i] if method in figures else None
                    text = "–" if printed is None else f"{printed[j]:.2f}"
                    if (method.casefold(), regime) in ours:
                        text += f" [{ours[method.casefold(), regime][metric][0]:.2f}]"
                    value = None if printed is None else printed[j]
                    row.append(Cell(value, text=text.removeprefix("– ")))
    return Table(
        f"paper-{_stem(title)}",
        f"{title}: the paper's figures [ours]",
        f"Ours, in brackets, are means over the images of {_together(members)}, clamped, by row "
        "label. The paper's splits are not published, so images differ.",
        "Method",
        tuple(columns),
        _rows(values),
    )


def paper_drop_table(runs: Sequence[Run], row: str = "Basis K=8") -> Table | None:
    """The drop-anchor test in the paper's form: anchors by MDE, the paper's figures beside ours.

    The paper's stand where the MDE and the datasets are its own.
    """
    columns: list[tuple[str, ...]] = []
    values: dict[str, list[Cell]] = {str(n): [] for n in sorted(DROP_SEQUENCE)}
    names = {ours: theirs for theirs, ours in paper.MDES.items()}
    paper_datasets = {name for group in paper.DATASETS.values() for name in group}
    for mde, members in by_mde(runs).items():
        cells, _ = pooled(members, EVERYWHERE)
        ours = {c["condition"]: c["clamped"] for c in first_seeds(cells) if c["method"] == row}
        if not any(condition.startswith("drop-") for condition in ours):
            continue
        same = all(run.results["config"]["dataset"] in paper_datasets for run in members)
        printed = paper.DROP.get(names.get(mde, "")) if same else None
        for j, metric in enumerate(MAIN_METRICS):
            columns.append((names.get(mde, mde), METRICS[metric].title))
            for n, cells_of in values.items():
                cell = ours.get(f"drop-{n}")
                value = None if cell is None else cell[metric][0]
                shown = "–" if value is None else f"{value:.2f}"
                text = f"{printed[int(n)][j]:.2f} [{shown}]" if printed else ""
                cells_of.append(Cell(value, text=text))
    if not columns:
        return None
    return Table(
        "paper-drop",
        f"Drop-anchor test of {row}, over {_together(runs)}",
        "Means over all images, clamped, by the number of anchors left. Where two figures stand, "
        "the first is the paper's, over its three datasets, and ours is in brackets.",
        "Anchors",
        tuple(columns),
        _rows(values),
    )


def seeds_table(runs: Sequence[Run]) -> Table | None:
    """Mean and standard deviation over the seeds of the training, of one MDE, runs pooled."""
    labels = [about for run in runs for m in run.scores.methods if (about := basis_label(m))]
    if len({seed for _, _, seed in labels}) < 2:
        return None
    keys = sorted({about[:2] for about in labels}, key=lambda key: (key[1], key[0]))
    rows: dict[str, list[Cell]] = {
        f"Basis K={k}{', F = 0' if without_features else ''}": [] for k, without_features in keys
    }
    columns = []
    for regime in REGIMES:
        by_row = seeds_of(runs, regime)
        for metric in MAIN_METRICS:
            columns.append((REGIME_TITLES[regime], METRICS[metric].title))
            for (k, without_features), cells in zip(keys, rows.values(), strict=True):
                means = [c["clamped"][metric][0] for c in by_row.get((k, without_features), [])]
                if not means:
                    cells.append(Cell(None))
                    continue
                text = f"{np.mean(means):.3f}"
                if len(means) > 1:
                    text += f" ± {np.std(means, ddof=1):.3f}"
                note = f"{len(means)} seeds, {min(means):.3f}–{max(means):.3f}"
                cells.append(Cell(float(np.mean(means)), text=text, note=note))
    return Table(
        f"seeds-{_stem(_together(runs), runs[0].mde)}",
        f"{_together(runs)}, {runs[0].mde}: generators over seeds",
        "Mean and standard deviation (n − 1) over the seeds of the training; each is a mean over "
        "images, clamped.",
        "Generator",
        tuple(columns),
        _rows(rows),
    )


def models_table(run: Run) -> Table | None:
    """The model behind each basis row."""
    models = row_models(run)
    if not models:
        return None
    rows = tuple(
        (
            model.row,
            (
                Cell(None, text=", ".join(model.conditions) or "all"),
                Cell(None, text=model.description),
            ),
        )
        for model in models
    )
    return Table(
        f"models-{_stem(run.dataset, run.mde)}",
        f"{run.name}: models of the rows",
        "F = 0: the generator sees depth alone. Universal: it comes with the package and was made "
        "for no MDE in particular.",
        "Row",
        (("anchors",), ("model",)),
        rows,
    )


def all_tables(runs: Sequence[Run]) -> list[Table]:
    """Every table for which these runs have values."""
    tables: list[Table | None] = []
    datasets = list(dict.fromkeys(run.dataset for run in runs))
    for dataset in datasets:
        members = [run for run in runs if run.dataset == dataset]
        groups = list(dict.fromkeys(g for run in members for g in run.scores.groups))
        tables.append(main_table(members))
        tables += [main_table(members, group) for group in groups if len(groups) > 1]
        tables.append(main_table(members, clamping="raw"))
    tables += [main_table(members) for members in _averages(runs)]
    if len(datasets) > 1:
        for members in by_mde(runs).values():
            tables += [drop_table(members), ablation_table(members)]
    tables += [seeds_table(members) for members in by_mde(runs).values()]
    tables.append(paper_drop_table(runs))
    tables += [paper_table(runs, title) for title in paper.DATASETS]
    for run in runs:
        tables += [drop_table([run]), ablation_table([run]), spectral_table(run)]
        tables += [models_table(run), coverage_table(run)]
        tables += [metric_table(run, c, k) for c in run.regimes for k in CLAMPING]
        tables += [paired_table(run, c) for c in run.regimes]
        tables.append(timing_table(run))
    return [table for table in tables if table is not None and table.rows]


def _averages(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that one table averages: those of the paper's, then all, where that is more than one."""
    wanted = [set(names) for names in paper.DATASETS.values() if len(names) > 1]
    by_paper = [
        [run for run in runs if run.results["config"]["dataset"] in names] for names in wanted
    ]
    averages = []
    for members in (*by_paper, list(runs)):
        if len({run.dataset for run in members}) > 1 and members not in averages:
            averages.append(members)
    return averages


def _together(runs: Sequence[Run]) -> str:
    return " + ".join(dict.fromkeys(run.dataset for run in runs))


def _column(
    methods: Sequence[str],
    by_method: dict[str, dict[str, Any]],
    metric: str,
    clamping: str,
    total: int,
) -> list[Cell]:
    """A column's cells with best and second marked among methods that have every image."""
    complete = [m for m in methods if m in by_method and by_method[m]["images"] == total]
    sign = -1 if METRICS[metric].higher_is_better else 1
    # What is equal as shown is equally good.
    shown = {m: sign * round(by_method[m][clamping][metric][0], 3) for m in complete}
    ranks = {value: i + 1 for i, value in enumerate(sorted(set(shown.values()))[:2])}
    cells = []
    for method in methods:
        if method not in by_method:
            cells.append(Cell(None))
            continue
        rank = ranks.get(shown.get(method, np.nan), 0)
        cells.append(_cell(by_method[method], metric, clamping, rank, total))
    return cells


def _cell(
    cell: dict[str, Any], metric: str, clamping: str, rank: int = 0, total: int | None = None
) -> Cell:
    mean, low, high = cell[clamping][metric]
    partial = total is not None and cell["images"] < total
    digits = 3 if mean < 100 else 1
    text = f"{mean:.{digits}f} ({cell['images']})" if partial else ""
    return Cell(mean, low, high, rank, digits, text)


def _under(condition: str, cells: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The cells of one condition by method."""
    return {c["method"]: c for c in cells if c["condition"] == condition}


def _known(values: dict[str, list[Cell]]) -> dict[str, list[Cell]]:
    """The rows that have a number."""
    return {m: cells for m, cells in values.items() if any(c.value is not None for c in cells)}


def _rows(values: dict[str, list[Cell]]) -> Rows:
    return tuple((label, tuple(cells)) for label, cells in values.items())


def _clamping_words(clamping: str) -> str:
    if clamping == "raw":
        return "predictions as they are"
    return "predictions clamped to the dataset's depth range"


def _stem(*parts: str) -> str:
    joined = "-".join(p for p in parts if p != EVERYWHERE)
    return re.sub(r"[^\w.]+", "-", joined.casefold()).strip("-")
