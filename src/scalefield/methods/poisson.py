"""Screened Poisson equation in log-depth, as the first stage of LDCM (ICLR 2026)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from jaxtyping import Float64
from scipy.fft import dctn, idctn
from scipy.sparse.linalg import LinearOperator, cg
from torch import Tensor

from scalefield.alignment.affine import Samples, fit_affine
from scalefield.alignment.graph_smoother import GraphSmoother, grid_laplacian, ridge, selection
from scalefield.alignment.uncertainty import STEP, coarse_positions, to_image
from scalefield.anchors import Anchors
from scalefield.mde.output import MDEOutput, Space
from scalefield.recovery import Method, Recovery, depth_limits
from scalefield.validation import require, require_choice

TOLERANCE = 1e-8
"""Relative residual at which the conjugate gradients stop."""


@dataclass(frozen=True)
class Poisson(Method):
    """The gradients of the aligned log-depth are kept, and the anchors correct it around them.

    With a = s·D_MDE + t of `global`, log-depth ℓ minimises λ Σ w (ℓ − log y)² over the anchors
    + Σ (∇ℓ − clip(∇ log a))² over neighbouring pixels: a screened Poisson equation (LDCM, Yu et
    al., ICLR 2026, arXiv 2605.30115). Its code stops conjugate gradients after a number of steps
    at each of four scales and starts from the scale below; here the equation of the finest scale
    is solved to convergence. Weights of the gradients by the estimator's confidence are left out.
    """

    data_weight: float = 5.0
    """λ, the weight of an anchor relative to a pair of pixels."""
    gradient_limit: float = 3.0
    """Largest step of log-depth between two pixels that is kept."""
    space: Space | None = None
    """Space of the fit of s and t. None: disparity for affine-invariant disparity, else depth."""

    def __post_init__(self) -> None:
        for option in ("data_weight", "gradient_limit"):
            value = getattr(self, option)
            require(0 < value < math.inf, option, "finite and above zero", value)
        if self.space is not None:
            require_choice("space", self.space, get_args(Space))

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery[Tensor]:
        """Recover from one anchor or more."""
        aligned, fallbacks = aligned_log_depth(mde_output, anchors, self.space)
        samples = Samples.at(mde_output, anchors, "log")
        targets = samples.y - aligned[samples.rows, samples.columns]
        mass = np.zeros_like(aligned)
        np.add.at(mass, (samples.rows, samples.columns), self.data_weight * samples.weight)
        load = np.zeros_like(aligned)
        np.add.at(
            load,
            (samples.rows, samples.columns),
            self.data_weight * samples.weight * targets,
        )
        for axis in (0, 1):
            step = np.diff(aligned, axis=axis)
            cut = np.clip(step, -self.gradient_limit, self.gradient_limit) - step
            load -= np.diff(cut, axis=axis, prepend=0, append=0)
        correction = solve_screened(mass, load)
        log_depth = torch.from_numpy(aligned + correction).to(mde_output.prediction.device)
        residuals = targets - correction[samples.rows, samples.columns]
        return Recovery.from_depth(
            mde_output,
            anchors,
            log_depth.exp(),
            std_log=to_image(
                self._std(samples, residuals, aligned.shape),
                mde_output.shape,
                mde_output.prediction.device,
            ),
            fallbacks=fallbacks,
        )

    def _std(
        self, samples: Samples, residuals: Float64[np.ndarray, " n"], shape: tuple[int, ...]
    ) -> Float64[np.ndarray, " p"]:
        """std_log at the coarse pixels, on a grid of them.

        In two dimensions Σ (∇ℓ)² does not depend on the spacing of the grid, so λ stays.
        """
        grid = tuple(len(coarse_positions(n)) for n in shape)
        down, across = (
            np.minimum(pixel // STEP, n - 1)
            for pixel, n in zip((samples.rows, samples.columns), grid, strict=True)
        )
        nodes = grid[0] * grid[1]
        smoother = GraphSmoother.of(
            selection(down * grid[1] + across, nodes),
            self.data_weight * samples.weight,
            grid_laplacian(grid) + ridge(1e-9, nodes),
        )
        return smoother.std_log(residuals, samples, selection(np.arange(nodes), nodes))


def aligned_log_depth(
    mde_output: MDEOutput, anchors: Anchors, space: Space | None
) -> tuple[Float64[np.ndarray, "h w"], tuple]:
    """log(s·D_MDE + t) of `global`'s least-squares fit, within the limits of a recovery, and its
    fallbacks."""
    space = mde_output.space_of_fit(space, "depth")
    affine = fit_affine(Samples.at(mde_output, anchors, space))
    prediction = affine(mde_output.in_space(space).double().cpu().numpy())
    prediction = np.broadcast_to(prediction, mde_output.shape)
    nearest, farthest = depth_limits(anchors)
    if space == "disparity":
        log_depth = -np.log(np.clip(prediction, 1 / farthest, 1 / nearest))
    else:
        log_depth = np.log(np.clip(prediction, nearest, farthest))
    return log_depth, (affine.fallback,) if affine.fallback else ()


def solve_screened(
    mass: Float64[np.ndarray, "h w"], load: Float64[np.ndarray, "h w"]
) -> Float64[np.ndarray, "h w"]:
    """The x with (L + diag(mass)) x = load; L is the Laplacian of the pixels' four neighbours.

    The cosine transform diagonalises L, and so solves the equation of a constant mass, which is
    the preconditioner.
    """
    eigenvalues = sum(
        (2 - 2 * np.cos(np.pi * np.arange(n) / n)).reshape(-1, *(1,) * (1 - axis))
        for axis, n in enumerate(mass.shape)
    )
    scale = 1 / (eigenvalues + mass.mean())

    def operator(flat: np.ndarray) -> np.ndarray:
        x = flat.reshape(mass.shape)
        out = mass * x
        for axis in (0, 1):
            out -= np.diff(np.diff(x, axis=axis), axis=axis, prepend=0, append=0)
        return out.ravel()

    def precondition(flat: np.ndarray) -> np.ndarray:
        spectrum = dctn(flat.reshape(mass.shape), norm="ortho")
        return idctn(scale * spectrum, norm="ortho").ravel()

    size = (mass.size, mass.size)
    x, _ = cg(
        LinearOperator(size, matvec=operator),
        load.ravel(),
        x0=np.zeros(mass.size),
        rtol=TOLERANCE,
        M=LinearOperator(size, matvec=precondition),
    )
    return x.reshape(mass.shape)
