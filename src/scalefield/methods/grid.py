"""Grid alignment (after HI-SLAM2): scales at the vertices of a coarse grid, bilinear between."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from scalefield.alignment.affine import Affine, Samples, curve_std, fit_scale
from scalefield.alignment.uncertainty import (
    LinearSmoother,
    coarse_pixels,
    fit_std,
    log_residuals,
    to_image,
)
from scalefield.anchors import Anchors
from scalefield.errors import counted
from scalefield.mde.output import MDEOutput, Space
from scalefield.recovery import Method, Recovery
from scalefield.report import Fallback
from scalefield.validation import require, require_choice

MIN_ANCHORS = 4
SMALLEST_SCALE = 0.05
"""Vertex scales at or below zero are set to this fraction of s₀."""


@dataclass(frozen=True)
class Grid(Method):
    """One scale at each vertex of a coarse grid over the image, bilinear between, no shift.

    With s = s₀ + δ and s₀ = median(y/x), δ minimises Σ w_i (y_i − x_i Σ_k w_k(a_i)(s₀ + δ_k))² +
    r·(ridge ‖δ‖² + laplacian Σ_edges (δ_k − δ_l)²), where r is the mean squared column of the
    design, so that the penalties have no units. The ridge pulls every vertex toward s₀: a constant
    scale is reproduced exactly with any ridge, a bilinear one exactly with ridge = 0 and laplacian
    = 0, and up to about the ridge's share otherwise. Fallbacks: vertices without an anchor in their
    cells stay at s₀; all vertices stay at s₀ with fewer than 4 anchors.
    """

    rows: int = 2
    """Number of vertices down the image; the first and last are at its corners."""
    columns: int = 2
    """Number of vertices across the image."""
    ridge: float = 1e-3
    """Strength of the pull of every vertex toward the median scale."""
    laplacian: float = 1e-2
    """Strength of the pull between neighbouring vertices, in grids above 2×2."""
    space: Space = "depth"
    """Space of the fit; the source works in disparity."""

    def __post_init__(self) -> None:
        for option in ("rows", "columns"):
            value = getattr(self, option)
            whole = isinstance(value, int) and value >= 2
            require(whole, option, "a whole number of vertices, at least 2", value)
        for option in ("ridge", "laplacian"):
            value = getattr(self, option)
            require(0 <= value < math.inf, option, "finite and not negative", value)
        require_choice("space", self.space, get_args(Space))

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery[Tensor]:
        """Recover from one anchor or more."""
        samples = Samples.at(mde_output, anchors, self.space)
        start = fit_scale(samples, f"{counted(len(samples), 'anchor')}, fewer than {MIN_ANCHORS}")
        mde_map = mde_output.in_space(self.space).double()
        if len(samples) < MIN_ANCHORS or start.scale == 0:
            prediction = start(mde_map)
            fallbacks = [start.fallback] if start.fallback else []
            std_log = curve_std(mde_output, samples, self.space, curve=start, design=start.design)
        else:
            vertices, fallbacks = self.vertex_scales(samples, mde_output.shape, start)
            field = torch.nn.functional.interpolate(
                torch.from_numpy(vertices).to(mde_map.device)[None, None],
                size=mde_output.shape,
                mode="bilinear",
                align_corners=True,
            )[0, 0]
            prediction = field * mde_map
            std_log = self._std(samples, field)
        return Recovery.from_space(
            mde_output,
            anchors,
            prediction,
            self.space,
            std_log=std_log,
            fallbacks=tuple(fallbacks),
        )

    def vertex_scales(
        self, samples: Samples, shape: tuple[int, int], start: Affine
    ) -> tuple[Float64[np.ndarray, "rows columns"], list[Fallback]]:
        """The scale s_k of each vertex, and the fallbacks taken."""
        design, penalty, supported, unit = self._system(samples, shape)
        root = np.sqrt(samples.weight)
        residual = root * (samples.y / (start.scale * unit) - samples.x / unit)
        design = root[:, None] * design
        delta = np.zeros(len(supported))
        # lstsq, because without a ridge a vertex may be undetermined: it then moves least.
        normal = design.T @ design + penalty
        delta[supported] = np.linalg.lstsq(normal, design.T @ residual, rcond=None)[0]
        fallbacks = []
        if not supported.all():
            missing = f"{np.count_nonzero(~supported)} of {len(supported)} vertices"
            text = f"{missing} have no anchor near and stay at the median scale"
            fallbacks.append(Fallback("unsupported_vertices", text))
        scales = 1 + delta
        if (scales <= 0).any():
            negative = f"{np.count_nonzero(scales <= 0)} of {len(scales)} vertices"
            text = f"{negative} held at {SMALLEST_SCALE} of the median scale"
            fallbacks.append(Fallback("negative_scales", text))
            scales = np.where(scales <= 0, SMALLEST_SCALE, scales)
        return (start.scale * scales).reshape(self.rows, self.columns), fallbacks

    def _system(
        self, samples: Samples, shape: tuple[int, int]
    ) -> tuple[
        Float64[np.ndarray, "n k"],
        Float64[np.ndarray, "k k"],
        Bool[np.ndarray, " vertices"],
        float,
    ]:
        """The design x · w_k(a_i) over the supported vertices, the penalty, the mask of supported
        vertices, and the unit of x.

        A vertex is supported if it has an anchor near. In the unit, typical x are one, so that the
        squares of extreme maps stay finite.
        """
        bilinear = self._bilinear(samples.rows, samples.columns, shape)
        unit = float(np.median(samples.x[samples.x > 0]))
        supported = bilinear.sum(axis=0) > 0
        design = (bilinear * (samples.x / unit)[:, None])[:, supported]
        mean_square = (samples.weight @ design**2).mean()
        penalty = self.ridge * np.eye(bilinear.shape[1])
        if self.rows * self.columns > 4:
            penalty = penalty + self.laplacian * self._laplacian()
        return design, mean_square * penalty[np.ix_(supported, supported)], supported, unit

    def _std(self, samples: Samples, field: Float64[Tensor, "h w"]) -> Float[Tensor, "h w"]:
        """std_log of the vertices' scales; the factor x cancels at pixels."""
        shape = (field.shape[0], field.shape[1])
        design, penalty, supported, unit = self._system(samples, shape)
        scales = field[samples.rows, samples.columns].cpu().numpy()
        rows, columns = coarse_pixels(shape)
        std_log = fit_std(
            LinearSmoother.of(design, samples.weight, penalty + 1e-12 * np.eye(len(penalty))),
            log_residuals(samples.y, scales * samples.x),
            samples.tau,
            (samples.y / unit, field[rows, columns].cpu().numpy()),
            self._bilinear(rows, columns, shape)[:, supported],
        )
        return to_image(std_log, shape, field.device)

    def _bilinear(
        self, rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]
    ) -> Float64[np.ndarray, "n vertices"]:
        """w_k(a_i): each pixel's weights on the vertices, summing to one."""
        down = _hat_weights(rows, shape[0], self.rows)
        across = _hat_weights(columns, shape[1], self.columns)
        return (down[:, :, None] * across[:, None, :]).reshape(len(rows), -1)

    def _laplacian(self) -> Float64[np.ndarray, "vertices vertices"]:
        """δᵀLδ = Σ (δ_k − δ_l)² over neighbours in the four directions."""

        def path(n: int) -> np.ndarray:
            difference = np.diff(np.eye(n), axis=0)
            return difference.T @ difference

        return np.kron(path(self.rows), np.eye(self.columns)) + np.kron(
            np.eye(self.rows), path(self.columns)
        )


def _hat_weights(pixel: np.ndarray, size: int, vertices: int) -> np.ndarray:
    place = pixel * ((vertices - 1) / max(size - 1, 1))
    return np.clip(1 - np.abs(place[:, None] - np.arange(vertices)), 0, None)
