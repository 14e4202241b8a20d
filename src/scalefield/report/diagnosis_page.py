"""A diagnosis as one HTML page that needs nothing beside itself."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from scalefield.datasets import Frame
from scalefield.diagnosis import DEPTH_PARTS, PARTS, REGION_PARTS, Pixels, decompose
from scalefield.diagnosis_summary import worst
from scalefield.files import write_atomic
from scalefield.gallery import WIDTH, reduce
from scalefield.mde import MDEOutput
from scalefield.report.advice import RARE, advice, extremes, percent, span
from scalefield.report.figures import COLOURS, Figure, encode, pyplot
from scalefield.report.page import Image, Panel, Section, document, fact_list
from scalefield.report.tables import Cell, Table

FAMILIES = {
    "scale": ("scale",),
    "depth": DEPTH_PARTS,
    "position": ("position",),
    "regions": REGION_PARTS,
    "edges and noise": ("rest",),
}
"""Parts that are shown in shades of one colour."""
PART_COLOURS = {
    "scale": "#0072B2",
    **dict(zip(DEPTH_PARTS, ("#D55E00", "#E69F00", "#F2CC7A"), strict=True)),
    "position": "#009E73",
    **dict(zip(REGION_PARTS, ("#5E4FA2", "#8E82C3", "#C0B8E0"), strict=True)),
    "rest": "#8A8F94",
}
WORST_FRAMES = 20
LEAST_LIMIT = 10.0
"""Per cent at which the colours of a frame's errors end at the earliest."""


@dataclass(frozen=True, eq=False)
class Picture:
    """One frame taken apart, reduced in size; it shows the dataset's image."""

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
    parts = decompose(pixels)
    factor = -(-known.shape[1] // WIDTH)

    def shown(values: np.ndarray) -> np.ndarray:
        full = np.full(known.shape, np.nan)
        full[pixels.rows, pixels.columns] = -values
        return reduce(full, factor)

    whole = pixels.y - parts["scale"]
    families = {
        n: sum((parts[p] for p in each), np.zeros(()))
        for n, each in FAMILIES.items()
        if n != "scale"
    }
    return Picture(
        rank=rank,
        name=frame.name,
        rms_log=float(np.square(whole).mean() ** 0.5),
        image=frame.image[::factor, ::factor],
        errors={"error": shown(whole), **{n: shown(v) for n, v in families.items()}},
    )


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
            _left_figure(diagnosis),
            "What is left of the error after each step, from the left.",
        ),
        "curve": (
            _curve_figure(diagnosis),
            "The MDE's error over its own depth relative to the image's mean, scale removed: the "
            "line is the same in all images, the band holds 80 % of the images' own curves.",
        ),
        "maps": (
            _map_figure(diagnosis),
            "Over the image, all frames together, scale removed; red is too far, blue too near. "
            "The function of the position is what depth does not explain.",
        ),
        "bins": (_bin_figure(diagnosis), "Error once each image has its scale."),
        "groups": (_group_figure(diagnosis), "What the error is made of in each place."),
    }
    drawn = {name: _svg(figure, caption) for name, (figure, caption) in figures.items()}
    strips = {f"{p.rank}: {p.name}": Panel((_strip(p),)) for p in pictures}
    sections = [
        Section("What would remove it", {"": Panel((drawn["left"],), (_part_table(diagnosis),))}),
        Section("With depth", {"": Panel((drawn["curve"],))}, _depth_words(diagnosis)),
        Section("Over the image", {"": Panel((drawn["maps"],))}),
        Section(
            "Where it is worst",
            {"": Panel((drawn["bins"],), (_frame_table(diagnosis),))},
            " ".join(extremes(diagnosis)),
        ),
        Section("By place", {"": Panel((drawn["groups"],), (_group_table(diagnosis),))}),
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
    """Where the numbers come from, the error as one bar, and the advice, in HTML."""
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
    said = "".join(f"<li>{escape(sentence)}</li>" for sentence in advice(diagnosis))
    about = f"<style>{STYLE}</style>{fact_list(facts, notes)}"
    bars = _bar(diagnosis, "share", "The squared log error") + _bar(
        diagnosis, "share_without_scale", "Once each image has its scale"
    )
    return f"{about}{bars}<ul class=advice>{said}</ul>"


def _bar(summary: dict[str, Any], which: str, title: str) -> str:
    """Shares as one bar, with a legend under it."""
    share = {row["part"]: row[which] for row in summary["parts"]}
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


STYLE = """
header h3{font-size:14px;font-weight:600;margin:20px 0 0}
.bar{display:flex;height:30px;border-radius:7px;overflow:hidden;margin:7px 0 9px;gap:1.5px}
.bar i{min-width:0}
.legend{display:flex;flex-wrap:wrap;gap:4px 22px;max-width:none;color:var(--soft);font-size:13.5px}
.legend b{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:7px}
.legend em{font-style:normal;font-weight:600;color:var(--ink);margin-left:2px}
.advice{max-width:78ch;padding-left:20px;margin:18px 0 0}
.advice li{margin:0 0 7px}
"""


def _svg(figure: Figure, caption: str) -> Image:
    data = encode(figure, "svg")
    pyplot().close(figure)
    return Image(data, "image/svg+xml", caption)


def _left_figure(summary: dict[str, Any]) -> Figure:
    """Error left after each step, as bars that fall."""
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(10.5, 3.1))
    rows = [r for r in summary["parts"] if r["part"] != "rest"]
    heights = [
        100 * np.expm1(x) for x in (summary["total_rms_log"], *(r["left_rms_log"] for r in rows))
    ]
    colours = ["#3b4148", *(PART_COLOURS[r["part"]] for r in rows)]
    bars = axis.bar(range(len(heights)), heights, color=colours, width=0.66)
    axis.bar_label(
        bars, [f"{h:.1f} %" if h < 10 else f"{h:.0f} %" for h in heights], padding=2, fontsize=8
    )
    names = ["as it is", *(f"− {r['title'].lower()}" for r in rows)]
    wrapped = [textwrap.fill(name, 13) for name in names]
    axis.set_xticks(range(len(names)), wrapped, fontsize=8)
    axis.set_ylabel("error left [%]")
    _behind(axis, "x")
    axis.margins(y=0.12)
    return figure


def _curve_figure(summary: dict[str, Any]) -> Figure:
    """Error over the MDE's log-depth."""
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(7.4, 3.3))
    rows = summary["curve"]
    x = np.exp([r["log_depth"] for r in rows])
    common, low, high = (100 * np.expm1([r[k] for r in rows]) for k in ("common", "p10", "p90"))
    axis.axhline(0, color="#999999", lw=0.8)
    axis.fill_between(
        x, low, high, color=PART_COLOURS["shift"], alpha=0.22, lw=0, label="80 % of images"
    )
    axis.plot(x, common, color=PART_COLOURS["power"], lw=2, marker="o", ms=3.5, label="all images")
    axis.set_xscale("log")
    ticks = [t for t in (0.125, 0.25, 0.5, 1, 2, 4, 8) if x.min() <= t <= x.max()]
    axis.set_xticks(ticks, [f"{t:g} ×" for t in ticks])
    axis.minorticks_off()
    axis.set(xlabel="the MDE's depth, relative to its mean in the image", ylabel="too far [%]")
    axis.legend(fontsize=8)
    return figure


def _map_figure(summary: dict[str, Any]) -> Figure:
    """The common function of the position, mean error and its size over the image."""
    plt = pyplot()
    places = summary["places"]
    bias, rms = (np.array(places[k], float) for k in ("bias_log", "rms_log"))
    panels = [
        ("function of the position [%]", np.array(summary["map"]), True),
        ("mean error [%]", bias, True),
        ("size of the error [%]", rms, False),
    ]
    figure, axes = plt.subplots(1, 3, figsize=(10.8, 2.75))
    for axis, (title, values, signed) in zip(axes, panels, strict=True):
        shown = 100 * np.expm1(values)
        most = max(float(np.nanquantile(np.abs(shown), 0.98)), 1.0)
        limits = {"vmin": -most, "vmax": most} if signed else {"vmin": 0, "vmax": most}
        colours = "RdBu_r" if signed else "magma_r"
        # The function is smooth, and known between the cells too; what was measured is not.
        blend = "bicubic" if title.startswith("function") else "nearest"
        image = axis.imshow(shown, cmap=colours, aspect="auto", interpolation=blend, **limits)
        figure.colorbar(image, ax=axis, fraction=0.05, pad=0.03).ax.tick_params(labelsize=7)
        axis.set_title(title, fontsize=9)
        _bare(axis)
    return figure


def _bin_figure(summary: dict[str, Any]) -> Figure:
    """Size of the error and its mean by true depth and by relief."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(10.8, 3.2), sharey=True)
    panels = (
        ("depth", "true depth [m]", "", 1.0),
        ("relief", "relief around the pixel [%]: flat … edge", "", 100.0),
    )
    for axis, (what, label, unit, factor) in zip(axes, panels, strict=True):
        rows = [r for r in summary[what] if r["pixels"] > RARE]
        rms, rest, bias = (
            [100 * np.expm1(r[k]) for r in rows] for k in ("rms_log", "rest_rms_log", "bias_log")
        )
        place = np.arange(len(rows))
        axis.bar(place, rms, color="#b9c4ce", width=0.72, label="root mean square")
        axis.bar(place, rest, color=PART_COLOURS["rest"], width=0.72, label="of it edges and noise")
        axis.plot(place, bias, "D", color=COLOURS[1], ms=5, label="mean, above zero: too far")
        axis.axhline(0, color="#888888", lw=0.8)
        names = [f"{span(r, unit, factor)}\n{100 * r['pixels']:.0f} %" for r in rows]
        axis.set_xticks(place, names, fontsize=7.5)
        axis.set_xlabel(f"{label}; share of pixels")
        _behind(axis, "x")
    axes[0].set_ylabel("error [%]")
    axes[1].legend(fontsize=8, loc="upper left")
    return figure


def _group_figure(summary: dict[str, Any]) -> Figure:
    """Mean squares by place, stacked by part."""
    plt = pyplot()
    rows = sorted(summary["groups"], key=lambda r: r["rms_log"])
    figure, axis = plt.subplots(figsize=(10.8, 0.9 + 0.3 * len(rows)))
    left = np.zeros(len(rows))
    for part in PARTS:
        width = np.array([r["shares"][part] * r["rms_log"] ** 2 for r in rows])
        axis.barh(
            range(len(rows)),
            width,
            left=left,
            color=PART_COLOURS[part],
            height=0.7,
            label=PARTS[part],
        )
        left += width
    axis.set_yticks(range(len(rows)), [f"{r['group']} ({r['images']})" for r in rows], fontsize=8)
    axis.set_xlabel("mean squared log error")
    _behind(axis, "y")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return figure


def _strip(picture: Picture) -> Image:
    """Image, error and its parts, side by side."""
    plt = pyplot()
    height = 2.1 * picture.image.shape[0] / picture.image.shape[1]
    panels = len(picture.errors) + 1
    figure, axes = plt.subplots(1, panels, figsize=(2.25 * panels, height + 0.42))
    axes[0].imshow(picture.image)
    size = 100 * np.expm1(np.nanquantile(np.abs(picture.errors["error"]), 0.95))
    most = max(LEAST_LIMIT, float(size))
    for axis, (name, error) in zip(axes[1:], picture.errors.items(), strict=True):
        shown = axis.imshow(100 * np.expm1(error), cmap="RdBu_r", vmin=-most, vmax=most)
        axis.set_title(name, fontsize=8, fontweight="normal")
    axes[0].set_title("image", fontsize=8, fontweight="normal")
    for axis in axes:
        _bare(axis)
    figure.colorbar(shown, ax=axes[-1], fraction=0.045, pad=0.02).ax.tick_params(labelsize=7)
    data = encode(figure, "jpeg", dpi=110, pil_kwargs={"quality": 84})
    plt.close(figure)
    return Image(
        data,
        "image/jpeg",
        f"{picture.name}: {percent(picture.rms_log)} without scale; colours in per cent",
    )


def _behind(axis: Any, along: str) -> None:
    """Grid lines behind the bars, and none along them."""
    axis.set_axisbelow(True)
    axis.grid(visible=False, axis=along)


def _bare(axis: Any) -> None:
    axis.set_facecolor("#f0f0f0")
    axis.set(xticks=[], yticks=[])
    axis.grid(False)
    for spine in axis.spines.values():
        spine.set_visible(False)


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
