"""`scalefield report`: tables, figures and an HTML page from results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scalefield.benchmark.gallery import read_gallery
from scalefield.benchmark.report import figures
from scalefield.benchmark.report.page import Image, Panel, Section, document, fact_list
from scalefield.benchmark.report.runs import Run, load_run
from scalefield.benchmark.report.table import Table, csv_text, latex, markdown
from scalefield.benchmark.report.tables import all_tables
from scalefield.benchmark.report.text import missing
from scalefield.io import write_atomic

FIGURES = {
    "forest": (figures.forest, "AbsRel with 95 % intervals, best at the top."),
    "anchors": (figures.over_anchors, "Error over the number of anchors."),
    "distance": (
        figures.over_distance,
        "Error over the distance to the nearest anchor, where half of the images reach it.",
    ),
    "reliability": (
        figures.reliability,
        "What intervals cover over what they promise; below the line is too sure. Thin lines are "
        "single places.",
    ),
    "scatter": (figures.scatter, "One point an image; above the line is worse."),
    "ablation": (figures.ablation, "Number of basis maps; grey is the paper's figure."),
    "justification": (
        figures.justification,
        "The scale field that recovery must find, beside the cues it is predicted from.",
    ),
}
"""Figures of a run with their captions; a function returns None if the run has no values for it."""


def write_report(runs: Sequence[Run], out: str | Path, title: str) -> Path:
    """Write report.html, report.md and, a file each, tables (CSV, LaTeX) and figures (PNG, SVG)."""
    out = Path(out)
    tables = all_tables(runs)
    for table in tables:
        write_atomic(out / "tables" / f"{table.name}.csv", csv_text(table).encode())
        write_atomic(out / "tables" / f"{table.name}.tex", latex(table).encode())
    text = "\n".join([f"# {title}\n", *map(markdown, tables)])
    write_atomic(out / "report.md", text.encode())
    page = out / "report.html"
    sections = _sections(runs, tables, out / "figures")
    write_atomic(page, document(title, "".join(map(run_facts, runs)), sections).encode())
    return page


def run_facts(run: Run) -> str:
    """Data, estimator and version of a run, in HTML."""
    data = run.results["data"]
    facts = {
        "dataset": f"{run.dataset}, {data['evaluated']} of {data['frames']} frames",
        "MDE": ", ".join(data["mde"]) or run.mde,
        "places": ", ".join(run.scores.groups),
        "seed": str(run.results["config"]["seed"]),
    }
    return fact_list(facts, run.results, missing(run.results)[1:])


def _sections(runs: Sequence[Run], tables: Sequence[Table], folder: Path) -> list[Section]:
    """The page's contents, from what matters most to what is looked up."""
    drawn = {run.name: _draw(run, folder) for run in runs}

    def single(*kinds: str) -> dict[str, Panel]:
        """A panel for each table of a kind."""
        return {t.title: (t,) for t in tables if t.name.startswith(kinds)}

    def each(figure_names: Sequence[str], *kinds: str) -> dict[str, Panel]:
        """A panel for each run: its figures, with its tables of these kinds under them."""
        panels: dict[str, Panel] = {}
        for name, of_run in drawn.items():
            images = [of_run[f] for f in figure_names if f in of_run]
            own = [t for t in tables if t.name.startswith(kinds) and t.title.startswith(f"{name}:")]
            if images or own:
                panels[name] = (*images, *own)
        return panels

    together: dict[str, Panel] = {}
    if (figure := figures.pooled_ablation(runs)) is not None:
        caption = "Number of basis maps with medium anchors, all datasets; grey is the paper's."
        together["Ablation"] = (_written(figure, folder / "ablation-pooled", caption),)
    pooled = single("drop-", "ablation-")
    together |= {title: panel for title, panel in pooled.items() if " + " in title}
    return [
        Section("Results", single("main-"), _RESULTS_WORDS),
        Section("How sure", each(["forest"])),
        Section("Worst, median and best", _strips(runs), _GALLERY_WORDS),
        Section("Number of anchors", each(["anchors"], "drop-")),
        Section("Distance from anchors", each(["distance"])),
        Section("Coverage of intervals", each(["reliability"], "coverage-"), _COVERAGE_WORDS),
        Section("Image by image", each(["scatter"])),
        Section("Basis maps", each(["ablation", "justification"], "ablation-", "spectral-")),
        Section("All datasets together", together),
        Section("Over seeds", single("seeds-")),
        Section("Beside the paper", single("paper-")),
        Section("Models", single("models-")),
        Section("Paired tests", single("paired-")),
        Section("All metrics", single("metrics-"), _METRICS_WORDS),
        Section("Time", single("timing-")),
    ]


_RESULTS_WORDS = (
    "Every cell is a mean over images; ± is half of its 95 % interval, bootstrapped over blocks of "
    "neighbouring frames. Click a heading to sort."
)
_METRICS_WORDS = (
    "Clamped: predictions are limited to the dataset's depth range before scoring; raw: as the "
    "method gives them."
)
_COVERAGE_WORDS = (
    "For methods with a std_log: an interval of nominal 90 % should cover the true "
    "depth of 90 % of the pixels, in every place, and be no wider than it must."
)
_GALLERY_WORDS = (
    "Images chosen by each method's own AbsRel, clamped. In the error, red is too far and blue too "
    "near; grey is unknown."
)


def _draw(run: Run, folder: Path) -> dict[str, Image]:
    """The run's figures, written as PNG and SVG."""
    place = f"{run.dataset}-{run.mde}".replace(" ", "-").replace("/", "-").replace(":", "-")
    images = {}
    for name, (draw, caption) in FIGURES.items():
        if (figure := draw(run)) is not None:
            # Pictures inside an SVG are large; line art is not.
            shown = "png" if name in ("justification", "scatter") else "svg"
            images[name] = _written(figure, folder / f"{name}-{place}", caption, shown)
    return images


def _written(figure: figures.Figure, path: Path, caption: str, shown: str = "svg") -> Image:
    """Write a figure as PNG and SVG; the value is one of them for the page."""
    data = {s: figures.encode(figure, s, dpi=figures.DPI) for s in ("png", "svg")}
    for suffix, content in data.items():
        write_atomic(path.with_name(f"{path.name}.{suffix}"), content)
    figures.pyplot().close(figure)
    return Image(data[shown], figures.MIME[shown], caption)


def _strips(runs: Sequence[Run]) -> dict[str, Panel]:
    """The worst, median and best image of each method."""
    panels: dict[str, Panel] = {}
    for run in runs:
        for entry, picture, depth_m in read_gallery(run.folder):
            source = f"{entry.condition} anchors, {entry.name}"
            caption = f"{entry.rank}: AbsRel {entry.abs_rel:.3f}, {source}"
            figure, alt = figures.strip(picture, depth_m), f"{entry.method}, {caption}"
            image = figures.photographic(figure, caption, alt)
            name = f"{run.name}: {entry.method}"
            panels[name] = (*panels.get(name, ()), image)
    return panels
