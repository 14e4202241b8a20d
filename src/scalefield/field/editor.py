"""Edits of the anchors of an image: what an edit does not change is kept from the one before it.

Blocks of anchors, nodes of the lattice and its cells are computed again if one of their anchors
changed. The stationary part of E[ℓ] is linear in the anchors' targets, C⁻¹(y − μ − offset − Hθ). So
the editor keeps C⁻¹ applied to the columns y − μ, 1 and H at every node, and the sums of these
columns at every pixel; θ and the offset, which every edit changes, enter at the end.
"""

from __future__ import annotations

from threading import Lock

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from scalefield.field.blocks import Memo
from scalefield.field.lattice import Window
from scalefield.field.observations import Observations
from scalefield.field.posterior import FieldFit, LocalSystems, RenderedField
from scalefield.runtime.threads import one_thread

CHUNK_ANCHORS = 256
"""New anchors whose distances are held at once."""
TIE_TOLERANCE = 1e-5
"""Relative difference of distances within which `nearest` may take either anchor."""


class FieldEditor:
    """What is kept of the fits of one image and of its maps, on a processor.

    `condition` uses it for the blocks, and `render` for the maps of each size that is rendered.
    """

    def __init__(self, min_anchors: int = 64) -> None:
        """With fewer than `min_anchors` anchors most nodes share most of their neighbours, and the
        field is rendered from scratch."""
        self.min_anchors, self.lock = min_anchors, Lock()
        self.outliers, self.solutions = Memo(), Memo()
        self.maps: dict[tuple[int, int], FieldMemory] = {}
        """By the size of the image."""

    @property
    def nbytes(self) -> int:
        """Roughly what it holds in memory."""
        kept = self.maps.values()
        return sum(each.sums.nbytes + each.systems.solved.nbytes for each in kept)

    def render(self, fit: FieldFit) -> RenderedField:
        """`FieldFit.render`, computed where it differs from the last one for an image of this size.

        A fit over another image or with another kernel is rendered as a whole, as every fit over
        an affine-invariant map is, whose shift changes.
        """
        few = max(self.min_anchors - 1, fit.config.neighbours)
        if len(fit.observations.y) <= few or fit.image.device.type != "cpu":
            return fit.render()
        with self.lock, torch.no_grad(), one_thread():
            # An edit that fails leaves no half-changed state behind.
            memory = self.maps.pop(fit.image.shape, None)
            if memory is not None and memory.is_compatible(fit):
                memory.update(fit)
            else:
                memory = FieldMemory(fit)
            self.maps[fit.image.shape] = memory
            return memory.render()


class FieldMemory:
    """Systems at the nodes and sums at the pixels of one image, from fit to fit.

    An edit changes the tensors in place: copies would cost more than most edits.
    """

    def __init__(self, fit: FieldFit) -> None:
        """Solve all nodes and evaluate all cells of a first fit."""
        self.fit, nodes = fit, torch.arange(len(fit.lattice.node_uv))
        self.systems, self.reach_px = self.solve(nodes)
        """At all nodes, solved for the columns y − μ, 1 and H; and the distance of each node's
        farthest neighbour, infinite if it has fewer than k."""
        self.sums = torch.empty(self.systems.solved.shape[2] + 2, *fit.image.shape)
        """The terms of E[ℓ], without θ and the offset, and the last two rows of
        `FieldFit.cell_sums`, at every pixel."""
        self.evaluate(nodes)

    def is_compatible(self, fit: FieldFit) -> bool:
        """Whether a fit has the same kernel over the same image, and as many neighbours."""
        k = min(fit.config.neighbours, len(fit.observations.y))
        same_nodes = fit.lattice.cell_px == self.fit.lattice.cell_px
        same_size = same_nodes and self.systems.mask.shape[1] == k
        return same_size and fit.image == self.fit.image and fit.kernel == self.fit.kernel

    def update(self, fit: FieldFit) -> None:
        """Solve the nodes and evaluate the cells that differ in another fit."""
        nodes = self.changed_nodes(fit)
        self.fit = fit
        if len(nodes):
            systems, self.reach_px[nodes] = self.solve(nodes)
            for kept, new in zip(self.systems, systems, strict=True):
                kept[nodes] = new
        self.evaluate(nodes)

    def render(self) -> RenderedField:
        """The maps of the last fit."""
        fit, linear = self.fit, self.fit.linear
        theta = torch.cat([linear.offset.new_ones(1), linear.offset[None], linear.weights])
        mean = torch.einsum("r,rhw->hw", theta.float(), self.sums[:-2])
        prior, bound = self.sums[-2:]
        return fit.rendered(mean, prior, bound, self.systems)

    def changed_nodes(self, fit: FieldFit) -> Int64[Tensor, " a"]:
        """Nodes with a neighbour that is gone, or with a new anchor closer than their farthest
        neighbour; the neighbours of the others are renumbered."""
        systems, uv = self.systems, fit.lattice.node_uv
        before, now = self.fit.observations, fit.observations
        index = matches(now, before)
        same = (index >= 0) & now.mask & before.mask[index] & (now.noise == before.noise[index])
        renumbered = torch.full((len(before.y),), -1)
        renumbered[index[same]] = same.nonzero()[:, 0]
        systems.neighbours.copy_(renumbered[systems.neighbours])
        changed = ((systems.neighbours < 0) & systems.mask).any(dim=1)
        systems.neighbours.clamp_(min=0)
        added = fit.image.pixel_uv(now.inputs.position[now.mask & ~same])
        for part in added.split(CHUNK_ANCHORS):
            apart = torch.cdist(uv, part)
            changed |= (apart <= self.reach_px[:, None] * (1 + TIE_TOLERANCE)).any(dim=1)
        return changed.nonzero()[:, 0]

    def solve(self, nodes: Int64[Tensor, " a"]) -> tuple[LocalSystems, Float[Tensor, " a"]]:
        """The systems of nodes, and the distances of their farthest neighbours."""
        fit, (inputs, y, _, _) = self.fit, self.fit.observations
        rows, columns = fit.lattice.node_pixels
        uv, position = fit.lattice.node_uv[nodes], fit.image.pixel_uv(inputs.position)
        near, known = fit.near(uv)
        apart = (position[near] - uv[:, None]).norm(dim=2).masked_fill(~known, torch.inf)
        targets = torch.stack([y - inputs.mean, torch.ones_like(y)], dim=1)
        values = torch.cat([targets, fit.linear.H], dim=1)
        systems = fit.solve_all((near, known), (rows[nodes], columns[nodes]), values)
        return systems._replace(solved=systems.solved.float()), apart.amax(dim=1)

    def evaluate(self, nodes: Int64[Tensor, " a"]) -> None:
        """Evaluate the cells at nodes."""
        self.nodes_solved, fit = len(nodes), self.fit
        changed = torch.zeros(len(self.reach_px), dtype=torch.bool)
        changed[nodes] = True
        cells = changed[fit.lattice.corners].any(dim=1).nonzero()[:, 0]
        stationary = fit.blended(self.systems, linear=False)

        def evaluate(window: Window) -> Float[Tensor, "r h w"]:
            # E[ℓ] = μ + offset + Hθ + Σ k(x, aᵢ) C⁻¹(y − μ − offset − Hθ)
            inputs = fit.image.window(window.rows, window.columns)
            maps, H = stationary(window), fit.kernel.linear_features(inputs).mT
            whole = torch.cat([inputs.mean[None], torch.ones_like(H[:1]), H])
            maps[1:-2].neg_()
            maps[:-2] += whole.unflatten(1, window.shape)
            return maps

        if len(cells):
            for window, part in fit.of_windows(evaluate, cells):
                self.sums[:, window.rows, window.columns] = part


def matches(now: Observations, before: Observations) -> Int64[Tensor, " n"]:
    """Index of each anchor among those before an edit; −1 if none had its position and target."""

    def rows(observed: Observations) -> Float[np.ndarray, "n 3"]:
        return torch.cat([observed.inputs.position, observed.y[:, None]], dim=1).numpy()

    # A row is found by one number made of it, and then compared as a whole.
    new, old = rows(now), rows(before)
    mixed = np.sqrt([1.0, 2.0, 3.0])
    key, wanted = old @ mixed, new @ mixed
    order = np.argsort(key)
    found = order[np.searchsorted(key[order], wanted).clip(max=len(old) - 1)]
    return torch.from_numpy(np.where((old[found] == new).all(axis=1), found, -1))
