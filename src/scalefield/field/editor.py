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

import torch
from jaxtyping import Float, Int64
from scipy.spatial import cKDTree
from torch import Tensor

from scalefield.field.blocks import Blocks, BlockSolutions, Observations
from scalefield.field.config import InferenceConfig
from scalefield.field.image_inputs import ImageInputs
from scalefield.field.kernel import Kernel, TermFeatures
from scalefield.field.lattice import Lattice, nearest
from scalefield.field.outliers import OutlierResult, detect_outliers
from scalefield.field.posterior import FieldFit, LocalSystems, RenderedField
from scalefield.runtime.threads import map_threads, one_thread

NOISE_TOLERANCE = 1e-3
"""Relative change of an anchor's noise below which its nodes are kept: the weights of the outlier
search move a little with every edit."""

CHUNK_CELLS = 32
"""Cells that one thread evaluates at once."""
CHUNK_NODES = 512
"""Nodes that one thread solves at once."""
CHUNK_ANCHORS = 256
"""New anchors whose distances to the nodes are held at once."""
TIE_TOLERANCE = 1e-5
"""Relative difference of distances within which `nearest` may take either anchor."""


@dataclass(eq=False)
class EditorState:
    """What is kept from one edit to the next, which each edit changes in place: copies would cost
    more than most edits."""

    kernel: Kernel
    image: ImageInputs
    lattice: Lattice
    observations: Observations
    systems: LocalSystems
    """At all nodes, solved for the columns y − μ, 1 and H."""
    reach_px: Float[Tensor, " m"]
    """Distance of each node's farthest neighbour; infinite if it has fewer than k."""
    sums: Float[Tensor, "r c p"]
    """Σᵢ k(x, aᵢ) solvedᵢ of each column at the pixels of each cell."""

    @classmethod
    def empty(cls, fit: FieldFit, k: int) -> EditorState:
        """The state before any node is solved, with k neighbours of each."""
        lattice, width = fit.lattice, fit.linear.H.shape[1]
        nodes, cells = len(lattice.node_uv), len(lattice.corners)
        neighbours = torch.zeros(nodes, k, dtype=torch.int64)
        smoother, columns, *scalars = (
            torch.empty(nodes, *size, dtype=torch.float64) for size in ((k,), (width,), (), (), ())
        )
        systems = LocalSystems(
            neighbours,
            torch.zeros_like(neighbours, dtype=torch.bool),
            torch.empty(nodes, k, width + 2),
            smoother,
            columns,
            *scalars[1:],
        )
        sums = torch.empty(width + 2, cells, lattice.cell_px**2)
        return cls(fit.kernel, fit.image, lattice, fit.observations, systems, scalars[0], sums)

    def serves(self, fit: FieldFit, k: int) -> bool:
        """Whether a fit has the same kernel over the same image, and k neighbours at each node."""
        image, lattice = fit.image, fit.lattice
        same_image = self.image.maps is image.maps and self.image.mde_depth is image.mde_depth
        same_nodes = self.lattice.cell_px == lattice.cell_px and self.systems.mask.shape[1] == k
        return same_image and same_nodes and self.kernel == fit.kernel

    def follow(self, fit: FieldFit) -> Int64[Tensor, " a"]:
        """Take over the observations of a fit; returns the nodes whose neighbours change.

        These are the nodes with a neighbour that is gone, and those with a new anchor closer than
        their farthest neighbour.
        """
        before, now, systems = self.observations, fit.observations, self.systems
        former = same_anchors(now, before)
        kept = (former >= 0) & now.mask & before.mask[former]
        current = torch.full((len(before.y),), -1)
        current[former[kept]] = kept.nonzero()[:, 0]
        systems.neighbours.copy_(current[systems.neighbours])
        changed = ((systems.neighbours < 0) & systems.mask).any(dim=1)
        systems.neighbours.clamp_(min=0)
        added = fit.image.pixel_uv(now.inputs.position[now.mask & ~kept])
        for part in added.split(CHUNK_ANCHORS):
            apart = torch.cdist(self.lattice.node_uv, part)
            changed |= (apart <= self.reach_px[:, None] * (1 + TIE_TOLERANCE)).any(dim=1)
        self.observations = now
        return changed.nonzero()[:, 0]

    def solve(self, fit: FieldFit, nodes: Int64[Tensor, " a"]) -> None:
        """Solve the systems of nodes, and evaluate the cells at them."""
        if len(nodes) == 0:
            return
        lattice, systems, (inputs, y, _, mask) = self.lattice, self.systems, fit.observations
        position, uv = fit.image.pixel_uv(inputs.position), lattice.node_uv[nodes]
        near, near_mask = nearest(uv, position, mask, systems.mask.shape[1])
        apart = (position[near] - uv[:, None]).norm(dim=2).masked_fill(~near_mask, torch.inf)
        self.reach_px[nodes] = apart.amax(dim=1)
        targets = torch.stack([y - inputs.mean, torch.ones_like(y)], dim=1)
        values, (rows, cols) = torch.cat([targets, fit.linear.H], dim=1), lattice.node_pixels

        def solve(part: slice) -> None:
            at = fit.image.pixels(rows[nodes[part]], cols[nodes[part]])
            solved = fit.solve(near[part], near_mask[part], at, values)
            for kept, new in zip(systems, solved, strict=True):
                kept[nodes[part]] = new.to(kept.dtype)

        def evaluate(cells: Int64[Tensor, " c"]) -> None:
            pixels, at = fit.sampler.cells(fit.image, cells), lattice.corners[cells]
            weights = cell_weights(systems.neighbours[at], systems.solved[at])
            covariance = correlations(fit.kernel, pixels, anchors, weights.anchors)
            covariance.mul_(anchors.amplitude[weights.anchors].mT[..., None])
            covariance = covariance.mul_(pixels.amplitude[:, :, None]).sum(dim=1)  # c u p
            by_node = weights.alpha.permute(0, 3, 1, 2).flatten(1, 2)  # c r·4 u
            sums = torch.bmm(by_node, covariance).unflatten(1, (-1, 4))
            self.sums[:, cells] = sums.mul_(lattice.blending).sum(dim=2).transpose(0, 1)

        parts = [slice(i, i + CHUNK_NODES) for i in range(0, len(nodes), CHUNK_NODES)]
        map_threads(solve, [(part,) for part in parts])
        anchors = AnchorFeatures.of(fit.kernel, fit.features)
        changed = torch.zeros(len(lattice.node_uv))
        changed[nodes] = 1
        cells = changed[lattice.corners].any(dim=1).nonzero()[:, 0]
        map_threads(evaluate, [(part,) for part in cells.split(CHUNK_CELLS)])


class FieldEditor:
    """Renders successive fits over one image on a processor; see `render`."""

    def __init__(self, min_anchors: int = 64) -> None:
        """With fewer than `min_anchors` anchors most nodes share most of their neighbours, and the
        field is rendered from scratch."""
        self.min_anchors, self.lock = min_anchors, Lock()
        self.state: EditorState | None = None
        self.nodes_solved = 0
        """Number of nodes that the last call solved anew."""

    @property
    def nbytes(self) -> int:
        """Roughly what it holds in memory."""
        state = self.state
        return 0 if state is None else state.sums.nbytes + state.systems.solved.nbytes

    def render(self, fit: FieldFit) -> RenderedField:
        """`FieldFit.render`, computed where it differs from the last call.

        A fit over another image or with another kernel is rendered as a whole, as every fit over
        an affine-invariant map is, whose shift changes.
        """
        if len(fit.observations.y) < self.min_anchors or fit.image.device.type != "cpu":
            self.nodes_solved = len(fit.lattice.node_uv)
            return fit.render()
        with self.lock, torch.no_grad(), one_thread():
            return self._render(fit)

    def _render(self, fit: FieldFit) -> RenderedField:
        # An edit that fails leaves no half-changed state behind.
        lattice, state, self.state = fit.lattice, self.state, None
        k = min(fit.config.neighbours, len(fit.observations.y))
        if state is not None and state.serves(fit, k):
            nodes = state.follow(fit)
        else:
            state, nodes = EditorState.empty(fit, k), torch.arange(len(lattice.node_uv))
        state.solve(fit, nodes)
        self.state, self.nodes_solved, linear = state, len(nodes), fit.linear
        combination = torch.cat([torch.stack([linear.offset.new_ones(()), -linear.offset]),
                                 -linear.weights]).float()  # fmt: skip
        stationary = lattice.image(
            (combination @ state.sums.flatten(1)).unflatten(0, (-1, lattice.cell_px**2))
        )
        mean = fit.image.linear_map(fit.coefficients()) + stationary
        return fit.rendered(mean, state.systems)


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
        self.last_solved: tuple[Kernel, Observations, Blocks, BlockSolutions] | None = None

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
        n, last = len(observed.y), self.last
        if last is None or min(n, len(last[0].y)) <= config.exact_block or observed.y.is_cuda:
            fresh = Blocks.split(observed, config)
            return fresh, detect_outliers(kernel, observed, fresh, config.outliers)
        before, kept, found = last
        former = same_anchors(observed, before)
        number = torch.arange(len(kept.index))[:, None].expand_as(kept.index)
        home = kept.scatter(number[..., None].double(), len(before.y))[:, 0].long()
        new, position = former < 0, observed.inputs.position
        _, near = cKDTree(before.inputs.position.numpy()).query(position[new].numpy())
        home = home[former.masked_scatter(new, torch.from_numpy(near))]
        size = home.bincount(minlength=len(kept.index))
        if int(size.max()) > self.max_growth * config.block_size:
            fresh = Blocks.split(observed, config)
            return fresh, detect_outliers(kernel, observed, fresh, config.outliers)
        blocks = grouped(home, size)
        changed = size != kept.mask.sum(dim=1)
        changed[home[new]] = True
        index = former.clamp(min=0)
        result = OutlierResult(*(values[index] for values in vars(found).values()))
        if bool(changed.any()):
            part = Blocks(blocks.index[changed], blocks.mask[changed])
            again = detect_outliers(kernel, observed, part, config.outliers)
            pairs = zip(vars(again).values(), vars(result).values(), strict=True)
            result = OutlierResult(*(torch.where(changed[home], *pair) for pair in pairs))
        return blocks, result

    def solve(
        self,
        kernel: Kernel,
        observed: Observations,
        features: TermFeatures,
        H: Float[Tensor, "n w"],
        blocks: Blocks,
    ) -> BlockSolutions:
        """`BlockSolutions.of`, computed for the blocks that differ from those of the last call."""
        with self.lock:
            last, changed = self.last_solved, torch.ones(len(blocks.index), dtype=torch.bool)
            same_shape = last is not None and last[2].index.shape == blocks.index.shape
            if last is not None and same_shape and last[0] == kernel:
                _, before, kept, solutions = last
                former = same_anchors(observed, before)
                same = (former[blocks.index] == kept.index) | ~blocks.mask
                changed = ~(same & (blocks.mask == kept.mask)).all(dim=1)
            if bool(changed.all()) or observed.y.is_cuda:
                solutions = BlockSolutions.of(kernel, observed, features, H, blocks)
            elif bool(changed.any()):
                part = Blocks(blocks.index[changed], blocks.mask[changed])
                new = BlockSolutions.of(kernel, observed, features, H, part)
                number = changed.nonzero()[:, 0]
                pairs = zip(solutions, new, strict=True)
                solutions = BlockSolutions(*(a.index_copy(0, number, b) for a, b in pairs))
            self.last_solved = kernel, observed, blocks, solutions
        return solutions


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
