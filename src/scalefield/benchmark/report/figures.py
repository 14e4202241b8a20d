"""Figures of results, made with matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from scalefield.benchmark.gallery import Picture, read_gallery
from scalefield.benchmark.metrics import LEVELS, METRICS
from scalefield.benchmark.report import paper
from scalefield.benchmark.report.page import Image, inline
from scalefield.benchmark.report.runs import Run, by_mde, seeds_of
from scalefield.benchmark.report.tables import MAIN_METRICS, REGIME_TITLES
from scalefield.benchmark.score import EVERYWHERE
from scalefield.errors import import_extra
from scalefield.export.preview import NEAR_TO_FAR

Figure = Any
"""A matplotlib figure; the package is optional and not imported for its types."""

# Okabe and Ito's colours, which colour-blind readers can tell apart, then three darker ones.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C510A"),
    *("#5E4FA2", "#66A61E", "#A6761D", "#666666", "#B2182B", "#01665E"),
)
MARKERS = "os^Dv<>Phd*pX"
DPI = 160
"""Resolution of figures written as PNG."""
MIME = {"svg": "image/svg+xml", "png": "image/png", "jpeg": "image/jpeg"}
PHOTOGRAPHIC = {"dpi": 110, "pil_kwargs": {"quality": 82}}
"""Options of figures of images, which would be large as PNG or SVG."""

STYLE = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.edgecolor": "#888888",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "svg.hashsalt": "scalefield",  # the same figure is the same file
    "figure.constrained_layout.use": True,
}


def pyplot() -> Any:
    """matplotlib.pyplot without a display."""
    import_extra("matplotlib", "plot", "drawing figures").use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(STYLE)
    return plt


def encode(figure: Figure, suffix: str, **options: Any) -> bytes:
    """The figure as the bytes of a PNG, SVG or JPEG file, without a date."""
    buffer = io.BytesIO()
    metadata = {"svg": {"Date": None}, "png": {"Software": None}}.get(suffix)
    figure.savefig(buffer, format=suffix, metadata=metadata, **options)
    return buffer.getvalue()


def drawn(figure: Figure, suffix: str, caption: str, **options: Any) -> Image:
    """The figure as a picture inside the page; the figure is closed."""
    data = encode(figure, suffix, **options)
    pyplot().close(figure)
    return Image(inline(data, MIME[suffix]), caption)


def legend_beside(figure: Figure, axis: Any) -> None:
    """Place the legend of an axis to the right of the whole figure."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8)


def show_map(
    axis: Any, values: np.ndarray, title: str, *, bar: bool = True, **options: Any
) -> None:
    """Show an image or map under a title, unknown pixels grey, with a colour bar if it has one."""
    shown = axis.imshow(values, **options)
    axis.set_title(title, fontsize=8, fontweight="normal")
    axis.set_facecolor("#f0f0f0")
    axis.set(xticks=[], yticks=[])
    axis.grid(False)
    for spine in axis.spines.values():
        spine.set_visible(False)
    if bar:
        axis.figure.colorbar(shown, ax=axis, fraction=0.045, pad=0.02).ax.tick_params(labelsize=7)


def over_anchors(run: Run) -> Figure:
    """AbsRel and δ1 over the number of anchors, from the drop-anchor test to the high regime."""
    figure, axes = pyplot().subplots(1, 2, figsize=(10.5, 4.0))
    every = len(run.scores.images)
    for axis, metric in zip(axes, MAIN_METRICS, strict=True):
        for method in run.scores.methods:
            cells = _cells(run, method=method)
            x = [c["anchors"] for c in cells]
            mean, low, high = np.array([_interval(c, metric) for c in cells]).reshape(-1, 3).T
            style = _style(run, method)
            if all(c["images"] == every for c in cells):
                axis.plot(x, mean, label=method, lw=1.4, markersize=4.5, **style)
                axis.fill_between(x, low, high, color=style["color"], alpha=0.07, lw=0)
            else:  # other images than the rest: no place on their scale
                axis.plot(x, mean, ":", label=f"{method} (some images)", lw=1, ms=3, **style)
        _anchor_axis(axis)
        axis.set_title(_title(metric))
        complete = [c["clamped"][metric][0] for c in _cells(run) if c["images"] == every]
        if metric == "abs_rel" and complete:
            axis.set_yscale("log")
            axis.set_ylim(0.8 * min(complete), 1.25 * max(complete))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in "25" else "")
    legend_beside(figure, axes[0])
    return figure


def over_distance(run: Run) -> Figure | None:
    """AbsRel over the distance to the nearest anchor, one panel a regime.

    A bin that less than half of the images reach is left out: it is about those images, and not
    about distance.
    """
    if not run.regimes:
        return None
    size = 3.4 * len(run.regimes) + 1.6, 3.6
    figure, axes = pyplot().subplots(1, len(run.regimes), figsize=size, sharey=True, squeeze=False)
    for axis, regime in zip(axes[0], run.regimes, strict=True):
        rows = [row for row in run.results["distance"] if row["condition"] == regime]
        for row in rows:
            bins = enumerate(zip(row["abs_rel"], row["images"], strict=True))
            points = [(i, v) for i, (v, n) in bins if n >= 0.5 * len(run.scores.images)]
            if points:
                style = _style(run, row["method"])
                axis.plot(*zip(*points, strict=True), label=row["method"], lw=1.3, ms=4, **style)
        ends = ["0", *(f"{100 * e:g}" for row in rows[-1:] for e in row["edges"])]
        spans = [f"{a}–{b}" for a, b in pairwise(ends)] + [f">{ends[-1]}"]
        axis.set_xticks(range(len(spans)), spans, fontsize=7)
        axis.set_xlabel("distance to the nearest anchor [% of diagonal]")
        axis.set_title(f"{REGIME_TITLES[regime]} anchors")
    axes[0][0].set_ylim(bottom=0)
    axes[0][0].set_ylabel("AbsRel")
    legend_beside(figure, axes[0][0])
    return figure


def reliability(run: Run) -> Figure | None:
    """Actual over nominal coverage of the intervals, one panel per regime; below the diagonal they
    are too narrow.

    The last panel has the 90 % interval over the number of anchors; thin lines are single places.
    """
    cells = [c for c in run.results["cells"] if "coverage" in c]
    if not cells:
        return None
    size = 2.9 * len(run.regimes) + 5.2, 3.4
    figure, axes = pyplot().subplots(1, len(run.regimes) + 1, figsize=size, squeeze=False)
    least = min(c["coverage"]["coverage_50"][0] for c in cells)
    limits = (10 * (10 * least // 1), 101)
    for axis, regime in zip(axes[0], run.regimes, strict=False):
        axis.plot([0, 100], [0, 100], color="#999999", lw=0.8)
        for cell in (c for c in cells if c["condition"] == regime):
            covered = [100 * cell["coverage"][f"coverage_{level}"][0] for level in LEVELS]
            style = _style(run, cell["method"])
            if cell["group"] == EVERYWHERE:
                axis.plot(LEVELS, covered, label=cell["method"], lw=1.5, ms=4.5, **style)
            else:
                axis.plot(LEVELS, covered, color=style["color"], lw=0.5, alpha=0.45)
        axis.set(xlim=(47, 98), ylim=limits, xlabel="nominal [%]")
        axis.set_xticks(LEVELS, [str(level) for level in LEVELS])
        axis.set_title(f"{REGIME_TITLES[regime]} anchors")
    axes[0][0].set_ylabel("covered [%]")
    last = axes[0][-1]
    last.axhline(90, color="#999999", lw=0.8)
    for method in dict.fromkeys(c["method"] for c in cells):
        own = [c for c in _cells(run, method=method) if "coverage" in c]
        covered = [100 * c["coverage"]["coverage_90"][0] for c in own]
        style = _style(run, method)
        last.plot([c["anchors"] for c in own], covered, label=method, lw=1.5, ms=4.5, **style)
    _anchor_axis(last)
    last.set_ylim(limits)
    last.set_title("90 % interval")
    legend_beside(figure, last)
    return figure


PAPER_STYLES = {"DA3": ("#bbbbbb", "s"), "MiDaS": ("#888888", "^")}
"""Grey and marker of the paper's curves by MDE."""


def ablation(runs: Sequence[Run]) -> Figure | None:
    """The paper's ablation figure: AbsRel and δ1 over K, F against F = 0, datasets pooled.

    One colour an MDE; bars reach from the least to the largest of the seeds, or over the interval
    of a single one; the paper's own curves in grey. None if there are fewer than two K.
    """
    seeds = {mde: seeds_of(members, "medium") for mde, members in by_mde(runs).items()}
    ks = sorted({k for cells in seeds.values() for k, _ in cells})
    if len(ks) < 2:
        return None
    figure, axes = pyplot().subplots(1, 2, figsize=(9.4, 3.6))
    for i, (axis, metric) in enumerate(zip(axes, MAIN_METRICS, strict=True)):
        for (mde, kind), by_k in paper.ABLATION.items():
            y, style = [value[i] for value in by_k.values()], "-" if kind == "full" else ":"
            colour, marker = PAPER_STYLES[mde]
            axis.plot(
                list(by_k), y, style, color=colour, marker=marker, ms=3, lw=1,
                label=f"paper, {mde}, {kind}",
            )  # fmt: skip
        for (mde, cells), colour in zip(seeds.items(), COLOURS, strict=False):
            for zero in (False, True):
                own = [k for k in ks if (k, zero) in cells]
                if not own:
                    continue
                bars = [_seed_range(cells[k, zero], metric) for k in own]
                mean, low, high = np.array(bars).T
                axis.errorbar(
                    own, mean, yerr=[mean - low, high - mean], fmt="o:" if zero else "s-",
                    color=colour, markerfacecolor="white" if zero else colour, capsize=2,
                    label=f"{mde}, {'F = 0' if zero else 'full'}",
                )  # fmt: skip
        axis.set_xticks(sorted({*ks, *(k for by_k in paper.ABLATION.values() for k in by_k)}))
        axis.set_xlabel("K, the number of basis maps")
        axis.set_title(_title(metric))
    legend_beside(figure, axes[0])
    return figure


def _seed_range(cells: Sequence[dict[str, Any]], metric: str) -> tuple[float, float, float]:
    """The mean of a metric over the seeds, and the ends of its bar."""
    if len(cells) == 1:
        return _interval(cells[0], metric)
    values = [cell["clamped"][metric][0] for cell in cells]
    return float(np.mean(values)), min(values), max(values)


def justification(run: Run) -> Figure | None:
    """The true scale field beside the cues that should explain it, as in the paper."""
    medians = [(entry, p) for entry, p, _ in read_gallery(run.folder) if entry.rank == "median"]
    if not medians:
        return None
    entry, picture = medians[0]
    panels = [("true scale field s", np.exp(picture.log_scale.astype(np.float32)), "RdYlBu_r")]
    if np.isfinite(picture.feature).any():
        panels.append(("F, first component", picture.feature, "viridis"))
    panels.append(("MDE depth", picture.mde_depth, "magma_r"))
    height = 2.4 * picture.image.shape[0] / picture.image.shape[1] + 0.5
    size = 2.7 * (len(panels) + 1), height
    figure, axes = pyplot().subplots(1, len(panels) + 1, figsize=size)
    show_map(axes[0], picture.image, "image", bar=False)
    for axis, (title, values, colours) in zip(axes[1:], panels, strict=True):
        shown = values.astype(np.float32)
        low, high = np.nanpercentile(shown, [2, 98])
        show_map(axis, shown, title, cmap=colours, vmin=low, vmax=high)
    figure.suptitle(entry.name, fontsize=8, color="#666666")
    return figure


def strip(picture: Picture, depth_m: np.ndarray) -> Figure:
    """One method on one image: anchors, MDE depth, recovered and true depth, signed error."""
    plt = pyplot()
    from matplotlib.colors import ListedColormap

    colours = ListedColormap(NEAR_TO_FAR / 255)  # those of the preview of `scalefield recover`
    height = 2.5 * picture.image.shape[0] / picture.image.shape[1]
    figure, axes = plt.subplots(1, 5, figsize=(13.2, height + 0.42))
    true_m = picture.true_m.astype(np.float32)
    low, high = np.nanpercentile(true_m, [1, 99])
    limits = {"cmap": colours, "vmin": low, "vmax": high}
    mde_depth, error = picture.mde_depth.astype(np.float32), 100 * (depth_m / true_m - 1)
    show_map(axes[0], picture.image, "image and anchors", bar=False)
    axes[0].scatter(*picture.anchors.T, s=5, c="#ffd400", edgecolors="black", linewidths=0.3)
    show_map(axes[1], mde_depth, "MDE depth", bar=False, cmap=colours)
    show_map(axes[2], depth_m, "recovered", bar=False, **limits)
    show_map(axes[3], true_m, "true [m]", **limits)
    show_map(axes[4], error, "error [%]", cmap="RdBu_r", vmin=-40, vmax=40)
    return figure


CUES = "Scale field, F and depth"
OF_RUN: dict[str, tuple[str, Callable[[Run], Figure | None], str, str]] = {
    "justification": (
        CUES, justification, "png",
        "The scale field that recovery must find, beside the cues it is predicted from.",
    ),
    "anchors": ("Number of anchors", over_anchors, "svg", "Error over the number of anchors."),
    "distance": (
        "Distance from anchors", over_distance, "svg",
        "Error over the distance to the nearest anchor, where half of the images reach it.",
    ),
    "reliability": (
        "Coverage of intervals", reliability, "svg",
        "Actual over nominal coverage; below the line intervals are too narrow. Thin lines are "
        "single places.",
    ),
}  # fmt: skip
"""Figures of a run: section, function, format in the page, and caption. A function returns None if
the run has no values for it."""


def _style(run: Run, method: str) -> dict[str, Any]:
    """Colour and marker of a method, the same in every figure of a run."""
    i = list(run.scores.methods).index(method)
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}


def _cells(run: Run, method: str | None = None) -> list[dict[str, Any]]:
    """The cells of all images by the number of anchors, of one method if it is given."""
    cells: Iterable[dict[str, Any]] = run.results["cells"]
    cells = (c for c in cells if c["group"] == EVERYWHERE and method in (None, c["method"]))
    return sorted(cells, key=lambda c: c["anchors"])


def _anchor_axis(axis: Any) -> None:
    """Set up a logarithmic axis of the number of anchors."""
    ticks = (1, 3, 9, 30, 100, 500)
    axis.set_xscale("log")
    axis.set_xticks(ticks, [str(n) for n in ticks])
    axis.minorticks_off()
    axis.set_xlabel("anchors an image")


def _title(metric: str) -> str:
    """The metric and which way is better."""
    shown = METRICS[metric]
    return f"{shown.title} {'↑' if shown.higher_is_better else '↓'}"


def _interval(cell: dict[str, Any], metric: str) -> tuple[float, float, float]:
    """Mean and ends of its interval, which has no width where it is not known."""
    mean, low, high = cell["clamped"][metric]
    return mean, mean if low is None else low, mean if high is None else high
