"""`scalefield report`: tables, figures and an HTML page from results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from scalefield.benchmark.gallery import read_gallery
from scalefield.benchmark.report import figures
from scalefield.benchmark.report.page import Image, Panel, Section, document, inline
from scalefield.benchmark.report.runs import Run, load_run
from scalefield.benchmark.report.table import csv_text, latex, markdown
from scalefield.benchmark.report.tables import appendix, first_page
from scalefield.io import write_atomic


def write_report(
    runs: Sequence[Run], out: str | Path, title: str, notes: Sequence[str] = ()
) -> Path:
    """Write report.html, report.md and, a file each, tables (CSV, LaTeX), figures (PNG, SVG) and
    the pictures of the gallery; `notes` stand under the title.

    The paper's tables and figures come first, if generators by its recipe were evaluated.
    """
    out = Path(out)
    (tables, spectrum), others = first_page(runs), appendix(runs)
    for table in [*tables, *spectrum, *chain(*others.values())]:
        write_atomic(out / "tables" / f"{table.name}.csv", csv_text(table).encode())
        write_atomic(out / "tables" / f"{table.name}.tex", latex(table).encode())
    head = [f"# {title}\n", *(f"{note}\n" for note in notes), *map(markdown, [*tables, *spectrum])]
    text = [*head, *(["## Appendix\n"] if tables else []), *map(markdown, chain(*others.values()))]
    write_atomic(out / "report.md", "\n".join(text).encode())

    of_runs = {section: _figures(runs, name, out) for name, (section, *_) in figures.OF_RUN.items()}
    sections = [
        Section("The paper's tables", {"": tuple(tables)} if tables else {}),
        Section("Ablation", _ablation(runs, out)),
        Section("Spectrum", {"": tuple(spectrum)} if spectrum else {}),
        Section(figures.CUES, of_runs.pop(figures.CUES)),
        Section("Explanations", _explanations(runs, out), _EXPLAINED),
        *(
            Section(
                name, of_runs.pop(name, {}) | {t.title: (t,) for t in found}, WORDS.get(name, "")
            )
            for name, found in others.items()
        ),
        *(Section(name, panels) for name, panels in of_runs.items()),
        Section("Worst, median and best", _gallery(runs, out), _CHOSEN),
    ]
    page = out / "report.html"
    write_atomic(page, document(title, sections, notes=notes).encode())
    return page


WORDS = {
    "All rows": "Every cell is a mean over images; ± is half of its 95 % interval, bootstrapped "
    "over blocks of neighbouring frames. Click a heading to sort.",
    "All metrics": "Clamped: predictions are limited to the dataset's depth range before scoring; "
    "raw: as the method gives them.",
    "Coverage of intervals": "For methods with a std_log: an interval of nominal 90 % should cover "
    "the true depth of 90 % of the pixels, in every place, and be no wider than it must.",
}
_EXPLAINED = "What the log-scale field of a method's median image is made of."
_CHOSEN = (
    "Images chosen by each method's own AbsRel, clamped. In the error, red is too far and blue too "
    "near; grey is unknown."
)


def _ablation(runs: Sequence[Run], out: Path) -> dict[str, Panel]:
    figure = figures.ablation(runs)
    caption = "Number of basis maps with medium anchors, all datasets; grey is the paper's."
    path = out / "figures" / "ablation"
    return {} if figure is None else {"": (_written(figure, path, caption, "svg"),)}


def _figures(runs: Sequence[Run], name: str, out: Path) -> dict[str, Panel]:
    """A figure of each run that has values for it."""
    _, draw, shown, caption = figures.OF_RUN[name]
    found = ((run, draw(run)) for run in runs)
    return {
        run.name: (_written(f, out / "figures" / _stem(name, run.name), caption, shown),)
        for run, f in found
        if f is not None
    }


def _written(figure: figures.Figure, path: Path, caption: str, shown: str) -> Image:
    """Write a figure as PNG and SVG; the value is one of them for the page."""
    data = {suffix: figures.encode(figure, suffix, dpi=figures.DPI) for suffix in ("png", "svg")}
    for suffix, content in data.items():
        write_atomic(path.with_name(f"{path.name}.{suffix}"), content)
    figures.pyplot().close(figure)
    return Image(inline(data[shown], figures.MIME[shown]), caption)


def _explanations(runs: Sequence[Run], out: Path) -> dict[str, Panel]:
    """The explanations that `write_gallery` kept, as files beside the page."""
    panels: dict[str, Panel] = {}
    for run in runs:
        for entry, *_ in read_gallery(run.folder):
            if entry.explanation_file:
                name = f"gallery/{_stem(run.name, entry.explanation_file)}"
                write_atomic(
                    out / name, (run.folder / "gallery" / entry.explanation_file).read_bytes()
                )
                caption = f"{entry.condition} anchors, {entry.name}"
                panels[f"{run.name}: {entry.method}"] = (Image(name, caption),)
    return panels


def _gallery(runs: Sequence[Run], out: Path) -> dict[str, Panel]:
    """The worst, median and best image of each method, as files beside the page."""
    panels: dict[str, Panel] = {}
    for run in runs:
        for entry, picture, depth_m in read_gallery(run.folder):
            name = f"gallery/{_stem(run.name, entry.method, entry.rank)}.jpg"
            figure = figures.strip(picture, depth_m)
            write_atomic(out / name, figures.encode(figure, "jpeg", **figures.PHOTOGRAPHIC))
            figures.pyplot().close(figure)
            source = f"{entry.condition} anchors, {entry.name}"
            caption = f"{entry.rank}: AbsRel {entry.abs_rel:.3f}, {source}"
            shown = panels.setdefault(f"{run.name}: {entry.method}", ())
            panels[f"{run.name}: {entry.method}"] = (*shown, Image(name, caption, entry.method))
    return panels


def _stem(*parts: str) -> str:
    """A file name of the parts; * stays apart from no star."""
    joined = "-".join(parts).replace("*", "star")
    return re.sub(r"[^\w.=]+", "-", joined).strip("-")
