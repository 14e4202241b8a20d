"""A bilateral grid, between whose nodes the bends of large images are interpolated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int32, Int64
from torch import Tensor

from scalefield.bends import PAIRS_AT_ONCE, Sights
from scalefield.cues import grid_shape
from scalefield.hearing import Hearing
from scalefield.scene import Scene

CELLS = (90, 140, 190, 250)
"""Nodes in the square root of the image's area: 640×480 pixels have one every 6 pixels, or …"""
CELLS_APART = 6.6
"""… so many to the distance between anchors, near which the field has its cusps."""
PIXELS_A_CELL = 8
"""Where that is no more than so many pixels for each, they are computed one by one instead."""
NODES_A_LENGTH = 20
"""Nodes in log-depth for each length over which the kernel changes, …"""
MOST_NODES = 500
"""… and at most so many, whatever the map's range."""
KEPT_PIXELS = 1 << 19
"""In images of up to so many pixels, where each lies among the nodes is kept."""


def lattice_for(scene: Scene, anchors: int) -> Lattice | None:
    """The nodes that an image's pixels need; None where it is as cheap to do without."""
    cells = cells_for(anchors)
    if math.prod(scene.mde_output.shape) <= PIXELS_A_CELL * cells**2:
        return None
    return scene.keep(Lattice, cells, lambda: Lattice.of(scene, cells))


def cells_for(anchors: int) -> int:
    """The fewest `CELLS` that do for so many anchors."""
    wanted = CELLS_APART * math.sqrt(anchors)
    return next((cells for cells in CELLS if cells >= wanted), CELLS[-1])


@dataclass(frozen=True, eq=False)
class Lattice:
    """A bilateral grid: nodes over position and log-depth, only those that a pixel needs.

    The bends are smooth in both, so they are made at the nodes and interpolated linearly between
    the eight around a pixel. Edges stay, because log-depth is a coordinate.
    """

    scene: Scene
    cells: tuple[int, int]
    nearest: float
    spacing: float
    nodes: int
    """Nodes in log-depth, the first of them at `nearest`."""

    @classmethod
    def of(cls, scene: Scene, cells: int) -> Lattice:
        """The lattice of an image, with so many nodes in the square root of its area."""
        height, width = scene.mde_output.shape
        grid = grid_shape(height, width, round(cells * max(height, width) / scene.unit))
        nearest, farthest = (float(x) for x in scene.log_depth.aminmax())
        reach = farthest - nearest
        spacing = max(scene.depth_length / NODES_A_LENGTH, reach / MOST_NODES, 1e-6)
        return cls(scene.alone(), grid, nearest, spacing, int(reach / spacing) + 2)

    @cached_property
    def needed(self) -> Bool[Tensor, " all"]:
        """Which of all possible nodes a pixel needs."""
        device = self.scene.maps.maps.device
        needed = torch.zeros(math.prod(self.cells) * self.nodes, dtype=torch.bool, device=device)
        for band in bands(*self.scene.mde_output.shape):
            needed[self.around(band)[0].flatten()] = True
        return needed

    @cached_property
    def slot(self) -> Int32[Tensor, " all"]:
        """The number of each possible node among those that are needed."""
        return self.needed.cumsum(0, dtype=torch.int32) - 1

    @cached_property
    def sights(self) -> Sights:
        """What the kernel sees at the nodes that are needed."""
        (made,) = self.needed.nonzero(as_tuple=True)
        (height, width), (rows, columns) = self.scene.mde_output.shape, self.cells
        cell = made.div(self.nodes, rounding_mode="floor")
        # Cells' centres in pixels, whose own centres are at integers.
        u = (cell % columns + 0.5) * (width / columns) - 0.5
        v = (cell.div(columns, rounding_mode="floor") + 0.5) * (height / rows) - 0.5
        depth = self.nearest + (made % self.nodes) * self.spacing
        return Sights.at(self.scene, torch.stack([u, v], dim=1), depth)

    @cached_property
    def hearing(self) -> Hearing:
        """The bends between these nodes and the last anchors."""
        return Hearing(self.sights, self.scene.middle)

    @cached_property
    def kept(self) -> tuple[Int32[Tensor, "m 8"], Float[Tensor, "m 8"]] | None:
        """Numbers and weights of the nodes around every pixel, where they are not too many."""
        height, width = self.scene.mde_output.shape
        if height * width > KEPT_PIXELS:
            return None
        index, weight = self.around(slice(0, height))
        return self.slot[index], weight

    @property
    def nbytes(self) -> int:
        """What it holds in memory."""
        held = [self.slot, self.needed, *(self.kept or ())]
        return self.hearing.nbytes + sum(t.numel() * t.element_size() for t in held)

    def around(self, rows: slice) -> tuple[Int64[Tensor, "m 8"], Float[Tensor, "m 8"]]:
        """The eight nodes around each pixel of some rows, among all that are possible, and their
        weights."""
        height, width = self.scene.mde_output.shape
        device = self.scene.log_depth.device

        def between(first: int, last: int, size: int, cells: int) -> tuple[Tensor, Tensor]:
            """The cell before each pixel, and how far the pixel is on its way to the next."""
            at = (torch.arange(first, last, device=device) + 0.5) * (cells / size) - 0.5
            at = at.clamp(0, cells - 1)
            before = at.floor().clamp(max=max(cells - 2, 0))
            return before.long(), at - before

        v, along_v = between(rows.start, rows.stop, height, self.cells[0])
        u, along_u = between(0, width, width, self.cells[1])
        at = (self.scene.log_depth[rows] - self.nearest) / self.spacing
        node = at.floor().clamp(0, self.nodes - 2)
        along_d = at - node
        indices, weights = [], []
        for dv in (0, 1):
            weight_v = (along_v if dv else 1 - along_v)[:, None]
            row = (v + dv).clamp(max=self.cells[0] - 1)[:, None] * self.cells[1]
            for du in (0, 1):
                weight_u = along_u if du else 1 - along_u
                cell = row + (u + du).clamp(max=self.cells[1] - 1)
                for dd in (0, 1):
                    indices.append(cell * self.nodes + node.long() + dd)
                    weights.append(weight_v * weight_u * (along_d if dd else 1 - along_d))
        index, weight = (torch.stack(corners, dim=-1) for corners in (indices, weights))
        return index.flatten(0, 1), weight.flatten(0, 1)

    def spread(self, values: Float[Tensor, "n t"]) -> Float[Tensor, "m t"]:
        """Values at the nodes, interpolated at every pixel."""
        if self.kept is not None:
            return interpolated(values, *self.kept)
        made = []
        for band in bands(*self.scene.mde_output.shape):
            index, weight = self.around(band)
            made.append(interpolated(values, self.slot[index], weight))
        return torch.cat(made)


def bands(height: int, width: int) -> Iterator[slice]:
    """Rows of an image, a few at a time: each pixel has its eight nodes."""
    step = max(1, PAIRS_AT_ONCE // (8 * width))
    for first in range(0, height, step):
        yield slice(first, min(first + step, height))


def interpolated(
    values: Float[Tensor, "n t"], index: Int32[Tensor, "m 8"], weight: Float[Tensor, "m 8"]
) -> Float[Tensor, "m t"]:
    """Weighted sums of some rows of `values`."""
    return nnf.embedding_bag(index, values, mode="sum", per_sample_weights=weight)
