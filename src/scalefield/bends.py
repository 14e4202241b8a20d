"""The bending terms of the kernel, between many points of an image and some anchors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from scalefield.basis.grids import sample
from scalefield.kernel import Kernel, Points, Term
from scalefield.scene import Scene

LOG2_E = 1 / math.log(2)
"""Powers are taken of two, which costs a third of what powers of e cost."""

Terms = tuple[int, ...]
"""Some of a kernel's bending terms, by number."""


def pairs_at_once(where: Tensor) -> int:
    """Point-anchor pairs to be worked on at once: what a processor's cache holds, or what keeps a
    GPU busy."""
    return 1 << 21 if where.is_cuda else 1 << 18


def all_terms(kernel: Kernel) -> Terms:
    """Every way to bend."""
    return tuple(range(len(kernel.terms)))


def rough_terms(kernel: Kernel) -> Terms:
    """Those with a cusp at every anchor, …"""
    return tuple(j for j, term in enumerate(kernel.terms) if term.shape == "exponential")


def smooth_terms(kernel: Kernel) -> Terms:
    """… and those without."""
    return tuple(j for j, term in enumerate(kernel.terms) if term.shape == "gaussian")


@dataclass(frozen=True, eq=False)
class Sights:
    """What the bending terms look at in n points, so that matrix products give all distances."""

    designs: tuple[Float[Tensor, "n c"], ...]
    """For each term: position p and log-depth d around their middles, 1, ‖p‖², d², φ, ‖φ‖²."""
    amplitude: Float[Tensor, "n j"]

    @classmethod
    def at(
        cls,
        scene: Scene,
        pixels: Float[Tensor, "n 2"],
        log_depth: Float[Tensor, " n"],
        terms: Terms,
    ) -> Sights:
        """Points of an image by their pixel (u, v), which need not be whole, and log-depth."""
        layout, shape, maps = scene.maps.layout, scene.mde_output.shape, scene.maps.maps
        e = layout.channels
        own = [layout.modes + j * e for j in terms]
        scale = [layout.modes + layout.terms * e + j for j in terms]
        channels = [maps[:, i : i + e] for i in own] + [maps[:, i : i + 1] for i in scale]
        values = sample(torch.cat(channels, dim=1), pixels[None], shape)[0]
        middle = pixels.new_tensor([shape[1] / 2, shape[0] / 2])
        embedding = values[:, : -len(terms)].unflatten(1, (len(terms), e))
        place = (pixels - middle) / scene.unit
        return cls.of(place, log_depth, embedding, values[:, -len(terms) :])

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
        if isinstance(which, Tensor):  # several times as fast as indexing
            some = tuple(design.index_select(0, which) for design in self.designs)
            return Sights(some, self.amplitude.index_select(0, which))
        return Sights(tuple(design[which] for design in self.designs), self.amplitude[which])

    def __len__(self) -> int:
        return len(self.amplitude)

    def only(self, terms: Terms) -> Sights:
        """For some of the terms alone."""
        return Sights(tuple(self.designs[j] for j in terms), self.amplitude[:, list(terms)])

    @property
    def nbytes(self) -> int:
        """What it holds in memory."""
        return sum(t.nbytes for t in (*self.designs, self.amplitude))

    def parts(self, anchors: int) -> Iterator[slice]:
        """A few points at a time, to be held against so many anchors."""
        step = max(1, pairs_at_once(self.amplitude) // max(1, anchors))
        for first in range(0, len(self), step):
            yield slice(first, min(first + step, len(self)))


def norm(values: Float[Tensor, "n c"]) -> Float[Tensor, "n 1"]:
    """‖x‖² of every row."""
    return values.square().sum(dim=1, keepdim=True)


class Bends:
    """Some bending terms between many points and some anchors."""

    def __init__(
        self,
        kernel: Kernel,
        anchors: Points,
        middle: Float[Tensor, " 2"],
        dtype: torch.dtype,
        terms: Terms,
    ) -> None:
        self.count, self.terms = len(anchors), [kernel.terms[j] for j in terms]
        position, d = anchors.position - middle, anchors.log_depth[:, None]
        self.products, self.amplitudes = [], []
        for j, term in zip(terms, self.terms, strict=True):
            near, deep = float(term.position_length) ** -2, float(term.depth_length) ** -2
            own = anchors.embedding[:, j]
            # ‖x − a‖² = ‖x‖² − 2 xᵀa + ‖a‖², with the lengths on the anchors' side.
            square = near * norm(position) + deep * d.square() + norm(own)
            flat = torch.ones_like(d)
            columns = [-2 * near * position, -2 * deep * d, square, near * flat, deep * flat]
            product = torch.cat([*columns, -2 * own, flat], dim=1).mT
            product = product * (-0.5 * LOG2_E if term.shape == "gaussian" else LOG2_E**2)
            self.products.append(product.to(dtype).contiguous())
            self.amplitudes.append(anchors.amplitude[:, j] * float(term.amplitude) ** 2)

    def __getitem__(self, which: Tensor) -> Bends:
        """Between the points and some of the anchors."""
        some = copy(self)
        some.count = len(which)
        some.products = [product.index_select(1, which) for product in self.products]
        some.amplitudes = [amplitude.index_select(0, which) for amplitude in self.amplitudes]
        return some

    def weighted(self, sights: Sights, alpha: Float[Tensor, " n"]) -> Float[Tensor, "m terms"]:
        """Each term's part of E[ℓ] at some points, in sums over the anchors."""
        dtype, made = sights.amplitude.dtype, torch.empty_like(sights.amplitude)
        weights = [(alpha * amplitude).to(dtype) for amplitude in self.amplitudes]
        room = self.room(sights)
        for some in sights.parts(self.count):
            seen, products = sights[some], zip(self.terms, self.products, weights, strict=True)
            for j, (term, product, weight) in enumerate(products):
                pairs = room[: len(seen) * self.count].view(-1, self.count)
                correlation = power_of_two(term, torch.mm(seen.designs[j], product, out=pairs))
                made[some, j] = correlation @ weight
        return made.mul_(sights.amplitude)

    def rows(self, sights: Sights) -> Float[Tensor, "n m"]:
        """Σ_j of the terms at some points, a row for each anchor."""
        made = sights.amplitude.new_zeros(self.count, len(sights))
        amplitudes = [a.to(made.dtype)[:, None] for a in self.amplitudes]
        room = self.room(sights)
        for some in sights.parts(self.count):
            seen, products = sights[some], zip(self.terms, self.products, amplitudes, strict=True)
            for j, (term, product, amplitude) in enumerate(products):
                pairs = room[: len(seen) * self.count].view(self.count, -1)
                torch.mm(product.mT, seen.designs[j].mT, out=pairs)
                correlation = power_of_two(term, pairs).mul_(amplitude)
                made[:, some].addcmul_(correlation, seen.amplitude[:, j])
        return made

    def room(self, sights: Sights) -> Float[Tensor, " pairs"]:
        """Where some pairs at a time are worked on. Made once: blocks that come and go while
        results stay leave holes between them, which may be a hundred megabytes in the end."""
        most = max(pairs_at_once(sights.amplitude), self.count)
        return sights.amplitude.new_empty(min(most, len(sights) * self.count))

    def own_rows(self, sights: Sights) -> Float[Tensor, "n k"]:
        """The same at k points of each anchor's own, which follow one another in `sights`."""
        total = sights.amplitude.new_zeros(self.count, len(sights) // self.count)
        for j, (term, product) in enumerate(zip(self.terms, self.products, strict=True)):
            design = sights.designs[j].unflatten(0, total.shape)
            correlation = power_of_two(term, torch.bmm(design, product.mT[:, :, None])[:, :, 0])
            correlation.mul_(self.amplitudes[j].to(total.dtype)[:, None])
            total.addcmul_(correlation, sights.amplitude[:, j].view_as(total))
        return total


def power_of_two(term: Term, exponent: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """κ in the exponent's place: of −r²/2 for a smooth term, of r² for a rough one."""
    if term.shape == "gaussian":
        return exponent.exp2_()
    return exponent.clamp_(min=0).sqrt_().neg_().exp2_()
