"""A Gaussian process given anchors: mean, variance, leave-one-out residuals, in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from scalefield.kernel import Kernel, Points


class Linear(NamedTuple):
    """What E[ℓ] has beside its bends: constant + trust · μ + slope · d + Eᵀw."""

    constant: Float[Tensor, ""]
    trust: Float[Tensor, ""]
    slope: Float[Tensor, ""]
    weights: Float[Tensor, " k"]


@dataclass(frozen=True, eq=False)
class Posterior:
    """The log-scale field given targets y at anchors: ℓ | y ~ N(mean, variance).

    Minimises Σ (ℓ(aᵢ) − yᵢ)²/σᵢ² + ‖ℓ − μ − offset‖²_k over all fields ℓ, of which the ridge
    solution over basis maps is the case of a linear kernel. All in float64.
    """

    kernel: Kernel
    anchors: Points
    offset: Float[Tensor, "*b"]
    """The global scale before the kernel is heard: the median of y − μ, if not known."""
    factor: Float[Tensor, "*b n n"]
    """Cholesky factor of K + diag(σ²)."""
    alpha: Float[Tensor, "*b n"]
    """(K + diag(σ²))⁻¹ (y − μ − offset)."""

    @classmethod
    def fit(
        cls,
        kernel: Kernel,
        anchors: Points,
        y: Float[Tensor, "*b n"],
        noise: Float[Tensor, "*b n"],
        offset: Float[Tensor, "*b"] | None = None,
    ) -> Posterior:
        """Condition on y with standard deviations `noise`; `offset` if it is known beforehand."""
        anchors = anchors.to(torch.float64)
        residual = y.double() - anchors.mean
        if offset is None:
            offset = residual.detach().quantile(0.5, dim=-1)
        covariance = kernel(anchors, anchors) + torch.diag_embed(noise.double() ** 2)
        factor = torch.linalg.cholesky(covariance)
        alpha = torch.cholesky_solve((residual - offset[..., None])[..., None], factor)[..., 0]
        return cls(kernel, anchors, offset, factor, alpha)

    def add(self, anchors: Points, y: Float[Tensor, " m"], noise: Float[Tensor, " m"]) -> Posterior:
        """The same with further anchors: the factor grows by their rows, which costs n² and not n³.

        The offset stays; what the new anchors say of it, the kernel's constant hears.
        """
        anchors = anchors.to(torch.float64)
        own = self.kernel(anchors, anchors) + torch.diag(noise.double() ** 2)
        cross = self.kernel(self.anchors, anchors)
        left = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        corner = torch.linalg.cholesky(own - left.mT @ left)
        above = torch.cat([self.factor, torch.zeros_like(left)], dim=1)
        factor = torch.cat([above, torch.cat([left.mT, corner], dim=1)])
        # The old targets are the factor's own: (y − μ − offset) = K alpha.
        before = self.factor @ (self.factor.mT @ self.alpha)
        residual = torch.cat([before, y.double() - anchors.mean - self.offset])
        alpha = torch.cholesky_solve(residual[:, None], factor)[:, 0]
        return Posterior(self.kernel, self.anchors.joined(anchors), self.offset, factor, alpha)

    def __getitem__(self, image: int) -> Posterior:
        """One image's of several."""
        anchors = Points(*(values[image] for values in vars(self.anchors).values()))
        rest = (self.offset[image], self.factor[image], self.alpha[image])
        return Posterior(self.kernel, anchors, *rest)

    def mean(self, points: Points) -> Float[Tensor, "*b m"]:
        """E[ℓ] at points."""
        points = points.to(torch.float64)
        bent = (self.kernel(points, self.anchors) @ self.alpha[..., None])[..., 0]
        return bent + points.mean + self.offset[..., None]

    def weights(self) -> Float[Tensor, "*b k"]:
        """w, what the linear modes are multiplied by."""
        return self.kernel.linear**2 * (self.anchors.modes.mT @ self.alpha[..., None])[..., 0]

    def linear(self) -> Linear:
        """The parts that do not bend."""
        constant, slope, doubt = (self.kernel.constant, self.kernel.slope, self.kernel.doubt)
        common, sloped, doubted = self.linear_weights()[:3]
        return Linear(
            self.offset + constant * common, 1 + doubt * doubted, slope * sloped, self.weights()
        )

    def linear_weights(self) -> Float[Tensor, " w"]:
        """E[θ], of which the linear parts are `linear_columns` · θ; a priori θ ~ N(0, 1)."""
        return linear_columns(self.kernel, self.anchors).mT @ self.alpha

    def linear_speakers(self) -> Float[Tensor, "w n"]:
        """E[θ] by y: E[θ] = Σᵢ sᵢ (yᵢ − μᵢ − offset)."""
        return torch.cholesky_solve(linear_columns(self.kernel, self.anchors), self.factor).mT

    def linear_covariance(self) -> Float[Tensor, "w w"]:
        """Cov[θ]."""
        columns = linear_columns(self.kernel, self.anchors)
        half = torch.linalg.solve_triangular(self.factor, columns, upper=False)
        return torch.eye(columns.shape[1], dtype=half.dtype, device=half.device) - half.mT @ half

    def speakers(self, points: Points) -> Float[Tensor, "*b m n"]:
        """The smoother's weights: E[ℓ](x) = Σᵢ sᵢ(x) (yᵢ − μᵢ − offset) + μ(x) + offset."""
        cross = self.kernel(self.anchors, points.to(torch.float64))
        return torch.cholesky_solve(cross, self.factor).mT

    def variance(self, points: Points) -> Float[Tensor, "*b m"]:
        """Var[ℓ] at points (without the noise of a measurement)."""
        points = points.to(torch.float64)
        cross = self.kernel(self.anchors, points)
        explained = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        return (self.kernel.variance(points) - explained.square().sum(dim=-2)).clamp(min=0)

    def covariance(self, points: Points) -> Float[Tensor, "m m"]:
        """Cov[ℓ] of every pair of points."""
        points = points.to(torch.float64)
        cross = self.kernel(self.anchors, points)
        half = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        return self.kernel(points, points) - half.mT @ half

    def leave_one_out(self) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """What the others say of each anchor: residual yᵢ − E[yᵢ | y₋ᵢ] and its deviation.

        With P = (K + diag(σ²))⁻¹ the residual is (P(y − μ − offset))ᵢ / Pᵢᵢ, its variance 1 / Pᵢᵢ.
        """
        precision = torch.cholesky_inverse(self.factor).diagonal()
        return self.alpha / precision, precision.rsqrt()


def linear_columns(kernel: Kernel, points: Points) -> Float[Tensor, "n w"]:
    """H of the kernel's linear parts HHᵀ: the constant, the slope, the mean function, the modes."""
    flat = torch.ones_like(points.log_depth)
    columns = [kernel.constant * flat, kernel.slope * points.log_depth, kernel.doubt * points.mean]
    return torch.cat([torch.stack(columns, dim=1), kernel.linear * points.modes], dim=1)
