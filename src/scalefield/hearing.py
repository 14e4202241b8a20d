"""What points of an image have to do with anchors, kept while anchors are edited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from scalefield.kernel import Kernel, Points, Term
from scalefield.posterior import Posterior

FEW = 184
"""Of up to so many anchors it is kept what they have to do with each point."""
MOST_BLOCKS = 12
"""Additions after which what is kept of them is tidied."""

Hear = Callable[[Points], Tensor]
"""What some anchors have to do with the points, a row for each."""


class Hearing:
    """What anchors have to do with some points, kept for the next ones: of few anchors that are
    edited one at a time, all but one have been heard before."""

    def __init__(self) -> None:
        self.last = Heard()

    def __call__(
        self, kernel: Kernel, anchors: Points, hear: Hear
    ) -> tuple[Heard, Int64[Tensor, " n"]]:
        """What is known after hearing these as well, and which row is whose."""
        heard = self.last  # replaced as a whole: another thread may ask as well
        if heard.terms is not kernel.terms:
            heard = Heard(kernel.terms)
        wanted = [tuple(place) for place in anchors.position.tolist()]
        if len(heard.blocks) > MOST_BLOCKS:
            heard = heard.only(set(wanted))
        first = {pixel: i for i, pixel in reversed([*enumerate(wanted)])}
        if new := sorted(first[pixel] for pixel in first.keys() - set(heard.pixels)):
            block = hear(anchors[torch.tensor(new)])
            pixels = (*heard.pixels, *(wanted[i] for i in new))
            heard = Heard(kernel.terms, pixels, (*heard.blocks, block))
        self.last = heard
        number = {pixel: i for i, pixel in enumerate(heard.pixels)}
        rows = [number[pixel] for pixel in wanted]
        return heard, torch.tensor(rows, dtype=torch.int64, device=anchors.position.device)

    def weighted(self, posterior: Posterior, hear: Hear) -> Float[Tensor, " m"]:
        """Σ over the anchors, each by its weight in E[ℓ]."""
        heard, number = self(posterior.kernel, posterior.anchors, hear)
        weights = posterior.alpha.new_zeros(len(heard.pixels))
        weights = weights.index_add(0, number, posterior.alpha).to(heard.blocks[0].dtype)
        # A block may have no row left, where all of its anchors went away.
        total = heard.blocks[0].new_zeros(heard.blocks[0].shape[1])
        sizes = [len(block) for block in heard.blocks]
        for block, own in zip(heard.blocks, weights.split(sizes), strict=True):
            total.addmv_(block.mT, own)
        return total

    @property
    def nbytes(self) -> int:
        """What it holds in memory."""
        return sum(block.nbytes for block in self.last.blocks)


@dataclass(frozen=True, eq=False)
class Heard:
    """A row for each pixel that an anchor was at."""

    terms: tuple[Term, ...] = ()
    pixels: tuple[tuple[float, ...], ...] = ()
    blocks: tuple[Float[Tensor, "_ m"], ...] = ()
    """The rows, as they were added: a large block is not copied for one more."""

    def only(self, wanted: set[tuple[float, ...]]) -> Heard:
        """One block of the rows that are wanted still."""
        still = [i for i, pixel in enumerate(self.pixels) if pixel in wanted]
        pixels = tuple(self.pixels[i] for i in still)
        return Heard(self.terms, pixels, (torch.cat(self.blocks)[still],))
