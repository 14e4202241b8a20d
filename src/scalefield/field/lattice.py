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
from typing import NamedTuple

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int64
from scipy.spatial import cKDTree
from torch import Tensor

from scalefield.basis.grids import to_unit
from scalefield.field.config import InferenceConfig
from scalefield.field.image_inputs import ImageInputs
from scalefield.field.kernel import Kernel, TermFeatures
from scalefield.runtime.threads import map_threads

CUDA_PIXELS = 3 << 16
"""Pixels that are evaluated at once on a GPU."""
CPU_PIXELS = 1 << 15
"""Pixels that are evaluated at once by a thread of a processor: their products with a few dozen
anchors stay in its cache."""
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
    def unit_px(self) -> float:
        """Unit of `KernelInputs.position`: the square root of the image's area, in pixels."""
        return math.sqrt(math.prod(self.shape))

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
    def middle_uv(self) -> Float[Tensor, "c 2"]:
        """Position of the middle pixel of each cell, row by row."""
        side = self.cell_px
        v, u = (torch.arange(n, device=self.device) * side + float(side // 2) for n in self.cells)
        return torch.stack(torch.meshgrid(u, v, indexing="xy"), dim=-1).reshape(-1, 2)

    @cached_property
    def blending(self) -> Float[Tensor, "4 p"]:
        """Bilinear weights of a cell's corners at its pixels, row by row."""
        t = (torch.arange(self.cell_px, device=self.device) + 0.5) / self.cell_px
        weights = torch.stack([1 - t, t])
        return torch.einsum("iv,ju->ijvu", weights, weights).reshape(4, -1)

    def interpolate(self, values: Float[Tensor, "*t m"]) -> Float[Tensor, "*t h w"]:
        """Values at the nodes, interpolated bilinearly at every pixel."""
        return self.image(values.float()[..., self.corners] @ self.blending)

    def image(self, pixels: Float[Tensor, "*t c p"]) -> Float[Tensor, "*t rows w"]:
        """Pixels of whole rows of cells as rows of the image."""
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
    alpha: Float[Tensor, "c 4 u *r"]
    """Coefficients of these anchors at each node; 0 where the node does not use one."""


def cell_weights(
    neighbours: Int64[Tensor, "c 4 k"], alpha: Float[Tensor, "c 4 k *r"], size: int | None = None
) -> CellWeights:
    """Merge the neighbours of each cell's nodes; `size` bounds their number without a sync."""
    cells, _, k = neighbours.shape
    # An anchor that no node of any cell gives a coefficient is left out: padding has none.
    order = neighbours.reshape(cells, 4 * k).sort(dim=1, stable=True)
    index, source = order
    new = torch.ones_like(index, dtype=torch.bool)
    new[:, 1:] = index[:, 1:] != index[:, :-1]
    slot = new.cumsum(dim=1) - 1
    size = int(slot.max()) + 1 if size is None else size
    # Beyond `size` writes go to a last column that is dropped.
    slot = slot.clamp(max=size)
    union = index.new_zeros(cells, size + 1).scatter_(1, slot, index)[:, :size]
    columns = alpha.shape[3:]
    spread = [1] * len(columns)
    target = (source // k * (size + 1) + slot).reshape(cells, 4 * k, *spread)
    source = source.reshape(cells, 4 * k, *spread).expand(-1, -1, *columns)
    values = alpha.reshape(cells, 4 * k, *columns).gather(1, source).float()
    flat = values.new_zeros(cells, 4 * (size + 1), *columns)
    flat.scatter_add_(1, target.expand(-1, -1, *columns), values)
    return CellWeights(union, flat.reshape(cells, 4, size + 1, *columns)[:, :, :size])


def dense_terms(
    kernel: Kernel,
    image: ImageInputs,
    sampler: PixelSampler,
    predictors: tuple[Int64[Tensor, "m k"], Float[Tensor, "m k"]],
    features: TermFeatures,
    *,
    separate: bool = False,
    max_union: int | None = None,
) -> Float[Tensor, "t h w"]:
    """Stationary part of E[ℓ] at every pixel: the sum of its terms, or each by itself.

    `predictors` are the anchors near each node and their coefficients, `features` those of the
    anchors. `max_union` bounds the number of anchors of a cell where
    shapes must be static; the image is then evaluated at once.
    """
    lattice = sampler.lattice
    if not kernel.terms:
        return torch.zeros(0 if separate else 1, *lattice.shape, device=lattice.device)
    (rows, columns), side = lattice.cells, lattice.cell_px
    anchors, (neighbours, alpha) = AnchorFeatures.of(kernel, features), predictors

    def evaluate(first: int, last: int) -> Float[Tensor, "t rows w"]:
        corners = lattice.corners[first * columns : last * columns]
        weights = cell_weights(neighbours[corners], alpha[corners], max_union)
        terms = terms_at(
            kernel, sampler.band(image, first, last), anchors, weights, lattice.blending
        )
        terms = terms if separate else terms.sum(dim=1, keepdim=True)
        return lattice.image(terms.transpose(0, 1))[:, : lattice.shape[0] - first * side]

    on_gpu = lattice.device.type == "cuda"
    step = max(1, (CUDA_PIXELS if on_gpu else CPU_PIXELS) // (columns * side**2))
    step = step if max_union is None else rows
    bands = [(first, min(first + step, rows)) for first in range(0, rows, step)]
    parts = [evaluate(*band) for band in bands] if on_gpu else map_threads(evaluate, bands)
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


class AnchorFeatures(NamedTuple):
    """`TermFeatures` of the anchors in float32, the anchor first."""

    z: Float[Tensor, "n j d"]
    amplitude: Float[Tensor, "n j"]
    """amplitude_j² · a_j: a pixel of a_j = 1 has this covariance with an anchor at its own z_j."""

    @classmethod
    def of(cls, kernel: Kernel, features: TermFeatures) -> AnchorFeatures:
        """The features of anchors under a kernel."""
        pairs = zip(kernel.terms, features.amplitude, strict=True)
        amplitude = torch.stack([term.amplitude * a for term, a in pairs], dim=1)
        return cls(features.z.transpose(0, 1).float(), amplitude.float())


class CellPixels(NamedTuple):
    """Inputs of the stationary terms at the pixels of c cells."""

    reference: Float[Tensor, "c j d"]
    """z_j at the middle pixel of each cell."""
    z: Float[Tensor, "c j d_2 p"]
    """z_j relative to the reference, −½ of its squared norm, and 1."""
    amplitude: Float[Tensor, "c j p"]
    """a_j at the pixels."""


class PixelSampler:
    """Samples the inputs of the stationary terms at the pixels of cells."""

    def __init__(self, kernel: Kernel, lattice: Lattice) -> None:
        self.lattice = lattice
        device, side = lattice.device, lattice.cell_px

        def column(values: list[float]) -> Float[Tensor, "j 1 1"]:
            return torch.tensor(values, dtype=torch.float32, device=device)[:, None, None]

        terms, unit_px = kernel.terms, lattice.unit_px
        self.position_scale = column([1 / (float(t.position_lengthscale) * unit_px) for t in terms])
        self.depth_scale = column([1 / float(t.depth_lengthscale) for t in terms])
        self.centre_uv = torch.tensor([(x - 1) / 2 for x in reversed(lattice.shape)], device=device)
        offset = torch.arange(side, device=device) - float(side // 2)
        self.offsets = torch.stack(torch.meshgrid(offset, offset, indexing="xy"))
        """(u, v) of the pixels of a cell relative to the middle one."""

    @classmethod
    def of(
        cls, kernel: Kernel, image: ImageInputs, config: InferenceConfig, anchors: int
    ) -> PixelSampler:
        """For the cells of an image with this number of anchors."""
        return cls(kernel, Lattice.of(image.shape, anchors, config, image.device))

    def band(self, image: ImageInputs, first: int, last: int) -> CellPixels:
        """The pixels of the cells in rows first … last − 1; those beyond the image repeat it."""
        lattice, maps = self.lattice, self.maps(image)
        side, columns, (height, width) = lattice.cell_px, lattice.cells[1], lattice.shape
        stop = min(last * side, height)
        if first > 0 or stop < height:
            low, high, weight = interpolation(first * side, stop, height, maps)
            maps = maps.index_select(2, low).lerp_(maps.index_select(2, high), weight[:, None])
        maps = nnf.interpolate(maps, size=(stop - first * side, width), mode="bilinear")
        beyond = (0, columns * side - width, 0, last * side - stop)

        def tiles(values: Float[Tensor, "1 k h w"]) -> Float[Tensor, "r c k s s"]:
            whole = nnf.pad(values, beyond, mode="replicate") if any(beyond) else values
            split = whole[0].unflatten(2, (columns, side)).unflatten(1, (last - first, side))
            return split.permute(1, 3, 0, 2, 4)

        log_depth = image.log_depth[None, None, first * side : stop]
        middle_uv = lattice.middle_uv[first * columns : last * columns]
        return self.assembled(tiles(maps), tiles(log_depth), middle_uv)

    def cells(self, image: ImageInputs, index: Int64[Tensor, " c"]) -> CellPixels:
        """The pixels of single cells; those beyond the image repeat it."""
        lattice, side, (height, width) = self.lattice, self.lattice.cell_px, self.lattice.shape
        middle_uv = lattice.middle_uv[index]
        u, v = (middle_uv[:, :, None, None] + self.offsets).unbind(dim=1)
        u, v = u.clamp(max=width - 1), v.clamp(max=height - 1)
        at = to_unit(torch.stack([u, v], dim=-1), lattice.shape).flatten(0, 1)[None]
        maps = nnf.grid_sample(self.maps(image), at, "bilinear", "border", align_corners=False)
        values = maps[0].unflatten(1, (-1, side)).movedim(0, 1)[:, None]
        log_depth = image.log_depth[v.long(), u.long()]
        return self.assembled(values, log_depth[:, None, None], middle_uv)

    def maps(self, image: ImageInputs) -> Float[Tensor, "1 c h w"]:
        """The embeddings and amplitudes of the terms."""
        return image.maps.maps[:, image.maps.layout.modes : -1].float()

    def assembled(
        self,
        values: Float[Tensor, "r c k s s"],
        log_depth: Float[Tensor, "r c 1 s s"],
        middle_uv: Float[Tensor, "rc 2"],
    ) -> CellPixels:
        """The features of pixels from the maps and the log-depth there."""
        terms, side = len(self.depth_scale), self.lattice.cell_px
        size = values.shape[2] // terms - 1
        z = values.new_empty(*values.shape[:2], terms, size + 5, side, side)
        z[:, :, :, :2] = self.offsets * self.position_scale[..., None]
        torch.mul(log_depth, self.depth_scale, out=z[:, :, :, 2])
        z[:, :, :, 3:-2] = values[:, :, : terms * size].unflatten(2, (terms, size))
        z = z.flatten(4).flatten(0, 1)
        reference = z[:, :, :-2, side // 2 * (side + 1)].clone()
        z[:, :, 2:-2] -= reference[:, :, 2:, None]
        torch.mul(z[:, :, :-2].square().sum(dim=2), -0.5, out=z[:, :, -2])
        z[:, :, -1] = 1
        reference[:, :, :2] = (middle_uv - self.centre_uv)[:, None] * self.position_scale[:, 0]
        return CellPixels(reference, z, values[:, :, -terms:].flatten(3).flatten(0, 1))


def interpolation(
    first: int, last: int, height: int, maps: Float[Tensor, "1 c h w"]
) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " n"], Float[Tensor, " n"]]:
    """Lower and upper grid row, and the weight of the upper one, for rows first … last − 1 of an
    image's pixels: bilinear as `upsample`, clamped at the ends."""
    cells = maps.shape[2]
    at = (torch.arange(first, last, device=maps.device) + 0.5) * (cells / height) - 0.5
    at = at.clamp(0, cells - 1)
    low = at.floor().long().clamp(max=max(cells - 2, 0))
    return low, (low + 1).clamp(max=cells - 1), at - low


def terms_at(
    kernel: Kernel,
    pixels: CellPixels,
    anchors: AnchorFeatures,
    weights: CellWeights,
    blending: Float[Tensor, "4 p"],
) -> Float[Tensor, "c j p"]:
    """Σᵢ k_j(x, aᵢ) αᵢ of every term at the pixels of cells, α blended between the cells' nodes."""
    cells, terms, _, size = pixels.z.shape
    correlation = correlations(kernel, pixels, anchors, weights.anchors)
    alpha = weights.alpha[:, None] * anchors.amplitude[weights.anchors].mT[:, :, None]
    at_nodes = torch.bmm(alpha.flatten(0, 1), correlation.flatten(0, 1))
    blended = (at_nodes * blending).sum(dim=1).reshape(cells, terms, size)
    return blended * pixels.amplitude


def correlations(
    kernel: Kernel, pixels: CellPixels, anchors: AnchorFeatures, index: Int64[Tensor, "c u"]
) -> Float[Tensor, "c j u p"]:
    """κ_j between the anchors of an index and the pixels of each cell.

    Distances are matrix products in float32, relative to the cell's middle pixel, which keeps their
    cancellation harmless.
    """
    cells, terms = pixels.z.shape[:2]
    z = anchors.z[index].transpose(1, 2) - pixels.reference[:, :, None]
    norm = -0.5 * z.square().sum(dim=-1, keepdim=True)
    y = torch.cat([z, torch.ones_like(norm), norm], dim=-1)
    exponent = torch.bmm(y.flatten(0, 1), pixels.z.flatten(0, 1)).unflatten(0, (cells, terms))
    for j, term in enumerate(kernel.terms):
        if term.family == "exponential":
            exponent[:, j].clamp_(max=0).mul_(-2).sqrt_().neg_()
    return exponent.exp_()
