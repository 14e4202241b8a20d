"""The Gaussian process given anchors, solved exactly in float64.

O(n³) in the number of anchors: used in training, for the design of measurements, and as the
reference that the local solver of `scalefield.field.posterior` is tested against. Rasmussen and
Williams, Gaussian Processes for Machine Learning, 2006, chapter 2 and section 5.4.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from scalefield.field.kernel import Kernel, KernelInputs


@dataclass(frozen=True, eq=False)
class ExactPosterior:
    """ℓ | y ~ N(mean, covariance), given targets y at anchors with noise N(0, σ²).

    The mean minimises Σ (ℓ(aᵢ) − yᵢ)²/σᵢ² + ‖ℓ − μ − offset‖²_k over all fields ℓ; ridge regression
    over basis maps is the case of a linear kernel.
    """

    kernel: Kernel
    anchors: KernelInputs
    offset: Float[Tensor, "*b"]
    """Prior mean of the global log-scale: the median of y − μ unless it is given."""
    factor: Float[Tensor, "*b n n"]
    """Cholesky factor of K + diag(σ²)."""
    alpha: Float[Tensor, "*b n"]
    """(K + diag(σ²))⁻¹ (y − μ − offset)."""

    @classmethod
    def fit(
        cls,
        kernel: Kernel,
        anchors: KernelInputs,
        y: Float[Tensor, "*b n"],
        noise: Float[Tensor, "*b n"],
        offset: Float[Tensor, "*b"] | None = None,
    ) -> ExactPosterior:
        """Condition on y with standard deviations `noise`."""
        anchors = anchors.to(torch.float64)
        residual = y.double() - anchors.mean
        if offset is None:
            offset = residual.detach().quantile(0.5, dim=-1)
        covariance = kernel(anchors, anchors) + torch.diag_embed(noise.double() ** 2)
        factor = torch.linalg.cholesky(covariance)
        alpha = torch.cholesky_solve((residual - offset[..., None])[..., None], factor)[..., 0]
        return cls(kernel, anchors, offset, factor, alpha)

    def mean(self, inputs: KernelInputs) -> Float[Tensor, "*b m"]:
        """E[ℓ] at pixels."""
        inputs = inputs.to(torch.float64)
        correction = (self.kernel(inputs, self.anchors) @ self.alpha[..., None])[..., 0]
        return correction + inputs.mean + self.offset[..., None]

    def variance(self, inputs: KernelInputs) -> Float[Tensor, "*b m"]:
        """Var[ℓ] at pixels, without measurement noise."""
        inputs = inputs.to(torch.float64)
        cross = self.kernel(self.anchors, inputs)
        explained = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        return (self.kernel.variance(inputs) - explained.square().sum(dim=-2)).clamp(min=0)

    def covariance(self, inputs: KernelInputs) -> Float[Tensor, "m m"]:
        """Cov[ℓ] of every pair of pixels."""
        inputs = inputs.to(torch.float64)
        cross = self.kernel(self.anchors, inputs)
        half = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        return self.kernel(inputs, inputs) - half.mT @ half

    def smoother_weights(self, inputs: KernelInputs) -> Float[Tensor, "*b m n"]:
        """S with E[ℓ](x) = Σᵢ Sᵢ(x) (yᵢ − μᵢ − offset) + μ(x) + offset."""
        cross = self.kernel(self.anchors, inputs.to(torch.float64))
        return torch.cholesky_solve(cross, self.factor).mT

    def linear_weights(self) -> Float[Tensor, " w"]:
        """E[θ] of the linear part Hθ; a priori θ ~ N(0, I)."""
        return self.kernel.linear_features(self.anchors).mT @ self.alpha

    def linear_covariance(self) -> Float[Tensor, "w w"]:
        """Cov[θ] of the linear part Hθ."""
        H = self.kernel.linear_features(self.anchors)
        half = torch.linalg.solve_triangular(self.factor, H, upper=False)
        return torch.eye(H.shape[1], dtype=half.dtype, device=half.device) - half.mT @ half

    def leave_one_out(self) -> tuple[Float[Tensor, "*b n"], Float[Tensor, "*b n"]]:
        """Residuals yᵢ − E[yᵢ | y₋ᵢ] and their standard deviations.

        With P = (K + diag(σ²))⁻¹ the residual is (P(y − μ − offset))ᵢ / Pᵢᵢ, its variance 1 / Pᵢᵢ.
        """
        precision = torch.cholesky_inverse(self.factor).diagonal(dim1=-2, dim2=-1)
        return self.alpha / precision, precision.rsqrt()
