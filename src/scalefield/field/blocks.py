"""The linear part and leave-one-out residuals of the Gaussian process from blocks of anchors.

The targets are y = μ + offset + Hθ + g + ε with θ ~ N(0, I), g the stationary part and ε the noise.
Anchors are divided into compact blocks, and g is taken as independent between blocks: a composite
likelihood (Varin, Reid and Firth, 2011) whose generalised least squares for θ costs one small
Cholesky factorisation a block. One block is the exact Gaussian process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from scalefield.field.config import InferenceConfig
from scalefield.field.kernel import Kernel, KernelInputs, TermFeatures
from scalefield.field.linalg import factorise


class Observations(NamedTuple):
    """Anchors as the Gaussian process sees them."""

    inputs: KernelInputs
    y: Float[Tensor, " n"]
    """Targets log depth_m − log D_MDE."""
    noise: Float[Tensor, " n"]
    """Standard deviations of the targets."""
    mask: Bool[Tensor, " n"]
    """Which rows are anchors; the others are padding."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """Anchors in compact blocks of one size; the last ones may be padded."""

    index: Int64[Tensor, "b s"]
    """Anchors of each block; 0 where there is none."""
    mask: Bool[Tensor, "b s"]
    """Whether there is an anchor."""

    @classmethod
    def split(
        cls, position: Float[Tensor, "n 2"], mask: Bool[Tensor, " n"], config: InferenceConfig
    ) -> Blocks:
        """Halve along the longer side, at the median, until blocks are small enough.

        `mask` marks the anchors to use; the others come last and fill the last blocks.
        """
        n = len(position)
        one_block = n <= config.exact_block
        levels = 0 if one_block else max(0, math.ceil(math.log2(n / config.block_size)))
        size = -(-n // 2**levels)
        index = torch.arange(size * 2**levels, device=position.device)
        index = torch.where(index < n, index, n)[None]  # n stands for padding
        far = position.new_full((1, 2), torch.inf)
        padded = torch.cat([position.masked_fill(~mask[:, None], torch.inf), far])
        known = torch.cat([mask, mask.new_zeros(1)])
        # The extent of the blocks follows from halving; positions are in units of √area.
        low = position.masked_fill(~mask[:, None], torch.inf).amin(dim=0)
        high = position.masked_fill(~mask[:, None], -torch.inf).amax(dim=0)
        extent = (high - low).expand(1, 2)
        for _ in range(levels):
            along = extent.argmax(dim=1)
            keys = padded[index].gather(2, along[:, None, None].expand(*index.shape, 1))[..., 0]
            order = keys.sort(dim=1, stable=True).indices
            index = index.gather(1, order).reshape(2 * len(index), -1)
            halved = extent.scatter(1, along[:, None], extent.gather(1, along[:, None]) / 2)
            extent = halved.repeat_interleave(2, dim=0)
        known = known[index]
        return cls(index.masked_fill(~known, 0), known)

    def scatter(self, values: Float[Tensor, "b s *w"], n: int) -> Float[Tensor, n * w]:
        """Values of the blocks in the order of the n anchors; 0 for those in no block."""
        # Padding writes to a last row that is dropped: a CUDA graph cannot select by a mask.
        target = torch.where(self.mask, self.index, n).flatten()
        out = values.new_zeros(n + 1, *values.shape[2:])
        return out.index_copy(0, target, values.flatten(0, 1))[:n]

    def covariance(
        self, kernel: Kernel, features: TermFeatures, noise: Float[Tensor, " n"]
    ) -> Float[Tensor, "b s s"]:
        """Covariance of g + ε within each block; the identity where there is no anchor."""
        gathered = features.gather(self.index)
        gathered = gathered._replace(amplitude=gathered.amplitude * self.mask)
        variance = torch.where(self.mask, noise[self.index] ** 2, 1.0)
        return kernel.local_covariance(gathered) + torch.diag_embed(variance)


@dataclass(frozen=True, eq=False)
class LinearPosterior:
    """θ | y ~ N(weights, covariance), and what each anchor contributes to it."""

    offset: Float[Tensor, ""]
    weights: Float[Tensor, " w"]
    """E[θ]."""
    covariance: Float[Tensor, "w w"]
    """Cov[θ] = A⁻¹ with A = I + Σ_b HᵀC⁻¹H."""
    whitened: Float[Tensor, "n w"]
    """C⁻¹H: E[θ] = A⁻¹ Σᵢ whitenedᵢ (yᵢ − μᵢ − offset)."""
    residual: Float[Tensor, " n"]
    """y − μ − offset − H E[θ]: the targets of the stationary part."""
    loo_residual: Float[Tensor, " n"]
    """yᵢ − E[yᵢ | y₋ᵢ]."""
    loo_std: Float[Tensor, " n"]
    """Standard deviation of that residual."""

    @classmethod
    def fit(
        cls,
        kernel: Kernel,
        observations: Observations,
        config: InferenceConfig,
        offset: Float[Tensor, ""] | None = None,
    ) -> LinearPosterior:
        """Generalised least squares for θ; observations outside the mask have no influence.

        The leave-one-out residual is αᵢ / Pᵢᵢ with α = C⁻¹(y − μ − offset − H E[θ]) and
        P = C⁻¹ − C⁻¹H A⁻¹ HᵀC⁻¹, the precision of a block given all other blocks.
        """
        anchors, y, noise, mask = observations
        target = y - anchors.mean
        if offset is None:
            offset = masked_median(target, mask)
        target = target - offset
        blocks = Blocks.split(anchors.position, mask, config)
        covariance = blocks.covariance(kernel, kernel.features(anchors), noise)
        H = kernel.linear_features(anchors)
        Hb = H[blocks.index] * blocks.mask[..., None]
        rb = target[blocks.index] * blocks.mask
        factorisation = factorise(covariance)
        solved = factorisation.solve(torch.cat([Hb, rb[..., None]], dim=-1))
        sums = torch.einsum("bsw,bsv->wv", Hb, solved)
        width = H.shape[1]
        precision = sums[:, :width] + torch.eye(width, dtype=H.dtype, device=H.device)
        theta_covariance = torch.linalg.inv_ex(precision).inverse
        weights = theta_covariance @ sums[:, width]
        explained = (solved[..., :width] @ theta_covariance * solved[..., :width]).sum(dim=-1)
        diagonal = factorisation.inverse_diagonal() - explained
        alpha = solved[..., width] - solved[..., :width] @ weights
        diagonal = diagonal.clamp(min=1e-12)
        n = len(y)
        return cls(
            offset=offset,
            weights=weights,
            covariance=theta_covariance,
            whitened=blocks.scatter(solved[..., :width] * blocks.mask[..., None], n),
            residual=(target - H @ weights) * mask,
            loo_residual=blocks.scatter(alpha / diagonal * blocks.mask, n),
            loo_std=blocks.scatter(diagonal.rsqrt(), n),
        )


def masked_median(values: Float[Tensor, " n"], mask: Bool[Tensor, " n"]) -> Float[Tensor, ""]:
    """Median over the mask, the mean of the two middle values of an even number; 0 over none."""
    ordered = values.masked_fill(~mask, torch.inf).sort().values
    count = mask.sum()
    low, high = ((count - 1).clamp(min=0) // 2)[None], (count // 2).clamp(max=len(values) - 1)[None]
    middle = 0.5 * (ordered.gather(0, low) + ordered.gather(0, high))[0]
    return torch.where(count > 0, middle, 0.0)
