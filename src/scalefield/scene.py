"""An image as the kernel of `field` sees it, and the field's values at every pixel of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int32, Int64
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.cues import grid_shape, sample, upsample
from scalefield.embedding import FieldMaps
from scalefield.kernel import Kernel, Points, Term, term_names
from scalefield.mde.output import MDEOutput
from scalefield.patchwork import Patchwork
from scalefield.posterior import Posterior, linear_columns

Held = TypeVar("Held")

PAIRS_AT_ONCE = 1 << 18
"""Pixel-anchor pairs that are worked on at once: what a processor's cache holds."""

CELLS = (90, 140, 190, 250)
"""Nodes in the square root of the image's area: 640×480 pixels have one every 6 pixels, or …"""
CELLS_APART = 6.6
"""… so many to the distance between anchors, near which the field has its cusps."""
FEW = 184
"""Of up to so many anchors it is kept what they have to do with each node."""
MOST_BLOCKS = 12
"""Additions after which what is kept of them is tidied."""
PIXELS_A_CELL = 8
"""Where that is no more than so many pixels for each, they are computed one by one instead."""
NODES_A_LENGTH = 20
"""Nodes in log-depth for each length over which the kernel changes, …"""
MOST_NODES = 500
"""… and at most so many, whatever the map's range."""
KEPT_PIXELS = 1 << 19
"""In images of up to so many pixels, where each lies among the nodes is kept."""
BAND_PIXELS = 1 << 16
"""Pixels that are looked at at once where they are computed one by one."""

STD_CELLS = 80
"""Cells along the longer side on which the deviation, which is smooth, is computed, …"""
FEW_STD_CELLS = 56
"""… and where anchors are few."""


@dataclass(frozen=True, eq=False)
class Scene:
    """An image as the kernel sees it: what does not depend on the anchors."""

    mde_output: MDEOutput
    maps: FieldMaps
    level: float
    """Median of log D_MDE, which log-depth is taken around."""
    depth_length: float
    """Log-depth over which the kernel changes most quickly."""
    lattices: dict[int, Lattice] = field(default_factory=dict, init=False)
    """The nodes that the last anchors needed, by their `CELLS`."""
    std_cells: dict[int, StdCells] = field(default_factory=dict, init=False)
    """Where the deviation of the last anchors' field was computed, by `STD_CELLS`."""

    @property
    def unit(self) -> float:
        """Pixels in the square root of the image's area."""
        return math.sqrt(math.prod(self.mde_output.shape))

    @property
    def middle(self) -> Float[Tensor, " 2"]:
        """The image's middle in the units of `Points.position`."""
        height, width = self.mde_output.shape
        device = self.mde_output.prediction.device
        return torch.tensor([width / 2, height / 2], device=device).double() / self.unit

    @cached_property
    def log_depth(self) -> Float[Tensor, "h w"]:
        """log D_MDE around its median, at full resolution."""
        return (self.mde_output.mde_depth.log() - self.level).float()

    def alone(self) -> Scene:
        """The same image without what is kept for the next anchors, to be held by that."""
        scene = copy(self)
        vars(scene).update(lattices={}, std_cells={})
        return scene

    def lattice(self, anchors: int) -> Lattice | None:
        """The nodes that this image's pixels need; None where it is as cheap to do without."""
        cells = cells_for(anchors)
        if math.prod(self.mde_output.shape) <= PIXELS_A_CELL * cells**2:
            return None
        return kept(self.lattices, cells, lambda: Lattice.of(self, cells))

    def deviation_cells(self, anchors: int) -> StdCells:
        """Where the deviation is computed."""
        cells = FEW_STD_CELLS if anchors <= FEW else STD_CELLS
        return kept(self.std_cells, cells, lambda: StdCells.of(self, cells))

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


def cells_for(anchors: int) -> int:
    """The fewest `CELLS` that do for so many anchors."""
    wanted = CELLS_APART * math.sqrt(anchors)
    return next((cells for cells in CELLS if cells >= wanted), CELLS[-1])


def kept(held: dict[int, Held], key: int, make: Callable[[], Held]) -> Held:
    """What is held under the key; anything else makes room for it."""
    if key not in held:
        made = make()
        held.clear()
        held[key] = made
    return held[key]


def dense_mean(posterior: Posterior | Patchwork, scene: Scene) -> Float[Tensor, "h w"]:
    """E[ℓ] at every pixel: the sum of `dense_parts`, without making each."""
    linear, maps = posterior.linear(), scene.maps
    on_grid = torch.einsum("bkhw,k->bhw", maps.modes, linear.weights.float())[:, None]
    on_grid = on_grid + maps.mean * linear.trust.float() + linear.constant.float()
    total = upsample(on_grid, scene.mde_output.shape)[0, 0]
    total = total.addcmul_(scene.log_depth, linear.slope.float())
    return total.add_(dense_bends(posterior, scene, False)[0]) if posterior.kernel.terms else total


def dense_parts(posterior: Posterior | Patchwork, scene: Scene) -> dict[str, Float[Tensor, "h w"]]:
    """E[ℓ] at every pixel, split by what explains it. Linear parts are made on the grid and
    upsampled; bends are made at full resolution, where log-depth has its edges."""
    linear, shape = posterior.linear(), scene.mde_output.shape
    modes = upsample(scene.maps.modes, shape)[0] * linear.weights.float()[:, None, None]
    parts = {
        "global": torch.ones_like(scene.log_depth) * linear.constant.float(),
        "mean": upsample(scene.maps.mean, shape)[0, 0] * linear.trust.float(),
        "slope": scene.log_depth * linear.slope.float(),
        **{f"mode {k}": mode for k, mode in enumerate(modes, start=1)},
    }
    if not posterior.kernel.terms:
        return parts
    bends = dense_bends(posterior, scene, True)
    return parts | dict(zip(term_names(posterior.kernel), bends, strict=True))


def dense_bends(
    posterior: Posterior | Patchwork, scene: Scene, each_term: bool
) -> Float[Tensor, "terms h w"]:
    """What the bending terms say at every pixel, each alone or in sum; in large images by
    interpolation between nodes."""
    lattice = scene.lattice(count := len(posterior.anchors))
    if lattice is not None and count <= FEW and not each_term and isinstance(posterior, Posterior):
        values = lattice.hearing.weighted(posterior)[:, None]
    else:
        sights = every_pixel(scene) if lattice is None else [lattice.sights]
        values = torch.cat([bends_at(posterior, scene, seen) for seen in sights])
        values = values if each_term else values.sum(dim=1, keepdim=True)
    made = values if lattice is None else lattice.spread(values)
    return made.mT.reshape(-1, *scene.mde_output.shape)


def every_pixel(scene: Scene) -> Iterator[Sights]:
    """What the bending terms look at in every pixel, row by row."""
    log_depth, width = scene.log_depth.flatten(), scene.mde_output.shape[1]
    for first in range(0, len(log_depth), BAND_PIXELS):
        some = log_depth[first : first + BAND_PIXELS]
        number = torch.arange(first, first + len(some), device=some.device)
        row = number.div(width, rounding_mode="floor")
        yield Sights.at(scene, torch.stack([number % width, row], dim=1).float(), some)


def bends_at(
    posterior: Posterior | Patchwork, scene: Scene, sights: Sights
) -> Float[Tensor, "n terms"]:
    """What each bending term says at some points."""
    if isinstance(posterior, Posterior):
        bends = Bends(posterior.kernel, posterior.anchors, scene.middle, torch.float32)
        return bends.weighted(sights, posterior.alpha)
    made = torch.zeros_like(sights.amplitude)
    for number, where, share in posterior.shares(sights.position + scene.middle):
        near = posterior.anchors[posterior.patches[number].near]
        bends = Bends(posterior.kernel, near, scene.middle, torch.float32)
        parts = bends.weighted(sights[where], posterior.alphas[number])
        made[where] += share[:, None].float() * parts
    return made


@dataclass(frozen=True, eq=False)
class Sights:
    """What the bending terms look at in n points, so that matrix products give all distances."""

    designs: tuple[Float[Tensor, "n c"], ...]
    """For each term: position p and log-depth d around their middles, 1, ‖p‖², d², φ, ‖φ‖²."""
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
        return cls.of((pixels - middle) / scene.unit, log_depth, embedding, amplitude)

    @classmethod
    def of(
        cls,
        position: Float[Tensor, "n 2"],
        log_depth: Float[Tensor, " n"],
        embedding: Float[Tensor, "n j e"],
        amplitude: Float[Tensor, "n j"],
    ) -> Sights:
        """Points around the image's middle."""
        d = log_depth[:, None]
        near = [position, d, torch.ones_like(d), norm(position), d.square()]
        own = embedding.unbind(dim=1)
        return cls(tuple(torch.cat([*near, e, norm(e)], dim=1) for e in own), amplitude)

    @property
    def position(self) -> Float[Tensor, "n 2"]:
        """(u, v) around the image's middle, in units of the square root of its area."""
        return self.designs[0][:, :2]

    def __getitem__(self, which: Tensor | slice) -> Sights:
        return Sights(tuple(design[which] for design in self.designs), self.amplitude[which])

    def __len__(self) -> int:
        return len(self.amplitude)

    def split(self, anchors: int) -> Iterator[Sights]:
        """A few points at a time, to be held against so many anchors."""
        step = max(1, PAIRS_AT_ONCE // max(1, anchors))
        for first in range(0, len(self), step):
            yield self[first : first + step]


def norm(values: Float[Tensor, "n c"]) -> Float[Tensor, "n 1"]:
    """‖x‖² of every row."""
    return values.square().sum(dim=1, keepdim=True)


class Bends:
    """The bending terms between many points and some anchors."""

    def __init__(
        self, kernel: Kernel, anchors: Points, middle: Float[Tensor, " 2"], dtype: torch.dtype
    ) -> None:
        self.terms = kernel.terms
        position, d = anchors.position - middle, anchors.log_depth[:, None]
        self.products, self.amplitudes = [], []
        for j, term in enumerate(self.terms):
            near, deep = float(term.position_length) ** -2, float(term.depth_length) ** -2
            own = anchors.embedding[:, j]
            # ‖x − a‖² = ‖x‖² − 2 xᵀa + ‖a‖², with the lengths on the anchors' side.
            square = near * norm(position) + deep * d.square() + norm(own)
            flat = torch.ones_like(d)
            columns = [-2 * near * position, -2 * deep * d, square, near * flat, deep * flat]
            product = torch.cat([*columns, -2 * own, flat], dim=1).mT
            product = -0.5 * product if term.shape == "gaussian" else product
            self.products.append(product.to(dtype).contiguous())
            self.amplitudes.append(anchors.amplitude[:, j] * float(term.amplitude) ** 2)

    def correlations(self, seen: Sights) -> Iterator[Float[Tensor, "m n"]]:
        """κ_j of every pair, term by term."""
        for term, design, product in zip(self.terms, seen.designs, self.products, strict=True):
            r = design @ product
            yield r.exp_() if term.shape == "gaussian" else r.clamp_(min=0).sqrt_().neg_().exp_()

    def weighted(self, sights: Sights, alpha: Float[Tensor, " n"]) -> Float[Tensor, "m terms"]:
        """Each term's part of E[ℓ] at some points, in sums over the anchors."""
        dtype, made = sights.amplitude.dtype, []
        weights = [(alpha * amplitude).to(dtype) for amplitude in self.amplitudes]
        for seen in sights.split(len(alpha)):
            pairs = zip(self.correlations(seen), weights, strict=True)
            said = torch.stack([correlation @ weight for correlation, weight in pairs], dim=1)
            made.append(said * seen.amplitude)
        return torch.cat(made)


class Hearing:
    """The bends between an image's points and anchors, kept for the next ones: of few anchors that
    are edited one at a time, all but one have been heard before."""

    def __init__(self, sights: Sights, middle: Float[Tensor, " 2"]) -> None:
        self.sights, self.middle = sights, middle
        self.last = Heard()

    def __call__(self, kernel: Kernel, anchors: Points) -> tuple[Heard, Int64[Tensor, " n"]]:
        """What is known after hearing these as well, and which row is whose."""
        heard = self.last  # replaced as a whole: another thread may ask as well
        if heard.terms is not kernel.terms:
            heard = Heard(kernel.terms)
        wanted = [tuple(place) for place in anchors.position.tolist()]
        if len(heard.blocks) > MOST_BLOCKS:
            heard = heard.only(set(wanted))
        first = {pixel: i for i, pixel in reversed([*enumerate(wanted)])}
        if new := sorted(first[pixel] for pixel in first.keys() - set(heard.pixels)):
            block = self.heard(kernel, anchors[torch.tensor(new)])
            pixels = (*heard.pixels, *(wanted[i] for i in new))
            heard = Heard(kernel.terms, pixels, (*heard.blocks, block))
        self.last = heard
        number = {pixel: i for i, pixel in enumerate(heard.pixels)}
        rows = [number[pixel] for pixel in wanted]
        return heard, torch.tensor(rows, dtype=torch.int64, device=self.middle.device)

    def heard(self, kernel: Kernel, anchors: Points) -> Float[Tensor, "n m"]:
        """The rows of anchors that have not been heard before."""
        dtype = self.sights.amplitude.dtype
        bends = Bends(kernel, anchors, self.middle, dtype)
        made = []
        for seen in self.sights.split(len(anchors)):
            total = seen.amplitude.new_zeros(len(anchors), len(seen))
            for j, correlation in enumerate(bends.correlations(seen)):
                correlation.mul_(bends.amplitudes[j].to(dtype))
                total.addcmul_(correlation.mT, seen.amplitude[:, j])
            made.append(total)
        return torch.cat(made, dim=1)

    def weighted(self, posterior: Posterior) -> Float[Tensor, " m"]:
        """The bends' part of E[ℓ] at every point."""
        heard, number = self(posterior.kernel, posterior.anchors)
        weights = posterior.alpha.new_zeros(len(heard.pixels))
        weights = weights.index_add(0, number, posterior.alpha).to(self.sights.amplitude.dtype)
        total = torch.zeros_like(self.sights.amplitude[:, 0])
        sizes = [len(block) for block in heard.blocks]
        for block, own in zip(heard.blocks, weights.split(sizes), strict=True):
            total.addmv_(block.mT, own)
        return total


@dataclass(frozen=True, eq=False)
class Heard:
    """Σ_j of the bending terms at every point, a row for each pixel that an anchor was at."""

    terms: tuple[Term, ...] = ()
    pixels: tuple[tuple[float, ...], ...] = ()
    blocks: tuple[Float[Tensor, "_ m"], ...] = ()
    """The rows, as they were added: a large block is not copied for one more."""

    def only(self, wanted: set[tuple[float, ...]]) -> Heard:
        """One block of the rows that are wanted still."""
        still = [i for i, pixel in enumerate(self.pixels) if pixel in wanted]
        pixels = tuple(self.pixels[i] for i in still)
        return Heard(self.terms, pixels, (torch.cat(self.blocks)[still],))

    @property
    def nbytes(self) -> int:
        """What it holds in memory."""
        return sum(block.numel() * block.element_size() for block in self.blocks)


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
        held = [
            *self.sights.designs,
            self.sights.amplitude,
            self.slot,
            self.needed,
            *(self.kept or ()),
        ]
        return self.hearing.last.nbytes + sum(t.numel() * t.element_size() for t in held)

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
    def hearing(self) -> Hearing:
        """The bends between these pixels and the last anchors."""
        points = self.points
        place = points.position - self.middle
        sights = Sights.of(place, points.log_depth, points.embedding, points.amplitude)
        return Hearing(sights, self.middle)


def dense_std(posterior: Posterior | Patchwork, scene: Scene) -> Float[Tensor, "h w"]:
    """Standard deviation of ℓ, made on a coarse grid and upsampled."""
    cells = scene.deviation_cells(len(posterior.anchors))
    if isinstance(posterior, Patchwork):
        variance = posterior.variance(cells.points)
    else:
        variance = variance_at(posterior, cells)
    std = variance.sqrt().float().reshape(1, 1, *cells.shape)
    return upsample(std, scene.mde_output.shape)[0, 0]


def variance_at(posterior: Posterior, cells: StdCells) -> Float[Tensor, " n"]:
    """`Posterior.variance` at the cells; anchors that were heard before cost less."""
    kernel, anchors, points = posterior.kernel, posterior.anchors, cells.points
    if len(anchors) > FEW:
        some = range(0, len(points), max(1, PAIRS_AT_ONCE // len(anchors)))
        return torch.cat([posterior.variance(points[i : i + some.step]) for i in some])
    cross = linear_columns(kernel, anchors) @ linear_columns(kernel, points).mT
    if len(anchors):
        heard, number = cells.hearing(kernel, anchors)
        cross += torch.cat(heard.blocks)[number]
    half = torch.linalg.solve_triangular(posterior.factor, cross, upper=False)
    return (kernel.variance(points) - half.square().sum(dim=0)).clamp(min=0)
