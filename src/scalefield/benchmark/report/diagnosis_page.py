"""A diagnosis as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from scalefield.benchmark.diagnosis import PARTS
from scalefield.benchmark.diagnosis_summary import worst
from scalefield.benchmark.report.advice import advice, extremes, percent
from scalefield.benchmark.report.diagnosis_figures import (
    FAMILIES,
    PART_COLOURS,
    Picture,
    bin_figure,
    curve_figure,
    group_figure,
    left_figure,
    map_figure,
    strip_figure,
)
from scalefield.benchmark.report.figures import drawn
from scalefield.benchmark.report.page import Image, Panel, Section, asset_text, document, fact_list
from scalefield.benchmark.report.tables import Cell, Table
from scalefield.io import write_atomic

WORST_FRAMES = 20


def ranked(summary: dict[str, Any]) -> dict[str, str]:
    """Names of the worst, median and best frame by rank; each frame once."""
    rows = worst(summary)
    chosen = {"worst": rows[0], "median": rows[len(rows) // 2], "best": rows[-1]}
    names: dict[str, str] = {}
    for rank, row in chosen.items():
        if row["name"] not in names.values():
            names[rank] = row["name"]
    return names


def write_page(
    diagnosis: dict[str, Any], out: str | Path, pictures: Sequence[Picture] = ()
) -> Path:
    """Write diagnosis.html from what diagnosis.json holds."""
    figures = {
        "left": (
            left_figure(diagnosis),
            "What is left of the error after each step, from the left.",
        ),
        "curve": (
            curve_figure(diagnosis),
            "The MDE's error over its own depth relative to the image's mean, scale removed: the "
            "line is the same in all images, the band holds 80 % of the images' own curves.",
        ),
        "maps": (
            map_figure(diagnosis),
            "Over the image, all frames together, scale removed; red is too far, blue too near. "
            "The function of the position is what depth does not explain.",
        ),
        "bins": (bin_figure(diagnosis), "Error once each image has its scale."),
        "groups": (group_figure(diagnosis), "What the error is made of in each place."),
    }
    shown = {name: drawn(figure, "svg", caption) for name, (figure, caption) in figures.items()}
    strips = {f"{p.rank}: {p.name}": Panel((_strip(p),)) for p in pictures}
    sections = [
        Section("What would remove it", {"": Panel((shown["left"],), (_part_table(diagnosis),))}),
        Section("With depth", {"": Panel((shown["curve"],))}, _depth_words(diagnosis)),
        Section("Over the image", {"": Panel((shown["maps"],))}),
        Section(
            "Where it is worst",
            {"": Panel((shown["bins"],), (_frame_table(diagnosis),))},
            " ".join(extremes(diagnosis)),
        ),
        Section("By place", {"": Panel((shown["groups"],), (_group_table(diagnosis),))}),
        Section("Frames taken apart", strips, _STRIP_WORDS),
    ]
    config = diagnosis["config"]
    title = f"What is wrong with {config['mde']}’s depth on {config['name']}"
    page = Path(out) / "diagnosis.html"
    write_atomic(page, document(title, _introduction(diagnosis), sections).encode())
    return page


_STRIP_WORDS = (
    "The error of single frames without their scale, and the parts that add up to it. Red is too "
    "far, blue too near, grey unknown."
)


def _introduction(diagnosis: dict[str, Any]) -> str:
    """The source of the numbers, the error as one bar, and the advice, in HTML."""
    config, data, origin = (diagnosis[key] for key in ("config", "data", "provenance"))
    facts = (
        ("dataset", f"{config['name']}, {data['diagnosed']} of {data['frames']} frames"),
        ("splits", ", ".join(config["splits"])),
        ("MDE", ", ".join(data["mde"])),
        ("error, root mean square", percent(diagnosis["total_rms_log"])),
        ("data", f"sha256 {data['sha256'][:12]}"),
        ("scalefield", f"{origin['scalefield']} ({(origin['commit'] or 'no commit')[:10]})"),
    )
    notes = [f"no result for {m['name']}: {m['error']}" for m in data["missing"]]
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in advice(diagnosis))
    about = f"<style>\n{asset_text('diagnosis_page.css')}</style>{fact_list(facts, notes)}"
    bars = _bar(diagnosis, "share", "The squared log error") + _bar(
        diagnosis, "share_without_scale", "Once each image has its scale"
    )
    return f"{about}{bars}<ul class=advice>{items}</ul>"


def _bar(summary: dict[str, Any], column: str, title: str) -> str:
    """Shares as one bar, with a legend under it."""
    share = {row["part"]: row[column] for row in summary["parts"]}
    blocks = "".join(
        f'<i style="flex:{100 * share[p]:.3f} 0 0;background:{PART_COLOURS[p]}"'
        f' title="{escape(PARTS[p], quote=True)}: {100 * share[p]:.1f} %"></i>'
        for p in PARTS
        if share[p] > 0
    )
    legend = "".join(
        f'<span><b style="background:{PART_COLOURS[parts[0]]}"></b>{escape(family)} '
        f"<em>{100 * sum(share[p] for p in parts):.0f} %</em></span>"
        for family, parts in FAMILIES.items()
        if any(share[p] > 0 for p in parts)
    )
    return f"<h3>{escape(title)}</h3><div class=bar>{blocks}</div><p class=legend>{legend}</p>"


def _strip(picture: Picture) -> Image:
    size = percent(picture.rms_log)
    caption = f"{picture.name}: {size} without scale; colours in per cent"
    figure = strip_figure(picture)
    return drawn(figure, "jpeg", caption, dpi=110, pil_kwargs={"quality": 84})


def _depth_words(summary: dict[str, Any]) -> str:
    slope = summary["slope"]
    return (
        f"True depth goes like the MDE's to the power of {1 + slope['mean']:.2f} ± "
        f"{slope['std']:.2f} over images. {100 * summary['of_depth']['common']:.0f} % of what "
        "follows depth is the same in every image."
    )


def _percent_cell(value: float) -> Cell:
    return Cell(100 * float(value), digits=1)


def _part_table(summary: dict[str, Any]) -> Table:
    rows = tuple(
        (
            row["title"],
            (
                _percent_cell(row["share"]),
                _percent_cell(row["share_without_scale"]) if row["part"] != "scale" else Cell(None),
                _percent_cell(np.expm1(row["rms_log"])),
                _percent_cell(np.expm1(row["left_rms_log"]))
                if row["part"] != "rest"
                else Cell(None),
            ),
        )
        for row in summary["parts"]
    )
    return Table(
        "parts",
        "Parts, in the order in which they are taken out",
        "Share of the squared log error, and of what the scale leaves of it; size of the part; "
        "error left after it and all before it. "
        "The unit common to all images is taken out first and belongs to no part.",
        "Part",
        (("share [%]",), ("after scale [%]",), ("size [%]",), ("left [%]",)),
        rows,
    )


def _group_table(summary: dict[str, Any]) -> Table:
    rows = tuple(
        (
            row["group"],
            (
                Cell(float(row["images"]), digits=0),
                _percent_cell(np.expm1(row["rms_log"])),
                *(
                    _percent_cell(sum(row["shares"][p] for p in parts))
                    for parts in FAMILIES.values()
                ),
            ),
        )
        for row in summary["groups"]
    )
    titles = (("images",), ("error [%]",), *((f"{name} [%]",) for name in FAMILIES))
    return Table("places", "Shares by place", "Every image counts the same.", "Place", titles, rows)


def _frame_table(summary: dict[str, Any]) -> Table:
    rows = []
    for row in worst(summary)[:WORST_FRAMES]:
        own = {n: sum(row[p] for p in parts) for n, parts in FAMILIES.items() if n != "scale"}
        total = sum(own.values())
        cells = [_percent_cell(np.expm1(row["rms_log_without_scale"]))]
        cells += [_percent_cell(x / total if total > 0 else 0.0) for x in own.values()]
        rows.append((row["name"], tuple(cells)))
    titles = tuple((f"{name} [%]",) for name in FAMILIES if name != "scale")
    return Table(
        "frames",
        f"The {len(rows)} worst frames",
        "Error once the scale is right, and what it is made of.",
        "Frame",
        (("error [%]",), *titles),
        tuple(rows),
    )
