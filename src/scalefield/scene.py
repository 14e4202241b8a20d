"""An image as the kernel of `field` sees it, and the field's values at every pixel of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int32, Int64
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.cues import grid_shape, sample, upsample
from scalefield.embedding import FieldMaps
from scalefield.kernel import Kernel, Points, term_names
from scalefield.mde.output import MDEOutput
from scalefield.patchwork import Patchwork
from scalefield.posterior import Posterior

PAIRS_AT_ONCE = 1 << 18
"""Pixel-anchor pairs that are worked on at once: what a processor's cache holds."""

EXACT_PIXELS = 1 << 16
"""In images with more pixels the dense field is interpolated from nodes, …"""
KEPT_PIXELS = 1 << 19
"""… and up to so many, where each lies among them is kept for the next set of anchors."""
SLICE_CELLS = 140
"""Nodes in the square root of the image's area; 640×480 pixels have one every four."""
NODES_A_LENGTH = 24
"""Nodes in log-depth for each length over which the kernel changes, …"""
MOST_NODES = 500
"""… and at most so many, whatever the map's range."""

STD_CELLS = 80
"""Cells along the longer side on which the deviation, which is smooth, is computed."""


@dataclass(frozen=True, eq=False)
class Scene:
    """An image as the kernel sees it: what does not depend on the anchors."""

    mde_output: MDEOutput
    maps: FieldMaps
    level: float
    """Median of log D_MDE, which log-depth is taken around."""
    depth_length: float
    """Log-depth over which the kernel changes most quickly."""

    @property
    def unit(self) -> float:
        """Pixels in the square root of the image's area."""
        return math.sqrt(math.prod(self.mde_output.shape))

    @cached_property
    def log_depth(self) -> Float[Tensor, "h w"]:
        """log D_MDE around its median, at full resolution."""
        return (self.mde_output.mde_depth.log() - self.level).float()

    @cached_property
    def lattice(self) -> Lattice:
        """The nodes that this image's pixels need."""
        return Lattice.of(self)

    def pixels(self, rows: Int64[np.ndarray, " n"], columns: Int64[np.ndarray, " n"]) -> Points:
        """Single pixels, float64."""
        device = self.mde_output.prediction.device
        uv = torch.from_numpy(np.stack([columns, rows], axis=1)).to(device).double()
        values = sample(self.maps.maps.double(), uv[None], self.mde_output.shape)[0]
        log_depth = self.mde_output.mde_depth[rows, columns].double().log() - self.level
        return self.maps.layout.points(uv / self.unit, log_depth, values)

    def anchors(self, anchors: Anchors) -> Points:
        """The pixels that the anchors fall in."""
        return self.pixels(*anchors.pixels(self.mde_output.shape))

    def cells(self, shape: tuple[int, int]) -> tuple[Points, Int64[np.ndarray, "n 2"]]:
        """The middle pixels of a grid's cells, row by row, and their (row, column)."""
        height, width = self.mde_output.shape
        rows = ((np.arange(shape[0]) + 0.5) * (height / shape[0])).astype(np.int64)
        columns = ((np.arange(shape[1]) + 0.5) * (width / shape[1])).astype(np.int64)
        chosen = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2)
        return self.pixels(chosen[:, 0], chosen[:, 1]), chosen


def dense_mean(posterior: Posterior | Patchwork, scene: Scene) -> Float[Tensor, "h w"]:
    """E[ℓ] at every pixel."""
    parts = iter(dense_parts(posterior, scene).values())
    total = next(parts)
    for part in parts:
        total = total + part
    return total


def dense_parts(
    posterior: Posterior | Patchwork, scene: Scene, *, each_mode: bool = False
) -> dict[str, Float[Tensor, "h w"]]:
    """E[ℓ] at every pixel, split by what explains it. Linear parts are made on the grid and
    upsampled; bends are made at full resolution, where log-depth has its edges."""
    kernel, linear = posterior.kernel, posterior.linear()
    shape = scene.mde_output.shape
    parts = {
        "global": torch.ones_like(scene.log_depth) * linear.constant.float(),
        "mean": upsample(scene.maps.mean, shape)[0, 0] * linear.trust.float(),
        "slope": scene.log_depth * linear.slope.float(),
    }
    weights = linear.weights.float()
    if each_mode:
        modes = upsample(scene.maps.modes, shape)[0] * weights[:, None, None]
        parts |= {f"mode {k}": mode for k, mode in enumerate(modes, start=1)}
    else:
        modes = torch.einsum("bkhw,k->bhw", scene.maps.modes, weights)
        parts["modes"] = upsample(modes[:, None], shape)[0, 0]
    if not kernel.terms:
        return parts
    bends = dense_bends(posterior, scene, each_mode)
    return parts | dict(zip(term_names(kernel) if each_mode else ["bends"], bends, strict=True))


def dense_bends(
    posterior: Posterior | Patchwork, scene: Scene, each_term: bool
) -> Float[Tensor, "terms h w"]:
    """What the bending terms say at every pixel, each alone or in sum; in large images by
    interpolation between nodes."""
    height, width = scene.mde_output.shape
    if height * width > EXACT_PIXELS:
        lattice = scene.lattice
        values = bends_at(posterior, scene, lattice.sights)
        if not each_term:
            values = values.sum(dim=1, keepdim=True)
        made = lattice.spread(values)
    else:
        v, u = torch.meshgrid(
            torch.arange(height, device=scene.log_depth.device),
            torch.arange(width, device=scene.log_depth.device),
            indexing="ij",
        )
        pixels = torch.stack([u, v], dim=-1).flatten(0, 1).float()
        sights = Sights.at(scene, pixels, scene.log_depth.flatten())
        made = bends_at(posterior, scene, sights)
        if not each_term:
            made = made.sum(dim=1, keepdim=True)
    return made.mT.reshape(-1, height, width)


def bends_at(
    posterior: Posterior | Patchwork, scene: Scene, sights: Sights
) -> Float[Tensor, "n terms"]:
    """What each bending term says at some points."""
    height, width = scene.mde_output.shape
    middle = sights.design.new_tensor([width / 2, height / 2], dtype=torch.float64) / scene.unit
    if isinstance(posterior, Posterior):
        bends = Bends(posterior.kernel, posterior.anchors, posterior.alpha, middle)
        return torch.cat([bends(seen) for seen in sights.split(bends.step)])
    made = torch.zeros_like(sights.amplitude)
    for number, where, share in posterior.shares(sights.design[:, :2] + middle):
        near = posterior.anchors[posterior.patches[number].near]
        bends = Bends(posterior.kernel, near, posterior.alphas[number], middle)
        here = Sights(sights.design[where], sights.amplitude[where])
        parts = torch.cat([bends(seen) for seen in here.split(bends.step)])
        made[where] += share[:, None].float() * parts
    return made


class Sights(NamedTuple):
    """What the bending terms look at in n points, so that a matrix product gives all distances."""

    design: Float[Tensor, "n c"]
    """Position p and log-depth d around their middles, 1, ‖p‖², d², and φ_j and ‖φ_j‖² of all j."""
    amplitude: Float[Tensor, "n j"]

    @classmethod
    def at(
        cls, scene: Scene, pixels: Float[Tensor, "n 2"], log_depth: Float[Tensor, " n"]
    ) -> Sights:
        """Points of an image by their pixel (u, v), which need not be whole, and log-depth."""
        layout, shape = scene.maps.layout, scene.mde_output.shape
        maps = scene.maps.maps[:, layout.modes : -1]
        values = sample(maps, pixels[None], shape)[0]
        middle = pixels.new_tensor([shape[1] / 2, shape[0] / 2])
        embedding, amplitude = values.split([layout.terms * layout.channels, layout.terms], dim=1)
        embedding = embedding.unflatten(1, (layout.terms, layout.channels))
        return cls(design((pixels - middle) / scene.unit, log_depth, embedding), amplitude)

    def split(self, step: int) -> Iterator[Sights]:
        """A few points at a time."""
        for design, amplitude in zip(
            self.design.split(step), self.amplitude.split(step), strict=True
        ):
            yield Sights(design, amplitude)


def design(
    position: Float[Tensor, "n 2"],
    log_depth: Float[Tensor, " n"],
    embedding: Float[Tensor, "n j e"],
) -> Float[Tensor, "n c"]:
    """The columns of `Sights.design`."""
    d = log_depth[:, None]
    squares = position.square().sum(dim=1, keepdim=True), d.square()
    columns = [position, d, torch.ones_like(d), *squares]
    return torch.cat([*columns, embedding.flatten(1), embedding.square().sum(dim=2)], dim=1)


class Bends:
    """The bending terms' parts of E[ℓ] at many points, in float32."""

    def __init__(
        self,
        kernel: Kernel,
        anchors: Points,
        alpha: Float[Tensor, " n"],
        middle: Float[Tensor, " 2"],
    ) -> None:
        self.terms = kernel.terms
        self.step = max(1, PAIRS_AT_ONCE // max(1, len(anchors)))
        position = anchors.position - middle
        count, terms, channels = anchors.embedding.shape
        self.products, self.weights = [], []
        for j, term in enumerate(self.terms):
            near, deep = float(term.position_length) ** -2, float(term.depth_length) ** -2
            own, d = anchors.embedding[:, j], anchors.log_depth
            # ‖x − a‖² = ‖x‖² − 2 xᵀa + ‖a‖², with the lengths on the anchors' side.
            square = (
                near * position.square().sum(dim=1) + deep * d.square() + own.square().sum(dim=1)
            )
            product = position.new_zeros(count, 6 + terms * (channels + 1))
            product[:, :2] = -2 * near * position
            product[:, 2] = -2 * deep * d
            product[:, 3], product[:, 4], product[:, 5] = square, near, deep
            product[:, 6 + j * channels : 6 + (j + 1) * channels] = -2 * own
            product[:, 6 + terms * channels + j] = 1
            self.products.append(product.float().mT.contiguous())
            weight = alpha * anchors.amplitude[:, j] * float(term.amplitude) ** 2
            self.weights.append(weight.float())

    def __call__(self, seen: Sights) -> Float[Tensor, "m terms"]:
        """Each term at some points."""
        made = []
        for term, product, weight in zip(self.terms, self.products, self.weights, strict=True):
            r = seen.design @ product
            if term.shape == "gaussian":
                correlation = r.mul_(-0.5).exp_()
            else:
                correlation = r.clamp_(min=0).sqrt_().neg_().exp_()
            made.append(correlation @ weight)
        return torch.stack(made, dim=1) * seen.amplitude


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
    def of(cls, scene: Scene) -> Lattice:
        """The lattice of an image."""
        height, width = scene.mde_output.shape
        cells = grid_shape(height, width, round(SLICE_CELLS * max(height, width) / scene.unit))
        nearest, farthest = (float(x) for x in scene.log_depth.aminmax())
        reach = farthest - nearest
        spacing = max(scene.depth_length / NODES_A_LENGTH, reach / MOST_NODES, 1e-6)
        return cls(scene, cells, nearest, spacing, int(reach / spacing) + 2)

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
        held = [*self.sights, self.slot, self.needed, *(self.kept or ())]
        return sum(t.numel() * t.element_size() for t in held)

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
    """Rows of an image, a few at a time."""
    step = max(1, PAIRS_AT_ONCE // width)
    for first in range(0, height, step):
        yield slice(first, min(first + step, height))


def interpolated(
    values: Float[Tensor, "n t"], index: Int32[Tensor, "m 8"], weight: Float[Tensor, "m 8"]
) -> Float[Tensor, "m t"]:
    """Weighted sums of some rows of `values`."""
    return nnf.embedding_bag(index, values, mode="sum", per_sample_weights=weight)


def dense_std(posterior: Posterior | Patchwork, scene: Scene) -> Float[Tensor, "h w"]:
    """Standard deviation of ℓ, made on a coarse grid and upsampled."""
    shape = grid_shape(*scene.mde_output.shape, STD_CELLS)
    points, _ = scene.cells(shape)
    std = posterior.variance(points).sqrt().float()
    return upsample(std.reshape(1, 1, *shape), scene.mde_output.shape)[0, 0]
