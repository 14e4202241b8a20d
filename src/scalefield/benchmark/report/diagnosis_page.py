"""A diagnosis as one HTML page: what is left after each part, where the error is, and frames whose
error is split into parts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from scalefield.benchmark.diagnosis import DEPTH_PARTS, PARTS, REGION_PARTS, Pixels, decompose
from scalefield.benchmark.diagnosis_summary import worst
from scalefield.benchmark.gallery import RANKS, WIDTH, reduce
from scalefield.benchmark.report.advice import advice, extremes, frequent, percent, span
from scalefield.benchmark.report.figures import (
    COLOURS,
    Figure,
    drawn,
    legend_beside,
    photographic,
    pyplot,
    show_map,
)
from scalefield.benchmark.report.page import Section, document, fact_list
from scalefield.benchmark.report.table import Cell, Table
from scalefield.datasets import Frame
from scalefield.io import write_atomic
from scalefield.mde import MDEOutput

FAMILIES = {
    "scale": ("scale",),
    "depth": DEPTH_PARTS,
    "position": ("position",),
    "regions": REGION_PARTS,
    "edges and noise": ("rest",),
}
"""Parts that are shown in shades of one colour."""
AFTER_SCALE = {name: parts for name, parts in FAMILIES.items() if name != "scale"}
PART_COLOURS = {
    "scale": "#0072B2",
    **dict(zip(DEPTH_PARTS, ("#D55E00", "#E69F00", "#F2CC7A"), strict=True)),
    "position": "#009E73",
    **dict(zip(REGION_PARTS, ("#5E4FA2", "#8E82C3", "#C0B8E0"), strict=True)),
    "rest": "#8A8F94",
}
LEAST_LIMIT = 10.0
"""Per cent at which the colours of a frame's errors end at the earliest."""
WORST_FRAMES = 20


@dataclass(frozen=True, eq=False)
class Picture:
    """One frame with its error in parts, reduced in size; it shows the dataset's image."""

    rank: str
    name: str
    rms_log: float
    image: UInt8[np.ndarray, "h w 3"]
    errors: dict[str, Float[np.ndarray, "h w"]]
    """log D_MDE − log D without the image's scale, whole and by family; NaN where unknown."""


def take_apart(frame: Frame, mde_output: MDEOutput, rank: str) -> Picture:
    """The picture of a frame."""
    known = frame.mask & mde_output.valid.cpu().numpy()
    mde_depth = mde_output.mde_depth.cpu().numpy()
    pixels = Pixels.of(frame.depth_m, mde_depth, known, every=True)
    parts = decompose(pixels).parts
    factor = -(-known.shape[1] // WIDTH)
    whole = pixels.y - parts["scale"]
    values = {"error": whole}
    values |= {n: sum((parts[p] for p in each), np.zeros(())) for n, each in AFTER_SCALE.items()}
    errors = {}
    for name, each in values.items():
        full = np.full(known.shape, np.nan)
        full[pixels.rows, pixels.columns] = -each
        errors[name] = reduce(full, factor)
    rms_log = float(np.square(whole).mean() ** 0.5)
    return Picture(rank, frame.name, rms_log, frame.image[::factor, ::factor], errors)


def ranked(summary: dict[str, Any]) -> dict[str, str]:
    """Names of the worst, median and best frame by rank; each frame once."""
    rows = worst(summary)
    names: dict[str, str] = {}
    for rank, row in zip(RANKS, (rows[0], rows[len(rows) // 2], rows[-1]), strict=True):
        if row["name"] not in names.values():
            names[rank] = row["name"]
    return names


def write_page(
    diagnosis: dict[str, Any], out: str | Path, pictures: Sequence[Picture] = ()
) -> Path:
    """Write diagnosis.html from what diagnosis.json holds."""

    def section(
        title: str, figure: Figure, caption: str, *tables: Table, words: str = ""
    ) -> Section:
        return Section(title, {"": (drawn(figure, "svg", caption), *tables)}, words)

    slope, of_depth = diagnosis["slope"], diagnosis["of_depth"]
    strips = {
        f"{p.rank}: {p.name}": (
            photographic(
                strip_figure(p),
                f"{p.name}: {percent(p.rms_log)} without scale; colours in per cent",
            ),
        )
        for p in pictures
    }
    sections = [
        section(
            "What would remove it",
            left_figure(diagnosis),
            "What is left of the error after each step, from the left.",
            part_table(diagnosis),
        ),
        section(
            "With depth",
            curve_figure(diagnosis),
            "The MDE's error over its own depth relative to the image's mean, scale removed: the "
            "line is the same in all images, the band holds 80 % of the images' own curves.",
            words=f"True depth goes like the MDE's to the power of {1 + slope['mean']:.2f} ± "
            f"{slope['std']:.2f} over images. {100 * of_depth['common']:.0f} % of what "
            "follows depth is the same in every image.",
        ),
        section(
            "Over the image",
            map_figure(diagnosis),
            "Over the image, all frames together, scale removed; red is too far, blue too near. "
            "The function of the position is what depth does not explain.",
        ),
        section(
            "Where it is worst",
            bin_figure(diagnosis),
            "Error once each image has its scale.",
            frame_table(diagnosis),
            words=" ".join(extremes(diagnosis)),
        ),
        section(
            "By place",
            group_figure(diagnosis),
            "What the error is made of in each place.",
            group_table(diagnosis),
        ),
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
    config, data = diagnosis["config"], diagnosis["data"]
    facts = {
        "dataset": f"{config['name']}, {data['diagnosed']} of {data['frames']} frames",
        "splits": ", ".join(config["splits"]),
        "MDE": ", ".join(data["mde"]),
        "error, root mean square": percent(diagnosis["total_rms_log"]),
    }
    notes = [f"no result for {m['name']}: {m['error']}" for m in data["missing"]]
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in advice(diagnosis))
    return (
        fact_list(facts, diagnosis, notes)
        + _bar(diagnosis, "share", "The squared log error")
        + _bar(diagnosis, "share_without_scale", "Once each image has its scale")
        + f"<ul class=advice>{items}</ul>"
    )


def _bar(summary: dict[str, Any], column: str, title: str) -> str:
    """Shares as one bar, with a legend under it."""
    share = {row["part"]: row[column] for row in summary["parts"]}
    blocks = "".join(
        f'<i style="flex:{100 * share[p]:.3f} 0 0;background:{PART_COLOURS[p]}"'
        f' title="{escape(PARTS[p])}: {100 * share[p]:.1f} %"></i>'
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


def _percents(values: Iterable[float | None]) -> list[Cell]:
    return [Cell(None if x is None else 100 * float(x), digits=1) for x in values]


def part_table(summary: dict[str, Any]) -> Table:
    """Share and size of each part, and the error left after it."""
    return Table(
        "parts",
        "Parts, in the order in which they are taken out",
        "Share of the squared log error, and of what the scale leaves of it; size of the part; "
        "error left after it and all before it. "
        "The unit common to all images is taken out first and belongs to no part.",
        "Part",
        (("share [%]",), ("after scale [%]",), ("size [%]",), ("left [%]",)),
        [
            (
                row["title"],
                _percents(
                    [
                        row["share"],
                        row["share_without_scale"] if row["part"] != "scale" else None,
                        np.expm1(row["rms_log"]),
                        np.expm1(row["left_rms_log"]) if row["part"] != "rest" else None,
                    ]
                ),
            )
            for row in summary["parts"]
        ],
    )


def group_table(summary: dict[str, Any]) -> Table:
    """Error of each place, and what it is made of."""
    rows = []
    for row in summary["groups"]:
        shares = (sum(row["shares"][p] for p in parts) for parts in FAMILIES.values())
        percents = _percents([np.expm1(row["rms_log"]), *shares])
        rows.append((row["group"], [Cell(float(row["images"]), digits=0), *percents]))
    titles = (("images",), ("error [%]",), *((f"{name} [%]",) for name in FAMILIES))
    return Table("places", "Shares by place", "Every image counts the same.", "Place", titles, rows)


def frame_table(summary: dict[str, Any]) -> Table:
    """Error of the worst frames, and what it is made of."""
    rows = []
    for row in worst(summary)[:WORST_FRAMES]:
        own = [sum(row[p] for p in parts) for parts in AFTER_SCALE.values()]
        shares = (x / sum(own) if sum(own) > 0 else 0.0 for x in own)
        rows.append((row["name"], _percents([np.expm1(row["rms_log_without_scale"]), *shares])))
    return Table(
        "frames",
        f"The {len(rows)} worst frames",
        "Error once the scale is right, and what it is made of.",
        "Frame",
        (("error [%]",), *((f"{name} [%]",) for name in AFTER_SCALE)),
        rows,
    )


def left_figure(summary: dict[str, Any]) -> Figure:
    """Error left after each step, as bars that fall."""
    figure, axis = pyplot().subplots(figsize=(10.5, 3.1))
    rows = [r for r in summary["parts"] if r["part"] != "rest"]
    left = [summary["total_rms_log"], *(r["left_rms_log"] for r in rows)]
    heights = [100 * np.expm1(x) for x in left]
    colours = ["#3b4148", *(PART_COLOURS[r["part"]] for r in rows)]
    bars = axis.bar(range(len(heights)), heights, color=colours, width=0.66)
    labels = [f"{h:.1f} %" if h < 10 else f"{h:.0f} %" for h in heights]
    axis.bar_label(bars, labels, padding=2, fontsize=8)
    names = ["as it is", *(f"− {r['title'].lower()}" for r in rows)]
    axis.set_xticks(range(len(names)), [textwrap.fill(name, 13) for name in names], fontsize=8)
    axis.set_ylabel("error left [%]")
    _grid_behind(axis, "y")
    axis.margins(y=0.12)
    return figure


def curve_figure(summary: dict[str, Any]) -> Figure:
    """Error over the MDE's log-depth."""
    figure, axis = pyplot().subplots(figsize=(7.4, 3.3))
    rows = summary["curve"]
    x = np.exp([r["log_depth"] for r in rows])
    common, low, high = (100 * np.expm1([r[k] for r in rows]) for k in ("common", "p10", "p90"))
    axis.axhline(0, color="#999999", lw=0.8)
    band, line = PART_COLOURS["shift"], PART_COLOURS["power"]
    axis.fill_between(x, low, high, color=band, alpha=0.22, lw=0, label="80 % of images")
    axis.plot(x, common, color=line, lw=2, marker="o", ms=3.5, label="all images")
    axis.set_xscale("log")
    ticks = [t for t in (0.125, 0.25, 0.5, 1, 2, 4, 8) if x.min() <= t <= x.max()]
    axis.set_xticks(ticks, [f"{t:g} ×" for t in ticks])
    axis.minorticks_off()
    axis.set(xlabel="the MDE's depth, relative to its mean in the image", ylabel="too far [%]")
    sizes = np.abs(np.concatenate([common, low, high]))
    reach = max(2 * float(np.quantile(sizes, 0.8)), 1.0)
    if sizes.max() > 2 * reach:  # a few outlying bins would flatten the rest
        axis.set_ylim(-min(reach, 100.0), reach)
        axis.set_title(f"values up to {sizes.max():.0f} % leave the frame", fontsize=8)
    axis.legend(fontsize=8)
    return figure


def map_figure(summary: dict[str, Any]) -> Figure:
    """The common function of the position, mean error and its size over the image."""
    panels = (
        # The function is smooth, and known between the cells too; what was measured is not.
        ("function of the position [%]", summary["map"], "RdBu_r", "bicubic"),
        ("mean error [%]", summary["places"]["bias_log"], "RdBu_r", "nearest"),
        ("size of the error [%]", summary["places"]["rms_log"], "magma_r", "nearest"),
    )
    figure, axes = pyplot().subplots(1, 3, figsize=(10.8, 2.75))
    for axis, (title, values, colours, blend) in zip(axes, panels, strict=True):
        shown = 100 * np.expm1(np.array(values, float))
        most = max(float(np.nanquantile(np.abs(shown), 0.98)), 1.0)
        low = -most if colours == "RdBu_r" else 0
        looks: dict[str, Any] = {"aspect": "auto", "interpolation": blend, "cmap": colours}
        show_map(axis, shown, title, vmin=low, vmax=most, **looks)
    return figure


def bin_figure(summary: dict[str, Any]) -> Figure:
    """Size of the error and its mean by true depth and by relief."""
    figure, axes = pyplot().subplots(1, 2, figsize=(10.8, 3.2), sharey=True)
    panels = (
        ("depth", "true depth [m]", 1.0),
        ("relief", "relief around the pixel [%]: flat … edge", 100.0),
    )
    for axis, (bins, label, factor) in zip(axes, panels, strict=True):
        rows = frequent(summary[bins])
        rms, rest, bias = (
            [100 * np.expm1(r[k]) for r in rows] for k in ("rms_log", "rest_rms_log", "bias_log")
        )
        x = np.arange(len(rows))
        axis.bar(x, rms, color="#b9c4ce", width=0.72, label="root mean square")
        axis.bar(x, rest, color=PART_COLOURS["rest"], width=0.72, label="of it edges and noise")
        axis.plot(x, bias, "D", color=COLOURS[1], ms=5, label="mean, above zero: too far")
        axis.axhline(0, color="#888888", lw=0.8)
        names = [f"{span(r, '', factor)}\n{100 * r['pixels']:.0f} %" for r in rows]
        axis.set_xticks(x, names, fontsize=7.5)
        axis.set_xlabel(f"{label}; share of pixels")
        _grid_behind(axis, "y")
    axes[0].set_ylabel("error [%]")
    axes[1].legend(fontsize=8, loc="upper left")
    return figure


def group_figure(summary: dict[str, Any]) -> Figure:
    """Mean squares by place, stacked by part."""
    rows = sorted(summary["groups"], key=lambda r: r["rms_log"])
    figure, axis = pyplot().subplots(figsize=(10.8, 0.9 + 0.3 * len(rows)))
    y, left = range(len(rows)), np.zeros(len(rows))
    for part, title in PARTS.items():
        width = np.array([r["shares"][part] * r["rms_log"] ** 2 for r in rows])
        axis.barh(y, width, left=left, color=PART_COLOURS[part], height=0.7, label=title)
        left += width
    axis.set_yticks(y, [f"{r['group']} ({r['images']})" for r in rows], fontsize=8)
    axis.set_xlabel("mean squared log error")
    _grid_behind(axis, "x")
    legend_beside(figure, axis)
    return figure


def strip_figure(picture: Picture) -> Figure:
    """Image, error and its parts, side by side."""
    height = 2.1 * picture.image.shape[0] / picture.image.shape[1]
    panels = len(picture.errors) + 1
    figure, axes = pyplot().subplots(1, panels, figsize=(2.25 * panels, height + 0.42))
    size = 100 * np.expm1(np.nanquantile(np.abs(picture.errors["error"]), 0.95))
    most = max(LEAST_LIMIT, float(size))
    show_map(axes[0], picture.image, "image", bar=False)
    for axis, (name, error) in zip(axes[1:], picture.errors.items(), strict=True):
        shown, last = 100 * np.expm1(error), axis is axes[-1]
        show_map(axis, shown, name, bar=last, cmap="RdBu_r", vmin=-most, vmax=most)
    return figure


def _grid_behind(axis: Any, along: str) -> None:
    """Grid lines at the ticks of one axis only, behind the bars."""
    axis.set_axisbelow(True)
    axis.grid(visible=False, axis="x" if along == "y" else "y")
