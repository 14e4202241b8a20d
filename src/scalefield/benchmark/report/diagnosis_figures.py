"""Figures of a diagnosis: what is left after each part, where the error is, frames taken apart."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from scalefield.benchmark.diagnosis import DEPTH_PARTS, PARTS, REGION_PARTS, Pixels, decompose
from scalefield.benchmark.gallery import WIDTH, reduce
from scalefield.benchmark.report.advice import RARE, span
from scalefield.benchmark.report.figures import COLOURS, Figure, bare, legend_beside, pyplot
from scalefield.datasets import Frame
from scalefield.mde import MDEOutput

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
    parts = decompose(pixels).parts
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


def left_figure(summary: dict[str, Any]) -> Figure:
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


def curve_figure(summary: dict[str, Any]) -> Figure:
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
    sizes = np.abs(np.concatenate([common, low, high]))
    reach = max(2 * float(np.quantile(sizes, 0.8)), 1.0)
    if sizes.max() > 2 * reach:  # a few outlying bins would flatten the rest
        axis.set_ylim(-min(reach, 100.0), reach)
        axis.set_title(f"values up to {sizes.max():.0f} % leave the frame", fontsize=8)
    axis.legend(fontsize=8)
    return figure


def map_figure(summary: dict[str, Any]) -> Figure:
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
        bare(axis)
    return figure


def bin_figure(summary: dict[str, Any]) -> Figure:
    """Size of the error and its mean by true depth and by relief."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(10.8, 3.2), sharey=True)
    panels = (
        ("depth", "true depth [m]", "", 1.0),
        ("relief", "relief around the pixel [%]: flat … edge", "", 100.0),
    )
    for axis, (bins, label, unit, factor) in zip(axes, panels, strict=True):
        rows = [r for r in summary[bins] if r["pixels"] > RARE]
        rms, rest, bias = (
            [100 * np.expm1(r[k]) for r in rows] for k in ("rms_log", "rest_rms_log", "bias_log")
        )
        x = np.arange(len(rows))
        axis.bar(x, rms, color="#b9c4ce", width=0.72, label="root mean square")
        axis.bar(x, rest, color=PART_COLOURS["rest"], width=0.72, label="of it edges and noise")
        axis.plot(x, bias, "D", color=COLOURS[1], ms=5, label="mean, above zero: too far")
        axis.axhline(0, color="#888888", lw=0.8)
        names = [f"{span(r, unit, factor)}\n{100 * r['pixels']:.0f} %" for r in rows]
        axis.set_xticks(x, names, fontsize=7.5)
        axis.set_xlabel(f"{label}; share of pixels")
        _behind(axis, "x")
    axes[0].set_ylabel("error [%]")
    axes[1].legend(fontsize=8, loc="upper left")
    return figure


def group_figure(summary: dict[str, Any]) -> Figure:
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
    legend_beside(figure, axis)
    return figure


def strip_figure(picture: Picture) -> Figure:
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
        bare(axis)
    figure.colorbar(shown, ax=axes[-1], fraction=0.045, pad=0.02).ax.tick_params(labelsize=7)
    return figure


def _behind(axis: Any, along: str) -> None:
    """Grid lines behind the bars, and none along them."""
    axis.set_axisbelow(True)
    axis.grid(visible=False, axis=along)
