"""A lattice over the image: the anchors near its nodes, and the field at the pixels of its cells.

Each node has a predictor of the stationary part of the field, a weighted sum of covariances with
the anchors nearest to it. A pixel's prediction is the bilinear blend of the predictors of its
cell's four nodes, so the field is continuous. Where all nodes have the same predictor, so has every
pixel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from scipy.spatial import cKDTree
from torch import Tensor

from scalefield.field.config import InferenceConfig
from scalefield.field.cuda import nearest_in_tiles
from scalefield.field.kernel import TermFeatures
from scalefield.runtime.threads import map_threads

TIE_SHIFT = (1.1e-6, 0.7e-6)
"""Shift of nodes, in units of their position, that decides between equally near anchors."""
CHUNK_QUERIES = 1024
"""Nodes whose neighbours one thread of a processor finds at once."""


class Window(NamedTuple):
    """Some rows and columns of the image."""

    rows: slice
    columns: slice
    cells: Int64[Tensor, "down across"]
    """The cells that cover it; they may reach beyond the image."""
    shape: tuple[int, int]
    """Height and width in pixels."""


@dataclass(frozen=True, eq=False)
class Lattice:
    """Square cells that cover an image; nodes lie at the corners of cells, between pixels."""

    shape: tuple[int, int]
    """Height and width of the image in pixels."""
    cell_px: int
    device: torch.device

    @classmethod
    def of(
        cls, shape: tuple[int, int], anchors: int, config: InferenceConfig, device: torch.device
    ) -> Lattice:
        """The lattice for an image of this shape with this number of anchors."""
        least, largest = config.cell_px
        spacing = math.sqrt(math.prod(shape) / max(anchors, 1))
        side = least if spacing < largest else largest
        while side > max(1, config.max_cell_spacing * spacing):
            side = -(-side // 2)
        return cls(shape, max(side, -(-max(shape) // config.max_cells)), device)

    @property
    def cells(self) -> tuple[int, int]:
        """Rows and columns of cells; the last ones may reach beyond the image."""
        return -(-self.shape[0] // self.cell_px), -(-self.shape[1] // self.cell_px)

    @property
    def nodes(self) -> tuple[int, int]:
        """Rows and columns of nodes."""
        rows, columns = self.cells
        return rows + 1, columns + 1

    @cached_property
    def node_uv(self) -> Float[Tensor, "m 2"]:
        """Position of the nodes in pixels, row by row; pixel centres are at integers."""
        v, u = (torch.arange(n, device=self.device) * self.cell_px - 0.5 for n in self.nodes)
        return torch.stack(torch.meshgrid(u, v, indexing="xy"), dim=-1).reshape(-1, 2).double()

    @cached_property
    def node_pixels(self) -> tuple[Int64[Tensor, " m"], Int64[Tensor, " m"]]:
        """Row and column of the pixel at each node, within the image."""
        u, v = self.node_uv.ceil().long().unbind(dim=1)
        return v.clamp(max=self.shape[0] - 1), u.clamp(max=self.shape[1] - 1)

    @cached_property
    def corners(self) -> Int64[Tensor, "c 4"]:
        """Nodes at the corners of the cells, row by row."""
        rows, columns = (torch.arange(n, device=self.device) for n in self.cells)
        top = rows[:, None] * self.nodes[1] + columns
        bottom = top + self.nodes[1]
        return torch.stack([top, top + 1, bottom, bottom + 1], dim=-1).reshape(-1, 4)

    @cached_property
    def blending(self) -> Float[Tensor, "4 p"]:
        """Bilinear weights of a cell's corners at its pixels, row by row."""
        t = (torch.arange(self.cell_px, device=self.device) + 0.5) / self.cell_px
        weights = torch.stack([1 - t, t])
        return torch.einsum("iv,ju->ijvu", weights, weights).reshape(4, -1)

    def interpolate(self, values: Float[Tensor, "*t m"]) -> Float[Tensor, "*t h w"]:
        """Values at the nodes, interpolated bilinearly at every pixel."""
        return self.image(values.float()[..., self.corners] @ self.blending)

    def windows(self, pixels: int, cells: Int64[Tensor, " c"] | None = None) -> list[Window]:
        """The image, or a rectangle around some of its cells, in parts of whole cells with about so
        many pixels each."""
        (height, width), side = self.shape, self.cell_px
        number = torch.arange(len(self.corners), device=self.device).reshape(self.cells)
        (top, left), (bottom, right) = (0, 0), self.cells
        if cells is not None:
            rows, columns = cells // self.cells[1], cells % self.cells[1]
            top, bottom = int(rows.min()), int(rows.max()) + 1
            left, right = int(columns.min()), int(columns.max()) + 1
        count = max(1, pixels // side**2)
        down, across = max(1, count // (right - left)), min(count, right - left)
        windows = []
        for i, j in product(range(top, bottom, down), range(left, right, across)):
            below, beside = min(i + down, bottom), min(j + across, right)
            v, u = (
                slice(i * side, min(height, below * side)),
                slice(j * side, min(width, beside * side)),
            )
            shape = v.stop - v.start, u.stop - u.start
            windows.append(Window(v, u, number[i:below, j:beside], shape))
        return windows

    def tiles(self, values: Float[Tensor, "*t h w"]) -> Float[Tensor, "c *t p"]:
        """The pixels of each cell of a window; those beyond the image repeat its last ones."""
        side, (height, width) = self.cell_px, values.shape[-2:]
        if height % side or width % side:
            v, u = (torch.arange(n + -n % side, device=self.device) for n in (height, width))
            v, u = v.clamp(max=height - 1), u.clamp(max=width - 1)
            values = values[..., v[:, None], u]
        cells = values.unflatten(-1, (-1, side)).unflatten(-3, (-1, side)).transpose(-3, -2)
        return cells.movedim((-4, -3), (0, 1)).flatten(-2).flatten(0, 1)

    def features(self, pixels: TermFeatures, window: Window) -> TermFeatures:
        """The features of the pixels of each cell of a window, from those row by row."""
        z, amplitude = (x.movedim(0, -1).unflatten(-1, window.shape) for x in pixels)
        return TermFeatures(self.tiles(z).movedim(-1, 1), self.tiles(amplitude).mT)

    def image(
        self, pixels: Float[Tensor, "*t c p"], window: Window | None = None
    ) -> Float[Tensor, "*t h w"]:
        """The image, or a window of it, from the pixels of its cells."""
        side, columns, (height, width) = self.cell_px, self.cells[1], self.shape
        if window is not None:
            columns, (height, width) = window.cells.shape[1], window.shape
        tiled = pixels.unflatten(-1, (side, side)).unflatten(-3, (-1, columns)).transpose(-3, -2)
        return tiled.flatten(-2).flatten(-3, -2)[..., :height, :width]


def nearest(
    nodes: Float[Tensor, "m 2"],
    anchors: Float[Tensor, "n 2"],
    mask: Bool[Tensor, " n"],
    k: int,
    row_length: int = 1,
    *,
    at_once: bool = False,
) -> tuple[Int64[Tensor, "m k"], Bool[Tensor, "m k"]]:
    """The k anchors of the mask nearest to each node, and whether there are so many; on a GPU, and
    `at_once`, by `nearest_in_tiles`, whose arguments the last two are."""
    k = min(k, len(anchors))
    if anchors.is_cuda or at_once:
        return nearest_in_tiles(nodes, anchors, mask, k, row_length, at_once=at_once)
    known = mask.nonzero()[:, 0]
    if len(known) == 0:
        index = torch.zeros(len(nodes), k, dtype=torch.int64)
        return index, torch.zeros_like(index, dtype=torch.bool)
    # Between equally near anchors a small shift decides, and not the structure of the tree, which
    # changes everywhere when one anchor is added.
    tree, shifted = cKDTree(anchors[known].numpy()), nodes.numpy() + TIE_SHIFT
    starts = range(0, len(shifted), CHUNK_QUERIES)
    parts = [(shifted[i : i + CHUNK_QUERIES], range(1, k + 1)) for i in starts]
    found = np.concatenate([index for _, index in map_threads(tree.query, parts)])
    index = sorted_rows(torch.from_numpy(found))  # anchors of one pixel come in any order
    there = index < len(known)
    return known[index.clamp(max=len(known) - 1)], there


class CellWeights(NamedTuple):
    """The anchors that matter in each cell, and their coefficients at its four nodes."""

    anchors: Int64[Tensor, "c u"]
    """Union of the four nodes' neighbours; padded with 0."""
    alpha: Float[Tensor, "c 4 u r"]
    """Coefficients of these anchors at each node; 0 where the node does not use one."""


def cell_weights(
    neighbours: Int64[Tensor, "c 4 k"], alpha: Float[Tensor, "c 4 k r"], *, static: bool = False
) -> CellWeights:
    """Merge the neighbours of each cell's nodes. `static` leaves room for all of them, so that the
    shape does not depend on how many are the same."""
    cells, _, k = neighbours.shape
    # One sort gives the order and what it came from.
    bits = (4 * k - 1).bit_length()
    entries = torch.arange(4 * k, device=neighbours.device)
    ordered = sorted_rows((neighbours.flatten(1) << bits) + entries)
    index, source = ordered >> bits, ordered & ((1 << bits) - 1)
    rank = torch.zeros_like(index)
    rank[:, 1:] = (index[:, 1:] != index[:, :-1]).cumsum(dim=1)
    size = 4 * k if static else int(rank[:, -1].max()) + 1
    slot = torch.empty_like(rank).scatter_(1, source, rank)
    union = index.new_zeros(cells, size).scatter_(1, slot, neighbours.flatten(1))
    merged = torch.zeros(cells, 4, size, alpha.shape[3], device=alpha.device)
    merged.scatter_add_(2, slot.reshape(cells, 4, k, 1).expand_as(alpha), alpha.float())
    return CellWeights(union, merged)


def sorted_rows(keys: Int64[Tensor, "c n"]) -> Int64[Tensor, "c n"]:
    """Rows in order; numpy sorts short ones many times as fast as torch."""
    return keys.sort(dim=1).values if keys.is_cuda else torch.from_numpy(np.sort(keys.numpy()))
