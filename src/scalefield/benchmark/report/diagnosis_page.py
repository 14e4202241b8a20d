"""A diagnosis as one HTML page: what is left after each part, where the error is, and frames whose
error is split into parts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from scalefield.benchmark.diagnosis import DEPTH_PARTS, REGION_PARTS, Pixels, decompose
from scalefield.benchmark.diagnosis_summary import worst
from scalefield.benchmark.gallery import RANKS, WIDTH, reduce
from scalefield.benchmark.report.advice import advice, extremes, frequent, percent, span
from scalefield.benchmark.report.figures import PHOTOGRAPHIC, Figure, drawn, pyplot, show_map
from scalefield.benchmark.report.page import Section, document
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
    slope, of_depth = diagnosis["slope"], diagnosis["of_depth"]
    steps, curve, places = (
        drawn(draw(diagnosis), "svg", caption)
        for draw, caption in (
            (left_figure, "What is left of the error after each step, from the left."),
            (curve_figure, _CURVE_CAPTION),
            (map_figure, _MAP_CAPTION),
        )
    )
    follows = (
        f"True depth goes like the MDE's to the power of {1 + slope['mean']:.2f} ± "
        f"{slope['std']:.2f} over images. {100 * of_depth['common']:.0f} % of what follows depth "
        "is the same in every image."
    )
    strips = {
        f"{p.rank}: {p.name}": (
            drawn(
                strip_figure(p), "jpeg",
                f"{p.name}: {percent(p.rms_log)} without scale; colours in per cent",
                **PHOTOGRAPHIC,
            ),
        )
        for p in pictures
    }  # fmt: skip
    sections = [
        Section("What would remove it", {"": (steps, part_table(diagnosis))}),
        Section("With depth", {"": (curve,)}, follows),
        Section("Over the image", {"": (places,)}),
        Section(
            "Where it is worst",
            {"": (bin_table(diagnosis), frame_table(diagnosis))},
            " ".join(extremes(diagnosis)),
        ),
        Section("By place", {"": (group_table(diagnosis),)}),
        Section("Frames taken apart", strips, _STRIP_WORDS),
    ]
    config, data, made = (diagnosis[key] for key in ("config", "data", "provenance"))
    facts = {
        "dataset": f"{config['name']}, {data['diagnosed']} of {data['frames']} frames",
        "splits": ", ".join(config["splits"]),
        "MDE": ", ".join(data["mde"]),
        "error, root mean square": percent(diagnosis["total_rms_log"]),
        "data": f"sha256 {data['sha256'][:12]}",
        "scalefield": f"{made['scalefield']} ({(made['commit'] or 'no commit')[:10]})",
    }
    missing = [f"no result for {m['name']}: {m['error']}" for m in data["missing"]]
    title = f"What is wrong with {config['mde']}’s depth on {config['name']}"
    page = Path(out) / "diagnosis.html"
    notes = [*missing, *advice(diagnosis)]
    write_atomic(page, document(title, sections, facts=facts, notes=notes).encode())
    return page


_CURVE_CAPTION = (
    "The MDE's error over its own depth relative to the image's mean, scale removed: the line is "
    "the same in all images, the band holds 80 % of the images' own curves."
)
_MAP_CAPTION = (
    "Over the image, all frames together, scale removed; red is too far, blue too near. The "
    "function of the position is what depth does not explain."
)
_STRIP_WORDS = (
    "The error of single frames without their scale, and the parts that add up to it. Red is too "
    "far, blue too near, grey unknown."
)


def _percents(values: Iterable[float | None]) -> list[Cell]:
    return [Cell(None if x is None else 100 * float(x), digits=1) for x in values]


def _shares_table(  # noqa: PLR0917
    name: str, title: str, caption: str, corner: str, columns: Iterable[str], rows: Any
) -> Table:
    """A table of percentages."""
    titles = tuple((f"{column} [%]",) for column in columns)
    return Table(name, title, caption, corner, titles, [(row, _percents(x)) for row, x in rows])


def part_table(summary: dict[str, Any]) -> Table:
    """Share and size of each part, and the error left after it."""
    rows = []
    for row in summary["parts"]:
        after = None if row["part"] == "scale" else row["share_without_scale"]
        left = None if row["part"] == "rest" else np.expm1(row["left_rms_log"])
        rows.append((row["title"], [row["share"], after, np.expm1(row["rms_log"]), left]))
    return _shares_table(
        "parts",
        "Parts, in the order in which they are taken out",
        "Share of the squared log error, and of what the scale leaves of it; size of the part; "
        "error left after it and all before it. "
        "The unit common to all images is taken out first and belongs to no part.",
        "Part",
        ("share", "after scale", "size", "left"),
        rows,
    )


def group_table(summary: dict[str, Any]) -> Table:
    """Error of each place, and what it is made of."""
    rows = [
        (
            f"{row['group']} ({row['images']})",
            [
                np.expm1(row["rms_log"]),
                *(sum(row["shares"][p] for p in parts) for parts in FAMILIES.values()),
            ],
        )
        for row in summary["groups"]
    ]
    caption = "Every image counts the same; their number is in brackets."
    return _shares_table("places", "Shares by place", caption, "Place", ("error", *FAMILIES), rows)


def frame_table(summary: dict[str, Any]) -> Table:
    """Error of the worst frames, and what it is made of."""
    rows = []
    for row in worst(summary)[:WORST_FRAMES]:
        own = [sum(row[p] for p in parts) for parts in AFTER_SCALE.values()]
        shares = (x / sum(own) if sum(own) > 0 else 0.0 for x in own)
        rows.append((row["name"], [np.expm1(row["rms_log_without_scale"]), *shares]))
    title = f"The {len(rows)} worst frames"
    caption = "Error once the scale is right, and what it is made of."
    return _shares_table("frames", title, caption, "Frame", ("error", *AFTER_SCALE), rows)


def bin_table(summary: dict[str, Any]) -> Table:
    """Size of the error and its mean by true depth and by relief."""
    kinds = (("depth", " m", 1.0), ("relief", " % relief", 100.0))
    rows = [
        (
            span(row, unit, factor),
            [row["pixels"], *np.expm1([row[k] for k in ("rms_log", "rest_rms_log", "bias_log")])],
        )
        for kind, unit, factor in kinds
        for row in frequent(summary[kind])
    ]
    return _shares_table(
        "bins",
        "By true depth, and by relief around the pixel",
        "Error once each image has its scale: root mean square, that of edges and noise alone, and "
        "mean, above zero where depth is too large. Relief is near zero on flat ground and large "
        "at edges.",
        "Pixels",
        ("pixels", "error", "edges and noise", "mean"),
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
    axis.set_axisbelow(True)
    axis.grid(visible=False, axis="x")
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
