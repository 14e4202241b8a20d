"""`scalefield report`: results in; tables, figures and a page to look at out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalefield.files import write_atomic
from scalefield.gallery import read_gallery
from scalefield.report import figures
from scalefield.report.page import Image, Section, render
from scalefield.report.tables import (
    Run,
    Table,
    ablation_table,
    all_tables,
    drop_table,
    load_run,
    paired_table,
    spectral_table,
    timing_table,
)
from scalefield.report.text import csv_text, latex, markdown
from scalefield.sampling import REGIMES

__all__ = ["load_run", "write_report"]


def write_report(runs: Sequence[Run], out: str | Path, title: str) -> Path:
    """Write report.html, report.md and, a file each, tables (CSV, LaTeX) and figures (PNG, SVG)."""
    out = Path(out)
    tables = all_tables(runs)
    for table in tables:
        write_atomic(out / "tables" / f"{table.name}.csv", csv_text(table).encode())
        write_atomic(out / "tables" / f"{table.name}.tex", latex(table).encode())
    text = "\n".join([f"# {title}\n", *(markdown(table) for table in tables)])
    write_atomic(out / "report.md", text.encode())
    drawn = {run.folder: _draw(run, out) for run in runs}
    sections = [
        Section(
            "Results",
            "Every cell is a mean over images; ± is half of its 95 % interval, bootstrapped over "
            "blocks of neighbouring frames. Click a heading to sort.",
            tables=tuple(t for t in tables if t.name.startswith("main-")),
        ),
        Section(
            "All datasets together",
            tables=tuple(
                t for t in tables if " + " in t.title and t.name.startswith(("drop-", "ablation-"))
            ),
        ),
        *(section for run in runs for section in _sections(run, drawn[run.folder], len(runs) > 1)),
        Section(
            "All metrics",
            "p is predicted and t true depth. Clamped: predictions are limited to the dataset's "
            "depth range before scoring; raw: as the method gives them.",
            tables=tuple(t for t in tables if t.name.startswith("metrics-")),
        ),
        Section("Beside the paper", tables=tuple(t for t in tables if t.name.startswith("paper-"))),
    ]
    page = out / "report.html"
    write_atomic(page, render(title, runs, sections).encode())
    return page


def _draw(run: Run, out: Path) -> dict[str, Image]:
    """The run's figures, written as PNG and SVG."""
    made: dict[str, tuple[Any, str]] = {
        "forest": (figures.forest(run), "AbsRel with 95 % intervals, best at the top."),
        "anchors": (figures.over_anchors(run), "Error over the number of anchors."),
        "distance": (
            figures.over_distance(run),
            "Error over the distance to the nearest anchor, where half of the images reach it.",
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
        for suffix in ("png", "svg"):
            data = figures.encode(figure, suffix, dpi=figures.DPI)
            path = out / "figures" / f"{name}-{_place(run)}.{suffix}"
            write_atomic(path, data)
        # Pictures inside an SVG are large; line art is not.
        kind = "png" if name in ("justification", "scatter") else "svg"
        data = (out / "figures" / f"{name}-{_place(run)}.{kind}").read_bytes()
        mime = "image/png" if kind == "png" else "image/svg+xml"
        images[name] = Image(data, mime, caption)
        figures.pyplot().close(figure)
    return images


def _sections(run: Run, drawn: dict[str, Image], several: bool) -> list[Section]:
    suffix = f" · {run.dataset}, {run.mde}" if several else ""

    def some(*names: str) -> tuple[Image, ...]:
        return tuple(drawn[name] for name in names if name in drawn)

    def known(*tables: Table | None) -> tuple[Table, ...]:
        return tuple(table for table in tables if table is not None)

    regimes = [c for c in run.scores.conditions if c in REGIMES]
    return [
        Section(f"How sure{suffix}", figures=some("forest")),
        Section(f"Worst, median and best{suffix}", _GALLERY_WORDS, chosen=_strips(run)),
        Section(
            f"Number of anchors{suffix}", figures=some("anchors"), tables=known(drop_table([run]))
        ),
        Section(f"Distance from anchors{suffix}", figures=some("distance")),
        Section(f"Image by image{suffix}", figures=some("scatter")),
        Section(
            f"Basis maps{suffix}",
            figures=some("ablation", "justification"),
            tables=known(ablation_table([run]), spectral_table(run)),
        ),
        Section(f"Paired tests{suffix}", tables=known(*(paired_table(run, c) for c in regimes))),
        Section(f"Time{suffix}", tables=known(timing_table(run))),
    ]


_GALLERY_WORDS = (
    "Images chosen by each method's own AbsRel, clamped. In the error, red is too far and blue too "
    "near; grey is unknown."
)


def _strips(run: Run) -> dict[str, tuple[Image, ...]]:
    chosen: dict[str, tuple[Image, ...]] = {}
    for entry, picture, depth_m in read_gallery(run.folder):
        figure = figures.strip(entry, picture, depth_m)
        data = figures.encode(figure, "jpeg", dpi=110, pil_kwargs={"quality": 82})
        figures.pyplot().close(figure)
        caption = (
            f"{entry.rank}: AbsRel {entry.abs_rel:.3f}, {entry.condition} anchors, {entry.name}"
        )
        chosen[entry.method] = (
            *chosen.get(entry.method, ()),
            Image(data, "image/jpeg", caption, f"{entry.method}, {caption}"),
        )
    return chosen


def _place(run: Run) -> str:
    return f"{run.dataset}-{run.mde}".replace(" ", "-").replace("/", "-").replace(":", "-")
