"""The field given anchors: fit once, then evaluate anywhere.

`fit` estimates the linear part from blocks of anchors (`blocks`), and `FieldFit` evaluates the
stationary part by local kriging (`local`) on a lattice over the image. The cost hardly depends on
the number of anchors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from scalefield.basis.grids import upsample
from scalefield.field.blocks import Blocks, BlockSolutions, LinearPosterior, Observations
from scalefield.field.config import InferenceConfig
from scalefield.field.image_inputs import ImageInputs
from scalefield.field.kernel import Kernel, TermFeatures, term_names
from scalefield.field.local import (
    Lattice,
    LocalSolver,
    LocalSystems,
    PixelSampler,
    dense_terms,
    nearest,
)
from scalefield.runtime.threads import map_threads

TINY = 1e-12
"""Least prior variance, where a kernel has no stationary part."""
CHUNK_NODES = 1024
"""Local systems that one thread solves at once."""


class LinearCoefficients(NamedTuple):
    """E[ℓ] without its stationary part: constant + slope·d + mean_weight·μ + shift·s + planeᵀq +
    modesᵀE."""

    constant: Float[Tensor, ""]
    slope: Float[Tensor, ""]
    mean_weight: Float[Tensor, ""]
    shift: Float[Tensor, ""]
    plane: Float[Tensor, " 3"]
    modes: Float[Tensor, " k"]


class StaticShapes(NamedTuple):
    """What is fixed beforehand where shapes must not depend on the anchors."""

    sampler: PixelSampler
    max_union: int
    """Bound on the number of anchors of a cell."""


@dataclass(frozen=True, eq=False)
class FieldFit:
    """The posterior of the log-scale field over one image."""

    kernel: Kernel
    image: ImageInputs
    observations: Observations
    linear: LinearPosterior
    features: TermFeatures
    """Features of the anchors."""
    config: InferenceConfig
    static: StaticShapes | None = None

    @cached_property
    def sampler(self) -> PixelSampler:
        """The inputs of the stationary terms at the pixels of the lattice's cells."""
        if self.static is not None:
            return self.static.sampler
        return PixelSampler.of(self.kernel, self.image, self.config, len(self.observations.y))

    @property
    def lattice(self) -> Lattice:
        """The nodes of the local solves."""
        return self.sampler.lattice

    @cached_property
    def local(self) -> LocalSystems:
        """The local solves at all nodes."""
        lattice = self.lattice
        return self.solve_near(lattice.node_uv, *lattice.node_pixels, row_length=lattice.nodes[1])

    @cached_property
    def solver(self) -> LocalSolver:
        """Solves the systems of the anchors near given positions."""
        features = TermFeatures(*(x.float() for x in self.features))
        variance = self.observations.noise**2
        return LocalSolver(self.kernel, features, self.linear.H, variance, self.linear)

    def solve_near(
        self,
        uv: Float[Tensor, "m 2"],
        rows: Int64[Tensor, " m"],
        columns: Int64[Tensor, " m"],
        row_length: int = 1,
    ) -> LocalSystems:
        """Local solves with the anchors nearest to positions, evaluated at one pixel of each.

        Positions may come in rows of `row_length`, of which a GPU makes use.
        """
        inputs, _, _, mask = self.observations
        solver = self.solver
        position, static = self.image.pixel_uv(inputs.position), self.static is not None
        near = nearest(uv, position, mask, self.config.neighbours, row_length, at_once=static)
        at = self.image.pixels(rows, columns)
        if uv.is_cuda or static:
            return solver(*near, at)
        parts = [slice(i, i + CHUNK_NODES) for i in range(0, len(uv), CHUNK_NODES)]
        chunks = [(near[0][part], near[1][part], at[part]) for part in parts]
        return LocalSystems(*map(torch.cat, zip(*map_threads(solver, chunks), strict=True)))

    def mean(self) -> Float[Tensor, "h w"]:
        """E[ℓ] at every pixel."""
        return self.linear_map() + self._terms()[0]

    def std(self) -> Float[Tensor, "h w"]:
        """Standard deviation of ℓ: computed at the nodes and interpolated."""
        return self.lattice.interpolate(self.local.variance.sqrt())

    def support(self) -> Float[Tensor, "h w"]:
        """Share of the prior variance of the stationary part that the anchors near a pixel remove:
        0 where the field is extrapolated, near 1 beside an anchor of similar depth."""
        share = self.local.explained / self.local.prior.clamp(min=TINY)
        return self.lattice.interpolate(share.clamp(0, 1))

    def predict(self, rows: Int64[Tensor, " m"], columns: Int64[Tensor, " m"]) -> LocalSystems:
        """ℓ at single pixels, each from its own nearest anchors."""
        return self.solve_near(torch.stack([columns, rows], dim=1).double(), rows, columns)

    def smoother_weights(self, row: int, column: int) -> Float[Tensor, " n"]:
        """∂E[ℓ]/∂yᵢ at one pixel: how much each anchor determines the field there."""
        local = self.predict(*(torch.tensor([x], device=self.image.device) for x in (row, column)))
        weights = self.linear.whitened @ (self.linear.covariance @ local.columns[0])
        return weights.index_add(0, local.neighbours[0], local.smoother[0] * local.mask[0])

    def coefficients(self) -> LinearCoefficients:
        """The linear part in the units of its features."""
        kernel, theta = self.kernel, self.linear.weights
        return LinearCoefficients(
            constant=self.linear.offset + kernel.constant_std * theta[0],
            slope=kernel.slope_std * theta[1],
            mean_weight=1 + kernel.mean_weight_std * theta[2],
            shift=theta[3],
            plane=kernel.plane_std * theta[4:7],
            modes=kernel.mode_std * theta[7:],
        )

    def linear_map(self) -> Float[Tensor, "h w"]:
        """Linear part of E[ℓ] at every pixel."""
        constant, slope, mean_weight, shift, plane, modes = (c.float() for c in self.coefficients())
        maps = self.image.maps
        on_grid = torch.einsum("k,bkhw->bhw", modes, maps.modes)[:, None] + mean_weight * maps.mean
        smooth = upsample(on_grid + constant, self.image.shape)[0, 0]
        linear = smooth + slope * self.image.log_depth + self.image.plane(plane)
        return linear if self.image.shift is None else linear + shift * self.image.shift

    def parts(self) -> dict[str, Float[Tensor, "h w"]]:
        """Maps that sum to E[ℓ], by name."""
        constant, slope, mean_weight, shift, plane, modes = (c.float() for c in self.coefficients())
        maps, shape = self.image.maps, self.image.shape
        parts = {
            "global": constant.expand(shape),
            "mean": mean_weight * upsample(maps.mean, shape)[0, 0],
            "slope": slope * self.image.log_depth,
            "plane": self.image.plane(plane),
        }
        if self.image.shift is not None:
            parts["shift"] = shift * self.image.shift
        for k, weight in enumerate(modes, start=1):
            parts[f"mode {k}"] = weight * upsample(maps.modes[:, k - 1 : k], shape)[0, 0]
        return parts | dict(zip(term_names(self.kernel), self._terms(separate=True), strict=True))

    def _terms(self, separate: bool = False) -> Float[Tensor, "t h w"]:
        return dense_terms(
            self.kernel,
            self.image,
            self.sampler,
            self.local,
            self.features,
            separate=separate,
            max_union=None if self.static is None else self.static.max_union,
        )


def fit(
    kernel: Kernel,
    image: ImageInputs,
    observations: Observations,
    config: InferenceConfig,
    *,
    blocks: Blocks | None = None,
    offset: Float[Tensor, ""] | None = None,
    static: StaticShapes | None = None,
    solve: Callable[..., BlockSolutions] = BlockSolutions.of,
) -> FieldFit:
    """Condition the field on observations; `offset` is the prior mean of the global log-scale.

    `solve` is called as `BlockSolutions.of`, and may keep solutions from edit to edit.
    """
    blocks = (blocks or Blocks.split(observations, config)).within(observations.mask)
    features = kernel.features(observations.inputs)
    H = kernel.linear_features(observations.inputs)
    solutions = solve(kernel, observations, features, H, blocks)
    linear = LinearPosterior.fit(observations, H, blocks, solutions, offset)
    return FieldFit(kernel, image, observations, linear, features, config, static)
