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

from scalefield.basis.ridge import masked_median
from scalefield.field.config import InferenceConfig
from scalefield.field.kernel import Kernel, KernelInputs, TermFeatures
from scalefield.runtime.threads import map_threads

CHUNK_ELEMENTS = 1 << 18
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

    @property
    def rows(self) -> Float[Tensor, "n 4"]:
        """What distinguishes the anchors of an image: position, target and noise."""
        return torch.cat([self.inputs.position, self.y[:, None], self.noise[:, None]], dim=1)

    def thinned(self, most: int) -> tuple[Observations, Int64[Tensor, " m"]]:
        """At most so many observations of the mask, evenly spaced in their order, and their
        index."""
        inputs, y, noise, mask = self
        index = torch.arange(min(most, len(y)), device=y.device)
        if len(y) <= most:
            return self, index
        count = mask.sum()
        rank = index * count.clamp(min=most) // most
        index = torch.searchsorted(mask.cumsum(dim=0), rank + 1).clamp(max=len(y) - 1)
        return Observations(inputs[index], y[index], noise[index], rank < count), index

    def with_spread_of_repeated_pixels(self) -> Observations:
        """The observations of one pixel with a noise of at least their deviation from their mean:
        readings that contradict each other by more than their noise are not that precise."""
        inputs, y, noise, mask = self
        u, v = inputs.position.unbind(dim=1)
        pixel, order = (v * (1 << 20) + u).sort()
        # `unique` would do, but a CUDA graph knows no result of variable size.
        changes = torch.cat([pixel.new_zeros(1), (pixel[1:] != pixel[:-1]).to(pixel)])
        group = torch.empty_like(order).index_copy(0, order, changes.cumsum(dim=0).long())
        counts, sums = (y.new_zeros(len(y)).index_add(0, group, x) for x in (mask.to(y), y * mask))
        deviation = (y - (sums / counts.clamp(min=1))[group]).abs() * mask
        return self._replace(noise=torch.maximum(noise, deviation))


class Memo:
    """The last results of a function of many rows: rows whose values have not changed are kept.

    Threads may share it: a call reads the last results once and replaces them as a whole.
    """

    def __init__(self) -> None:
        self.last: tuple[Any, Tensor, tuple[Tensor, ...]] | None = None

    def __call__(
        self,
        key: Any,
        values: Float[Tensor, "m ..."],
        compute: Callable[[Int64[Tensor, " a"]], tuple[Tensor, ...]],
    ) -> tuple[Tensor, ...]:
        """The results. Those of rows are computed whose `values` differ from the last call's, or
        all if `key` or the shape does."""
        last, rows = self.last, torch.arange(len(values))
        if last is None or last[0] != key or last[1].shape != values.shape:
            results = compute(rows)
        else:
            _, before, results = last
            rows = rows[(values != before).flatten(1).any(dim=1)]
            if len(rows):
                pairs = zip(results, compute(rows), strict=True)
                results = tuple(kept.index_copy(0, rows, new) for kept, new in pairs)
        self.last = key, values, results
        return results


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

    @classmethod
    def grouped(cls, block: Int64[Tensor, " n"], multiple: int = 16) -> Blocks:
        """Blocks given the number of each anchor's block. Their size is a multiple of a given one,
        so that few edits of the anchors change it."""
        size = block.bincount()
        order = block.sort(stable=True).indices
        rank = torch.arange(len(block)) - (size.cumsum(0) - size)[block[order]]
        index = torch.zeros(len(size), -(-int(size.max()) // multiple) * multiple).long()
        index[block[order], rank] = order
        return cls(index, torch.arange(index.shape[1]) < size[:, None])

    def map(
        self,
        function: Callable[[Blocks], tuple[Tensor, ...]],
        memo: Memo | None = None,
        rows: Float[Tensor, "n d"] | None = None,
        key: Any = None,
    ) -> tuple[Tensor, ...]:
        """What `function` returns of the blocks, of a few at a time on several threads; on a GPU of
        all at once. With a memo and the `rows` of the anchors that the results depend on besides
        `key`, blocks that have not changed since the last call are left out."""
        if memo is not None and rows is not None:
            values = rows[self.index] * self.mask[..., None]

            def of_changed(changed: Int64[Tensor, " a"]) -> tuple[Tensor, ...]:
                return Blocks(self.index[changed], self.mask[changed]).map(function)

            return memo(key, values, of_changed)
        step = max(1, CHUNK_ELEMENTS // self.index.shape[1] ** 2)
        if self.index.is_cuda or len(self.index) <= step:
            return function(self)
        starts = range(0, len(self.index), step)
        parts = [(Blocks(self.index[i : i + step], self.mask[i : i + step]),) for i in starts]
        return tuple(map(torch.cat, zip(*map_threads(function, parts), strict=True)))

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
        gathered = features.at(self.index)
        gathered = gathered._replace(amplitude=gathered.amplitude * self.mask[..., None])
        variance = torch.where(self.mask, noise[self.index] ** 2, 1.0)
        covariance = kernel.local_covariance(gathered)
        covariance.diagonal(dim1=1, dim2=2).add_(variance)
        return covariance


@dataclass(frozen=True, eq=False)
class Cholesky:
    """Lower Cholesky factors L of many small matrices A = LLᵀ, factorised in one batch.

    Nothing here waits for the host, so that it can be captured in a CUDA graph: there is no check
    that a factorisation succeeded.
    """

    factor: Float[Tensor, "*b n n"]

    @classmethod
    def of(cls, matrix: Float[Tensor, "*b n n"]) -> Cholesky:
        """Factorise symmetric positive definite matrices."""
        return cls(torch.linalg.cholesky_ex(matrix).L)

    def solve(self, right: Float[Tensor, "*b n k"]) -> Float[Tensor, "*b n k"]:
        """A⁻¹ applied to columns."""
        if not self.factor.is_cuda:
            return torch.cholesky_solve(right, self.factor)
        # On a GPU `cholesky_solve` allocates, which a graph cannot capture.
        half = torch.linalg.solve_triangular(self.factor, right, upper=False)
        return torch.linalg.solve_triangular(self.factor.mT, half, upper=True)

    def inverse(self) -> Float[Tensor, "*b n n"]:
        """A⁻¹."""
        if not self.factor.is_cuda:
            return torch.cholesky_inverse(self.factor)
        half = self._inverse_factor()
        return half.mT @ half

    def inverse_diagonal(self) -> Float[Tensor, "*b n"]:
        """Diagonal of A⁻¹."""
        if not self.factor.is_cuda:
            return self.inverse().diagonal(dim1=-2, dim2=-1)
        return self._inverse_factor().square().sum(dim=-2)

    def _inverse_factor(self) -> Float[Tensor, "*b n n"]:
        """L⁻¹. On a GPU `cholesky_inverse` solves twice; this solves once."""
        eye = torch.eye(self.factor.shape[-1], dtype=self.factor.dtype, device=self.factor.device)
        return torch.linalg.solve_triangular(self.factor, eye.expand_as(self.factor), upper=False)

    def half_log_det(self) -> Float[Tensor, "*b"]:
        """½ log det A."""
        return self.factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)


class BlockSolutions(NamedTuple):
    """C⁻¹ of the blocks of anchors applied to columns X = [H, y − μ, 1]."""

    solved: Float[Tensor, "b s w_3"]
    """C⁻¹X, and the diagonal of C⁻¹."""
    sums: Float[Tensor, "b w w_2"]
    """HᵀC⁻¹X."""

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        observations: Observations,
        features: TermFeatures,
        H: Float[Tensor, "n w"],
        blocks: Blocks,
        *,
        memo: Memo | None = None,
    ) -> BlockSolutions:
        """The solutions of blocks within the mask of the observations; with a memo, of those that
        have changed since the last call."""
        inputs, y, noise, _ = observations
        target = y - inputs.mean
        X = torch.cat([H, torch.stack([target, torch.ones_like(target)], dim=1)], dim=1)

        def solve(part: Blocks) -> tuple[Tensor, Tensor]:
            cholesky = Cholesky.of(part.covariance(kernel, features, noise))
            right = X[part.index] * part.mask[..., None]
            solved = cholesky.solve(right)
            sums = right[..., :-2].mT @ solved
            diagonal = cholesky.inverse_diagonal()[..., None]
            return torch.cat([solved, diagonal], dim=-1), sums

        return cls(*blocks.map(solve, memo, observations.rows, key=kernel))


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
        observations: Observations,
        H: Float[Tensor, "n w"],
        blocks: Blocks,
        solutions: BlockSolutions,
        offset: Float[Tensor, ""] | None = None,
    ) -> LinearPosterior:
        """Generalised least squares for θ, given the linear features of the observations and the
        solutions of their blocks; observations outside their mask have no influence.

        The leave-one-out residual is αᵢ / Pᵢᵢ with α = C⁻¹(y − μ − offset − H E[θ]) and
        P = C⁻¹ − C⁻¹H A⁻¹ HᵀC⁻¹, the precision of a block given all other blocks.
        """
        inputs, y, _, mask = observations
        target = y - inputs.mean
        offset = masked_median(target, mask) if offset is None else offset
        width, sums = H.shape[1], solutions.sums.sum(dim=0)
        rows = blocks.scatter(solutions.solved, len(y))
        whitened, inverse_diagonal = rows[:, :width], rows[:, width + 2]
        precision = sums[:, :width] + torch.eye(width, dtype=H.dtype, device=H.device)
        covariance = torch.linalg.inv_ex(precision).inverse
        weights = covariance @ (sums[:, width] - offset * sums[:, width + 1])
        explained = ((whitened @ covariance) * whitened).sum(dim=1)
        diagonal = torch.where(mask, inverse_diagonal - explained, 1.0).clamp(min=1e-12)
        alpha = rows[:, width] - offset * rows[:, width + 1] - whitened @ weights
        return cls(
            offset=offset,
            weights=weights,
            covariance=covariance,
            H=H,
            whitened=whitened,
            residual=(target - offset - H @ weights) * mask,
            loo_residual=alpha / diagonal,
            loo_std=diagonal.rsqrt(),
        )
