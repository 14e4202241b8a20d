"""Beside an anchor a rough term has its cusp, which interpolation between nodes blunts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from scalefield.bends import Bends, Sights, Terms, pairs_at_once, rough_terms
from scalefield.hearing import FEW, Hearing
from scalefield.kernel import Kernel, Points
from scalefield.lattice import Lattice
from scalefield.posterior import Posterior
from scalefield.scene import Scene

WINDOW = 3
"""Cells of the lattice across the window around an anchor in which the field is put right."""


def cusps_for(scene: Scene, lattice: Lattice) -> Cusps:
    """What a lattice takes from the anchors' cusps, kept with it."""
    # They hold it, so that no other can have its number.
    return scene.keep(Cusps, id(lattice), lambda: Cusps(lattice))


@dataclass(frozen=True, eq=False)
class Cusps:
    """What interpolation between a lattice's nodes takes from rough terms around anchors: their own
    values less the interpolated ones, at the pixels of a window around each anchor."""

    lattice: Lattice

    @cached_property
    def hearing(self) -> Hearing:
        """The windows of the last anchors."""
        return Hearing()

    @property
    def nbytes(self) -> int:
        """What it holds in memory."""
        return self.hearing.nbytes

    def restore(self, posterior: Posterior, total: Float[Tensor, " m"], terms: Terms) -> None:
        """Add to E[ℓ] at every pixel, in place, what is missing of some rough terms."""
        kernel, anchors = posterior.kernel, posterior.anchors
        if len(anchors) <= FEW and terms == rough_terms(kernel):
            heard, number = self.hearing(
                kernel, anchors, lambda new: self.missing(kernel, new, terms)
            )
            missing = torch.cat(heard.blocks).index_select(0, number)
        else:
            missing = self.missing(kernel, anchors, terms)
        rows, columns = self.windows(anchors)
        pixel = (rows * self.lattice.scene.mde_output.shape[1] + columns).flatten()
        weights = posterior.alpha.to(missing.dtype)
        total.index_add_(0, pixel, (weights[:, None] * missing).flatten())

    def windows(self, anchors: Points) -> tuple[Int64[Tensor, "n r 1"], Int64[Tensor, "n 1 c"]]:
        """Rows and columns of the window around each anchor, moved into the image at its border."""
        scene, sides = self.lattice.scene, []
        place = (anchors.position * scene.unit).round().long()
        sizes = zip(scene.mde_output.shape, self.lattice.cells, (1, 0), strict=True)
        for size, cells, axis in sizes:
            side = min(size, round(WINDOW * size / cells))
            first = (place[:, axis] - side // 2).clamp(0, size - side)
            sides.append(first[:, None] + torch.arange(side, device=place.device))
        return sides[0][:, :, None], sides[1][:, None, :]

    def missing(self, kernel: Kernel, anchors: Points, terms: Terms) -> Float[Tensor, "n s"]:
        """Σ_j of rough terms less what the nodes make of it, a row for each anchor's window."""
        rows, columns = self.windows(anchors)
        size = rows.shape[1] * columns.shape[2]
        made = torch.empty(len(anchors), size, device=rows.device)
        step = max(1, pairs_at_once(rows) // (16 * size))
        for some in (slice(i, i + step) for i in range(0, len(anchors), step)):
            made[some] = self.less(kernel, anchors[some], terms, rows[some], columns[some])
        return made

    def less(
        self,
        kernel: Kernel,
        anchors: Points,
        terms: Terms,
        rows: Int64[Tensor, "n r 1"],
        columns: Int64[Tensor, "n 1 c"],
    ) -> Float[Tensor, "n s"]:
        """The same for a few anchors and their windows."""
        lattice, scene = self.lattice, self.lattice.scene
        bends = Bends(kernel, anchors, scene.middle, torch.float32, terms)
        around = lattice.around(rows, columns)
        slot = around.slot.view(len(anchors), 1, -1)
        nodes = lattice.sights.only(terms)[torch.cat([slot, slot + 1], dim=1).flatten()]
        at_nodes = bends.own_rows(nodes).view(len(anchors), 2, -1, 4)
        nearer, farther = at_nodes.mul_(around.weight.view_as(at_nodes[:, :1])).sum(dim=3).unbind(1)
        interpolated = torch.lerp(nearer, farther, around.deep.view_as(nearer))
        rows, columns = (side.flatten() for side in torch.broadcast_tensors(rows, columns))
        pixels = torch.stack([columns, rows], dim=1).float()
        own = Sights.at(scene, pixels, scene.log_depth[rows, columns], terms)
        return bends.own_rows(own) - interpolated
