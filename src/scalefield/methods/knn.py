"""Nearest-anchor affine alignment, as Prior Depth Anything pre-fills sparse depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from scipy.spatial import cKDTree
from torch import Tensor

from scalefield.alignment.affine import MIN_RELATIVE_RANGE, Samples
from scalefield.alignment.nearest import nearest_points
from scalefield.alignment.uncertainty import (
    LARGEST_STD,
    PRIOR_STD,
    at_coarse_pixels,
    coarse_pixels,
    left_out_indices,
    log_residuals,
    noise_variance,
    to_image,
    total_std,
)
from scalefield.anchors import Anchors
from scalefield.errors import counted
from scalefield.mde.output import MDEOutput, Space
from scalefield.recovery import Method, Recovery
from scalefield.report import Fallback
from scalefield.validation import require, require_choice


class Limits(NamedTuple):
    """The smallest values that a prediction may have."""

    line: float
    fallback: float


@dataclass(frozen=True)
class KNN(Method):
    """Scale and shift at every pixel from its k nearest anchors, in disparity by default.

    Minimises Σ_j (y_j − s·x_j − t)² / d_j over the k nearest anchors, where d_j is their distance
    from the pixel, at least 1 px. Fallbacks at each pixel: the median of y/x if the neighbours' x
    have no range or s ≤ 0; the median of y if no x is above zero. In disparity the median of y/x
    also replaces a line that predicts less than ½ min y over all anchors, because depth is infinite
    where a line crosses zero; such pixels are at most twice as far as the farthest anchor. Where
    the map's own zero is unknown (`affine`), no fallback is more than ten times as far.
    """

    k: int = 5
    """Number of anchors that a pixel is fitted to, or all if there are fewer."""
    space: Space = "disparity"
    """Space of the fit."""

    def __post_init__(self) -> None:
        whole = isinstance(self.k, int) and self.k >= 1
        require(whole, "k", "a whole number of anchors, at least 1", self.k)
        require_choice("space", self.space, get_args(Space))

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery[Tensor]:
        """Recover from one anchor or more."""
        samples = Samples.at(mde_output, anchors, self.space)
        mde_map = mde_output.in_space(self.space).double()
        x, prediction = mde_map.flatten(), torch.empty_like(mde_map).flatten()
        scale_only = torch.zeros_like(prediction, dtype=torch.bool)
        points = np.stack([samples.rows, samples.columns], axis=1)
        k = min(self.k, len(samples))
        limits = self._limits(mde_output, samples)
        for pixel, index, squared in nearest_points(points, mde_output.shape, k, x.device):
            prediction[pixel], scale_only[pixel] = predict_from_neighbours(
                samples, index, squared.double().sqrt_(), x[pixel], limits
            )
        lower_pixels = int(scale_only.sum())
        why = "the k anchors' relative depths have no range or give no positive scale, or a depth "
        text = f"scale only at {counted(lower_pixels, 'pixel')}: {why}far beyond all anchors"
        return Recovery.from_space(
            mde_output,
            anchors,
            prediction.view_as(mde_map),
            self.space,
            std_log=self._std(mde_map, samples, limits),
            fallbacks=(Fallback("scale_only", text),) if lower_pixels else (),
        )

    def _limits(self, mde_output: MDEOutput, samples: Samples) -> Limits:
        """The smallest values that may be predicted; none in depth, where zero is not far."""
        if self.space == "depth":
            return Limits(-np.inf, -np.inf)
        farthest = float(samples.y.min())
        return Limits(0.5 * farthest, 0.1 * farthest if mde_output.affine else -np.inf)

    def _std(
        self, mde_map: Float64[Tensor, "h w"], samples: Samples, limits: Limits
    ) -> Float[Tensor, "h w"]:
        """std_log, by the weights of the k nearest anchors."""
        tree = cKDTree(samples.pixels)
        variance = self._noise(tree, samples, limits) if len(samples) > 1 else PRIOR_STD**2
        shape = (mde_map.shape[0], mde_map.shape[1])
        pixels = np.stack(coarse_pixels(shape), axis=1)
        distance, index = tree.query(pixels, k=[*range(1, min(self.k, len(samples)) + 1)])
        x = at_coarse_pixels(mde_map)
        total = variance + samples.tau**2
        _, propagated = _neighbour_predictions(
            samples, index.T, distance.T, x, limits=limits, variance=total
        )
        return to_image(total_std(variance, propagated), shape, mde_map.device)

    def _noise(self, tree: cKDTree, samples: Samples, limits: Limits) -> float:
        """v from fits to the k anchors nearest to an anchor that is left out."""
        out = left_out_indices(len(samples))
        k = min(self.k, len(samples) - 1)
        distance, index = tree.query(samples.pixels[out], k=[*range(1, k + 2)])
        # The anchor itself goes, or, where several share its pixel, one of them.
        own = index == out[:, None]
        own[~own.any(axis=1), -1] = True
        index, distance = (a[~own].reshape(len(out), k).T for a in (index, distance))
        one = np.ones(len(samples))
        left_out, propagated = _neighbour_predictions(
            samples, index, distance, samples.x[out], limits=limits, variance=one
        )
        residuals = log_residuals(samples.y[out], left_out)
        return noise_variance(residuals, 1 + propagated, samples.tau[out])


def _neighbour_predictions(
    samples: Samples,
    index: Int64[np.ndarray, "k p"],
    distance: Float64[np.ndarray, "k p"],
    x: Float64[np.ndarray, " p"],
    *,
    limits: Limits,
    variance: Float64[np.ndarray, " n"],
) -> tuple[Float64[np.ndarray, " p"], Float64[np.ndarray, " p"]]:
    """Predictions at pixels with these neighbours, and their relative variance from that of the
    anchors.

    S_j = w_j (1 + (x − x̄)(x_j − x̄) / var x) where a line was fitted, and w_j where a fallback was
    used.
    """
    i, d, at = (torch.from_numpy(a) for a in (index, distance, x))
    predicted, lower = (a.numpy() for a in predict_from_neighbours(samples, i, d, at, limits))
    weight = samples.weight[index] / np.maximum(distance, 1)
    weight = weight / weight.sum(axis=0)
    with np.errstate(all="ignore"):  # without a range of x a fallback is used
        centred = samples.x[index] - (weight * samples.x[index]).sum(axis=0)
        tilt = (x - (weight * samples.x[index]).sum(axis=0)) / (weight * centred**2).sum(axis=0)
        line = (weight * (1 + tilt * centred) * samples.y[index] / predicted) ** 2
        propagated = (np.where(lower, weight**2, line) * variance[index]).sum(axis=0)
    return predicted, np.nan_to_num(propagated, nan=LARGEST_STD**2, posinf=LARGEST_STD**2)


def predict_from_neighbours(
    samples: Samples,
    index: Int64[Tensor, "k p"],
    distance: Float64[Tensor, "k p"],
    at: Float64[Tensor, " p"],
    limits: Limits,
) -> tuple[Float64[Tensor, " p"], Bool[Tensor, " p"]]:
    """The prediction at pixels with these relative values, and the mask of those that use a
    fallback.

    A line that predicts less than its limit is replaced by a fallback, which is limited to it.
    """
    x_unit, y_unit = float(np.abs(samples.x).max()) or 1.0, float(samples.y.max())
    x, y, weight = (
        torch.from_numpy(values).to(index.device).index_select(0, index.flatten()).view_as(index)
        for values in (samples.x / x_unit, samples.y / y_unit, samples.weight)
    )
    weight = weight / distance.clamp(min=1)
    weight = weight / weight.sum(0)
    x_mean, y_mean = (weight * x).sum(0), (weight * y).sum(0)
    x_centred = x - x_mean
    x_weighted = weight * x_centred
    scale = (x_weighted * y).sum(0) / (x_weighted * x_centred).sum(0)
    low, high = x.amin(0), x.amax(0)
    flat = high - low < MIN_RELATIVE_RANGE * torch.maximum(high, -low)
    no_line = flat | ~(scale > 0) | ~torch.isfinite(scale)
    prediction = scale * (y_unit / x_unit) * at + (y_mean - scale * x_mean) * y_unit
    too_far = ~no_line & (prediction < limits.line)
    lower = no_line | too_far
    if lower.any():
        ratios = torch.where(x[:, lower] > 0, y[:, lower] / x[:, lower], torch.nan)
        median = ratios.nanquantile(0.5, dim=0)
        constant = y[:, lower].quantile(0.5, dim=0) * y_unit
        prediction[lower] = torch.where(
            median.isnan(), constant, median * (y_unit / x_unit) * at[lower]
        )
        prediction[too_far] = prediction[too_far].clamp(min=limits.line)
        prediction[no_line] = prediction[no_line].clamp(min=limits.fallback)
    return prediction, lower
