"""Plain interpolation of the anchors: what they say without any MDE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float64
from scipy.interpolate import LinearNDInterpolator
from scipy.spatial import cKDTree

from scalefield.anchors import Anchors
from scalefield.mde.output import MDEOutput
from scalefield.methods.affine import Samples, require_choice
from scalefield.result import Recovery

Linear = Literal["log_depth", "depth", "disparity"]

LINEAR_IN: dict[str, tuple[Callable, Callable]] = {
    "log_depth": (lambda log_depth: log_depth, lambda value: value),
    "depth": (np.exp, np.log),
    "disparity": (lambda log_depth: np.exp(-log_depth), lambda value: -np.log(value)),
}
"""From log depth to the quantity that is linear, and back."""


@dataclass(frozen=True)
class Interpolate:
    """Anchors interpolated over the image without looking at the MDE's depth.

    Linear on the Delaunay triangles of the anchors, the nearest anchor outside their hull;
    anchors on one pixel are averaged. The ladder: triangles; along the line, held beyond its
    ends, for two anchors or collinear ones; a constant for one.
    """

    linear_in: Linear = "log_depth"
    """The quantity that is linear between anchors. Ratios of depth matter more than differences,
    hence log_depth; disparity is exact on planes."""

    def __post_init__(self) -> None:
        require_choice("linear_in", self.linear_in, get_args(Linear))

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery:
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
) -> tuple[Float64[np.ndarray, "h w"], tuple[str, ...]]:
    """Values at distinct pixels brought to every pixel, and the rung of the ladder taken."""
    if len(pixels) == 1:
        return np.full(shape, values[0]), ("constant depth: one anchor",)
    grid = np.indices(shape, dtype=np.float64).reshape(2, -1).T
    centred = pixels - pixels.mean(axis=0)
    _, extents, axes = np.linalg.svd(centred, full_matrices=False)
    if extents[1] < 1e-9 * extents[0]:
        along = centred @ axes[0]
        order = np.argsort(along)
        place = (grid - pixels.mean(axis=0)) @ axes[0]
        field = np.interp(place, along[order], values[order])
        return field.reshape(shape), ("interpolated along one line: the anchors are collinear",)
    field = LinearNDInterpolator(pixels, values)(grid)
    outside = np.isnan(field)
    _, nearest = cKDTree(pixels).query(grid[outside])
    field[outside] = values[nearest]
    return field.reshape(shape), ()
