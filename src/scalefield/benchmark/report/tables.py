"""The tables of results: what their rows and columns are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binomtest

from scalefield.anchor_sampling import DROP_SEQUENCE, REGIMES
from scalefield.benchmark.metrics import COVERAGE, LEVELS, METRICS
from scalefield.benchmark.report import paper
from scalefield.benchmark.report.runs import (
    Run,
    basis_label,
    by_mde,
    feature_differences,
    first_seeds,
    later_seeds,
    pooled,
    row_models,
    seeds_of,
    together,
)
from scalefield.benchmark.report.table import Cell, Table
from scalefield.benchmark.report.text import missing
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
    cells: Mapping[str, dict[str, Any]]
    """The results by the label of their row."""
    images: int | None = None
    """Number of images of a complete cell; None to rank no cells."""
    printed: Mapping[str, Sequence[float] | None] = {}
    """The paper's figures, one for each metric, by the label of their row."""


def metric_columns(
    heads: Sequence[Head],
    labels: Iterable[str],
    titles: Mapping[str, str] = MAIN_TITLES,
    kind: str = "clamped",
) -> dict[str, Any]:
    """The columns of a table, these metrics under each head, and the rows that have any of them."""
    rows: dict[str, list[Cell]] = {label: [] for label in labels}
    for head in heads:
        for i, metric in enumerate(titles):
            ranks = _ranks(head, list(rows), metric, kind)
            for label, row in rows.items():
                figures = head.printed.get(label)
                printed = "" if figures is None else f"{figures[i]:.2f}"
                row.append(_cell(head, label, metric, kind, ranks.get(label, 0), printed))
    columns = tuple((*head.titles, title) for head in heads for title in titles.values())
    known = [
        row
        for row in rows.items()
        if any(c.beside or c.text or c.value is not None for c in row[1])
    ]
    return {"columns": columns, "rows": known}


def _ranks(head: Head, labels: Sequence[str], metric: str, kind: str) -> dict[str, int]:
    """1 for the best and 2 for the second best of the rows that have every image."""
    if head.images is None:
        return {}
    sign = -1 if METRICS[metric].higher_is_better else 1
    complete = [m for m in labels if m in head.cells and head.cells[m]["images"] == head.images]
    # What is equal as shown is equally good.
    shown = {m: sign * round(head.cells[m][kind][metric][0], 3) for m in complete}
    values = list(shown.values())
    best = sorted(set(values))[:2]
    return {  # three that are equal, as some methods are at one anchor, are not marked
        m: best.index(v) + 1 for m, v in shown.items() if v in best and values.count(v) < 3
    }


def _cell(  # noqa: PLR0917
    head: Head, label: str, metric: str, kind: str, rank: int, printed: str
) -> Cell:
    if not head.cells:  # a column of the paper
        return Cell(text=printed)
    printed = printed and f"[{printed}]"
    if label not in head.cells:
        return Cell(beside=printed)
    images = head.cells[label]["images"]
    mean, low, high = head.cells[label][kind][metric]
    partial = f"({images})" if head.images is not None and images < head.images else ""
    beside = " ".join(filter(None, (printed, partial)))
    return Cell(mean, low, high, rank, 3 if mean < 100 else 1, beside=beside)


def paper_table(runs: Sequence[Run], data: str) -> Table | None:
    """Table 1 or 2 of the paper, or the same of other data: its rows by its names, ranked among
    themselves, and its figures beside those of its own estimators."""
    names = paper.DATASETS.get(data, (data,))
    members = [run for run in runs if run.results["config"]["dataset"] in names]
    if data not in paper.DATASETS:
        members = [run for run in runs if run.dataset == data]
    if not set(_methods(members)) & set(paper.ROWS):
        return None
    heads, counts, shown = [], [], set()
    for mde, own in by_mde(members).items():
        cells, images = pooled(own, EVERYWHERE)
        counts.append(f"{mde}: {counted(images, 'image')} of {together(own)}")
        shown.add(own[0].published)
        theirs = paper.MAIN.get((data, own[0].published or ""), {})
        for i, regime in enumerate(REGIMES):
            by_method = _under(regime, first_seeds(cells))
            named = {n: by_method[m] for m, n in paper.ROWS.items() if m in by_method}
            figures = {paper.ROWS[m]: row[i] for m, row in theirs.items()}
            heads.append(Head((mde, REGIME_TITLES[regime]), named, images, figures))
    absent = [mde for (d, mde) in paper.MAIN if d == data and mde not in shown]
    for theirs_mde in absent:
        for i, regime in enumerate(REGIMES):
            rows = paper.MAIN[data, theirs_mde].items()
            figures = {paper.ROWS[m]: row[i] for m, row in rows}
            heads.append(Head((f"the paper: {theirs_mde}", REGIME_TITLES[regime]), {}, 0, figures))
    number = {name: f"Table {i + 1}. " for i, name in enumerate(paper.DATASETS)}.get(data, "")
    return Table(
        _stem("paper", data),
        f"{number}{data}",
        f"Ours: means over images ({'; '.join(counts)}), clamped. Best bold, second underlined, "
        "among these rows; a number of images in brackets where it is not all, without a rank. "
        "[In square brackets] the paper's figures, beside ours where the estimator is the paper's; "
        f"its images are others. {_anchor_counts()} Basis, Basis*, Basis**: K = 8, 30, 50."
        f"{_row_notes(members, set(paper.ROWS))}",
        "Method",
        **metric_columns(heads, paper.ROWS.values()),
    )


def paper_drop_table(runs: Sequence[Run], row: str = "Basis K=8") -> Table | None:
    """Table 3 of the paper, the drop-anchor test: its figures beside those of its estimators."""
    heads = []
    data = {run.results["config"]["dataset"] for run in runs}
    for mde, members in by_mde(runs).items():
        cells, _ = pooled(members, EVERYWHERE)
        ours = {c["condition"]: c for c in first_seeds(cells) if c["method"] == row}
        left = {str(n): ours[f"drop-{n}"] for n in DROP_SEQUENCE if f"drop-{n}" in ours}
        same = data <= set(chain(*paper.DATASETS.values()))
        theirs = paper.DROP.get(members[0].published or "", {}) if same else {}
        if left:
            heads.append(Head((mde,), left, None, {str(n): row for n, row in theirs.items()}))
    if not heads:
        return None
    return Table(
        "paper-drop",
        f"Table 3. Drop-anchor test of {paper.ROWS.get(row, row)}, {together(runs)}",
        "Means over all images, clamped, by the number of anchors left; [in square brackets] the "
        "paper's figures, over its three datasets.",
        "Anchors",
        **metric_columns(heads, [str(n) for n in sorted(DROP_SEQUENCE)]),
    )


def spectral_table(runs: Sequence[Run]) -> Table:
    """η₁, |v₁ᵀg| and the statistics of G₀ with low anchors, by estimator, data and row."""
    rows = [
        (
            f"{run.heading}, {run.dataset}: {s['method']}",
            [*(Cell(s.get(k)) for k in SPECTRAL_TITLES), Cell(float(s["images"]), digits=0)],
        )
        for run in runs
        for s in run.results["spectral"]
        if s["condition"] == "low" and s["group"] == EVERYWHERE
    ]
    theirs = [Cell(text=text) for text in paper.SPECTRAL.values()]
    theirs += [Cell()] * (len(SPECTRAL_TITLES) + 1 - len(theirs))
    return Table(
        "spectral",
        "Spectral structure, low anchors",
        "Medians over images. α₁² / ‖y‖² is the share of the targets' energy along the leading "
        "eigenvector of C. The column after it is the share of images in which |α₁| is the "
        "largest coefficient.",
        "Generator",
        (*((title,) for title in SPECTRAL_TITLES.values()), ("images",)),
        [("the paper: DA3, K = 8", theirs), *rows] if rows else [],
    )


def features_table(runs: Sequence[Run]) -> Table | None:
    """AbsRel with F less that with F = 0 by place, in the mean over the seeds, and a sign test."""
    places = list(dict.fromkeys(g for run in runs for g in run.scores.groups))
    rows = []
    for mde, members in by_mde(runs).items():
        for k, by_place in feature_differences(members).items():
            found = [by_place[place] for place in places if place in by_place]
            better, changed = sum(x < 0 for x in found), sum(x != 0 for x in found)
            p = binomtest(better, changed).pvalue if changed else 1.0
            cells = [Cell(by_place.get(p), text=_signed(by_place.get(p))) for p in places]
            summary = Cell(float(better), text=f"{better} of {len(found)}")
            rows.append((f"{mde}, K = {k}", [*cells, summary, Cell(p, digits=2)]))
    if not rows:
        return None
    return Table(
        "features",
        "AbsRel with F less that with F = 0, by place",
        "Medium anchors, clamped, mean over the images of a place and over the seeds; below zero F "
        "helps. p: two-sided sign test over places, each of which counts once.",
        "Generator",
        (*((place,) for place in places), ("helps in",), ("p",)),
        rows,
    )


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.3f}".replace("-", "−")


def main_table(runs: Sequence[Run], group: str = EVERYWHERE, clamping: str = "clamped") -> Table:
    """Low/Med/High × MDE × method for all rows; runs of one MDE are pooled by image."""
    heads, images = [], {}
    for mde, members in by_mde(runs).items():
        cells, images[mde] = pooled(members, group)
        for regime, short in REGIME_TITLES.items():
            if by_method := _under(regime, cells):
                heads.append(Head((mde, short), by_method, images[mde]))
    counts = "; ".join(f"{mde}: {counted(n, 'image')}" for mde, n in images.items())
    data, raw = together(runs), clamping == "raw"
    place = "all images" if group == EVERYWHERE else group
    return Table(
        name=_stem("main", data, group) + ("-raw" if raw else ""),
        title=f"{data}: {place}{', not clamped' if raw else ''}",
        caption=f"Mean over images ({counts}), {CLAMPING_WORDS[clamping]}. {_anchor_counts()} Best "
        "bold, second underlined; a method with fewer images has their number beside it and no "
        f"rank.{_row_notes(runs)}",
        corner="Method",
        **metric_columns(heads, _first_methods(runs), kind=clamping),
    )


def _anchor_counts() -> str:
    ranges = (f"{REGIME_TITLES[r]} {low}–{high}" for r, (low, high) in REGIMES.items())
    return f"Anchors an image: {', '.join(ranges)}."


def _row_notes(runs: Sequence[Run], only: set[str] | None = None) -> str:
    """Notes on rows: the bandwidth of LWLR, generators that do not use F, one of several seeds."""
    notes = []
    for run in runs:
        bandwidths: dict[tuple[float, float], list[str]] = {}
        for method in run.results["config"]["methods"]:
            options = method["options"]
            if "reference_bandwidth_px" in options and (only is None or method["label"] in only):
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
        for model in row_models(run) if only is None else ():
            if model.without_features and (model.universal or "F = 0" not in model.row):
                notes.append(f"{model.row}: {model.description}")
    if later_seeds(_methods(runs)):
        notes.append("Basis rows are of the first seed of the training; another table has all")
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


def coverage_table(run: Run) -> Table:
    """The coverage of the intervals, by method and group."""
    methods, places = run.scores.methods, (EVERYWHERE, *run.scores.groups)
    cells = [c for c in run.results["cells"] if "coverage" in c and c["condition"] in REGIMES]
    cells.sort(key=lambda c: (methods.index(c["method"]), places.index(c["group"])))
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for c in cells:
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
    rows = [
        (m, [Cell(run.timings.get(f"{m} / {c}"), digits=1) for c in run.regimes])
        for m in run.scores.methods
    ]
    return Table(
        *_named("timing", [run], "milliseconds an image"),
        f"Medians on one thread; the MDE itself took {run.timings.get('mde', 0):.0f} ms.",
        "Method",
        tuple((REGIME_TITLES[c],) for c in run.regimes),
        [row for row in rows if any(c.value is not None for c in row[1])],
    )


def seeds_table(runs: Sequence[Run]) -> Table | None:
    """Mean and standard deviation over the seeds of the training, of one MDE, runs pooled."""
    labels = [about for m in _methods(runs) if (about := basis_label(m))]
    if len({seed for _, _, seed in labels}) < 2:
        return None
    by_regime = {regime: seeds_of(runs, regime) for regime in REGIMES}

    def cell(key: tuple[int, bool], regime: str, metric: str) -> Cell:
        means = [c["clamped"][metric][0] for c in by_regime[regime].get(key, [])]
        if not means:
            return Cell()
        spread = f"± {np.std(means, ddof=1):.3f}" if len(means) > 1 else ""
        note = f"{len(means)} seeds, {min(means):.3f}–{max(means):.3f}"
        return Cell(float(np.mean(means)), note=note, beside=spread)

    return Table(
        *_named("seeds", runs, "generators over seeds"),
        "Mean and standard deviation (n − 1) over the seeds of the training; each is a mean over "
        "images, clamped.",
        "Generator",
        tuple((short, title) for short in REGIME_TITLES.values() for title in MAIN_TITLES.values()),
        [
            (
                f"Basis K={k}{', F = 0' if zero else ''}",
                [cell((k, zero), r, metric) for r in REGIMES for metric in MAIN_METRICS],
            )
            for k, zero in sorted({about[:2] for about in labels}, key=lambda key: key[::-1])
        ],
    )


def models_table(run: Run) -> Table:
    """The model behind each basis row."""
    return Table(
        *_named("models", [run], "models of the rows"),
        "F = 0: the generator sees depth and position. Universal: it comes with the package and "
        "was made for no MDE in particular.",
        "Row",
        (("anchors",), ("model",)),
        [
            (m.row, [Cell(text=", ".join(m.conditions) or "all"), Cell(text=m.description)])
            for m in row_models(run)
        ],
    )


def runs_table(runs: Sequence[Run]) -> Table:
    """What was run: data, estimator with its source and weights, and version."""
    rows = []
    for run in runs:
        config, data = run.results["config"], run.results["data"]
        made = run.results["provenance"]
        words = (
            f"{data['evaluated']} of {data['frames']}", config["split"], run.heading,
            str(config["seed"]), data["sha256"][:12],
            f"{made['scalefield']} ({(made['commit'] or 'no commit')[:10]})",
        )  # fmt: skip
        rows.append((run.dataset, [Cell(text=word) for word in words]))
    titles = ("frames", "split", "estimator = source [weights]", "seed", "data", "scalefield")
    notes = [line for run in runs for line in missing(run.results)[1:]]
    caption = ". ".join([*dict.fromkeys(notes), "Data: sha256 of all frames"]) + "."
    columns = tuple((title,) for title in titles)
    return Table("runs", "What was run", caption, "Data", columns, rows)


def first_page(runs: Sequence[Run]) -> tuple[list[Table], list[Table]]:
    """The paper's tables in its order, and that of its spectrum; none where nothing of a
    reproduction was run."""
    of_paper = {d: title for title, names in paper.DATASETS.items() for d in names}
    data = {of_paper.get(run.results["config"]["dataset"], run.dataset) for run in runs}
    order = [
        *(name for name in paper.DATASETS if name in data),
        *sorted(data - set(paper.DATASETS)),
    ]
    tables = [*(paper_table(runs, name) for name in order), paper_drop_table(runs)]
    return [t for t in tables if t is not None], [t for t in [spectral_table(runs)] if t.rows]


def appendix(runs: Sequence[Run]) -> dict[str, list[Table]]:
    """Every other table for which these runs have values, by section."""
    datasets = list(dict.fromkeys(run.dataset for run in runs))
    by_data = [[run for run in runs if run.dataset == dataset] for dataset in datasets]
    places = [list(dict.fromkeys(g for r in own for g in r.scores.groups)) for own in by_data]
    estimators = list(by_mde(runs).values())
    found: dict[str, list[Table | None]] = {
        "All rows": [
            *(main_table(own) for own in (*by_data, *_averages(runs))),
            *(main_table(own, g) for own, of in zip(by_data, places, strict=True) for g in of
              if len(of) > 1),
        ],
        "F by place": [features_table(runs)],
        "Over seeds": [seeds_table(members) for members in estimators],
        "Number of anchors": [
            *(drop_table(members) for members in estimators if len(datasets) > 1),
            *(drop_table([run]) for run in runs),
        ],
        "Coverage of intervals": [coverage_table(run) for run in runs],
        "What was run": [runs_table(runs)],
        "Models": [models_table(run) for run in runs],
        "Paired tests": [paired_table(run, c) for run in runs for c in run.regimes],
        "All metrics": [
            *(main_table(own, clamping="raw") for own in by_data),
            *(metric_table(run, c, k) for run in runs for c in run.regimes for k in CLAMPING),
        ],
        "Time": [timing_table(run) for run in runs],
    }  # fmt: skip
    return {name: [t for t in tables if t is not None and t.rows] for name, tables in found.items()}


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


def _under(condition: str, cells: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The cells of one condition by method."""
    return {c["method"]: c for c in cells if c["condition"] == condition}


def _named(kind: str, runs: Sequence[Run], title: str, *parts: str) -> tuple[str, str]:
    """Name and title of a table of one MDE; its files are named by kind, data, MDE and parts."""
    about = together(runs), runs[0].mde
    return _stem(kind, *about, *parts), f"{', '.join(about)}: {title}"


def _stem(*parts: str) -> str:
    joined = "-".join(p for p in parts if p != EVERYWHERE)
    return re.sub(r"[^\w.]+", "-", joined.casefold()).strip("-")
