"""Outliers among the anchors, told apart from objects that the estimator missed.

The targets of a block of n anchors are modelled as y ~ N(0, r²K + diag(σ² + δ²·outlier)), with a
contaminated-normal error, a Beta-Binomial prior on the number of outliers, and a roughness r of the
field that is compared over a few values. Outliers are found by greedy forward selection:
leave-one-out residuals give the log Bayes factor of declaring each anchor an outlier, the anchors
that gain most become outliers, and the precision matrix is updated. An anchor in conflict with the
field may also lie on an object that the estimator missed; its neighbours then agree with it in
depth or scale, which an outlier's do not. What remains is expressed as a weight: an anchor that is
probably an outlier has its noise increased until it moves the field accordingly.

References: Tukey, A survey of sampling from contaminated distributions, 1960; Rasmussen and
Williams, Gaussian Processes for Machine Learning, 2006, section 5.4.2 (leave-one-out residuals),
section A.3 (update of an inverse).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from scalefield.field.blocks import Blocks, Observations
from scalefield.field.config import OutlierConfig
from scalefield.field.kernel import Kernel, TermFeatures
from scalefield.field.linalg import Cholesky

PADDING_VARIANCE = 1e9
"""Noise variance of rows of a block that hold no anchor."""


@dataclass(frozen=True, eq=False)
class OutlierResult:
    """What the search found; the three masks are disjoint."""

    rejected: Bool[Tensor, " n"]
    """Outliers, to be left out."""
    downweighted: Bool[Tensor, " n"]
    """In conflict with the others, used with less weight."""
    corroborated: Bool[Tensor, " n"]
    """In conflict with the field but confirmed by neighbours: the estimator is wrong there."""
    noise: Float[Tensor, " n"]
    """Standard deviations to use, increased where an anchor is probably an outlier."""

    def apply(self, observations: Observations) -> Observations:
        """The observations without the rejected ones, with the increased noise."""
        return observations._replace(noise=self.noise, mask=observations.mask & ~self.rejected)


class BlockTargets(NamedTuple):
    """The anchors of b blocks."""

    target: Float[Tensor, "b s"]
    """y − μ minus its median over the block."""
    log_depth: Float[Tensor, "b s"]
    """Logarithm of the measured depth, up to a constant."""
    variance: Float[Tensor, "b s"]
    """σ² of each anchor; so large for padding that it has no influence."""
    error: Float[Tensor, "b s e"]
    """Variances of an outlier's error: the configured ones, or target² beyond gross_log_error."""
    covariance: Float[Tensor, "b s s"]
    """Covariance of the field without its constant."""
    position: Float[Tensor, "b s 2"]
    """As in `KernelInputs`; infinite for padding."""
    mask: Bool[Tensor, "b s"]


class SearchState(NamedTuple):
    """Outliers of each block under one roughness, and the evidence for them."""

    outlier: Bool[Tensor, "b s"]
    roughness: Float[Tensor, " b"]
    evidence: Float[Tensor, " b"]
    """log p(y, outliers, roughness), up to a constant."""
    residual: Float[Tensor, "b s"]
    """Leave-one-out residual."""
    variance: Float[Tensor, "b s"]
    """Variance of that residual if the anchor is no outlier."""
    bayes_factor: Float[Tensor, "b s"]
    """log p(residual | outlier) − log p(residual | inlier)."""


def detect_outliers(
    kernel: Kernel,
    observations: Observations,
    blocks: Blocks,
    settings: OutlierConfig,
    static: bool = False,
) -> OutlierResult:
    """Search every block of anchors. `static` makes a fixed number of steps, without a sync."""
    n, count = len(observations.y), observations.mask.sum()

    def search_blocks(part: Blocks) -> Float[Tensor, "b s 4"]:
        block = gather_blocks(kernel, observations, part, settings)
        state, clean = search(block, float(kernel.constant_std) ** 2, settings, static)
        if static:
            return marks_of(block, state, clean)
        found = block.target.new_zeros(*block.target.shape, 4)
        some = state.outlier.any(dim=1)  # the others have nothing to report
        block, state = (
            BlockTargets(*(x[some] for x in block)),
            SearchState(*(x[some] for x in state)),
        )
        found[some] = marks_of(block, state, clean[some])
        return found

    def marks_of(
        block: BlockTargets, state: SearchState, clean: Float[Tensor, " b"]
    ) -> Float[Tensor, "b s 4"]:
        weight, conflict, corroborated = relative_weights(block, state, clean, count, settings)
        # An anchor with variance v of its residual moves the field w times as far once that is v/w.
        added = state.variance / state.roughness[:, None] ** 2 * (1 / weight - 1) * block.mask
        confirmed, uncertain = conflict & corroborated, conflict & ~corroborated
        rejected = uncertain & (weight < settings.min_weight)
        marks = (rejected, uncertain & ~rejected, confirmed)
        return torch.stack([*(mark.to(added.dtype) for mark in marks), added], dim=-1)

    found = blocks.scatter(torch.cat(blocks.map(search_blocks)), n)
    rejected, downweighted, corroborated = (found[:, :3] > 0).unbind(dim=1)
    noise = (observations.noise**2 + found[:, 3]).sqrt()
    return OutlierResult(rejected, downweighted, corroborated, noise)


def gather_blocks(
    kernel: Kernel, observations: Observations, blocks: Blocks, config: OutlierConfig
) -> BlockTargets:
    """The anchors of each block."""
    inputs, y, noise, _ = observations
    index, mask = blocks.index, blocks.mask
    rows = inputs[index.flatten()]
    features = kernel.features(rows)
    features = TermFeatures(*(x.unflatten(1, index.shape) for x in features))
    H = kernel.linear_features(rows)[:, 1:].unflatten(0, index.shape)  # without the constant
    target = (y - inputs.mean)[index]
    target = (target - row_median(target, mask)).masked_fill(~mask, 0)
    beyond = (target.abs() > config.gross_log_error)[..., None]
    # Filled, not copied from the host, which a CUDA graph cannot do.
    stds = torch.stack([target.new_full((), std) for std in config.error_stds])
    return BlockTargets(
        target,
        (y + inputs.log_depth)[index],
        torch.where(mask, noise[index] ** 2, PADDING_VARIANCE),
        torch.where(beyond, target[..., None] ** 2, stds**2),
        kernel.local_covariance(features) + H @ H.mT,
        inputs.position[index].masked_fill(~mask[..., None], torch.inf),
        mask,
    )


def row_median(values: Float[Tensor, "b s"], mask: Bool[Tensor, "b s"]) -> Float[Tensor, "b 1"]:
    """Median of each row over the mask; 0 where that is empty."""
    ordered = values.masked_fill(~mask, torch.inf).sort(dim=1).values
    last = (mask.sum(dim=1, keepdim=True) - 1).clamp(min=0)
    middle = 0.5 * (ordered.gather(1, last // 2) + ordered.gather(1, (last + 1) // 2))
    return middle.nan_to_num(posinf=0.0)


def search(
    block: BlockTargets, constant: float, config: OutlierConfig, static: bool = False
) -> tuple[SearchState, Float[Tensor, " b"]]:
    """The outliers under the roughness of highest evidence, and the best evidence without any.

    All values of roughness are searched at once, as further blocks. An outlier adds its error
    variance to the diagonal of the covariance C. With P = C⁻¹, that subtracts ZᵀZ from P, where Z
    has one row for each outlier, so C is factorised only once.
    """
    values, b = config.roughness, len(block.mask)
    target, variance, error, mask = (
        x.repeat(len(values), *[1] * (x.ndim - 1))
        for x in (block.target, block.variance, block.error, block.mask)
    )
    roughness = torch.cat([target.new_full((b,), r) for r in values])
    covariance = block.covariance.repeat(len(values), 1, 1) * roughness[:, None, None] ** 2
    covariance.add_(constant).diagonal(dim1=1, dim2=2).add_(variance)
    cholesky = Cholesky.of(covariance)
    P = cholesky.inverse()
    alpha, precision = (P @ target[..., None])[..., 0], P.diagonal(dim1=1, dim2=2)
    evidence = -0.5 * (alpha * target).sum(dim=1) - cholesky.half_log_det()
    evidence = evidence - 0.5 * (roughness.log() / config.roughness_log_std) ** 2
    n = mask.sum(dim=1)
    clean = evidence + log_prior(torch.zeros_like(n), n, config)
    allowed = mask & (n >= config.min_anchors)[:, None]
    precision, outlier = precision.clone(), torch.zeros_like(mask)
    rows, active = P[:, :0], torch.arange(len(n), device=n.device)
    for _ in range(config.iterations):
        known = (alpha, precision, error, outlier)
        factor = bayes_factors(*(x[active] for x in known))[-1]
        index, chosen = new_outliers(factor, outlier[active], allowed[active], config)
        if not static:  # go on with the blocks that change
            changed = chosen.any(dim=1)
            active, index, chosen, rows = (x[changed] for x in (active, index, chosen, rows))
            if not len(active):
                break
        std = (error[active, :, 0].gather(1, index) * chosen).sqrt()
        column = P[active[:, None], index]
        column = column - rows.gather(2, index[:, None].expand(-1, rows.shape[1], -1)).mT @ rows
        column = column * std[..., None]
        inner = column.gather(2, index[:, None].expand(-1, index.shape[1], -1)) * std[:, None]
        inner.diagonal(dim1=1, dim2=2).add_(1)
        inner = torch.linalg.cholesky_ex(inner).L
        right = torch.cat([column, (std * alpha[active].gather(1, index))[..., None]], dim=-1)
        Z = torch.linalg.solve_triangular(inner, right, upper=False)
        Z, change = Z[..., :-1], Z[..., -1:]
        rows = torch.cat([rows, Z], dim=1)
        alpha[active] -= (Z * change).sum(dim=1)
        precision[active] -= Z.square().sum(dim=1)
        evidence[active] += 0.5 * change.square().sum(dim=(1, 2))
        evidence[active] -= inner.diagonal(dim1=1, dim2=2).log().sum(dim=1)
        outlier[active] |= torch.zeros_like(outlier[active]).scatter(1, index, chosen)
    count = outlier.sum(dim=1)
    evidence = evidence + log_prior(count, n, config)
    state = SearchState(
        outlier, roughness, evidence, *bayes_factors(alpha, precision, error, outlier)
    )
    unsupported = (n < config.min_anchors_smooth) & (roughness < 1)
    clean, evidence = (
        x.masked_fill(unsupported, -torch.inf).reshape(-1, b) for x in (clean, evidence)
    )
    best = evidence.argmax(dim=0) * b + torch.arange(b, device=evidence.device)
    return SearchState(*(x[best] for x in state)), clean.amax(dim=0)


def new_outliers(
    factor: Float[Tensor, "b s"],
    outlier: Bool[Tensor, "b s"],
    allowed: Bool[Tensor, "b s"],
    config: OutlierConfig,
) -> tuple[Int64[Tensor, "b q"], Bool[Tensor, "b q"]]:
    """Candidates of one step of the search, given the log Bayes factors, and which of them become
    outliers."""
    count, n = outlier.sum(dim=1, keepdim=True), allowed.sum(dim=1, keepdim=True)
    more, less = config.prior_counts  # a difference of `log_prior`
    gain = factor + ((count + more) / (n - count - 1 + less)).log()
    index, chosen = best_of_segments(gain.masked_fill(~allowed | outlier, -torch.inf), config)
    return index, chosen & (count + chosen.cumsum(dim=1) <= config.max_share * n)


def best_of_segments(
    gain: Float[Tensor, "b s"], config: OutlierConfig
) -> tuple[Int64[Tensor, "b q"], Bool[Tensor, "b q"]]:
    """The anchor of highest gain in each segment of successive anchors, and whether it is positive
    and near the highest of the block: the smaller ones may be due to the larger ones."""
    size = config.segment_size
    padded = nnf.pad(gain, (0, -gain.shape[1] % size), value=-torch.inf)
    best = padded.reshape(len(gain), -1, size).max(dim=2)
    first = torch.arange(0, padded.shape[1], size, device=gain.device)
    chosen = (best.values > 0) & (
        best.values >= config.min_relative_gain * best.values.amax(dim=1, keepdim=True)
    )
    return (best.indices + first).clamp(max=gain.shape[1] - 1), chosen


def bayes_factors(
    alpha: Float[Tensor, "b s"],
    precision: Float[Tensor, "b s"],
    error: Float[Tensor, "b s e"],
    outlier: Bool[Tensor, "b s"],
) -> tuple[Float[Tensor, "b s"], Float[Tensor, "b s"], Float[Tensor, "b s"]]:
    """Leave-one-out residuals, their variances as inliers, and log p(residual | outlier) −
    log p(residual | inlier)."""
    residual = alpha / precision
    variance = (1 / precision - error[..., 0] * outlier).clamp(min=1e-10)
    density = normal_log_density(residual[..., None], variance[..., None] + error)
    density = density.logsumexp(dim=-1) - math.log(error.shape[-1])
    return residual, variance, density - normal_log_density(residual, variance)


def relative_weights(
    block: BlockTargets,
    state: SearchState,
    clean: Float[Tensor, " b"],
    anchors: Int64[Tensor, ""],
    config: OutlierConfig,
) -> tuple[Float[Tensor, "b s"], Bool[Tensor, "b s"], Bool[Tensor, "b s"]]:
    """How far each anchor moves the field, relative to an inlier; which are in conflict with the
    field, and which of those their neighbours corroborate."""
    count, n = state.outlier.sum(dim=1), block.mask.sum(dim=1)
    a, b = config.prior_counts
    odds = state.bayes_factor + ((count + a) / (n - count + b)).log()[:, None]
    wrong = torch.sigmoid(config.sharpness * odds)
    error = torch.maximum(block.error[..., 0], state.residual**2)
    confirmed = corroboration(block, state, anchors, config)
    evidence = (state.evidence - clean)[:, None]
    present = torch.sigmoid(evidence - config.even_evidence)
    gross = block.error[..., 0] > config.error_stds[0] ** 2
    present = torch.where(gross, 1.0, present)
    weight = 1 - (1 - confirmed) * wrong * error / (error + state.variance) * present
    reported = block.mask & (evidence >= config.min_evidence)
    weight = torch.where(reported, weight.clamp(min=1e-6), 1.0)
    return weight, state.outlier & reported, confirmed > 0.5


def corroboration(
    block: BlockTargets, state: SearchState, anchors: Int64[Tensor, ""], config: OutlierConfig
) -> Float[Tensor, "b s"]:
    """Probability that an outlier's neighbours confirm it; 0 for the other anchors.

    A mixture explains the outliers: errors, or neighbours of like depth or like scale. Its share is
    estimated from them. The denser the anchors, the more of them a missed object holds, and the
    more must agree.
    """
    std, near = config.agreement_std, Neighbours.of(block.position, config.neighbours)
    agreement = (
        torch.stack(
            [
                torch.exp(-0.5 * ((x[..., None] - near.gather(x, torch.inf)) / std) ** 2)
                for x in (block.log_depth, block.target)
            ]
        ).mean(dim=0)
        / std
    )
    first = (anchors / 1000).round().clamp(1, 3)
    rank = torch.arange(agreement.shape[2], device=agreement.device)
    counted = (rank >= first) & (rank < first + 3)
    best = (agreement.sort(dim=2, descending=True).values * counted).sum(dim=2) / 3
    error_density = state.bayes_factor + normal_log_density(state.residual, state.variance)
    outlier = state.outlier.to(best.dtype)
    share = outlier.sum(dim=1, keepdim=True) / block.mask.sum(dim=1, keepdim=True).clamp(min=1)
    clustered = near.gather(outlier, 0.0) - share[..., None] * near.known
    odds = (best + 1e-12).log() - error_density + config.corroboration_log_odds
    odds = odds + config.cluster_log_odds * clustered.sum(dim=2)
    mixture = torch.full_like(share, 0.5)
    for _ in range(5):
        probability = torch.sigmoid(odds + torch.logit(mixture)) * outlier
        mixture = (probability.sum(dim=1, keepdim=True) + 0.5) / (
            outlier.sum(dim=1, keepdim=True) + 1
        )
    return probability


class Neighbours(NamedTuple):
    """The nearest anchors of each anchor within its block."""

    anchors: Int64[Tensor, "b s k"]
    known: Bool[Tensor, "b s k"]
    """Whether there is such a neighbour."""

    @classmethod
    def of(cls, position: Float[Tensor, "b s 2"], count: int) -> Neighbours:
        """The nearest `count`; anchors at infinity are none."""
        apart = (position[:, :, None] - position[:, None]).square().sum(dim=-1)
        apart = apart.nan_to_num(nan=torch.inf, posinf=torch.inf)
        apart.diagonal(dim1=1, dim2=2).fill_(torch.inf)
        near = apart.topk(min(count, apart.shape[2]), largest=False)
        return cls(near.indices, near.values.isfinite())

    def gather(self, values: Float[Tensor, "b s"], missing: float) -> Float[Tensor, "b s k"]:
        """Values at each anchor's neighbours."""
        spread = values[:, None].expand(-1, values.shape[1], -1)
        return spread.gather(2, self.anchors).masked_fill(~self.known, missing)


def normal_log_density(x: Tensor, variance: Tensor) -> Tensor:
    """Logarithm of the density of N(0, variance) at x, up to a constant."""
    return -0.5 * (x**2 / variance + variance.log())


def log_prior(
    count: Int64[Tensor, " b"], n: Int64[Tensor, " b"], config: OutlierConfig
) -> Float[Tensor, " b"]:
    """Log-probability of one set of `count` outliers among n anchors, Beta-Binomial."""
    a, b = config.prior_counts
    count, n = count.double(), n.double()
    return torch.lgamma(count + a) + torch.lgamma(n - count + b) - torch.lgamma(n + a + b)
