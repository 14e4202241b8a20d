"""Cells of an image, the nodes at their corners, and the anchors nearest to each node."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int64
from scipy.spatial import cKDTree
from torch import Tensor

TILE_NODES = 4
"""Successive nodes of a row that share their candidates on a GPU."""
TILE_CANDIDATES = 64
"""Anchors that the nodes of a tile choose their neighbours from on a GPU."""
TIE_SHIFT = (1.1e-6, 0.7e-6)
"""Shift of nodes, in units of their position, that decides between equally near anchors."""
CHUNK_DISTANCES = 1 << 24
"""Distances between tiles and anchors that are held at once on a GPU."""


@dataclass(frozen=True, eq=False)
class Lattice:
    """Square cells that cover an image; nodes lie at the corners of cells, between pixels."""

    shape: tuple[int, int]
    """Height and width of the image in pixels."""
    cell_px: int
    device: torch.device

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

    def corners(self, first: int, last: int) -> Int64[Tensor, "c 4"]:
        """Nodes at the corners of the cells in rows first … last − 1, row by row."""
        rows = torch.arange(first, last, device=self.device)[:, None]
        columns = torch.arange(self.cells[1], device=self.device)
        top = rows * self.nodes[1] + columns
        bottom = top + self.nodes[1]
        return torch.stack([top, top + 1, bottom, bottom + 1], dim=-1).reshape(-1, 4)

    @cached_property
    def blending(self) -> Float[Tensor, "4 p"]:
        """Bilinear weights of a cell's corners at its pixels, row by row."""
        t = (torch.arange(self.cell_px, device=self.device) + 0.5) / self.cell_px
        weights = torch.stack([1 - t, t])
        return torch.einsum("iv,ju->ijvu", weights, weights).reshape(4, -1)

    def interpolate(self, values: Float[Tensor, " m"]) -> Float[Tensor, "h w"]:
        """Values at the nodes, interpolated bilinearly at every pixel."""
        rows, _ = self.cells
        return self.image(values.float()[self.corners(0, rows)] @ self.blending)

    def image(self, pixels: Float[Tensor, "c p"]) -> Float[Tensor, "rows w"]:
        """Pixels of whole rows of cells as rows of the image."""
        side, columns = self.cell_px, self.cells[1]
        tiled = pixels.reshape(-1, columns, side, side).transpose(1, 2)
        return tiled.reshape(-1, columns * side)[: self.shape[0], : self.shape[1]]


def nearest(
    nodes: Float[Tensor, "m 2"],
    anchors: Float[Tensor, "n 2"],
    mask: Bool[Tensor, " n"],
    k: int,
    row_length: int = 1,
) -> tuple[Int64[Tensor, "m k"], Bool[Tensor, "m k"]]:
    """The k anchors of the mask nearest to each node, and whether there are so many.

    On a GPU up to `TILE_NODES` successive nodes of a row of `row_length` share their candidates;
    1 for nodes in no order.
    """
    k = min(k, len(anchors))
    if anchors.is_cuda:
        return nearest_in_tiles(nodes, anchors, mask, k, row_length)
    known = mask.nonzero()[:, 0]
    if len(known) == 0:
        index = torch.zeros(len(nodes), k, dtype=torch.int64)
        return index, torch.zeros_like(index, dtype=torch.bool)
    # Between equally near anchors a small shift decides, and not the structure of the tree, which
    # changes everywhere when one anchor is added.
    shifted = nodes.numpy() + TIE_SHIFT
    _, found = cKDTree(anchors[known].numpy()).query(shifted, k=range(1, k + 1))
    index = torch.from_numpy(found)
    there = index < len(known)
    return known[index.clamp(max=len(known) - 1)], there


def nearest_in_tiles(
    nodes: Float[Tensor, "m 2"],
    anchors: Float[Tensor, "n 2"],
    mask: Bool[Tensor, " n"],
    k: int,
    row_length: int = 1,
) -> tuple[Int64[Tensor, "m k"], Bool[Tensor, "m k"]]:
    """`nearest` by brute force in two steps, with static shapes: the candidates of each tile of
    successive nodes of a row, then each node's own among them."""
    anchors = anchors.float().masked_fill(~mask[:, None], torch.inf)
    side = min(TILE_NODES, row_length)
    rows = nodes.float().reshape(-1, row_length, 2)
    beyond = rows[:, -1:].expand(-1, -row_length % side, 2)
    tiles = torch.cat([rows, beyond], dim=1).reshape(-1, side, 2)
    middle = (tiles.amin(dim=1) + tiles.amax(dim=1)) / 2
    count = min(max(TILE_CANDIDATES, k), len(anchors))
    found = []
    for part in middle.split(max(1, CHUNK_DISTANCES // len(anchors))):
        du, dv = part[:, :1] - anchors[:, 0], part[:, 1:] - anchors[:, 1]
        distance = du.square_().addcmul_(dv, dv)
        found.append(distance.topk(count, largest=False, sorted=False).indices)
    candidates = torch.cat(found)
    apart = (tiles[:, :, None] - anchors[candidates][:, None]).square().sum(dim=-1)
    closest = apart.topk(k, largest=False)
    index = candidates[:, None].expand(-1, side, -1).gather(2, closest.indices)
    there = closest.values.isfinite()
    index, there = (
        values.reshape(len(rows), -1, k)[:, :row_length].reshape(len(nodes), k)
        for values in (index, there)
    )
    return index, there
