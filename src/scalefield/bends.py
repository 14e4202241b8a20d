"""The bending terms of the kernel, between many points of an image and some anchors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from scalefield.cues import sample
from scalefield.kernel import Kernel, Points
from scalefield.scene import Scene

PAIRS_AT_ONCE = 1 << 18
"""Point-anchor pairs that are worked on at once: what a processor's cache holds."""


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
