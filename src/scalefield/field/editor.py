"""Maps of the field that are updated after an edit of the anchors.

The stationary part of E[ℓ] is linear in the anchors' targets, C⁻¹(y − μ − offset − Hθ). The editor
keeps C⁻¹ applied to the columns y − μ, 1 and H at every node, and the sums of these columns at
every pixel. An edit that changes an anchor changes the nodes that have it among their neighbours
and the cells at their corners; for all others only θ and the offset change, which enter at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from scipy.spatial import cKDTree
from torch import Tensor

from scalefield.field.blocks import Blocks, Observations
from scalefield.field.config import InferenceConfig
from scalefield.field.image_inputs import ImageInputs
from scalefield.field.kernel import Kernel
from scalefield.field.local import (
    AnchorFeatures,
    AtPixel,
    Lattice,
    cell_weights,
    correlations,
    nearest,
)
from scalefield.field.outliers import OutlierResult, detect_outliers
from scalefield.field.posterior import FieldFit
from scalefield.runtime.threads import map_threads

NOISE_TOLERANCE = 1e-3
"""Relative change of an anchor's noise below which its nodes are kept: the weights of the outlier
search move a little with every edit."""

CHUNK_CELLS = 32
"""Cells that one thread evaluates at once."""


class EditedMaps(NamedTuple):
    """The field after an edit."""

    mean: Float[Tensor, "h w"]
    """E[ℓ], as `FieldFit.mean`."""
    variance: Float[Tensor, " m"]
    """Var[ℓ] at the nodes, as `LocalSystems.variance`."""
    prior: Float[Tensor, " m"]
    """Prior variance of the stationary part at the nodes."""
    nodes_solved: int
    """Number of nodes whose systems were solved anew."""


@dataclass(frozen=True, eq=False)
class EditorState:
    """What is kept from one edit to the next."""

    image: ImageInputs
    lattice: Lattice
    observations: Observations
    neighbours: Int64[Tensor, "m k"]
    mask: Bool[Tensor, "m k"]
    coefficients: Float[Tensor, "m k r"]
    """C⁻¹ applied to the columns y − μ, 1 and H of each node's neighbours."""
    at_nodes: AtPixel
    sums: Float[Tensor, "r c p"]
    """Σᵢ k(x, aᵢ) coefficientsᵢ at the pixels of each cell."""


class FieldEditor:
    """Evaluates successive fits over one image on a processor; see `update`."""

    def __init__(self, min_anchors: int = 64) -> None:
        """With fewer than `min_anchors` anchors most nodes share most of their neighbours, and the
        maps are computed from scratch."""
        self.min_anchors, self.lock = min_anchors, Lock()
        self.state: EditorState | None = None

    @property
    def nbytes(self) -> int:
        """Roughly what it holds in memory."""
        state = self.state
        return 0 if state is None else state.sums.nbytes + state.coefficients.nbytes

    def update(self, fit: FieldFit) -> EditedMaps:
        """The maps of a fit: those of `FieldFit`, computed where they differ from the last one.

        All fits of one editor must have one kernel and configuration; a fit over another image is
        computed as a whole, as every fit over an affine-invariant map is, whose shift changes.
        """
        if len(fit.observations.y) < self.min_anchors or fit.image.device.type != "cpu":
            local = fit.local
            return EditedMaps(fit.mean(), local.variance, local.prior, len(fit.lattice.node_uv))
        with self.lock, torch.no_grad():
            return self._update(fit)

    def _update(self, fit: FieldFit) -> EditedMaps:
        lattice, observed = fit.lattice, fit.observations
        position = fit.image.pixel_uv(observed.inputs.position)
        neighbours, mask = nearest(lattice.node_uv, position, observed.mask, fit.config.neighbours)
        # In the order of the anchors: that of equally near ones is arbitrary.
        order = neighbours.masked_fill(~mask, len(position)).sort(dim=1, stable=True).indices
        neighbours, mask = neighbours.gather(1, order), mask.gather(1, order)
        state = self.state
        if state is not None and (
            not state.image.same_prior(fit.image)
            or lattice.cell_px != state.lattice.cell_px
            or neighbours.shape != state.neighbours.shape
        ):
            state = None
        changed = torch.ones(len(neighbours), dtype=torch.bool)
        if state is not None:
            former = same_anchors(observed, state.observations)
            kept = (former[neighbours] == state.neighbours) | ~mask
            changed = (~kept | (mask != state.mask)).any(dim=1)
        self.state = state = refreshed(fit, neighbours, mask, changed, state)
        linear = fit.linear
        combination = torch.cat([torch.stack([linear.offset.new_ones(()), -linear.offset]),
                                 -linear.weights]).float()  # fmt: skip
        stationary = lattice.image(
            (combination @ state.sums.flatten(1)).unflatten(0, (-1, lattice.cell_px**2))
        )
        at_nodes = state.at_nodes
        return EditedMaps(
            fit.linear_map() + stationary,
            at_nodes.total_variance(linear.covariance),
            at_nodes.prior,
            int(changed.sum()),
        )


class BlockMemory:
    """Blocks of anchors and the outliers in them, kept from one edit to the next.

    Anchors stay in their blocks, a new one joins the block of the nearest, and only blocks that
    changed are searched again. With one block, or once a block has grown too large, all is as if
    nothing had been kept.
    """

    def __init__(self, max_growth: float = 1.5) -> None:
        """A block may grow to `max_growth` times `InferenceConfig.block_size` anchors."""
        self.max_growth, self.lock = max_growth, Lock()
        self.last: tuple[Observations, Blocks, OutlierResult] | None = None

    def search(
        self, kernel: Kernel, observed: Observations, config: InferenceConfig
    ) -> tuple[Blocks, OutlierResult]:
        """The blocks of the observations, and the outliers among these."""
        with self.lock:
            blocks, found = self._search(kernel, observed, config)
            self.last = observed, blocks, found
        return blocks, found

    def _search(
        self, kernel: Kernel, observed: Observations, config: InferenceConfig
    ) -> tuple[Blocks, OutlierResult]:
        n, last, fresh = len(observed.y), self.last, Blocks.split(observed, config)
        if last is None or min(n, len(last[0].y)) <= config.exact_block or observed.y.is_cuda:
            return fresh, detect_outliers(kernel, observed, fresh, config.outliers)
        before, kept, found = last
        former = same_anchors(observed, before)
        number = torch.arange(len(kept.index))[:, None].expand_as(kept.index)
        home = kept.scatter(number[..., None].double(), len(before.y))[:, 0].long()
        _, near = cKDTree(before.inputs.position.numpy()).query(observed.inputs.position.numpy())
        home = home[torch.where(former < 0, torch.from_numpy(near), former)]
        size = home.bincount(minlength=len(kept.index))
        if int(size.max()) > self.max_growth * config.block_size:
            return fresh, detect_outliers(kernel, observed, fresh, config.outliers)
        blocks = grouped(home, size)
        changed = size != kept.mask.sum(dim=1)
        changed[home[former < 0]] = True
        index = former.clamp(min=0)
        result = OutlierResult(*(values[index] for values in vars(found).values()))
        if bool(changed.any()):
            part = Blocks(blocks.index[changed], blocks.mask[changed])
            new = detect_outliers(kernel, observed, part, config.outliers)
            pairs = zip(vars(new).values(), vars(result).values(), strict=True)
            result = OutlierResult(*(torch.where(changed[home], *pair) for pair in pairs))
        return blocks, result


def grouped(home: Int64[Tensor, " n"], size: Int64[Tensor, " b"]) -> Blocks:
    """Blocks of anchors, given the number of each anchor's block and the blocks' sizes."""
    order = home.sort(stable=True).indices
    rank = torch.arange(len(home)) - (size.cumsum(0) - size)[home[order]]
    index = torch.zeros(len(size), int(size.max()), dtype=torch.int64)
    index[home[order], rank] = order
    return Blocks(index, torch.arange(index.shape[1]) < size[:, None])


def same_anchors(now: Observations, before: Observations) -> Int64[Tensor, " n"]:
    """Index of each anchor among those before the edit; −1 if it is new or has another noise."""

    def rows(observed: Observations) -> Float[Tensor, "n 3"]:
        return torch.cat([observed.inputs.position, observed.y[:, None]], dim=1)

    # A row is found by one number made of it, and then compared as a whole.
    new, old = rows(now), rows(before)
    mixed = torch.tensor([1.0, math.sqrt(2), math.sqrt(3)], dtype=torch.float64)
    key, order = (old @ mixed).sort()
    found = order[torch.searchsorted(key, new @ mixed).clamp(max=len(old) - 1)]
    same = (old[found] == new).all(dim=1)
    close = (now.noise / before.noise[found] - 1).abs() <= NOISE_TOLERANCE
    return torch.where(same & close, found, -1)


def refreshed(
    fit: FieldFit,
    neighbours: Int64[Tensor, "m k"],
    mask: Bool[Tensor, "m k"],
    changed: Bool[Tensor, " m"],
    former: EditorState | None,
) -> EditorState:
    """The state with the changed nodes solved and the cells at them evaluated anew.

    `sums` of the former state is changed in place: a copy would cost more than most edits.
    """
    lattice, solver = fit.lattice, fit.solver
    inputs, y, _, _ = fit.observations
    columns = torch.cat([torch.stack([y - inputs.mean, torch.ones_like(y)], dim=1), solver.H], 1)
    nodes, (rows, cols) = changed.nonzero()[:, 0], lattice.node_pixels

    def solve(part: Int64[Tensor, " m"]) -> tuple[Tensor, ...]:
        near, there = neighbours[part], mask[part]
        right = columns[near] * there[..., None]
        solved, at = solver.solve(near, there, fit.image.pixels(rows[part], cols[part]), right)
        return torch.stack(solved, dim=-1), *at

    solved = map_threads(solve, [(part,) for part in nodes.split(512)])
    fresh = [torch.cat(x) for x in zip(*solved, strict=True)]
    corners = lattice.corners
    cells = changed[corners].any(dim=1).nonzero()[:, 0]
    if former is None:
        coefficients, at_nodes = fresh[0], AtPixel(*fresh[1:])
        sums = torch.empty(columns.shape[1], len(corners), lattice.cell_px**2)
    else:
        kept = [former.coefficients, *former.at_nodes]
        merged = [a.index_copy(0, nodes, b) for a, b in zip(kept, fresh, strict=True)]
        coefficients, at_nodes, sums = merged[0], AtPixel(*merged[1:]), former.sums
    anchors, sampler = AnchorFeatures.of(fit.features), fit.sampler

    def evaluate(chosen: Int64[Tensor, " c"]) -> None:
        pixels = sampler.cells(fit.image, chosen)
        at = corners[chosen]
        weights = cell_weights(neighbours[at], coefficients[at])
        kappa = correlations(fit.kernel, pixels, anchors, weights.anchors)
        amplitude = anchors.amplitude[weights.anchors].mT[..., None] * pixels.amplitude[:, :, None]
        covariance = (kappa * amplitude).sum(dim=1)  # c u p
        by_node = weights.alpha.permute(0, 3, 1, 2).flatten(1, 2)  # c r·4 u
        values = torch.bmm(by_node, covariance).unflatten(1, (-1, 4))
        sums[:, chosen] = (values * lattice.blending).sum(dim=2).transpose(0, 1)

    map_threads(evaluate, [(part,) for part in cells.split(CHUNK_CELLS) if len(part)])
    return EditorState(
        fit.image, lattice, fit.observations, neighbours, mask, coefficients, at_nodes, sums
    )
