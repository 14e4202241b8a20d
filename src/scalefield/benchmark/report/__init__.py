"""`scalefield report`: tables, figures and an HTML page from results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalefield.benchmark.gallery import read_gallery
from scalefield.benchmark.report import figures
from scalefield.benchmark.report.page import Image, Panel, Section, document, run_facts
from scalefield.benchmark.report.runs import Run, load_run
from scalefield.benchmark.report.tables import Table, all_tables
from scalefield.benchmark.report.text import csv_text, latex, markdown
from scalefield.io import write_atomic


def write_report(runs: Sequence[Run], out: str | Path, title: str) -> Path:
    """Write report.html, report.md and, a file each, tables (CSV, LaTeX) and figures (PNG, SVG)."""
    out = Path(out)
    tables = all_tables(runs)
    for table in tables:
        write_atomic(out / "tables" / f"{table.name}.csv", csv_text(table).encode())
        write_atomic(out / "tables" / f"{table.name}.tex", latex(table).encode())
    text = "\n".join([f"# {title}\n", *(markdown(table) for table in tables)])
    write_atomic(out / "report.md", text.encode())
    page = out / "report.html"
    drawn = {run.name: _draw(run, out) for run in runs}
    sections = _sections(runs, tables, drawn, out)
    write_atomic(page, document(title, run_facts(runs), sections).encode())
    return page


def _sections(
    runs: Sequence[Run], tables: Sequence[Table], drawn: dict[str, dict[str, Image]], out: Path
) -> list[Section]:
    """The page's contents, from what matters most to what is looked up."""

    def single(*kinds: str) -> dict[str, Panel]:
        """A panel for each table of a kind."""
        return {t.title: Panel(tables=(t,)) for t in tables if t.name.startswith(kinds)}

    def each(figure_names: Sequence[str], *kinds: str) -> dict[str, Panel]:
        """A panel for each run: its figures, with its tables of these kinds under them."""
        panels = {}
        for name, figures_of in drawn.items():
            chosen = tuple(figures_of[f] for f in figure_names if f in figures_of)
            own = tuple(
                t for t in tables if t.name.startswith(kinds) and t.title.startswith(f"{name}:")
            )
            if chosen or own:
                panels[name] = Panel(chosen, own)
        return panels

    pooled = [t for t in tables if " + " in t.title and t.name.startswith(("drop-", "ablation-"))]
    together = {t.title: Panel(tables=(t,)) for t in pooled}
    if (figure := figures.pooled_ablation(runs)) is not None:
        caption = "Number of basis maps with medium anchors, all datasets; grey is the paper's."
        image = _written(figure, out / "figures" / "ablation-pooled", caption)
        together = {"Ablation": Panel((image,)), **together}
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


def _draw(run: Run, out: Path) -> dict[str, Image]:
    """The run's figures, written as PNG and SVG."""
    made: dict[str, tuple[Any, str]] = {
        "forest": (figures.forest(run), "AbsRel with 95 % intervals, best at the top."),
        "anchors": (figures.over_anchors(run), "Error over the number of anchors."),
        "distance": (
            figures.over_distance(run),
            "Error over the distance to the nearest anchor, where half of the images reach it.",
        ),
        "reliability": (
            figures.reliability(run),
            "What intervals cover over what they promise; below the line is too sure. Thin lines "
            "are single places.",
        ),
        "scatter": (figures.scatter(run), "One point an image; above the line is worse."),
        "ablation": (figures.ablation(run), "Number of basis maps; grey is the paper's figure."),
    }
    shown = [entry for entry in read_gallery(run.folder) if entry[0].rank == "median"]
    if shown:
        entry, picture, _ = shown[0]
        made["justification"] = (
            figures.justification(picture, entry.name),
            "The scale field that recovery must find, beside the cues it is predicted from.",
        )
    images = {}
    for name, (figure, caption) in made.items():
        if figure is None:
            continue
        # Pictures inside an SVG are large; line art is not.
        kind = "png" if name in ("justification", "scatter") else "svg"
        images[name] = _written(figure, out / "figures" / f"{name}-{_place(run)}", caption, kind)
    return images


def _written(figure: Any, path: Path, caption: str, shown: str = "svg") -> Image:
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
            figure = figures.strip(entry, picture, depth_m)
            source = f"{entry.condition} anchors, {entry.name}"
            caption = f"{entry.rank}: AbsRel {entry.abs_rel:.3f}, {source}"
            name = f"{run.name}: {entry.method}"
            alt, quality = f"{entry.method}, {caption}", {"quality": 82}
            image = figures.drawn(figure, "jpeg", caption, alt, dpi=110, pil_kwargs=quality)
            panels[name] = Panel((*panels.get(name, Panel()).figures, image))
    return panels


def _place(run: Run) -> str:
    return f"{run.dataset}-{run.mde}".replace(" ", "-").replace("/", "-").replace(":", "-")
