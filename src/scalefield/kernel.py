"""The kernel of `field`: how much two pixels' log-scales have to do with each other.

    k(x, x') = constant² + linear² · E(x)ᵀE(x') + Σ_j amplitude_j² · κ_j(‖z_j(x) − z_j(x')‖)

The first term is the free global scale and the second the paper's ridge regression, seen as a
Gaussian process. Each further one lets the field bend: z_j holds position and log D_MDE, each
divided by a length, so that pixels agree when they are near *and* at a similar depth. Log-depth
at full resolution is what gives sharp edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from scalefield.errors import InputError

Shape = Literal["gaussian", "exponential"]


@dataclass(frozen=True, eq=False)
class Points:
    """What the kernel looks at in n pixels."""

    position: Float[Tensor, "n 2"]
    """(u, v) in units of the image's longer side."""
    log_depth: Float[Tensor, " n"]
    """log D_MDE."""
    basis: Float[Tensor, "n k"]
    """E, the basis maps' values."""

    def __len__(self) -> int:
        return len(self.log_depth)

    def __getitem__(self, which: Tensor | slice) -> Points:
        """Some of the points."""
        return Points(self.position[which], self.log_depth[which], self.basis[which])

    def to(self, dtype: torch.dtype) -> Points:
        """The same in another precision."""
        return Points(self.position.to(dtype), self.log_depth.to(dtype), self.basis.to(dtype))


@dataclass(frozen=True)
class Term:
    """One way for the field to bend: amplitude² · κ(distance)."""

    amplitude: float | Tensor
    """Standard deviation of the log-scale that it explains."""
    position_length: float | Tensor
    """Distance over which it changes, in units of the image's longer side."""
    depth_length: float | Tensor
    """The same in log-depth."""
    shape: Shape
    """gaussian: smooth, κ(r) = exp(−r²/2); exponential: follows anchors closely, exp(−r)."""

    def __call__(self, a: Points, b: Points) -> Float[Tensor, "n m"]:
        """Covariance of every pair."""
        # cdist without the matrix-product shortcut, which loses the small distances that matter.
        exact = "donot_use_mm_for_euclid_dist"
        r = torch.cdist(self.scaled(a), self.scaled(b), compute_mode=exact)
        correlation = (-0.5 * r**2).exp() if self.shape == "gaussian" else (-r).exp()
        return self.amplitude**2 * correlation

    def scaled(self, a: Points) -> Float[Tensor, "n 3"]:
        """z: position and log-depth in units of their lengths."""
        depth = a.log_depth[:, None] / self.depth_length
        return torch.cat([a.position / self.position_length, depth], dim=1)


@dataclass(frozen=True)
class Kernel:
    """The whole kernel; its numbers are learned by `scalefield.training.field`."""

    constant: float | Tensor
    """Standard deviation of the global log-scale around the anchors' median."""
    linear: float | Tensor
    """Prior standard deviation of the basis maps' weights."""
    terms: tuple[Term, ...]
    noise: float | Tensor
    """Standard deviation of log-depth at an anchor whose own is not known."""

    def __post_init__(self) -> None:
        for name in ("constant", "linear", "noise"):
            if not bool(getattr(self, name) >= 0):
                raise InputError(f"{name} must not be negative, found {getattr(self, name)}")

    def parts(self, a: Points, b: Points) -> dict[str, Float[Tensor, "n m"]]:
        """Covariance of every pair, split into what explains it; the parts sum to the whole."""
        named: dict[str, Tensor] = {
            "global": a.log_depth.new_ones(len(a), len(b)) * self.constant**2,
            "modes": self.linear**2 * (a.basis @ b.basis.mT),
        }
        return named | {f"{t.shape} {i}": t(a, b) for i, t in enumerate(self.terms, start=1)}

    def __call__(self, a: Points, b: Points) -> Float[Tensor, "n m"]:
        """Covariance of every pair."""
        total = self.linear**2 * (a.basis @ b.basis.mT) + self.constant**2
        for term in self.terms:
            total = total + term(a, b)
        return total

    def variance(self, a: Points) -> Float[Tensor, " n"]:
        """k(x, x) of every point."""
        bend = sum((term.amplitude**2 for term in self.terms), start=0.0)
        return self.linear**2 * a.basis.square().sum(dim=1) + (self.constant**2 + bend)
