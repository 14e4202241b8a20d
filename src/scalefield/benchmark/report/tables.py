"""The tables of results: what their rows and columns are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

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
from scalefield.benchmark.report.table import Cell, Table
from scalefield.benchmark.score import CLAMPING, EVERYWHERE
from scalefield.errors import counted
from scalefield.methods.lwlr import LWLR

MAIN_METRICS = ("abs_rel", "delta1")
MAIN_TITLES = {metric: METRICS[metric].title for metric in MAIN_METRICS}
REGIME_TITLES = {"low": "Low", "medium": "Med", "high": "High"}
SPECTRAL_TITLES = {
    "eta1": "η₁",
    "similarity": "|v₁ᵀg|",
    "g0_mean": "mean G₀",
    "g0_var": "var G₀",
    "alpha1_share": "α₁² / ‖y‖²",
    "alpha1_first": "|α₁| largest",
}
CLAMPING_WORDS = {
    "clamped": "predictions clamped to the dataset's depth range",
    "raw": "predictions as they are",
}


class Head(NamedTuple):
    """Columns that belong together."""

    titles: tuple[str, ...]
    cells: dict[str, dict[str, Any]]
    """The results by the label of their row."""
    images: int | None = None
    """Number of images of a complete cell; None to rank no cells."""


def metric_columns(
    heads: Sequence[Head],
    labels: Iterable[str],
    titles: Mapping[str, str] = MAIN_TITLES,
    kind: str = "clamped",
) -> dict[str, Any]:
    """The columns of a table, these metrics under each head, and the rows that have any of them."""
    rows: dict[str, list[Cell]] = {label: [] for label in labels}
    for head in heads:
        for metric in titles:
            ranks = _ranks(head, list(rows), metric, kind)
            for label, row in rows.items():
                row.append(_cell(head, label, metric, kind, ranks.get(label, 0)))
    columns = tuple((*head.titles, title) for head in heads for title in titles.values())
    return {"columns": columns, "rows": _known(rows)}


def _ranks(head: Head, labels: Sequence[str], metric: str, kind: str) -> dict[str, int]:
    """1 for the best and 2 for the second best of the rows that have every image."""
    if head.images is None:
        return {}
    sign = -1 if METRICS[metric].higher_is_better else 1
    complete = [m for m in labels if m in head.cells and head.cells[m]["images"] == head.images]
    # What is equal as shown is equally good.
    shown = {m: sign * round(head.cells[m][kind][metric][0], 3) for m in complete}
    best = sorted(set(shown.values()))[:2]
    return {m: best.index(value) + 1 for m, value in shown.items() if value in best}


def _cell(head: Head, label: str, metric: str, kind: str, rank: int) -> Cell:
    if label not in head.cells:
        return Cell()
    images = head.cells[label]["images"]
    mean, low, high = head.cells[label][kind][metric]
    digits = 3 if mean < 100 else 1
    partial = head.images is not None and images < head.images
    return Cell(mean, low, high, rank, digits, f"{mean:.{digits}f} ({images})" if partial else "")


def main_table(runs: Sequence[Run], group: str = EVERYWHERE, clamping: str = "clamped") -> Table:
    """Low/Med/High × MDE × method, the paper's form; runs of one MDE are pooled by image."""
    heads, images = [], {}
    for mde, members in by_mde(runs).items():
        cells, images[mde] = pooled(members, group)
        for regime, short in REGIME_TITLES.items():
            if by_method := _under(regime, cells):
                heads.append(Head((mde, short), by_method, images[mde]))
    counts = "; ".join(f"{mde}: {counted(n, 'image')}" for mde, n in images.items())
    regimes = ", ".join(f"{REGIME_TITLES[r]} {low}–{high}" for r, (low, high) in REGIMES.items())
    data, raw = _together(runs), clamping == "raw"
    place = "all images" if group == EVERYWHERE else group
    return Table(
        name=_stem("main", data, group) + ("-raw" if raw else ""),
        title=f"{data}: {place}{', not clamped' if raw else ''}",
        caption=f"Mean over images ({counts}), {CLAMPING_WORDS[clamping]}. Anchors an image: "
        f"{regimes}. Best bold, second underlined; a method with fewer images has their number "
        f"beside it and no rank.{_row_notes(runs)}",
        corner="Method",
        **metric_columns(heads, _first_methods(runs), kind=clamping),
    )


def _row_notes(runs: Sequence[Run]) -> str:
    """Notes on rows: the bandwidth of LWLR, generators that do not use F, one of several seeds."""
    notes = []
    for run in runs:
        bandwidths: dict[tuple[float, float], list[str]] = {}
        for method in run.results["config"]["methods"]:
            options = method["options"]
            if "reference_bandwidth_px" in options:
                width = options.get("reference_width_px", LWLR.reference_width_px)
                key = options["reference_bandwidth_px"], width
                bandwidths.setdefault(key, []).append(method["label"])
        image_width = {"urbansyn": 2048}.get(run.results["config"]["dataset"])
        for (bandwidth, width), labels in bandwidths.items():
            note = (
                f"{' and '.join(dict.fromkeys(labels))} on {run.dataset}: a bandwidth of "
                f"{bandwidth:g} px at an image width of {width:g} px, in proportion at others"
            )
            if image_width:
                note += f", {bandwidth * image_width / width:g} px at {image_width} px"
            notes.append(note)
        for model in row_models(run):
            if model.without_features and (model.universal or "F = 0" not in model.row):
                notes.append(f"{model.row}: {model.description}")
    if later_seeds(_methods(runs)):
        notes.append(
            "Basis rows are of the first seed of the training; a table below has all seeds"
        )
    return "".join(f" {note}." for note in dict.fromkeys(notes))


def metric_table(run: Run, condition: str, clamping: str) -> Table:
    """Every metric of every method under one condition."""
    cells, total = pooled([run], EVERYWHERE)
    by_method, about = _under(condition, cells), f"{condition} anchors, all images"
    titles = {n: f"{m.title} [{m.unit}]" if m.unit else m.title for n, m in METRICS.items()}
    return Table(
        *_named("metrics", [run], f"all metrics, {about}, {clamping}", condition, clamping),
        f"Mean over {counted(total, 'image')}, {CLAMPING_WORDS[clamping]}.",
        "Method",
        **metric_columns([Head((), by_method, total)], by_method, titles, clamping),
    )


def drop_table(runs: Sequence[Run]) -> Table:
    """The drop-anchor test of one MDE: error over the number of anchors that are left."""
    cells, total = pooled(runs, EVERYWHERE)
    left = {n: _under(f"drop-{n}", cells) for n in sorted(DROP_SEQUENCE)}
    heads = [Head((str(n),), by_method, total) for n, by_method in left.items() if by_method]
    return Table(
        *_named("drop", runs, "drop-anchor test"),
        f"Mean over {counted(total, 'image')}, clamped, by the number of anchors left.",
        "Method",
        **metric_columns(heads, _first_methods(runs)),
    )


def ablation_table(runs: Sequence[Run]) -> Table | None:
    """AbsRel and δ1 over K for one MDE, one row a series (full, F = 0)."""
    series = ablation_series(runs)
    ks = sorted({k for by_k in series.values() for k in by_k})
    if len(ks) < 2:
        return None
    heads = [
        Head((f"K = {k}",), {label: by_k[k] for label, by_k in series.items() if k in by_k})
        for k in ks
    ]
    return Table(
        *_named("ablation", runs, "number of basis maps and features"),
        "Mean over images, medium anchors, clamped.",
        "Generator",
        **metric_columns(heads, series),
    )


def spectral_table(run: Run) -> Table:
    """η₁, |v₁ᵀg| and the statistics of G₀ with low anchors, by method and group."""
    statistics = [s for s in run.results["spectral"] if s["condition"] == "low"]
    theirs = ", ".join(f"{title} {value}" for title, value in paper.SPECTRAL.items())
    return Table(
        *_named("spectral", [run], "spectral structure, low anchors"),
        "Medians over images. α₁² / ‖y‖² is the share of the targets' energy along the leading "
        "eigenvector of C. The column after it is the share of images in which |α₁| is the "
        f"largest coefficient. The paper, for K = 8 and DA3: {theirs}, and |α₁| is expected to "
        "dominate.",
        "Method and place",
        (*((title,) for title in SPECTRAL_TITLES.values()), ("images",)),
        [
            (
                f"{s['method']} · {s['group']}",
                [*(Cell(s.get(k)) for k in SPECTRAL_TITLES), Cell(float(s["images"]), digits=0)],
            )
            for s in _by_method_and_place(run, statistics)
        ],
    )


def coverage_table(run: Run) -> Table:
    """The coverage of the intervals, by method and group."""
    cells = [c for c in run.results["cells"] if "coverage" in c and c["condition"] in REGIMES]
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for c in _by_method_and_place(run, cells):
        rows.setdefault(f"{c['method']} · {c['group']}", {})[c["condition"]] = c
    heads = [
        Head((REGIME_TITLES[regime],), {row: c[regime] for row, c in rows.items() if regime in c})
        for regime in run.regimes
    ]
    titles = dict(zip(COVERAGE, (*(f"{level} %" for level in LEVELS), "std"), strict=True))
    return Table(
        *_named("coverage", [run], "what intervals cover"),
        "Share of pixels whose true log-depth lies within the central interval of a normal "
        "distribution around the predicted one, mean over images, not clamped; std is the mean "
        "standard deviation of log-depth that the method gives. Only methods that give one.",
        "Method and place",
        **metric_columns(heads, rows, titles, "coverage"),
    )


def paired_table(run: Run, condition: str) -> Table:
    """p-values of the row's method against the column's, with the sign of the difference."""
    tests = [t for t in run.results["paired"] if t["condition"] == condition]
    both = {(t["a"], t["b"]): (t["difference"][0], t["p"], t["images"]) for t in tests}
    both |= {(b, a): (-d, p, n) for (a, b), (d, p, n) in both.items()}
    methods = [m for m in run.scores.methods if any(m in pair for pair in both)]

    def cell(a: str, b: str) -> Cell:
        if (a, b) not in both:
            return Cell(text="·")
        difference, p, n = both[a, b]
        better = difference < 0
        note = f"AbsRel {difference:+.4f} over {counted(n, 'image')}, p = {p:.3g}"
        text = f"{'better' if better else 'worse'} {p:.2g}" if p < 0.05 else "n.s."
        return Cell(p, rank=int(better and p < 0.05), text=text, note=note)

    return Table(
        *_named("paired", [run], f"paired tests, {condition} anchors", condition),
        "Is the row's AbsRel below the column's? Sign-flip test over blocks of neighbouring "
        "frames, two-sided, not corrected for the number of comparisons; n.s. at 0.05 or more.",
        "Method",
        tuple((m,) for m in methods),
        [(a, [cell(a, b) for b in methods]) for a in methods],
    )


def timing_table(run: Run) -> Table:
    """Median milliseconds an image, without the MDE."""
    rows = {
        method: [Cell(run.timings.get(f"{method} / {c}"), digits=1) for c in run.regimes]
        for method in run.scores.methods
    }
    return Table(
        *_named("timing", [run], "milliseconds an image"),
        f"Medians on one thread; the MDE itself took {run.timings.get('mde', 0):.0f} ms.",
        "Method",
        tuple((REGIME_TITLES[c],) for c in run.regimes),
        _known(rows),
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
        _stem("paper", title),
        f"{title}: the paper's figures [ours]",
        f"Ours, in brackets, are means over the images of {_together(members)}, clamped, by row "
        "label. The paper's splits are not published, so images differ.",
        "Method",
        tuple(columns),
        list(values.items()),
    )


def paper_drop_table(runs: Sequence[Run], row: str = "Basis K=8") -> Table | None:
    """The drop-anchor test in the paper's form: anchors by MDE, the paper's figures beside ours.

    The paper's stand where the MDE and the datasets are its own.
    """
    columns: list[tuple[str, ...]] = []
    values: dict[int, list[Cell]] = {n: [] for n in sorted(DROP_SEQUENCE)}
    names = {ours: theirs for theirs, ours in paper.MDES.items()}
    paper_datasets = {name for group in paper.DATASETS.values() for name in group}
    for mde, members in by_mde(runs).items():
        cells = first_seeds(pooled(members, EVERYWHERE)[0])
        ours = {c["condition"]: c["clamped"] for c in cells if c["method"] == row}
        if not any(condition.startswith("drop-") for condition in ours):
            continue
        same = all(run.results["config"]["dataset"] in paper_datasets for run in members)
        printed = paper.DROP.get(names.get(mde, "")) if same else None
        for j, metric in enumerate(MAIN_METRICS):
            columns.append((names.get(mde, mde), METRICS[metric].title))
            for n, cells_of in values.items():
                value = ours[f"drop-{n}"][metric][0] if f"drop-{n}" in ours else None
                shown = "–" if value is None else f"{value:.2f}"
                text = f"{printed[n][j]:.2f} [{shown}]" if printed else ""
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
        [(str(n), cells) for n, cells in values.items()],
    )


def seeds_table(runs: Sequence[Run]) -> Table | None:
    """Mean and standard deviation over the seeds of the training, of one MDE, runs pooled."""
    labels = [about for m in _methods(runs) if (about := basis_label(m))]
    if len({seed for _, _, seed in labels}) < 2:
        return None
    keys = sorted({about[:2] for about in labels}, key=lambda key: (key[1], key[0]))
    by_regime = {regime: seeds_of(runs, regime) for regime in REGIMES}

    def cell(key: tuple[int, bool], regime: str, metric: str) -> Cell:
        means = [c["clamped"][metric][0] for c in by_regime[regime].get(key, [])]
        if not means:
            return Cell()
        spread = f" ± {np.std(means, ddof=1):.3f}" if len(means) > 1 else ""
        note = f"{len(means)} seeds, {min(means):.3f}–{max(means):.3f}"
        return Cell(float(np.mean(means)), text=f"{np.mean(means):.3f}{spread}", note=note)

    return Table(
        *_named("seeds", runs, "generators over seeds"),
        "Mean and standard deviation (n − 1) over the seeds of the training; each is a mean over "
        "images, clamped.",
        "Generator",
        tuple((short, title) for short in REGIME_TITLES.values() for title in MAIN_TITLES.values()),
        [
            (
                f"Basis K={k}{', F = 0' if without_features else ''}",
                [
                    cell((k, without_features), r, metric)
                    for r in REGIMES
                    for metric in MAIN_METRICS
                ],
            )
            for k, without_features in keys
        ],
    )


def models_table(run: Run) -> Table:
    """The model behind each basis row."""
    return Table(
        *_named("models", [run], "models of the rows"),
        "F = 0: the generator sees depth alone. Universal: it comes with the package and was made "
        "for no MDE in particular.",
        "Row",
        (("anchors",), ("model",)),
        [
            (m.row, [Cell(text=", ".join(m.conditions) or "all"), Cell(text=m.description)])
            for m in row_models(run)
        ],
    )


def all_tables(runs: Sequence[Run]) -> list[Table]:
    """Every table for which these runs have values; the others have no rows."""
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
    of_paper = [
        [run for run in runs if run.results["config"]["dataset"] in names]
        for names in paper.DATASETS.values()
        if len(names) > 1
    ]
    averages: list[list[Run]] = []
    for members in (*of_paper, list(runs)):
        if len({run.dataset for run in members}) > 1 and members not in averages:
            averages.append(members)
    return averages


def _methods(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(m for run in runs for m in run.scores.methods))


def _first_methods(runs: Sequence[Run]) -> list[str]:
    """The rows of several runs; of several seeds of a generator the first one only."""
    methods = _methods(runs)
    later = later_seeds(methods)
    return [m for m in methods if m not in later]


def _by_method_and_place(run: Run, cells: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells in the order of the methods, and of the places, all images first."""
    methods, places = run.scores.methods, (EVERYWHERE, *run.scores.groups)
    return sorted(cells, key=lambda c: (methods.index(c["method"]), places.index(c["group"])))


def _under(condition: str, cells: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The cells of one condition by method."""
    return {c["method"]: c for c in cells if c["condition"] == condition}


def _known(rows: Mapping[str, Sequence[Cell]]) -> list[tuple[str, Sequence[Cell]]]:
    """The rows that have a number."""
    return [(m, cells) for m, cells in rows.items() if any(c.value is not None for c in cells)]


def _together(runs: Sequence[Run]) -> str:
    return " + ".join(dict.fromkeys(run.dataset for run in runs))


def _named(kind: str, runs: Sequence[Run], title: str, *parts: str) -> tuple[str, str]:
    """Name and title of a table of one MDE; its files are named by kind, data, MDE and parts."""
    about = _together(runs), runs[0].mde
    return _stem(kind, *about, *parts), f"{', '.join(about)}: {title}"


def _stem(*parts: str) -> str:
    joined = "-".join(p for p in parts if p != EVERYWHERE)
    return re.sub(r"[^\w.]+", "-", joined.casefold()).strip("-")
