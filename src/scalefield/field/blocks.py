"""The linear part and leave-one-out residuals of the Gaussian process from blocks of anchors.

The targets are y = μ + offset + Hθ + g + ε with θ ~ N(0, I), g the stationary part and ε the noise.
Anchors are divided into compact blocks, and g is taken as independent between blocks: a composite
likelihood (Varin, Reid and Firth, 2011) whose generalised least squares for θ costs one small
Cholesky factorisation a block. One block is the exact Gaussian process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from scalefield.field.config import InferenceConfig
from scalefield.field.kernel import Kernel, KernelInputs, TermFeatures
from scalefield.field.linalg import Cholesky
from scalefield.runtime.threads import map_threads

CHUNK_ELEMENTS = 1 << 17
"""Elements of the matrices that one thread factorises at once: they stay in its cache."""


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
    def split(cls, observations: Observations, config: InferenceConfig) -> Blocks:
        """Sort-tile-recursive packing (Leutenegger, Lopez and Edgington, 1997): vertical strips of
        anchors sorted by u, each cut into blocks of anchors sorted by v.

        Anchors outside the mask come last. Few anchors make one block.
        """
        position, mask = observations.inputs.position, observations.mask
        n = len(mask)
        blocks = 1 if n <= config.exact_block else -(-n // config.block_size)
        strips = max(1, round(math.sqrt(blocks)))
        per_strip = -(-blocks // strips)
        size = -(-n // (strips * per_strip))
        count = strips * per_strip * size
        mask = nnf.pad(mask, (0, 1))  # row n is padding
        u, v = nnf.pad(position.mT, (0, 1)).masked_fill(~mask, torch.inf)
        index = torch.arange(count, device=position.device).clamp(max=n)
        if blocks > 1:
            index = index[u[index].sort(stable=True).indices].reshape(strips, -1)
            index = index.gather(1, v[index].sort(dim=1, stable=True).indices)
        index = index.reshape(-1, size)
        known = mask[index]
        return cls(index.masked_fill(~known, 0), known)

    def within(self, mask: Bool[Tensor, " n"]) -> Blocks:
        """The same blocks without the anchors outside a mask."""
        known = self.mask & mask[self.index]
        return Blocks(self.index.masked_fill(~known, 0), known)

    def padded(self, multiple: int) -> Blocks:
        """The same blocks with a number of rows that is a multiple of a given one."""
        beyond = (0, -self.index.shape[1] % multiple)
        return Blocks(*(nnf.pad(values, beyond) for values in (self.index, self.mask)))

    def map(self, function: Callable[[Blocks], Any]) -> list[Any]:
        """`function` of a few blocks at a time, on several threads; on a GPU of all at once."""
        if self.index.is_cuda:
            return [function(self)]
        step = max(1, CHUNK_ELEMENTS // self.index.shape[1] ** 2)
        starts = range(0, len(self.index), step)
        parts = [(Blocks(self.index[i : i + step], self.mask[i : i + step]),) for i in starts]
        return map_threads(function, parts)

    def scatter(self, values: Float[Tensor, "b s *w"], n: int) -> Float[Tensor, " n *w"]:
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
        covariance = kernel.local_covariance(gathered)
        covariance.diagonal(dim1=1, dim2=2).add_(variance)
        return covariance


@dataclass(frozen=True, eq=False)
class LinearPosterior:
    """θ | y ~ N(weights, covariance), and what each anchor contributes to it."""

    offset: Float[Tensor, ""]
    weights: Float[Tensor, " w"]
    """E[θ]."""
    covariance: Float[Tensor, "w w"]
    """Cov[θ] = A⁻¹ with A = I + Σ_b HᵀC⁻¹H."""
    H: Float[Tensor, "n w"]
    """Linear features of the anchors."""
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
        features: TermFeatures,
        blocks: Blocks,
        offset: Float[Tensor, ""] | None = None,
    ) -> LinearPosterior:
        """Generalised least squares for θ, given the features of the observations; those outside
        their mask have no influence.

        The leave-one-out residual is αᵢ / Pᵢᵢ with α = C⁻¹(y − μ − offset − H E[θ]) and
        P = C⁻¹ − C⁻¹H A⁻¹ HᵀC⁻¹, the precision of a block given all other blocks.
        """
        anchors, y, noise, mask = observations
        target = y - anchors.mean
        offset = masked_median(target, mask) if offset is None else offset
        target, H = target - offset, kernel.linear_features(anchors)
        width, n = H.shape[1], len(y)
        blocks = blocks.within(mask)

        def solve(part: Blocks) -> tuple[Tensor, Tensor]:
            cholesky = Cholesky.of(part.covariance(kernel, features, noise))
            right = torch.cat([H, target[:, None]], dim=1)[part.index] * part.mask[..., None]
            solved = cholesky.solve(right)
            sums = torch.einsum("bsw,bsv->wv", right[..., :width], solved)
            return torch.cat([solved, cholesky.inverse_diagonal()[..., None]], dim=-1), sums

        solved, sums = zip(*blocks.map(solve), strict=True)
        total = torch.stack(sums).sum(dim=0)
        rows = blocks.scatter(torch.cat(solved), n)
        whitened, inverse_diagonal = rows[:, :width], rows[:, width + 1]
        precision = total[:, :width] + torch.eye(width, dtype=H.dtype, device=H.device)
        covariance = torch.linalg.inv_ex(precision).inverse
        weights = covariance @ total[:, width]
        explained = ((whitened @ covariance) * whitened).sum(dim=1)
        diagonal = torch.where(mask, inverse_diagonal - explained, 1.0).clamp(min=1e-12)
        return cls(
            offset=offset,
            weights=weights,
            covariance=covariance,
            H=H,
            whitened=whitened,
            residual=(target - H @ weights) * mask,
            loo_residual=(rows[:, width] - whitened @ weights) / diagonal,
            loo_std=diagonal.rsqrt(),
        )


def masked_median(values: Float[Tensor, "*b n"], mask: Bool[Tensor, "*b n"]) -> Float[Tensor, "*b"]:
    """Median over the mask, the mean of the two middle values of an even number; 0 over none."""
    ordered = values.masked_fill(~mask, torch.inf).sort(dim=-1).values
    count = mask.sum(dim=-1, keepdim=True)
    around = (count - torch.arange(2, device=values.device)).clamp(min=0) // 2
    middle = ordered.gather(-1, around.clamp(max=values.shape[-1] - 1)).mean(dim=-1)
    return middle.nan_to_num(posinf=0.0)
