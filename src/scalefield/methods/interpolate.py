"""Plain interpolation of the anchors, without the MDE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.spatial import Delaunay
from torch import Tensor

from scalefield.alignment.affine import Samples
from scalefield.alignment.nearest import nearest_points
from scalefield.anchors import Anchors
from scalefield.mde.output import MDEOutput
from scalefield.recovery import Method, Recovery
from scalefield.report import Fallback
from scalefield.validation import require_choice

Linear = Literal["log_depth", "depth", "disparity"]

LINEAR_IN: dict[str, tuple[Callable, Callable]] = {
    "log_depth": (lambda log_depth: log_depth, lambda value: value),
    "depth": (np.exp, np.log),
    "disparity": (lambda log_depth: np.exp(-log_depth), lambda value: -np.log(value)),
}
"""Functions from log-depth to the linear quantity, and back."""

ROUNDING = 1e-6
"""Tolerance in pixels for pixels on the edge of the hull."""


@dataclass(frozen=True)
class Interpolate(Method):
    """Anchors interpolated over the image without the MDE's depth.

    Linear on the Delaunay triangles of the anchors; the nearest anchor outside their hull; anchors
    on one pixel are averaged. Fallbacks: linear along the line, and constant beyond its ends, for
    two or collinear anchors; a constant for one anchor.
    """

    linear_in: Linear = "log_depth"
    """The quantity that is linear between anchors. Ratios of depth matter more than differences,
    hence log_depth; disparity is exact on planes."""

    def __post_init__(self) -> None:
        require_choice("linear_in", self.linear_in, get_args(Linear))

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery[Tensor]:
        """Recover from one anchor or more."""
        samples = Samples.at(mde_output, anchors, "log").merged()
        forward, backward = LINEAR_IN[self.linear_in]
        field, fallbacks = interpolate(samples.pixels, forward(samples.y), mde_output.shape)
        depth_m = np.exp(backward(field))
        return Recovery.from_depth(
            mde_output,
            anchors,
            torch.from_numpy(depth_m).to(mde_output.prediction.device),
            fallbacks=fallbacks,
        )


def interpolate(
    pixels: Float64[np.ndarray, "n 2"], values: Float64[np.ndarray, " n"], shape: tuple[int, int]
) -> tuple[Float64[np.ndarray, "h w"], tuple[Fallback, ...]]:
    """Values at distinct pixels interpolated to every pixel, and the fallbacks used."""
    if len(pixels) == 1:
        return np.full(shape, values[0]), (
            Fallback("constant_depth", "constant depth: one anchor"),
        )
    centred = pixels - pixels.mean(axis=0)
    _, extents, axes = np.linalg.svd(centred, full_matrices=False)
    if extents[1] < 1e-9 * extents[0]:
        along = centred @ axes[0]
        order = np.argsort(along)
        grid = np.indices(shape, dtype=np.float64).reshape(2, -1).T
        place = (grid - pixels.mean(axis=0)) @ axes[0]
        field = np.interp(place, along[order], values[order])
        text = "interpolated along one line: the anchors are collinear"
        return field.reshape(shape), (Fallback("collinear", text),)
    rows, columns, knots = crossings(pixels, values)
    first, last = (np.searchsorted(rows, np.arange(shape[0]), side) for side in ("left", "right"))
    crossed = last > first
    start, end = np.full(shape[0], np.inf), np.full(shape[0], -np.inf)
    start[crossed], end[crossed] = columns[first[crossed]], columns[last[crossed] - 1]
    u = np.arange(shape[1], dtype=np.float64)
    inside = (u >= start[:, None] - ROUNDING) & (u <= end[:, None] + ROUNDING)
    # All rows in one call: each is shifted to the right of the one above.
    width = 2.0 * shape[1]
    grid = (width * np.arange(shape[0]))[:, None] + u
    field = np.interp(grid, width * rows + columns, knots)
    points, device = pixels.astype(np.int64), torch.device("cpu")
    beyond = np.empty(field.size)
    for pixel, index, _ in nearest_points(points, shape, 1, device, wanted=~inside):
        beyond[pixel] = values[index[0]]
    return np.where(inside, field, beyond.reshape(shape)), ()


def crossings(
    pixels: Float64[np.ndarray, "n 2"], values: Float64[np.ndarray, " n"]
) -> tuple[Int64[np.ndarray, " m"], Float64[np.ndarray, " m"], Float64[np.ndarray, " m"]]:
    """Crossings of the edges of the Delaunay triangles with the image's rows: row, column and value
    of each, sorted.

    Along a row the interpolation is linear between crossings.
    """
    triangles = Delaunay(pixels).simplices.astype(np.int64)
    ends = np.sort(triangles[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2))
    upper, lower = np.divmod(np.unique(ends[:, 0] * len(pixels) + ends[:, 1]), len(pixels))
    falling = pixels[upper, 0] > pixels[lower, 0]
    upper, lower = np.where(falling, lower, upper), np.where(falling, upper, lower)
    top, height = pixels[upper, 0], pixels[lower, 0] - pixels[upper, 0]
    steps = np.where(height > 0, height + 1, 0).astype(np.int64)  # level edges end where others do
    edge = np.repeat(np.arange(len(steps)), steps)
    down = np.arange(len(edge)) - np.repeat(np.cumsum(steps) - steps, steps)
    share = down / height[edge]
    row = top[edge].astype(np.int64) + down
    column, value = (
        (1 - share) * of[upper[edge]] + share * of[lower[edge]] for of in (pixels[:, 1], values)
    )
    order = np.lexsort((column, row))
    return row[order], column[order], value[order]
