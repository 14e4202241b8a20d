"""What points of an image have to do with anchors, kept while anchors are edited."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from scalefield.bends import Bends, Sights
from scalefield.kernel import Kernel, Points, Term
from scalefield.posterior import Posterior

FEW = 184
"""Of up to so many anchors it is kept what they have to do with each point."""
MOST_BLOCKS = 12
"""Additions after which what is kept of them is tidied."""


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

    @property
    def nbytes(self) -> int:
        """What it holds in memory."""
        held = [*self.sights.designs, self.sights.amplitude, *self.last.blocks]
        return sum(t.numel() * t.element_size() for t in held)


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
