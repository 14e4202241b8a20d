"""A robust line in log-depth, corrected on a bilateral grid, after FounRef."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64
from scipy.ndimage import map_coordinates
from scipy.sparse import csr_array
from torch import Tensor

from scalefield.alignment.affine import MIN_RELATIVE_RANGE, Samples, relative_range
from scalefield.alignment.graph_smoother import GraphSmoother, grid_laplacian, ridge
from scalefield.alignment.uncertainty import coarse_pixels, to_image
from scalefield.anchors import Anchors
from scalefield.mde.output import MDEOutput
from scalefield.methods.poisson import aligned_log_depth
from scalefield.recovery import Method, Recovery
from scalefield.report import Fallback, Rejection
from scalefield.validation import require

HUBER = 1.345
"""Threshold of the line in standard deviations: 95 % as efficient as least squares."""
ROUNDS = 30
"""Reweightings of the line."""
LEVELS = 64
"""Largest number of nodes of the grid along log-depth."""


@dataclass(frozen=True)
class BilateralGrid(Method):
    """A robust line in log-depth, and a smooth correction of it over position and log-depth.

    log y ≈ α + β log D by Huber's loss; its residuals r are fitted by values θ at the nodes of a
    grid over row, column and the line's log-depth, trilinear between: θ minimises Σ w (Xθ − r)² +
    λ Σ_edges (θ_k − θ_l)². Anchors whose residual of a first solve is more than `check` robust
    standard deviations are left out of the second. FounRef (arXiv 2609.29224) is described by
    these parts; the spacing, λ and the limit are left open and were chosen on the `val` split. An
    affine-invariant map is aligned as in `global` first, because its D has no zero. β = 1 with
    fewer than 3 anchors, without a range of D, or if β were not positive.
    """

    cell: float = 0.1
    """Spacing of the nodes over the image, as a fraction of its longer side."""
    level: float = 0.2
    """Spacing of the nodes in log-depth."""
    smoothness: float = 0.002
    """λ, the weight of an edge relative to an anchor."""
    check: float = 10.0
    """Limit of the first solve's residuals, in standard deviations by the median residual."""

    def __post_init__(self) -> None:
        for option in ("cell", "level", "smoothness", "check"):
            value = getattr(self, option)
            require(0 < value < math.inf, option, "finite and above zero", value)

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery[Tensor]:
        """Recover from one anchor or more."""
        samples = Samples.at(mde_output, anchors, "log")
        base, fallbacks = self._base(mde_output, anchors, samples)
        grid = Grid3.of(base, self.cell, self.level)
        design = grid.weights(samples.rows, samples.columns)
        targets = samples.y - base[samples.rows, samples.columns]
        kept = np.ones(len(samples), dtype=bool)
        for again in (False, True):
            smoother = GraphSmoother.of(
                design[kept],
                samples.weight[kept],
                self.smoothness * grid_laplacian(grid.shape) + ridge(1e-6, design.shape[1]),
            )
            values = smoother.solve(targets[kept])
            if again:
                break
            kept = self._consistent(targets - design @ values)
        outliers = np.sort(samples.index[~kept])
        std_log = smoother.std_log(
            (targets - design @ values)[kept],
            samples[kept],
            grid.weights(*coarse_pixels(mde_output.shape)),
        )
        device = mde_output.prediction.device
        return Recovery.from_depth(
            mde_output,
            anchors,
            torch.from_numpy(np.exp(base + grid.slice(values))).to(device),
            rejected=tuple(
                Rejection(int(i), "first_solve", "far from the first solve of the grid")
                for i in outliers
            ),
            std_log=to_image(std_log, mde_output.shape, device),
            fallbacks=fallbacks,
        )

    def _base(
        self, mde_output: MDEOutput, anchors: Anchors, samples: Samples
    ) -> tuple[Float64[np.ndarray, "h w"], tuple[Fallback, ...]]:
        """The line's log-depth at every pixel, and the fallbacks taken."""
        if mde_output.affine:
            log_depth, fallbacks = aligned_log_depth(mde_output, anchors, None)
        else:
            log_depth, fallbacks = mde_output.mde_depth.double().log().cpu().numpy(), ()
        x = log_depth[samples.rows, samples.columns]
        alpha, beta, fitted = huber_line(x, samples.y, samples.weight)
        if not fitted and not fallbacks:
            text = "scale only: one or two anchors, no range of depth, or a falling line"
            fallbacks = (Fallback("scale_only", text),)
        return alpha + beta * log_depth, fallbacks

    def _consistent(self, residuals: Float64[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        """Anchors within the limit of the first solve; all if they agree to rounding."""
        deviation = 1.4826 * np.median(np.abs(residuals))
        return np.abs(residuals) <= max(self.check * deviation, 1e-6)


def huber_line(
    x: Float64[np.ndarray, " n"], y: Float64[np.ndarray, " n"], weight: Float64[np.ndarray, " n"]
) -> tuple[float, float, bool]:
    """α and β of y ≈ α + βx with Huber's loss, and whether β was fitted or is 1.

    Without a fit of β, α is the weighted mean of y − x.
    """
    alpha, beta, fitted = float(np.average(y - x, weights=weight)), 1.0, False
    if len(x) < 3 or relative_range(x - x.mean() + 1) < MIN_RELATIVE_RANGE:
        return alpha, beta, fitted
    robust = weight
    for _ in range(ROUNDS):
        total = robust.sum()
        x_mean, y_mean = robust @ x / total, robust @ y / total
        spread = robust @ (x - x_mean) ** 2
        slope = float(robust @ ((x - x_mean) * (y - y_mean)) / spread) if spread > 0 else 0.0
        if not slope > 0:
            return alpha, beta, fitted
        alpha, beta, fitted = float(y_mean - slope * x_mean), slope, True
        residual = np.abs(y - alpha - beta * x)
        limit = max(HUBER * 1.4826 * float(np.median(residual)), 1e-9)
        robust = weight * np.minimum(1, limit / np.maximum(residual, limit))
    return alpha, beta, fitted


@dataclass(frozen=True, eq=False)
class Grid3:
    """Nodes over rows, columns and levels of a map, and every pixel's position among them."""

    shape: tuple[int, int, int]
    position: Float64[np.ndarray, "3 h w"]
    """Row, column and level of each pixel, in nodes."""

    @classmethod
    def of(cls, values: Float64[np.ndarray, "h w"], cell: float, level: float) -> Grid3:
        """A grid whose spacing is a share of the longer side, and `level` in the map's values.

        Values are limited to those of the central 98 %, and levels to `LEVELS`.
        """
        longest = max(max(values.shape) - 1, 1)
        low, high = np.quantile(values, (0.01, 0.99))
        level = max(level, (high - low) / (LEVELS - 2))
        v, u = np.indices(values.shape) / (cell * longest)
        height = (np.clip(values, low, high) - low) / level
        position = np.stack([v, u, height])
        rows, columns, levels = (math.ceil(each.max()) + 1 for each in position)
        return cls((rows, columns, levels), position)

    def weights(self, rows: np.ndarray, columns: np.ndarray) -> csr_array:
        """The trilinear weights of these pixels on the nodes."""
        at = self.position[:, rows, columns]
        first = np.minimum(at.astype(np.int64), np.maximum(np.array(self.shape) - 2, 0)[:, None])
        share = at - first
        entries = []
        for corner in np.ndindex(2, 2, 2):
            each = np.where(np.array(corner)[:, None] == 1, share, 1 - share).prod(axis=0)
            node = np.minimum(first + np.array(corner)[:, None], np.array(self.shape)[:, None] - 1)
            entries.append((each, np.ravel_multi_index(tuple(node), self.shape)))
        values, nodes = (np.stack(each, axis=1) for each in zip(*entries, strict=True))
        start = np.arange(0, 8 * len(rows) + 1, 8)
        made = csr_array((values.ravel(), nodes.ravel(), start), (len(rows), math.prod(self.shape)))
        made.sum_duplicates()
        return made

    def slice(self, values: Float64[np.ndarray, " nodes"]) -> Float64[np.ndarray, "h w"]:
        """Values at the nodes interpolated to every pixel."""
        nodes = values.reshape(self.shape)
        return map_coordinates(nodes, self.position, order=1, mode="nearest")
