"""Nearest-anchor affine alignment, as Prior Depth Anything pre-fills sparse depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.spatial import cKDTree
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.mde.output import MDEOutput, Space
from scalefield.methods.affine import MIN_RELATIVE_SPREAD, Samples, require, require_choice
from scalefield.result import Recovery

CHUNK_NUMBERS = 1 << 19
"""Pixels times neighbours that are worked on at once."""


@dataclass(frozen=True)
class KNN:
    """Scale and shift at every pixel from its k nearest anchors, in disparity by default.

    Minimises Σ_j (y_j − s·x_j − t)² / d_j over the k nearest anchors, d_j their distance from the
    pixel, at least 1 px. The ladder at each pixel: scale and shift; the median of y/x where the
    neighbours' x have no spread or s ≤ 0; the median of y where no x is above zero.
    """

    k: int = 5
    """Anchors that a pixel is fitted to; all of them where there are fewer."""
    space: Space = "disparity"
    """What the lines are fitted to."""

    def __post_init__(self) -> None:
        whole = isinstance(self.k, int) and self.k >= 1
        require(whole, "k", "a whole number of anchors, at least 1", self.k)
        require_choice("space", self.space, get_args(Space))

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery:
        """Recover from one anchor or more."""
        samples = Samples.at(mde_output, anchors, self.space)
        mde_map = mde_output.in_space(self.space).double()
        height, width = mde_output.shape
        tree = cKDTree(samples.pixels)
        k = min(self.k, len(samples))
        prediction = torch.empty_like(mde_map)
        scale_only = 0
        rows_at_once = max(1, CHUNK_NUMBERS // (width * k))
        for top in range(0, height, rows_at_once):
            chunk = mde_map[top : top + rows_at_once]
            pixels = np.indices(chunk.shape).reshape(2, -1).T + np.array([top, 0])
            distance, index = tree.query(pixels, k=[*range(1, k + 1)])
            scale, shift, lower = fit_neighbours(
                samples,
                torch.from_numpy(index.astype(np.int64)).to(mde_map.device),
                torch.from_numpy(distance).to(mde_map.device),
            )
            prediction[top : top + rows_at_once] = (scale * chunk.reshape(-1) + shift).view_as(
                chunk
            )
            scale_only += lower
        why = "the k anchors' relative depths have no spread or give no positive scale"
        return Recovery.from_space(
            mde_output,
            anchors,
            prediction,
            self.space,
            fallbacks=(f"scale only at {scale_only} pixels: {why}",) if scale_only else (),
        )


def fit_neighbours(
    samples: Samples, index: Int64[Tensor, "p k"], distance: Float64[Tensor, "p k"]
) -> tuple[Float64[Tensor, " p"], Float64[Tensor, " p"], int]:
    """Scale and shift of every pixel, and how many pixels stand on a lower rung."""
    x_unit, y_unit = float(np.abs(samples.x).max()) or 1.0, float(samples.y.max())
    x, y, weight = (
        torch.from_numpy(values).to(index.device)[index]
        for values in (samples.x / x_unit, samples.y / y_unit, samples.weight)
    )
    weight = weight / distance.clamp(min=1)
    weight = weight / weight.sum(1, keepdim=True)
    x_mean, y_mean = (weight * x).sum(1), (weight * y).sum(1)
    x_centred = x - x_mean[:, None]
    variance = (weight * x_centred**2).sum(1)
    scale = (weight * x_centred * y).sum(1) / variance
    flat = x.amax(1) - x.amin(1) < MIN_RELATIVE_SPREAD * x.abs().amax(1)
    lower = flat | ~(scale > 0) | ~torch.isfinite(scale)
    shift = y_mean - scale * x_mean
    if lower.any():
        ratios = torch.where(x[lower] > 0, y[lower] / x[lower], torch.nan)
        median = ratios.nanquantile(0.5, dim=1)
        constant = median.isnan()
        scale[lower] = torch.where(constant, 0, median)
        shift[lower] = torch.where(constant, y[lower].quantile(0.5, dim=1), 0)
    return scale * (y_unit / x_unit), shift * y_unit, int(lower.sum())
