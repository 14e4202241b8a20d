"""The field's standard deviation at every pixel, which is smooth and made on a coarse grid."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from scalefield.basis.grids import grid_shape, upsample
from scalefield.bends import Bends, Sights, all_terms, pairs_at_once
from scalefield.hearing import FEW, Hearing
from scalefield.kernel import Kernel, Points
from scalefield.patchwork import Patchwork
from scalefield.posterior import Posterior, linear_columns
from scalefield.scene import Scene

STD_CELLS = 80
"""Cells along the longer side at whose middles the deviation is computed, …"""
FEW_STD_CELLS = 56
"""… and where anchors are few."""


def dense_std(posterior: Posterior | Patchwork, scene: Scene) -> Float[Tensor, "h w"]:
    """Standard deviation of ℓ, made on a coarse grid and upsampled."""
    cells = std_cells(scene, len(posterior.anchors))
    if isinstance(posterior, Patchwork):
        variance = posterior.variance(cells.points)
    else:
        variance = variance_at(posterior, cells)
    std = variance.sqrt().float().reshape(1, 1, *cells.shape)
    return upsample(std, scene.mde_output.shape)[0, 0]


def std_cells(scene: Scene, anchors: int) -> StdCells:
    """Where the deviation is computed."""
    cells = FEW_STD_CELLS if anchors <= FEW else STD_CELLS
    return scene.keep(StdCells, cells, lambda: StdCells.of(scene, cells))


def variance_at(posterior: Posterior, cells: StdCells) -> Float[Tensor, " n"]:
    """`Posterior.variance` at the cells; anchors that were heard before cost less."""
    kernel, anchors, points = posterior.kernel, posterior.anchors, cells.points
    if len(anchors) > FEW:
        made = torch.empty_like(points.mean)
        step = max(1, pairs_at_once(made) // len(anchors))
        for some in (slice(i, i + step) for i in range(0, len(points), step)):
            made[some] = posterior.variance(points[some])
        return made
    cross = linear_columns(kernel, anchors) @ linear_columns(kernel, points).mT
    if len(anchors):
        heard, number = cells.hearing(kernel, anchors, lambda new: cells.bends(kernel, new))
        cross += torch.cat(heard.blocks).index_select(0, number)
    half = torch.linalg.solve_triangular(posterior.factor, cross, upper=False)
    return (kernel.variance(points) - half.square().sum(dim=0)).clamp(min=0)


@dataclass(frozen=True, eq=False)
class StdCells:
    """The pixels at which the deviation is computed: the middles of a grid's cells."""

    shape: tuple[int, int]
    points: Points
    middle: Float[Tensor, " 2"]

    @classmethod
    def of(cls, scene: Scene, cells: int) -> StdCells:
        """So many cells along the longer side."""
        shape = grid_shape(*scene.mde_output.shape, cells)
        return cls(shape, scene.cells(shape)[0].to(torch.float64), scene.middle)

    @cached_property
    def sights(self) -> Sights:
        """What the bending terms see at these pixels."""
        points = self.points
        place = points.position - self.middle
        return Sights.of(place, points.log_depth, points.embedding, points.amplitude)

    @cached_property
    def hearing(self) -> Hearing:
        """The bends between these pixels and the last anchors."""
        return Hearing()

    def bends(self, kernel: Kernel, anchors: Points) -> Float[Tensor, "n m"]:
        """Σ_j of the bending terms at these pixels, a row for each anchor."""
        terms = all_terms(kernel)
        return Bends(kernel, anchors, self.middle, torch.float64, terms).rows(self.sights)

    @property
    def nbytes(self) -> int:
        """What it holds in memory."""
        held = [*vars(self.points).values(), self.sights, self.hearing]
        return sum(each.nbytes for each in held)
