"""Edits of the anchors of an image: what an edit does not change is kept from the one before it.

Blocks of anchors, nodes of the lattice and its cells are computed again if one of their anchors
changed. The stationary part of E[ℓ] is linear in the anchors' targets, C⁻¹(y − μ − offset − Hθ). So
the editor keeps C⁻¹ applied to the columns y − μ, 1 and H at every node, and the sums of these
columns at every pixel; θ and the offset, which every edit changes, enter at the end.
"""

from __future__ import annotations

from threading import Lock

import torch
from jaxtyping import Float, Int64
from scipy.spatial import cKDTree
from torch import Tensor

from scalefield.field.blocks import Blocks, Memo, Observations
from scalefield.field.config import InferenceConfig
from scalefield.field.posterior import FieldFit, LocalSystems, RenderedField
from scalefield.runtime.threads import map_threads, one_thread

CHUNK_CELLS = 32
"""Cells that one thread evaluates at once."""


class FieldEditor:
    """What is kept of the fits of one image and of its maps, on a processor.

    `infer` uses it for the blocks, and `render` for the maps of each size that is rendered.
    """

    def __init__(self, min_anchors: int = 64, max_growth: float = 1.5) -> None:
        """With fewer than `min_anchors` anchors most nodes share most of their neighbours, and the
        field is rendered from scratch. A block may grow to `max_growth` times
        `InferenceConfig.block_size` anchors before all anchors are divided again."""
        self.min_anchors, self.max_growth, self.lock = min_anchors, max_growth, Lock()
        self.outliers, self.solutions = Memo(), Memo()
        self.division: tuple[cKDTree, Int64[Tensor, " n"]] | None = None
        """Anchors that were divided into blocks, and the block of each."""
        self.maps: dict[tuple[int, int], FieldMemory] = {}
        """By the size of the image."""

    @property
    def nbytes(self) -> int:
        """Roughly what it holds in memory."""
        return sum(kept.sums.nbytes for kept in self.maps.values() if kept.sums is not None)

    def split(self, observations: Observations, config: InferenceConfig) -> Blocks:
        """`Blocks.split`, changed by an edit only where the anchors change: each one is in the block
        of the nearest of those that were divided last."""
        position, n = observations.inputs.position, len(observations.y)
        if n <= config.exact_block or position.is_cuda:
            self.division = None
            return Blocks.split(observations, config)
        points = position.numpy()
        if self.division is not None:
            tree, block = self.division
            block = block[torch.from_numpy(tree.query(points)[1])]
            if int(block.bincount().max()) <= self.max_growth * config.block_size:
                return Blocks.grouped(block)
        fresh = Blocks.split(observations, config)
        number = torch.arange(len(fresh.index)).double()[:, None, None]
        block = fresh.scatter(number.expand(*fresh.index.shape, 1), n)[:, 0].long()
        self.division = cKDTree(points), block
        return Blocks.grouped(block)

    def render(self, fit: FieldFit) -> RenderedField:
        """`FieldFit.render`, computed where it differs from the last call for an image of this size.

        A fit over another image or with another kernel is rendered as a whole, as every fit over
        an affine-invariant map is, whose shift changes.
        """
        if len(fit.observations.y) < self.min_anchors or fit.image.device.type != "cpu":
            return fit.render()
        with self.lock, torch.no_grad(), one_thread():
            # An edit that fails leaves no half-changed state behind.
            memory = self.maps.pop(fit.image.shape, None) or FieldMemory()
            rendered = memory.render(fit)
            self.maps[fit.image.shape] = memory
        return rendered


class FieldMemory:
    """Systems at the nodes and sums at the pixels of one image, from fit to fit."""

    def __init__(self) -> None:
        self.systems = Memo()
        self.sums: Float[Tensor, "r c p"] | None = None
        """Σᵢ k(x, aᵢ) solvedᵢ of the columns y − μ, 1 and H at the pixels of each cell."""
        self.nodes_solved = 0
        """Number of nodes that the last call solved anew."""

    def render(self, fit: FieldFit) -> RenderedField:
        """The maps of a fit."""
        lattice, linear, (inputs, y, _, _) = fit.lattice, fit.linear, fit.observations
        near, known = fit.near(lattice.node_uv)
        columns = torch.cat([torch.stack([y - inputs.mean, torch.ones_like(y)], 1), linear.H], 1)

        def solve(nodes: Int64[Tensor, " a"]) -> tuple[Tensor, ...]:
            at = lattice.node_pixels[0][nodes], lattice.node_pixels[1][nodes]
            _, _, solved, *others = fit.solve_all((near[nodes], known[nodes]), at, columns)
            return solved.float(), *others

        key = fit.kernel, fit.image, lattice.cell_px
        values = fit.observations.rows[near] * known[..., None]
        solved, nodes = self.systems(key, values, solve)
        systems = LocalSystems(near, known, *solved)
        self._add_up(fit, systems, nodes)
        theta = torch.cat([linear.offset.new_ones(1), -linear.offset[None], -linear.weights])
        pixels = (theta.float() @ self.sums.flatten(1)).unflatten(0, (-1, lattice.cell_px**2))
        mean = fit.image.linear_map(fit.coefficients()) + lattice.image(pixels)
        return fit.rendered(mean, systems)

    def _add_up(self, fit: FieldFit, systems: LocalSystems, nodes: Int64[Tensor, " a"]) -> None:
        """Evaluate the cells at nodes that changed."""
        corners, self.nodes_solved = fit.lattice.corners, len(nodes)
        if len(nodes) == len(systems.neighbours):
            self.sums = torch.empty(
                systems.solved.shape[2], len(corners), fit.lattice.cell_px**2
            )
        kept, sums = self.sums, fit.cell_sums(systems)
        assert kept is not None
        changed = torch.zeros(len(systems.neighbours), dtype=torch.bool)
        changed[nodes] = True

        def evaluate(cells: Int64[Tensor, " c"]) -> None:
            kept[:, cells] = sums(cells)

        cells = changed[corners].any(dim=1).nonzero()[:, 0]
        map_threads(evaluate, [(part,) for part in cells.split(CHUNK_CELLS)])
