"""A scale for each superpixel, spread over their graph and refined along geodesics, after MTD."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import get_args

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import dijkstra
from torch import Tensor

from scalefield.alignment.affine import Samples
from scalefield.alignment.graph_smoother import GraphSmoother, laplacian, ridge, selection
from scalefield.alignment.superpixels import components, merge_small, superpixel_labels
from scalefield.anchors import Anchors
from scalefield.mde.output import MDEOutput, Space
from scalefield.methods.poisson import aligned_log_depth
from scalefield.recovery import Method, Recovery, Solver
from scalefield.validation import require, require_choice

SMALLEST_WEIGHT = 1e-4
"""Weight of an edge across the largest step of depth, so that every superpixel gets a scale."""


@dataclass(frozen=True)
class SuperpixelGraph(Method):
    """A scale for each superpixel with anchors, spread over the graph of superpixels.

    Log-scales θ of the superpixels minimise Σ w (θ_k(i) − r_i)² + λ Σ b_kl exp(−|Δ_kl| / step)
    (θ_k − θ_l)², r being log y − log a of the map a aligned as in `global`, b the length of a
    border as a share of the mean one, and Δ the median step of log a across it. A pixel then takes
    the residual of the anchor that is nearest along the image, times exp(−g² / 2h²); the geodesic
    g sums 1 + |Δ log depth| / step over the pixels of the cheapest path and h is the anchors'
    spacing. *The Midas Touch for Metric Depth* (Ma et al., CVPR 2026, arXiv 2605.11578) has these
    stages; its public description leaves open the weights of the edges, the cost of a path and how
    the correction fades.
    """

    superpixels: int = 200
    """Approximate number of superpixels, for which scikit-image is needed."""
    compactness: float = 0.1
    """Compactness of superpixels, as in `region`."""
    smoothness: float = 0.3
    """λ, the weight of a border of mean length relative to an anchor."""
    step: float = 0.05
    """Step of log-depth that counts as a discontinuity."""
    space: Space | None = None
    """Space of the first alignment. None: disparity for affine-invariant disparity, else depth."""

    def __post_init__(self) -> None:
        whole = isinstance(self.superpixels, int) and self.superpixels >= 1
        require(whole, "superpixels", "a whole number, at least 1", self.superpixels)
        for option in ("compactness", "smoothness", "step"):
            value = getattr(self, option)
            require(0 < value < math.inf, option, "finite and above zero", value)
        if self.space is not None:
            require_choice("space", self.space, get_args(Space))

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery[Tensor]:
        """Recover from one anchor or more."""
        return self.solver(mde_output)(anchors)

    def solver(self, mde_output: MDEOutput) -> Solver:
        """The method for one image; its superpixels are made once."""
        labels = superpixel_labels(mde_output, self.superpixels, self.compactness)
        return partial(self.fit, mde_output, merge_small(components(labels), 1e-4))

    def fit(
        self, mde_output: MDEOutput, regions: Int64[np.ndarray, "h w"], anchors: Anchors
    ) -> Recovery[Tensor]:
        """The fit to anchors for existing superpixels."""
        aligned, fallbacks = aligned_log_depth(mde_output, anchors, self.space)
        samples = Samples.at(mde_output, anchors, "log")
        targets = samples.y - aligned[samples.rows, samples.columns]
        count = int(regions.max()) + 1
        penalty = self.smoothness * region_laplacian(regions, aligned, self.step)
        home = selection(regions[samples.rows, samples.columns], count)
        smoother = GraphSmoother.of(home, samples.weight, penalty + ridge(1e-9, count))
        scales = smoother.solve(targets)
        coarse = aligned + scales[regions]
        residuals = targets - home @ scales
        refined = coarse + self._refinement(coarse, samples, residuals)
        every = smoother.std_log(residuals, samples, selection(np.arange(count), count))
        device = mde_output.prediction.device
        return Recovery.from_depth(
            mde_output,
            anchors,
            torch.from_numpy(np.exp(refined)).to(device),
            std_log=torch.from_numpy(every[regions]).to(device),
            fallbacks=fallbacks,
        )

    def _refinement(
        self,
        coarse: Float64[np.ndarray, "h w"],
        samples: Samples,
        residuals: Float64[np.ndarray, " n"],
    ) -> Float64[np.ndarray, "h w"]:
        """The residual of the nearest anchor along the image, which fades with the distance."""
        width = coarse.shape[1]
        pixels, pixel = np.unique(samples.rows * width + samples.columns, return_inverse=True)
        mean = np.bincount(pixel, samples.weight * residuals) / np.bincount(pixel, samples.weight)
        spacing = samples.spacing_px
        if not math.isfinite(spacing):
            return np.full(coarse.shape, mean[0])
        distance, _, source = dijkstra(
            pixel_graph(coarse, self.step),
            directed=False,
            indices=pixels,
            min_only=True,
            return_predecessors=True,
            limit=4 * spacing,
        )
        of_pixel = np.zeros(coarse.size)
        of_pixel[pixels] = mean
        reached = np.isfinite(distance)
        fading = np.exp(-0.5 * (distance[reached] / spacing) ** 2)
        correction = np.zeros(coarse.size)
        correction[reached] = of_pixel[source[reached]] * fading
        return correction.reshape(coarse.shape)


def region_laplacian(
    regions: Int64[np.ndarray, "h w"], log_depth: Float64[np.ndarray, "h w"], step: float
) -> csr_array:
    """L of the graph of regions; an edge weighs as much as its border is long and level."""
    first, second, jump = [], [], []
    for axis in (0, 1):
        before, after = (
            np.take(regions, range(*ends), axis)
            for ends in ((0, regions.shape[axis] - 1), (1, regions.shape[axis]))
        )
        border = before != after
        first.append(np.minimum(before, after)[border])
        second.append(np.maximum(before, after)[border])
        jump.append(np.abs(np.diff(log_depth, axis=axis))[border])
    count = int(regions.max()) + 1
    pair = np.concatenate(first) * count + np.concatenate(second)
    steps = np.concatenate(jump)
    edges, edge, lengths = np.unique(pair, return_inverse=True, return_counts=True)
    order = np.lexsort((steps, edge))
    middle = np.cumsum(lengths) - lengths + lengths // 2
    level = np.maximum(np.exp(-steps[order[middle]] / step), SMALLEST_WEIGHT)
    weight = lengths / lengths.mean() * level if len(edges) else np.zeros(0)
    return laplacian(edges // count, edges % count, weight, count)


def pixel_graph(log_depth: Float64[np.ndarray, "h w"], step: float) -> csr_array:
    """Costs between pixels and their four neighbours: 1 + |Δ log-depth| / step."""
    index = np.arange(log_depth.size).reshape(log_depth.shape)
    first = np.concatenate([index[:-1].ravel(), index[:, :-1].ravel()])
    second = np.concatenate([index[1:].ravel(), index[:, 1:].ravel()])
    cost = 1 + np.abs(log_depth.flat[first] - log_depth.flat[second]) / step
    return coo_array((cost, (first, second)), shape=(index.size, index.size)).tocsr()
