"""Local kriging: the stationary part of the field from the anchors nearest to each node.

A nearest-neighbour Gaussian process (Vecchia, 1988; Datta, Banerjee, Finley and Gelfand, 2016;
MuyGPs, Muyskens, Priest, Goumiri and Schneider, 2021). At every node of a lattice the k nearest
anchors make one small system, and all systems are factorised in one batch. A pixel's prediction is
the bilinear blend of the predictors of its cell's four nodes, so the field is continuous. With no
more than k anchors every node has the exact system, and so has every pixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from scalefield.field.blocks import LinearPosterior
from scalefield.field.image_inputs import ImageInputs
from scalefield.field.kernel import Kernel, KernelInputs, TermFeatures
from scalefield.field.lattice import Lattice
from scalefield.field.linalg import Cholesky
from scalefield.runtime.threads import map_threads

CUDA_PIXELS = 3 << 16
"""Pixels that are evaluated at once on a GPU."""
CPU_PIXELS = 1 << 14
"""Pixels that are evaluated at once by a thread of a processor: their products with a few dozen
anchors stay in its cache."""


class LocalSystems(NamedTuple):
    """Anchors near each of m positions, and the systems that they make."""

    neighbours: Int64[Tensor, "m k"]
    mask: Bool[Tensor, "m k"]
    """Whether the position has so many neighbours."""
    alpha: Float[Tensor, "m k"]
    """C⁻¹ applied to the neighbours' residuals; 0 where there is no neighbour."""
    smoother: Float[Tensor, "m k"]
    """C⁻¹k(x): weights of the neighbours' residuals in the mean at the position's pixel."""
    columns: Float[Tensor, "m w"]
    """H(x) − Σᵢ smootherᵢ H(aᵢ): what θ adds to the mean at the pixel."""
    mean: Float[Tensor, " m"]
    """E[ℓ] at the pixel."""
    variance: Float[Tensor, " m"]
    """Var[ℓ] at the pixel."""
    prior: Float[Tensor, " m"]
    """Prior variance of the stationary part at the pixel."""
    explained: Float[Tensor, " m"]
    """How much of it the neighbours remove."""


class AtPixel(NamedTuple):
    """What the systems of m positions say about one pixel of each, whatever the residuals are."""

    cross: Float[Tensor, "m k"]
    """Covariance of the pixel and the neighbours."""
    smoother: Float[Tensor, "m k"]
    """As in `LocalSystems`."""
    columns: Float[Tensor, "m w"]
    """As in `LocalSystems`."""
    prior: Float[Tensor, " m"]
    """Prior variance of the stationary part."""
    variance: Float[Tensor, " m"]
    """Its posterior variance."""

    def total_variance(self, covariance: Float[Tensor, "w w"]) -> Float[Tensor, " m"]:
        """Var[ℓ], given Cov[θ]."""
        spread = ((self.columns @ covariance) * self.columns).sum(dim=1)
        return (self.variance + spread).clamp(min=0)


@dataclass(frozen=True, eq=False)
class LocalSolver:
    """Solves the systems of the anchors near given positions."""

    kernel: Kernel
    features: TermFeatures
    """Features of the anchors, in float32."""
    H: Float[Tensor, "n w"]
    noise: Float[Tensor, " n"]
    linear: LinearPosterior

    def __call__(
        self,
        neighbours: Int64[Tensor, "m k"],
        mask: Bool[Tensor, "m k"],
        at: KernelInputs,
    ) -> LocalSystems:
        """All systems at once; `at` are the inputs at one pixel for each of them."""
        linear = self.linear
        target = linear.residual[neighbours] * mask
        (alpha,), at_pixel = self.solve(neighbours, mask, at, target[..., None])
        H, columns = self.kernel.linear_features(at), at_pixel.columns
        mean = linear.offset + at.mean + H @ linear.weights + (at_pixel.cross * alpha).sum(dim=1)
        variance = at_pixel.total_variance(linear.covariance)
        explained = at_pixel.prior - at_pixel.variance
        return LocalSystems(
            neighbours, mask, alpha, at_pixel.smoother, columns, mean, variance,
            at_pixel.prior, explained,
        )  # fmt: skip

    def solve(
        self,
        neighbours: Int64[Tensor, "m k"],
        mask: Bool[Tensor, "m k"],
        at: KernelInputs,
        right: Float[Tensor, "m k r"],
    ) -> tuple[tuple[Float[Tensor, "m k"], ...], AtPixel]:
        """C⁻¹ applied to each of r columns, and what does not depend on them."""
        kernel = self.kernel
        local = self.features.gather(neighbours)
        local = local._replace(amplitude=local.amplitude * mask)
        noise = torch.where(mask, self.noise[neighbours] ** 2, 1.0)
        covariance = kernel.local_covariance(local) + torch.diag_embed(noise)
        pixel = kernel.features(at)
        pixel = TermFeatures(pixel.z[:, :, None].float(), pixel.amplitude[:, :, None].float())
        cross = kernel.local_covariance(pixel, local)[:, 0]
        solved = Cholesky.of(covariance).solve(torch.cat([right, cross[..., None]], dim=-1))
        *solutions, smoother = solved.unbind(dim=-1)
        H = kernel.linear_features(at)
        columns = H - torch.einsum("mk,mkw->mw", smoother, self.H[neighbours])
        prior = pixel.amplitude[..., 0].square().sum(dim=0)
        variance = prior - (cross * smoother).sum(dim=1)
        return tuple(solutions), AtPixel(cross, smoother, columns, prior, variance)


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
    lattice: Lattice,
    local: LocalSystems,
    features: TermFeatures,
    *,
    separate: bool = False,
    max_union: int | None = None,
) -> Float[Tensor, "t h w"]:
    """Stationary part of E[ℓ] at every pixel: the sum of its terms, or each by itself.

    `features` are those of the anchors. `max_union` bounds the number of anchors of a cell where
    shapes must be static.
    """
    if not kernel.terms:
        return torch.zeros(0 if separate else 1, *lattice.shape, device=lattice.device)
    rows, side = lattice.cells[0], lattice.cell_px
    out = torch.empty(len(kernel.terms) if separate else 1, *lattice.shape, device=lattice.device)
    sampler = PixelSampler(kernel, image, lattice)
    anchors = AnchorFeatures(features.z.transpose(0, 1).float(), features.amplitude.mT.float())

    def evaluate(first: int, last: int) -> None:
        corners = lattice.corners(first, last)
        weights = cell_weights(local.neighbours[corners], local.alpha[corners], max_union)
        terms = terms_at(kernel, sampler.pixels(first, last), anchors, weights, lattice.blending)
        parts = terms.unbind(dim=1) if separate else [terms.sum(dim=1)]
        band = slice(first * side, min(last * side, lattice.shape[0]))
        for part, values in zip(out, parts, strict=True):
            part[band] = lattice.image(values)[: band.stop - band.start]

    on_gpu = lattice.device.type == "cuda"
    step = max(1, (CUDA_PIXELS if on_gpu else CPU_PIXELS) // (lattice.cells[1] * side**2))
    bands = [(first, min(first + step, rows)) for first in range(0, rows, step)]
    if on_gpu:
        for band in bands:
            evaluate(*band)
    else:
        map_threads(evaluate, bands)
    return out


class AnchorFeatures(NamedTuple):
    """`TermFeatures` of the anchors in float32, the anchor first."""

    z: Float[Tensor, "n j d"]
    amplitude: Float[Tensor, "n j"]


class CellPixels(NamedTuple):
    """Inputs of the stationary terms at the pixels of c cells."""

    reference: Float[Tensor, "c j d"]
    """z_j at the middle pixel of each cell."""
    z: Float[Tensor, "c j d_2 p"]
    """z_j relative to the reference, −½ of its squared norm, and 1."""
    amplitude: Float[Tensor, "c j p"]


class PixelSampler:
    """Samples the inputs of the stationary terms at the pixels of rows of cells."""

    def __init__(self, kernel: Kernel, image: ImageInputs, lattice: Lattice) -> None:
        self.image, self.lattice = image, lattice
        layout, device, side = image.maps.layout, lattice.device, lattice.cell_px
        self.maps = image.maps.maps[:, layout.modes : -1].float()
        self.rows = interpolation(lattice, self.maps.shape[2])
        lengths = [
            (float(t.position_lengthscale), float(t.depth_lengthscale), float(t.amplitude))
            for t in kernel.terms
        ]
        # Filled, not copied from the host, which a CUDA graph cannot do.
        position, self.depth_scale, self.amplitude = (
            torch.stack([torch.full((), x, device=device) for x in column])
            for column in zip(*lengths, strict=True)
        )
        if image.factors is not None:
            self.amplitude = self.amplitude * image.factors.field.float()
        self.position_scale = 1 / (position * image.unit_px)
        self.depth_scale = 1 / self.depth_scale
        offset = torch.arange(side, device=device) - float(side // 2)
        v, u = torch.meshgrid(offset, offset, indexing="ij")
        self.offset = torch.stack([u, v]).reshape(2, -1) * self.position_scale[:, None, None]

    def pixels(self, first: int, last: int) -> CellPixels:
        """The pixels of the cells in rows first … last − 1; those beyond the image repeat it."""
        lattice, layout = self.lattice, self.image.maps.layout
        side, columns, (height, width) = lattice.cell_px, lattice.cells[1], lattice.shape
        band = slice(first * side, last * side)
        low, high, weight = (values[band] for values in self.rows)
        maps = self.maps.index_select(2, low).lerp_(
            self.maps.index_select(2, high), weight[:, None]
        )
        maps = nnf.interpolate(maps, size=(maps.shape[2], width), mode="bilinear")[0]
        log_depth = self.image.log_depth[band]
        if band.stop > height or columns * side > width:
            beyond = (0, columns * side - width, 0, max(0, band.stop - height))
            maps = nnf.pad(maps, (0, beyond[1]), mode="replicate")
            log_depth = nnf.pad(log_depth[None], beyond, mode="replicate")[0]

        def tiles(values: Float[Tensor, "*k rows columns"]) -> Float[Tensor, "r c *k s s"]:
            split = values.unflatten(-2, (last - first, side)).unflatten(-1, (columns, side))
            return split.movedim((-4, -2), (0, 1))

        terms, size = layout.terms, layout.embedding_size
        embedding = tiles(maps[: terms * size].unflatten(0, (terms, size)))
        z = maps.new_empty(last - first, columns, terms, size + 5, side, side)
        z[:, :, :, :2] = self.offset.unflatten(-1, (side, side))
        z[:, :, :, 2] = tiles(log_depth)[:, :, None] * self.depth_scale[:, None, None]
        z[:, :, :, 3:-2] = embedding
        z = z.reshape((last - first) * columns, terms, size + 5, side * side)
        middle = side // 2 * (side + 1)
        reference = z[:, :, :-2, middle].clone()
        z[:, :, 2:-2] -= reference[:, :, 2:, None]
        torch.mul(z[:, :, :-2].square().sum(dim=2), -0.5, out=z[:, :, -2])
        z[:, :, -1] = 1
        v, u = (
            torch.arange(start, stop, device=z.device) * side + (side // 2 - (size - 1) / 2)
            for start, stop, size in ((first, last, height), (0, columns, width))
        )
        middle_uv = torch.stack(torch.meshgrid(u, v, indexing="xy"), dim=-1).reshape(-1, 1, 2)
        reference[:, :, :2] = middle_uv * self.position_scale[:, None]
        amplitude = tiles(maps[-terms:]).reshape(len(z), terms, -1)
        return CellPixels(reference, z, amplitude * self.amplitude[:, None])


def interpolation(
    lattice: Lattice, cells: int
) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " n"], Float[Tensor, " n"]]:
    """Lower and upper grid row, and the weight of the upper one, for each row of pixels of the
    lattice: bilinear as `upsample`, clamped at the ends."""
    count, height = lattice.cells[0] * lattice.cell_px, lattice.shape[0]
    at = (torch.arange(count, device=lattice.device) + 0.5) * (cells / height) - 0.5
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
