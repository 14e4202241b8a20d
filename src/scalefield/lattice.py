"""A bilateral grid, between whose nodes the bends of large images are interpolated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int32, Int64
from torch import Tensor

from scalefield.basis.grids import grid_shape
from scalefield.bends import Bends, Sights, all_terms, pairs_at_once
from scalefield.hearing import Hearing
from scalefield.kernel import Points
from scalefield.posterior import Posterior
from scalefield.scene import Scene

CELLS = (90, 140, 190, 250)
"""Nodes in the square root of the image's area: 640×480 pixels have one every 6 pixels, or …"""
CELLS_APART = 6.6
"""… so many to the distance between anchors, near which the field has its cusps."""
PIXELS_A_CELL = 9
"""Where that leaves no more than so many pixels to each, it is as cheap to compute the rough terms
at every pixel, and the smooth ones are content with the fewest nodes."""
NODES_A_LENGTH = 20
"""Nodes in log-depth for each length over which the kernel changes, …"""
MOST_NODES = 500
"""… and at most so many, whatever the map's range."""
KEPT_PIXELS = 1 << 19
"""In images of up to so many pixels, where each lies among the nodes is kept."""


def lattice_for(scene: Scene, anchors: int) -> Lattice | None:
    """The nodes that an image's pixels need among so many anchors; None where it is as cheap to do
    without."""
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

    The bends are smooth in both but for their cusps at anchors, so they are made at the nodes and
    interpolated linearly between the eight around a pixel. Edges stay, because log-depth is a
    coordinate.
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
        needed = torch.zeros(*self.cells, self.nodes, dtype=torch.bool, device=device)
        for band in self.bands():
            needed.view(-1)[self.before(*band)[0]] = True
        for axis in range(3):  # and the one after each, which `cells` may not have
            size = needed.shape[axis] - 1
            needed.narrow(axis, 1, size).logical_or_(needed.narrow(axis, 0, size).clone())
        return needed.flatten()

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
        terms = tuple(range(self.scene.maps.layout.terms))
        return Sights.at(self.scene, torch.stack([u, v], dim=1), depth, terms)

    @cached_property
    def hearing(self) -> Hearing:
        """The bends between these nodes and the last anchors."""
        return Hearing()

    def weighted(self, posterior: Posterior) -> Float[Tensor, " n"]:
        """The bends' part of E[ℓ] at every node, for few anchors, which are kept."""
        kernel, middle = posterior.kernel, self.scene.middle

        def hear(anchors: Points) -> Float[Tensor, "n m"]:
            terms = all_terms(kernel)
            return Bends(kernel, anchors, middle, torch.float32, terms).rows(self.sights)

        return self.hearing.weighted(posterior, hear)

    @cached_property
    def kept(self) -> Around | None:
        """What is around every pixel, where they are not too many."""
        height, width = self.scene.mde_output.shape
        return self.around(*self.rows(0, height)) if height * width <= KEPT_PIXELS else None

    @property
    def nbytes(self) -> int:
        """What it holds in memory."""
        held = [self.slot, self.needed, *(self.kept or ()), self.sights, self.hearing]
        return sum(each.nbytes for each in held)

    def before(
        self, rows: Int64[Tensor, "*s r 1"], columns: Int64[Tensor, "*s 1 c"]
    ) -> tuple[Int32[Tensor, "*s r c"], tuple[Tensor, Tensor, Tensor]]:
        """The first of the eight nodes around each pixel, among all that are possible, and how far
        the pixel is from there on its way to the last: down, across and in depth."""
        v, down = between(rows, self.scene.mde_output.shape[0], self.cells[0])
        u, across = between(columns, self.scene.mde_output.shape[1], self.cells[1])
        at = (self.scene.log_depth[rows, columns] - self.nearest) / self.spacing
        node = at.floor().clamp(0, self.nodes - 2)
        first = (v * self.cells[1] + u) * self.nodes + node.int()
        return first, (down, across, at - node)

    def around(self, rows: Int64[Tensor, "*s r 1"], columns: Int64[Tensor, "*s 1 c"]) -> Around:
        """The nodes around pixels, one row of the image after another."""
        first, (down, across, deep) = self.before(rows, columns)
        # An axis with one cell has no next one, and no pixel on its way there.
        step_v = self.nodes * self.cells[1] if self.cells[0] > 1 else 0
        step_u = self.nodes if self.cells[1] > 1 else 0
        steps = torch.tensor([0, step_u, step_v, step_v + step_u], dtype=torch.int32)
        index = first[..., None] + steps.to(first.device)
        slot = self.slot.index_select(0, index.flatten())
        parts = [v * u for v in (1 - down, down) for u in (1 - across, across)]
        weight = torch.stack([part.expand_as(deep) for part in parts], dim=-1)
        return Around(slot.view(-1, 4), weight.view(-1, 4), deep.flatten())

    def rows(self, first: int, last: int) -> tuple[Int64[Tensor, "r 1"], Int64[Tensor, "1 c"]]:
        """The pixels of some rows, as `around` wants them."""
        device, width = self.scene.log_depth.device, self.scene.mde_output.shape[1]
        columns = torch.arange(width, device=device)
        return torch.arange(first, last, device=device)[:, None], columns[None]

    def bands(self) -> Iterator[tuple[Int64[Tensor, "r 1"], Int64[Tensor, "1 c"]]]:
        """All rows, a few at a time: each pixel has its eight nodes."""
        height, width = self.scene.mde_output.shape
        step = max(1, pairs_at_once(self.scene.log_depth) // (8 * width))
        for first in range(0, height, step):
            yield self.rows(first, min(first + step, height))

    def spread(self, values: Float[Tensor, "n t"]) -> Float[Tensor, "m t"]:
        """Values at the nodes, interpolated at every pixel."""
        if self.kept is not None:
            return self.kept.interpolated(values)
        made = values.new_empty(math.prod(self.scene.mde_output.shape), values.shape[1])
        first = 0
        for rows, columns in self.bands():
            last = first + len(rows) * columns.shape[1]
            made[first:last] = self.around(rows, columns).interpolated(values)
            first = last
        return made


def between(
    pixels: Int64[Tensor, "*s"], size: int, cells: int
) -> tuple[Int32[Tensor, "*s"], Float[Tensor, "*s"]]:
    """The cell before each pixel of a row or column, and how far it is on its way to the next."""
    at = ((pixels + 0.5) * (cells / size) - 0.5).clamp(0, cells - 1)
    before = at.floor().clamp(max=max(cells - 2, 0))
    return before.int(), at - before


class Around(NamedTuple):
    """The eight nodes around each of m pixels: two in each of four cells, one behind the other."""

    slot: Int32[Tensor, "m 4"]
    """The nearer of both, by its number among the nodes that are needed; the next is behind it."""
    weight: Float[Tensor, "m 4"]
    """Each cell's part."""
    deep: Float[Tensor, " m"]
    """How far the pixel is on its way from the nearer to the farther."""

    def interpolated(self, values: Float[Tensor, "n t"]) -> Float[Tensor, "m t"]:
        """Values at the nodes, brought to the pixels."""
        pairs = torch.cat([values[:-1], values[1:]], dim=1)
        found = nnf.embedding_bag(self.slot, pairs, mode="sum", per_sample_weights=self.weight)
        nearer, farther = found.chunk(2, dim=1)
        return torch.lerp(nearer, farther, self.deep[:, None])
