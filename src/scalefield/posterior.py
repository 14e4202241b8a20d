"""A Gaussian process given anchors: mean, variance, leave-one-out residuals, in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scalefield.kernel import Kernel, Points


@dataclass(frozen=True, eq=False)
class Posterior:
    """The log-scale field given targets y at anchors: ℓ | y ~ N(mean, variance).

    Minimises Σ (ℓ(aᵢ) − yᵢ)²/σᵢ² + ‖ℓ‖²_k over all fields ℓ, of which the ridge solution over
    basis maps is the case of a linear kernel.
    """

    kernel: Kernel
    anchors: Points
    offset: Float[Tensor, ""]
    """Median of y, the field's mean before any anchor is heard."""
    factor: Float[Tensor, "n n"]
    """Cholesky factor of K + diag(σ²), float64."""
    alpha: Float[Tensor, " n"]
    """(K + diag(σ²))⁻¹ (y − offset)."""

    @classmethod
    def fit(
        cls,
        kernel: Kernel,
        anchors: Points,
        y: Float[Tensor, " n"],
        noise: Float[Tensor, " n"],
    ) -> Posterior:
        """Condition on y with standard deviations `noise`, in float64."""
        anchors, y = anchors.to(torch.float64), y.double()
        offset = y.detach().quantile(0.5)
        covariance = kernel(anchors, anchors) + torch.diag(noise.double() ** 2)
        factor = torch.linalg.cholesky(covariance)
        alpha = torch.cholesky_solve((y - offset)[:, None], factor)[:, 0]
        return cls(kernel, anchors, offset, factor, alpha)

    def mean(self, points: Points) -> Float[Tensor, " m"]:
        """E[ℓ] at points, in their precision."""
        dtype = points.log_depth.dtype
        cross = self.kernel(points, self.anchors.to(dtype))
        return cross @ self.alpha.to(dtype) + self.offset.to(dtype)

    def parts(self, points: Points) -> dict[str, Float[Tensor, " m"]]:
        """What the mean is made of: the median, the global correction, modes and bends."""
        dtype = points.log_depth.dtype
        split = self.kernel.parts(points, self.anchors.to(dtype))
        median = self.offset.to(dtype).expand(len(points))
        return {"median": median} | {k: v @ self.alpha.to(dtype) for k, v in split.items()}

    def variance(self, points: Points) -> Float[Tensor, " m"]:
        """Var[ℓ] at points (without the noise of a measurement)."""
        cross = self.kernel(self.anchors, points.to(torch.float64))
        explained = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        variance = self.kernel.variance(points.to(torch.float64)) - explained.square().sum(dim=0)
        return variance.clamp(min=0).to(points.log_depth.dtype)

    def leave_one_out(self) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """What the others say of each anchor: residual yᵢ − E[yᵢ | y₋ᵢ] and its deviation.

        With P = (K + diag(σ²))⁻¹ the residual is (P(y − offset))ᵢ / Pᵢᵢ and its variance 1 / Pᵢᵢ.
        """
        precision = torch.cholesky_inverse(self.factor).diagonal()
        return self.alpha / precision, precision.rsqrt()


def consistent(
    kernel: Kernel,
    anchors: Points,
    y: Float[Tensor, " n"],
    noise: Float[Tensor, " n"],
    *,
    limit: float,
    few: float = 0.0,
) -> Bool[Tensor, " n"]:
    """Anchors that agree with one another: a redescending estimate with graduated strictness.

    An anchor is contradicted when its leave-one-out residual exceeds `limit` deviations. Those
    contradicted most go first, a few at a time, because a gross error also makes its neighbours
    look wrong; afterwards those that were only in bad company come back. Where no more than `few`
    are contradicted at the start, these are the answer. At most half of the anchors go, and of
    fewer than five none: there is no majority.
    """
    count = len(y)
    kept = torch.ones(count, dtype=torch.bool, device=y.device)
    if count < 5:
        return kept
    least = (count + 1) // 2
    while True:
        posterior = Posterior.fit(kernel, anchors[kept], y[kept], noise[kept])
        residual, deviation = posterior.leave_one_out()
        strangeness = residual.abs() / deviation
        strange = strangeness > limit
        if bool(kept.all()) and int(strange.sum()) <= few:
            return ~strange
        surplus = int(kept.sum()) - least
        if surplus == 0 or not bool(strange.any()):
            break
        # The strangest; of many anchors (2,000) also 8 % a round, so that the rounds are few.
        ranked = strangeness.sort(descending=True).values
        batch = min(surplus, 1 + count * count // 25_000)
        bar = min(0.75 * float(ranked[0]), float(ranked[batch - 1]))
        strange &= strangeness >= max(bar, float(ranked[surplus - 1]))
        kept[kept.nonzero()[strange, 0]] = False
    out = ~kept
    if bool(out.any()):
        again = anchors[out].to(torch.float64)
        deviation = (posterior.variance(again) + noise[out].double() ** 2).sqrt()
        welcome = (y[out].double() - posterior.mean(again)).abs() <= 0.75 * limit * deviation
        kept[out.nonzero()[welcome, 0]] = True
    return kept
