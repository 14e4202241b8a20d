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

import numpy as np
import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from scalefield.field.cholesky import Cholesky
from scalefield.field.config import InferenceConfig
from scalefield.field.cuda import blocks_in_strips
from scalefield.field.kernel import Features, Kernel
from scalefield.field.observations import Observations
from scalefield.runtime.threads import map_threads

DEEPEST_LEAF = 40
"""Halvings of the image after which a block is not divided further."""
CHUNK_ELEMENTS = 1 << 18
"""Elements of the matrices that one thread factorises at once: they stay in its cache."""


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
    static: bool = False
    """Whether nothing may depend on where anchors are, as in a CUDA graph."""

    @classmethod
    def split(
        cls,
        observations: Observations,
        config: InferenceConfig,
        *,
        aspect: float = 1.0,
        static: bool = False,
    ) -> Blocks:
        """Blocks of at most `block_size` observations of an image whose width is `aspect` times its
        height; no more than that make one block.

        More are divided by halving the image, which does not depend on the observations: adding one
        changes the block that it falls in and no other, unless that is divided or joined. With
        `static`, and on a GPU, they are those of `blocks_in_strips`.
        """
        mask = observations.mask
        n, static = len(mask), static or mask.is_cuda
        if n <= config.block_size:
            index = torch.arange(n, device=mask.device)[None]
            return cls(index.masked_fill(~mask, 0), mask[None], static)
        if static:
            strips = blocks_in_strips(observations.inputs.position, mask, config.block_size)
            return cls(*strips, static)
        known = mask.nonzero()[:, 0]
        if len(known) <= config.block_size:
            return cls(known[None], torch.ones(1, len(known), dtype=torch.bool))
        leaves = bisection_leaves(
            observations.inputs.position[known].numpy(), config.block_size, aspect
        )
        return cls.grouped(known, torch.from_numpy(leaves))

    def within(self, mask: Bool[Tensor, " n"]) -> Blocks:
        """The same blocks without the anchors outside a mask."""
        known = self.mask & mask[self.index]
        return Blocks(self.index.masked_fill(~known, 0), known, self.static)

    @classmethod
    def grouped(
        cls, rows: Int64[Tensor, " n"], block: Int64[Tensor, " n"], multiple: int = 16
    ) -> Blocks:
        """Blocks given the number of each row's block. Their size is a multiple of a given one, so
        that few edits of the rows change it."""
        size = block.bincount()
        order = block.sort(stable=True).indices
        rank = torch.arange(len(block)) - (size.cumsum(0) - size)[block[order]]
        index = torch.zeros(len(size), -(-int(size.max()) // multiple) * multiple).long()
        index[block[order], rank] = rows[order]
        return cls(index, torch.arange(index.shape[1]) < size[:, None])

    def map(
        self,
        function: Callable[[Blocks], tuple[Tensor, ...]],
        memo: Memo | None = None,
        rows: Float[Tensor, "n d"] | None = None,
        key: Any = None,
    ) -> tuple[Tensor, ...]:
        """What `function` returns of the blocks: values of their anchors, then values of each
        block. On a processor it sees a few blocks of like size at a time, on several threads; on a
        GPU all at once. With a memo and the `rows` of the anchors that the results depend on
        besides `key`, blocks that have not changed since the last call are left out."""
        if memo is not None and rows is not None:
            values = rows[self.index] * self.mask[..., None]

            def of_changed(changed: Int64[Tensor, " a"]) -> tuple[Tensor, ...]:
                return Blocks(self.index[changed], self.mask[changed]).map(function)

            return memo(key, values, of_changed)
        if self.static or len(self.index) == 1:
            return function(self)
        width = self.index.shape[1]
        order = self.mask.sum(dim=1).argsort()

        def of_part(part: Int64[Tensor, " a"]) -> tuple[Tensor, ...]:
            mask = self.mask[part]
            used = slice(int(mask.any(dim=0).nonzero().amax()) + 1 if mask.any() else 1)
            values, *others = function(Blocks(self.index[part, used], mask[:, used]))
            return nnf.pad(values, (0, 0, 0, width - values.shape[1])), *others

        parts = [(part,) for part in order.split(max(1, CHUNK_ELEMENTS // width**2))]
        found = map(torch.cat, zip(*map_threads(of_part, parts), strict=True))
        return tuple(values[order.argsort()] for values in found)

    def scatter(self, values: Float[Tensor, "b s *w"], n: int) -> Float[Tensor, " n *w"]:
        """Values of the blocks in the order of the n anchors; 0 for those in no block."""
        # Padding writes to a last row that is dropped: a CUDA graph cannot select by a mask.
        target = torch.where(self.mask, self.index, n).flatten()
        out = values.new_zeros(n + 1, *values.shape[2:])
        return out.index_copy(0, target, values.flatten(0, 1))[:n]

    def covariance(
        self, kernel: Kernel, features: Features, noise: Float[Tensor, " n"]
    ) -> Float[Tensor, "b s s"]:
        """Covariance of g + ε within each block; the identity where there is no anchor."""
        gathered = features.at(self.index)
        variance = torch.where(self.mask, noise[self.index] ** 2, 1.0)
        covariance = kernel.own_covariance(gathered.masked(self.mask))
        covariance.diagonal(dim1=1, dim2=2).add_(variance)
        return covariance


def bisection_leaves(
    position: Float64[np.ndarray, "n 2"], most: int, aspect: float
) -> Int64[np.ndarray, " n"]:
    """The number of each position's leaf: the image is halved along its longer side, then each half
    with more than `most` positions likewise, and so on. A leaf with few positions joins the one
    before it in this order, if both together are not too many."""
    sides = np.array([math.sqrt(aspect), math.sqrt(1 / aspect)])  # of an image of area 1
    place = (position / sides + 0.5).clip(0, 1 - 1e-12)
    key, crowded = np.zeros(len(position), dtype=np.int64), np.arange(len(position))
    for depth in range(1, DEEPEST_LEAF + 1):
        axis = int(sides[1] > sides[0])
        sides[axis] /= 2
        place[:, axis] *= 2
        half = place[crowded, axis] >= 1
        place[:, axis] %= 1
        key[crowded] |= half.astype(np.int64) << (DEEPEST_LEAF - depth)
        _, index, count = np.unique(
            key[crowded] >> (DEEPEST_LEAF - depth), return_inverse=True, return_counts=True
        )
        crowded = crowded[count[index] > most]
        if len(crowded) == 0:
            break
    _, index, count = np.unique(key, return_inverse=True, return_counts=True)
    joined, size = np.zeros(len(count), dtype=np.int64), 0
    for leaf, number in enumerate(count.tolist()):
        begins = leaf == 0 or number >= most // 8 or size + number > most
        size = number if begins else size + number
        joined[leaf] = joined[leaf - 1] + (begins and leaf > 0)
    return joined[index]


class BlockSolutions(NamedTuple):
    """C⁻¹ of the blocks of anchors applied to columns X = [H, y − μ, level]."""

    solved: Float[Tensor, "b s w_3"]
    """C⁻¹X, and the diagonal of C⁻¹."""
    sums: Float[Tensor, "b w w_2"]
    """HᵀC⁻¹X."""

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        observations: Observations,
        features: Features,
        H: Float[Tensor, "n w"],
        blocks: Blocks,
        *,
        memo: Memo | None = None,
    ) -> BlockSolutions:
        """The solutions of blocks within the mask of the observations; with a memo, of those that
        have changed since the last call."""
        inputs, y, noise, _ = observations
        target = y - inputs.mean
        X = torch.cat([H, torch.stack([target, inputs.level], dim=1)], dim=1)

        def solve(part: Blocks) -> tuple[Tensor, Tensor]:
            cholesky = Cholesky.of(part.covariance(kernel, features, noise))
            right = X[part.index] * part.mask[..., None]
            solved = cholesky.solve(right)
            sums = right[..., :-2].mT @ solved
            diagonal = cholesky.inverse_diagonal()[..., None]
            return torch.cat([solved, diagonal], dim=-1), sums

        return cls(*blocks.map(solve, memo, observations.rows, key=kernel))


class LinearPrior(NamedTuple):
    """θ ~ N(mean, precision⁻¹) before the observations."""

    mean: Float[Tensor, " w"]
    precision: Float[Tensor, "w w"]
    offset: Float[Tensor, ""]
    """Prior mean of the global log-scale."""

    @classmethod
    def unit(cls, offset: Float[Tensor, ""], width: int) -> LinearPrior:
        """θ ~ N(0, I)."""
        eye = torch.eye(width, dtype=torch.float64, device=offset.device)
        return cls(eye.new_zeros(width), eye, offset)


@dataclass(frozen=True, eq=False)
class LinearPosterior:
    """θ | y ~ N(weights, covariance), and what each anchor contributes to it."""

    offset: Float[Tensor, ""]
    weights: Float[Tensor, " w"]
    """E[θ]."""
    covariance: Float[Tensor, "w w"]
    """Cov[θ] = A⁻¹ with A = Λ + Σ_b HᵀC⁻¹H and Λ the prior precision, I by default."""
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
        *,
        prior: LinearPrior | None = None,
    ) -> LinearPosterior:
        """Generalised least squares for θ, given the linear features of the observations and the
        solutions of their blocks; observations outside their mask have no influence. Without a
        prior, θ ~ N(0, I), and the offset is the median of y − μ.

        The leave-one-out residual is αᵢ / Pᵢᵢ with α = C⁻¹(y − μ − offset − H E[θ]) and
        P = C⁻¹ − C⁻¹H A⁻¹ HᵀC⁻¹, the precision of a block given all other blocks.
        """
        inputs, y, _, mask = observations
        target = y - inputs.mean
        prior = prior or LinearPrior.unit(observations.median_log_scale(), H.shape[1])
        width, offset, sums = H.shape[1], prior.offset, solutions.sums.sum(dim=0)
        rows = blocks.scatter(solutions.solved, len(y))
        whitened, inverse_diagonal = rows[:, :width], rows[:, width + 2]
        covariance = torch.linalg.inv_ex(sums[:, :width] + prior.precision).inverse
        known = sums[:, width] - offset * sums[:, width + 1]
        weights = covariance @ (known + prior.precision @ prior.mean)
        explained = ((whitened @ covariance) * whitened).sum(dim=1)
        diagonal = torch.where(mask, inverse_diagonal - explained, 1.0).clamp(min=1e-12)
        alpha = rows[:, width] - offset * rows[:, width + 1] - whitened @ weights
        return cls(
            offset=offset,
            weights=weights,
            covariance=covariance,
            H=H,
            whitened=whitened,
            residual=(target - offset * inputs.level - H @ weights) * mask,
            loo_residual=alpha / diagonal,
            loo_std=diagonal.rsqrt(),
        )
