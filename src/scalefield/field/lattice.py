"""A lattice over the image: the anchors near its nodes, and the field at the pixels of its cells.

Each node has a predictor of the stationary part of the field, a weighted sum of covariances with
the anchors nearest to it. A pixel's prediction is the bilinear blend of the predictors of its
cell's four nodes, so the field is continuous. Where all nodes have the same predictor, so has every
pixel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from scipy.spatial import cKDTree
from torch import Tensor

from scalefield.field.config import InferenceConfig
from scalefield.field.image_inputs import ImageInputs
from scalefield.field.kernel import Kernel, KernelInputs, TermFeatures
from scalefield.runtime.threads import map_threads

TILE_NODES = 4
"""Successive nodes of a row that share their candidates on a GPU."""
TILE_CANDIDATES = 64
"""Anchors that the nodes of a tile choose their neighbours from on a GPU."""
TIE_SHIFT = (1.1e-6, 0.7e-6)
"""Shift of nodes, in units of their position, that decides between equally near anchors."""
CHUNK_QUERIES = 1024
"""Nodes whose neighbours one thread of a processor finds at once."""
CHUNK_DISTANCES = 1 << 24
"""Distances between tiles and anchors that are held at once on a GPU."""


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

    def image(self, pixels: Float[Tensor, "*t c p"]) -> Float[Tensor, "*t h w"]:
        """The image from the pixels of all cells."""
        side, columns = self.cell_px, self.cells[1]
        tiled = pixels.unflatten(-1, (side, side)).unflatten(-3, (-1, columns)).transpose(-3, -2)
        rows = tiled.flatten(-2).flatten(-3, -2)
        return rows[..., : self.shape[0], : self.shape[1]]


def nearest(
    nodes: Float[Tensor, "m 2"],
    anchors: Float[Tensor, "n 2"],
    mask: Bool[Tensor, " n"],
    k: int,
    row_length: int = 1,
    *,
    at_once: bool = False,
) -> tuple[Int64[Tensor, "m k"], Bool[Tensor, "m k"]]:
    """The k anchors of the mask nearest to each node, and whether there are so many.

    On a GPU up to `TILE_NODES` successive nodes of a row of `row_length` share their candidates;
    1 for nodes in no order. `at_once` holds all distances to the candidates: more memory, fewer
    kernels.
    """
    k = min(k, len(anchors))
    if anchors.is_cuda:
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


def nearest_in_tiles(
    nodes: Float[Tensor, "m 2"],
    anchors: Float[Tensor, "n 2"],
    mask: Bool[Tensor, " n"],
    k: int,
    row_length: int = 1,
    *,
    at_once: bool = False,
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
    step = len(middle) if at_once else max(1, CHUNK_DISTANCES // len(anchors))
    for part in middle.split(step):
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


class Interpolation(NamedTuple):
    """Bilinear interpolation along one axis, from the network's grid to the pixels of cells."""

    pixels: Int64[Tensor, "c s"]
    """Pixels of each row or column of cells; those beyond the image repeat its last one."""
    position: Float[Tensor, "c s"]
    """v or u of these pixels, as in `KernelInputs.position`."""
    grid: Int64[Tensor, "c q"]
    """The values of the grid around each row or column of cells."""
    weights: Float[Tensor, "c q s"]
    """Weight of each of these values at each pixel."""

    @classmethod
    def of(cls, lattice: Lattice, axis: int, grid: int) -> Interpolation:
        """For the rows (axis 0) or columns (axis 1) of a lattice, and so many values."""
        cells, side, size = lattice.cells[axis], lattice.cell_px, lattice.shape[axis]
        device, unit_px = lattice.device, math.sqrt(math.prod(lattice.shape))
        pixels = torch.arange(cells * side, device=device).clamp(max=size - 1).reshape(cells, side)
        at = ((pixels + 0.5) * (grid / size) - 0.5).clamp(0, grid - 1)
        reach = math.ceil((side - 1) * grid / size) + 2
        index = at[:, :1].floor().long() + torch.arange(reach, device=device)
        weights = (1 - (at[:, None] - index[..., None]).abs()).clamp(min=0)
        position = (pixels - (size - 1) / 2) / unit_px
        return cls(pixels, position, index.clamp(max=grid - 1), weights)


@dataclass(frozen=True, eq=False)
class PixelTiles:
    """The inputs of the stationary terms at the pixels of the cells of a lattice over an image."""

    image: ImageInputs
    lattice: Lattice
    maps: Float[Tensor, "hg wg e"]
    """On the network's grid: embeddings and amplitudes, or all channels."""
    rows: Interpolation
    columns: Interpolation

    @classmethod
    def of(cls, image: ImageInputs, lattice: Lattice, *, linear: bool = False) -> PixelTiles:
        """The tiles of an image; with `linear` also for the inputs of the linear part."""
        maps = image.maps.maps if linear else image.maps.term_maps
        maps = maps[0].permute(1, 2, 0).float().contiguous()
        rows, columns = (Interpolation.of(lattice, i, maps.shape[i]) for i in (0, 1))
        return cls(image, lattice, maps, rows, columns)

    def inputs(self, cells: Int64[Tensor, " c"]) -> KernelInputs:
        """The kernel's inputs at the pixels of cells, row by row; of tiles made with `linear`."""
        position, log_depth, values, (rows, columns) = self.values(cells)
        shift = self.image.shift
        at = None if shift is None else shift[rows[:, :, None], columns[:, None]].flatten(1)
        return self.image.maps.layout.kernel_inputs(position.mT, log_depth, values, at)

    def features(self, kernel: Kernel, cells: Int64[Tensor, " c"]) -> TermFeatures:
        """Features of the pixels of cells, row by row."""
        position, log_depth, values, _ = self.values(cells)
        terms, size = len(kernel.terms), self.image.maps.layout.embedding_size
        embedding, amplitude = values.split([terms * size, terms], dim=2)
        embedding = embedding.unflatten(2, (terms, size))
        return kernel.term_features(position.mT, log_depth, embedding, amplitude)

    def values(
        self, cells: Int64[Tensor, " c"]
    ) -> tuple[
        Float[Tensor, "c 2 p"],
        Float[Tensor, "c p"],
        Float[Tensor, "c p e"],
        tuple[Int64[Tensor, "c s"], Int64[Tensor, "c s"]],
    ]:
        """Position, log-depth and values of the maps at the pixels of cells, and the rows and
        columns of these pixels."""
        across = self.lattice.cells[1]
        rows, v, grid_v, weights_v = (x[cells // across] for x in self.rows)
        columns, u, grid_u, weights_u = (x[cells % across] for x in self.columns)
        patch = self.maps[grid_v[:, :, None], grid_u[:, None]].mT  # c q e q
        along_u = torch.bmm(patch.flatten(1, 2), weights_u).unflatten(1, patch.shape[1:3])
        values = torch.bmm(weights_v.mT, along_u.flatten(2)).unflatten(2, along_u.shape[2:])
        values = values.movedim(2, 1).flatten(2).mT  # c p e, with the pixels last in memory
        log_depth = self.image.log_depth[rows[:, :, None], columns[:, None]].flatten(1)
        position = torch.stack(torch.broadcast_tensors(u[:, None], v[:, :, None]), dim=1)
        return position.flatten(2), log_depth, values, (rows, columns)

    def sums(
        self,
        kernel: Kernel,
        anchors: TermFeatures,
        predictors: tuple[Int64[Tensor, "m k"], Float[Tensor, "m k r"]],
        variance: Float[Tensor, " n"],
        *,
        static: bool = False,
    ) -> Callable[[Int64[Tensor, " c"]], Float[Tensor, "r_2 c p"]]:
        """A function that returns Σᵢ k(x, aᵢ) αᵢ at the pixels of cells, for each column of the
        coefficients α of the anchors near each node, blended between the four nodes of a cell; the
        prior variance of g(x); and the least of 2 vᵢ + 2 Var[g(x) − g(aᵢ)], an upper bound of its
        variance given anchors with the variances v (infinite for those that are not used)."""
        lattice, single = self.lattice, TermFeatures(*(x.float() for x in anchors))
        level = 0.5 * (variance.float() + single.amplitude.square().sum(dim=1))

        def sums(cells: Int64[Tensor, " c"]) -> Float[Tensor, "r_2 c p"]:
            corners = lattice.corners[cells]
            union, alpha = cell_weights(*(x[corners] for x in predictors), static=static)
            pixels = self.features(kernel, cells)
            covariance = kernel.cross_covariance(single.at(union), pixels)
            at_nodes = torch.bmm(alpha.permute(0, 3, 1, 2).flatten(1, 2), covariance)
            blended = at_nodes.unflatten(1, (-1, 4)).mul_(lattice.blending).sum(dim=2)
            prior = pixels.amplitude.square().sum(dim=-1)
            most = covariance.sub_(level[union][..., None]).amax(dim=1)
            rows = torch.stack([prior, 2 * prior - 4 * most], dim=1)
            return torch.cat([blended, rows], dim=1).transpose(0, 1)

        return sums
