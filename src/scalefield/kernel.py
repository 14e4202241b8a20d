"""The kernel of `field`: how much two pixels' log-scales have to do with each other.

    k(x, x') = constant² + linear² · E(x)ᵀE(x') + slope² · d(x) d(x') + doubt² · μ(x) μ(x')
               + Σ_j amplitude_j² · a_j(x) a_j(x') · κ_j(‖z_j(x) − z_j(x')‖)

The first term is the free global scale and the second the paper's ridge regression, seen as a
Gaussian process. `slope` lets the scale change with log-depth d, and `doubt` lets anchors overrule
the learned mean function μ. Each further term lets the field bend: z_j holds position and
log-depth, each divided by a length, and a learned embedding φ_j, so that pixels agree when they are
near, at a similar depth, *and* of one thing; a_j says where the MDE errs more. Log-depth at full
resolution is what gives sharp edges.
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
    """What the kernel looks at in n pixels (of b images at once, in training)."""

    position: Float[Tensor, "*b n 2"]
    """(u, v) in units of the square root of the image's area."""
    log_depth: Float[Tensor, "*b n"]
    """d: log D_MDE around the image's median."""
    modes: Float[Tensor, "*b n k"]
    """E, the basis maps' values."""
    embedding: Float[Tensor, "*b n j e"]
    """φ_j, one of e numbers for each bending term."""
    amplitude: Float[Tensor, "*b n j"]
    """a_j > 0."""
    mean: Float[Tensor, "*b n"]
    """μ, what the log-scale is expected to be, up to a constant."""

    def __len__(self) -> int:
        return self.log_depth.shape[-1]

    def __getitem__(self, which: Tensor | slice) -> Points:
        """Some of one image's points."""
        return Points(*(values[which] for values in vars(self).values()))

    def joined(self, other: Points) -> Points:
        """One image's points and further ones of it."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Points(*(torch.cat(pair) for pair in pairs))

    def to(self, dtype: torch.dtype) -> Points:
        """The same in another precision."""
        return Points(*(values.to(dtype) for values in vars(self).values()))


@dataclass(frozen=True)
class Term:
    """One way for the field to bend: amplitude² · a(x) a(x') · κ(distance)."""

    amplitude: float | Tensor
    """Standard deviation of the log-scale that it explains where a = 1."""
    position_length: float | Tensor
    """Distance over which it changes, in units of the square root of the image's area."""
    depth_length: float | Tensor
    """The same in log-depth."""
    shape: Shape
    """gaussian: smooth, κ(r) = exp(−r²/2); exponential: follows anchors closely, exp(−r)."""


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
    slope: float | Tensor = 0.0
    """Prior standard deviation of the log-scale's slope over log-depth."""
    doubt: float | Tensor = 0.0
    """Prior standard deviation of the mean function's weight around one."""

    def __post_init__(self) -> None:
        for name in ("constant", "linear", "noise", "slope", "doubt"):
            if not bool(getattr(self, name) >= 0):
                raise InputError(f"{name} must not be negative, found {getattr(self, name)}")

    def __call__(self, a: Points, b: Points) -> Float[Tensor, "*b n m"]:
        """Covariance of every pair."""
        total = self.linear**2 * (a.modes @ b.modes.mT) + self.constant**2
        total = total + self.slope**2 * outer(a.log_depth, b.log_depth)
        total = total + self.doubt**2 * outer(a.mean, b.mean)
        for j in range(len(self.terms)):
            total = total + self.bend(j, a, b)
        return total

    def bend(self, j: int, a: Points, b: Points) -> Float[Tensor, "*b n m"]:
        """Covariance of every pair by the term j alone."""
        term = self.terms[j]
        square = squared_distance(scaled(term, j, a), scaled(term, j, b))
        if term.shape == "gaussian":
            correlation = (-0.5 * square).exp()
        else:  # the root's derivative is infinite at zero, where its value hardly matters
            correlation = (-(square + 1e-12).sqrt()).exp()
        return term.amplitude**2 * outer(a.amplitude[..., j], b.amplitude[..., j]) * correlation

    def variance(self, a: Points) -> Float[Tensor, "*b n"]:
        """k(x, x) of every point."""
        total = self.linear**2 * a.modes.square().sum(dim=-1) + self.constant**2
        total = total + self.slope**2 * a.log_depth.square() + self.doubt**2 * a.mean.square()
        for j, term in enumerate(self.terms):
            total = total + term.amplitude**2 * a.amplitude[..., j].square()
        return total


def term_names(kernel: Kernel) -> list[str]:
    """What the bending terms are called in a decomposition."""
    return [f"{term.shape} {j}" for j, term in enumerate(kernel.terms, start=1)]


def outer(a: Float[Tensor, "*b n"], b: Float[Tensor, "*b m"]) -> Float[Tensor, "*b n m"]:
    """Products of every pair."""
    return a[..., :, None] * b[..., None, :]


def scaled(term: Term, j: int, a: Points) -> Float[Tensor, "*b n z"]:
    """z_j: position and log-depth in units of their lengths, and the embedding."""
    depth = a.log_depth[..., None] / term.depth_length
    return torch.cat([a.position / term.position_length, depth, a.embedding[..., j, :]], dim=-1)


def squared_distance(a: Float[Tensor, "*b n z"], b: Float[Tensor, "*b m z"]) -> Tensor:
    """‖a − b‖² of every pair by matrix products: for float64, which bears the cancellation."""
    norms = a.square().sum(dim=-1)[..., :, None] + b.square().sum(dim=-1)[..., None, :]
    return (norms - 2 * a @ b.mT).clamp(min=0)
