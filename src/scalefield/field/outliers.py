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

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.basis.ridge import masked_median
from scalefield.field.blocks import Blocks, Memo
from scalefield.field.cholesky import Cholesky
from scalefield.field.config import OutlierConfig
from scalefield.field.kernel import LINEAR_TERMS, Kernel
from scalefield.field.observations import Observations
from scalefield.report import Warning

PADDING_VARIANCE = 1e9
"""Noise variance of rows of a block that hold no anchor."""
WEIGHT_STEPS = 10
"""Weights are rounded to tenths, so that the edit of one anchor seldom changes those of others."""
NOISE_STEPS = 4
"""So is the noise of anchors with less weight, to so many steps in an octave."""


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

    def warnings(
        self, anchors: Anchors, index: Callable[[Bool[Tensor, " n"]], Int64[np.ndarray, " a"]]
    ) -> tuple[Warning, ...]:
        """Warnings on anchors that are used although they are in conflict; `index` returns those
        that belong to the observations of a mask."""
        warnings: tuple[Warning, ...] = ()
        if len(downweighted := index(self.downweighted)):
            listed = anchors.describe(downweighted)
            text = f"used with less weight, because the others contradict them: {listed}"
            warnings += (Warning("outliers_downweighted", text),)
        if len(corroborated := index(self.corroborated)):
            text = (
                "used, because neighbours confirm them; the relative depth seems to be wrong "
                "there: " + anchors.describe(corroborated)
            )
            warnings += (Warning("outliers_corroborated", text),)
        return warnings


class BlockTargets(NamedTuple):
    """The anchors of b blocks."""

    target: Float[Tensor, "b s"]
    """y − μ minus its median over the block."""
    log_depth: Float[Tensor, "b s"]
    """Logarithm of the measured depth, up to a constant."""
    variance: Float[Tensor, "b s"]
    """σ² of each anchor; so large for padding that it has no influence."""
    error: Float[Tensor, "b s"]
    """Variance of an outlier's error: the configured one, or target² beyond gross_log_error."""
    covariance: Float[Tensor, "b s s"]
    """Covariance of the field without its constant."""
    position: Float[Tensor, "b s 2"]
    """As in `KernelInputs`; infinite for padding."""
    level: Float[Tensor, "b s"]
    """How much of the global log-scale each of them has."""
    mask: Bool[Tensor, "b s"]


class SearchState(NamedTuple):
    """Outliers of each block under one roughness, and the evidence for them."""

    outlier: Bool[Tensor, "b s"]
    roughness: Float[Tensor, " b"]
    evidence: Float[Tensor, " b"]
    """log p(y, outliers, roughness), up to a constant."""
    clean: Float[Tensor, " b"]
    """The same without outliers, under the roughness of highest evidence then."""
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
    config: OutlierConfig,
    *,
    copies: Int64[Tensor, " n"] | None = None,
    static: bool = False,
    memo: Memo | None = None,
) -> OutlierResult:
    """Search every block of anchors.

    `copies` are those of `Observations.copies`: a copy is left out of the search, in which it would
    confirm what it copies, and shares its verdict. `static` makes a fixed number of steps, without
    a sync. With a memo, blocks that have not changed since the last call are not searched again.
    """
    n = len(observations.y)
    if copies is not None:
        blocks = blocks.within(copies == torch.arange(n))
    # The denser the anchors, the more of them a missed object holds.
    agreeing = (observations.mask.sum() / 1000).round().clamp(1, 3)

    def search_blocks(part: Blocks) -> tuple[Float[Tensor, "b s 4"]]:
        block = gather_blocks(kernel, observations, part, config)
        state = search(block, float(kernel.constant_std) ** 2, config, static)
        marks = block.target.new_zeros(*block.target.shape, 4)
        found = rows_where(state.outlier.any(dim=1), static)  # the others have nothing to report
        if len(found):
            block = BlockTargets(*(x[found] for x in block))
            state = SearchState(*(x[found] for x in state))
            marks[found] = classify(block, state, agreeing, config, static)
        return (marks,)

    key = None if memo is None else (kernel, config, float(agreeing))
    (marks,) = blocks.map(search_blocks, memo, observations.rows, key)
    marks = blocks.scatter(marks, n)
    marks = marks if copies is None else marks[copies]
    rejected, downweighted, corroborated = (marks[:, :3] > 0).unbind(dim=1)
    noise, added = observations.noise, marks[:, 3]
    steps = (NOISE_STEPS * (noise**2 + added).sqrt().log2()).round()
    noise = torch.where(added > 0, torch.exp2(steps / NOISE_STEPS).maximum(noise), noise)
    return OutlierResult(rejected, downweighted, corroborated, noise)


def rows_where(mask: Bool[Tensor, " b"], static: bool) -> Int64[Tensor, " a"]:
    """Index of the blocks that a mask selects; of all blocks where shapes must be static."""
    return torch.arange(len(mask), device=mask.device) if static else mask.nonzero()[:, 0]


def gather_blocks(
    kernel: Kernel, observations: Observations, blocks: Blocks, config: OutlierConfig
) -> BlockTargets:
    """The anchors of each block."""
    inputs, y, noise, _ = observations
    index, mask = blocks.index, blocks.mask
    H = kernel.linear_features(inputs, LINEAR_TERMS[1:])[index]  # not the constant
    covariance = kernel.own_covariance(kernel.features(inputs).at(index)) + H @ H.mT
    level, target = inputs.level[index], (y - inputs.mean)[index]
    of_scale = mask & (level > 0.5)
    median = masked_median(target / level.where(of_scale, 1.0), of_scale)[:, None]
    target = (target - median * level).masked_fill(~mask, 0)
    gross = target.abs() > config.gross_log_error
    return BlockTargets(
        target,
        (y + inputs.log_depth)[index],
        torch.where(mask, noise[index] ** 2, PADDING_VARIANCE),
        torch.where(gross, target**2, config.error_std**2),
        covariance,
        inputs.position[index].masked_fill(~mask[..., None], torch.inf),
        level,
        mask,
    )


def search(
    block: BlockTargets, constant: float, config: OutlierConfig, static: bool = False
) -> SearchState:
    """The outliers under the roughness of highest evidence.

    All values of roughness are searched at once, as further blocks.
    """
    b, repeats, n = len(block.mask), len(config.roughness), block.mask.sum(dim=1)
    roughness = torch.stack([block.target.new_full((b,), r) for r in config.roughness])
    shared = constant * block.level[:, :, None] * block.level[:, None]
    covariance = block.covariance * roughness[..., None, None].square() + shared
    covariance.diagonal(dim1=2, dim2=3).add_(block.variance)
    target, mask, error = (
        x.repeat(repeats, *[1] * (x.ndim - 1)) for x in (block.target, block.mask, block.error)
    )
    targets = TargetModel.of(covariance.flatten(0, 1), target, error)
    outlier, given, log_likelihood = forward_selection(targets, mask, config, static)
    penalty = 0.5 * (roughness.log() / config.roughness_log_std) ** 2
    outlier = outlier.unflatten(0, (repeats, b))
    clean, evidence = (
        x.unflatten(0, (repeats, b)) - penalty for x in (targets.log_likelihood, log_likelihood)
    )
    evidence = evidence + log_prior(outlier.sum(dim=2), n, config)
    clean = clean.amax(dim=0) + log_prior(torch.zeros_like(n), n, config)
    best = evidence.argmax(dim=0), torch.arange(b, device=n.device)
    alpha, precision = (x.unflatten(0, (repeats, b))[best] for x in given)
    outlier, roughness, evidence = outlier[best], roughness[best], evidence[best]
    residual = alpha / precision
    variance = (1 / precision - block.error * outlier).clamp(min=1e-10)
    factor = log_bayes_factor(residual / variance, 1 / variance, block.error)
    return SearchState(outlier, roughness, evidence, clean, residual, variance, factor)


def log_bayes_factor(
    alpha: Float[Tensor, "b s"], precision: Float[Tensor, "b s"], error: Float[Tensor, "b s"]
) -> Float[Tensor, "b s"]:
    """log p(residual | outlier) − log p(residual | inlier), of the leave-one-out residual α/P with
    variance 1/P, to which an outlier adds the variance e of its error:
    ½ (e α²/(1 + eP) − log(1 + eP))."""
    ratio = (error * precision).add_(1)
    return ratio.log().mul_(-0.5).addcdiv_(error * alpha**2, ratio, value=0.5)


class GivenOutliers(NamedTuple):
    """What the search needs of b blocks with given outliers, P the precision of the targets y."""

    alpha: Float[Tensor, "b s"]
    """Py."""
    precision: Float[Tensor, "b s"]
    """Diagonal of P."""


class TargetModel(NamedTuple):
    """The targets y of b blocks: N(0, P⁻¹) without outliers."""

    rows: Float[Tensor, "b s s_1"]
    """P and Py."""
    error_std: Float[Tensor, "b s"]
    """Standard deviation of an outlier's error."""
    clean: GivenOutliers
    """Without outliers."""
    log_likelihood: Float[Tensor, " b"]
    """log p(y) without outliers, up to a constant."""

    @classmethod
    def of(
        cls,
        covariance: Float[Tensor, "b s s"],
        target: Float[Tensor, "b s"],
        error: Float[Tensor, "b s"],
    ) -> TargetModel:
        """Factorise the covariance of the targets."""
        cholesky = Cholesky.of(covariance)
        P = cholesky.inverse()
        alpha = P @ target[..., None]
        log_likelihood = -0.5 * (alpha[..., 0] * target).sum(dim=1) - cholesky.half_log_det()
        clean = GivenOutliers(alpha[..., 0], P.diagonal(dim1=1, dim2=2))
        return cls(torch.cat([P, alpha], dim=2), error.sqrt(), clean, log_likelihood)

    def given(
        self, blocks: Int64[Tensor, " a"], index: Int64[Tensor, "a m"], outlier: Bool[Tensor, "a m"]
    ) -> tuple[GivenOutliers, Float[Tensor, " a"]]:
        """Blocks in which those of the indexed anchors are outliers that are marked as such, and
        log p(y | outliers), up to a constant.

        With S the standard deviation of an outlier's error and 0 elsewhere, the precision becomes
        P − ZᵀZ, with Z = L⁻¹SP and LLᵀ = 1 + SPS, in which only the rows of outliers matter.
        """
        std = (self.error_std[blocks[:, None], index] * outlier)[..., None]
        rows = self.rows[blocks[:, None], index] * std
        inner = rows.gather(2, index[:, None].expand(-1, index.shape[1], -1)) * std.mT
        inner.diagonal(dim1=1, dim2=2).add_(1)
        factor = torch.linalg.cholesky_ex(inner).L
        whole = torch.linalg.solve_triangular(factor, rows, upper=False)
        Z, y = whole[..., :-1], whole[..., -1:]
        alpha, precision = (x[blocks] for x in self.clean)
        alpha = torch.baddbmm(alpha[..., None], Z.mT, y, alpha=-1)[..., 0]
        half_log_det = factor.diagonal(dim1=1, dim2=2).log().sum(dim=1)
        log_likelihood = self.log_likelihood[blocks] + 0.5 * y.square().sum(dim=(1, 2))
        given = GivenOutliers(alpha, precision - Z.square().sum(dim=1))
        return given, log_likelihood - half_log_det


def forward_selection(
    targets: TargetModel, mask: Bool[Tensor, "b s"], config: OutlierConfig, static: bool
) -> tuple[Bool[Tensor, "b s"], GivenOutliers, Float[Tensor, " b"]]:
    """Outliers of each block, added a few at a time while they raise the evidence; what follows
    from them, and log p(y | outliers), up to a constant.

    Blocks that no longer change take no further step, unless shapes must be static.
    """
    (a, b), padding, error = config.prior_counts, ~mask, targets.error_std**2
    n = mask.sum(dim=1, keepdim=True).double()
    most = (config.max_share * n * (n >= config.min_anchors)).long()
    at_once = (n // config.anchors_per_step).clamp(min=1).long()
    outlier, log_likelihood = torch.zeros_like(mask), targets.log_likelihood.clone()
    given = GivenOutliers(*(x.clone() for x in targets.clean))
    for _ in range(config.iterations):
        count = outlier.sum(dim=1, keepdim=True)
        gain = log_bayes_factor(*given, error)
        gain = gain + ((count + a) / (n - count - 1 + b)).log()  # a difference of `log_prior`
        gain = gain.masked_fill(outlier | padding, -torch.inf)
        chosen = best_candidates(gain, at_once.minimum(most - count), config)
        outlier, changed = outlier | chosen, rows_where(chosen.any(dim=1), static)
        if len(changed) == 0:
            break
        index, known = outlier_index(outlier[changed], config, static)
        new, log_likelihood[changed] = targets.given(changed, index, known)
        given.alpha[changed], given.precision[changed] = new
    return outlier, given, log_likelihood


def best_candidates(
    gain: Float[Tensor, "b s"], most: Int64[Tensor, "b 1"], config: OutlierConfig
) -> Bool[Tensor, "b s"]:
    """Up to so many anchors of a block that gain most, if that is positive and near the highest
    gain: the smaller ones may be due to the larger ones."""
    best = gain.topk(max(1, gain.shape[1] // config.anchors_per_step), dim=1).values
    least = best.gather(1, (most - 1).clamp(min=0))
    # No gain exceeds its share of a highest one that is negative.
    near = gain > config.min_relative_gain * best[:, :1]
    return near & (gain >= least) & (most > 0)


def outlier_index(
    outlier: Bool[Tensor, "b s"], config: OutlierConfig, static: bool
) -> tuple[Int64[Tensor, "b m"], Bool[Tensor, "b m"]]:
    """The outliers of each block, and which of them there are: m is the largest number of any
    block, or of any that there may be where shapes must be static."""
    most = int(config.max_share * outlier.shape[1]) if static else int(outlier.sum(dim=1).max())
    known, index = outlier.float().topk(max(1, most), dim=1)
    return index, known > 0


def classify(
    block: BlockTargets,
    state: SearchState,
    agreeing: Float[Tensor, ""],
    config: OutlierConfig,
    static: bool,
) -> Float[Tensor, "b s 4"]:
    """Whether each anchor is rejected, downweighted or corroborated, and what is added to the
    variance of its noise.

    The weight of an anchor is how far it moves the field, relative to an inlier.
    """
    count, n = state.outlier.sum(dim=1), block.mask.sum(dim=1)
    a, b = config.prior_counts
    odds = state.bayes_factor + ((count + a) / (n - count + b)).log()[:, None]
    wrong = torch.sigmoid(config.sharpness * odds)
    error = torch.maximum(block.error, state.residual**2)
    confirmed = corroboration(block, state, agreeing, config, static)
    # The best of n candidates became the first outlier, which by itself raises the evidence.
    present = torch.sigmoid(state.evidence - state.clean - n.clamp(min=1).log())
    present = torch.where(block.error > config.error_std**2, 1.0, present[:, None])
    present = present * (count > 0)[:, None]
    weight = 1 - (1 - confirmed) * wrong * error / (error + state.variance) * present
    weight = (WEIGHT_STEPS * weight).round() / WEIGHT_STEPS
    weight = torch.where(block.mask, weight.clamp(min=0.5 / WEIGHT_STEPS), 1.0)
    # An anchor with variance v of its residual moves the field w times as far once that is v/w.
    added = state.variance / state.roughness[:, None] ** 2 * (1 / weight - 1)
    conflict = state.outlier & (present > 0.5)
    rejected = conflict & (confirmed <= 0.5) & (weight <= config.min_weight)
    downweighted = conflict & (confirmed <= 0.5) & ~rejected
    corroborated = conflict & (confirmed > 0.5)
    return torch.stack([rejected, downweighted, corroborated, added], dim=-1)


def corroboration(
    block: BlockTargets,
    state: SearchState,
    agreeing: Float[Tensor, ""],
    config: OutlierConfig,
    static: bool = False,
) -> Float[Tensor, "b s"]:
    """Probability that an outlier's neighbours confirm it; 0 for the other anchors.

    A mixture explains the outliers: errors, or neighbours of like depth or like scale. Its share is
    estimated from them. Of the neighbours that agree best, the first `agreeing` ones are not
    counted.
    """
    std, (index, known) = config.agreement_std, outlier_index(state.outlier, config, static)
    near, distance = nearest_in_block(block.position, index, config.neighbours)
    agreement = torch.zeros_like(distance)
    for values in (block.log_depth, block.target):
        others = values.gather(1, near.flatten(1)).unflatten(1, near.shape[1:])
        apart = (values.gather(1, index)[..., None] - others) / std
        agreement = agreement + torch.exp(-0.5 * apart**2) / (2 * std)
    agreement = agreement.masked_fill(distance == torch.inf, 0)
    rank = torch.arange(agreement.shape[2], device=agreement.device)
    counted = (rank >= agreeing) & (rank < agreeing + 3)
    best = (agreement.sort(dim=2, descending=True).values * counted).sum(dim=2) / 3
    error_density = state.bayes_factor + normal_log_density(state.residual, state.variance)
    odds = (best + 1e-12).log() - error_density.gather(1, index) + config.corroboration_log_odds
    odds = odds.masked_fill(~known, -torch.inf)
    probability, total = torch.sigmoid(odds), known.sum(dim=1, keepdim=True) + 1
    for _ in range(4):
        mixture = (probability.sum(dim=1, keepdim=True) + 0.5) / total
        probability = torch.sigmoid(odds + torch.logit(mixture))
    return torch.zeros_like(block.target).scatter(1, index, probability)


def nearest_in_block(
    position: Float[Tensor, "b s 2"], index: Int64[Tensor, "b m"], count: int
) -> tuple[Int64[Tensor, "b m k"], Float[Tensor, "b m k"]]:
    """The `count` anchors nearest to indexed ones within their block, and the squares of their
    distances; infinite where there are fewer."""
    own = position.gather(1, index[..., None].expand(-1, -1, 2))
    apart = (own[:, :, None] - position[:, None]).square().sum(dim=3)
    apart = apart.nan_to_num(nan=torch.inf, posinf=torch.inf).scatter(
        2, index[..., None], torch.inf
    )
    near = apart.topk(min(count, apart.shape[2]), largest=False)
    return near.indices, near.values


def normal_log_density(x: Tensor, variance: Tensor) -> Tensor:
    """Logarithm of the density of N(0, variance) at x, up to a constant."""
    return -0.5 * (x**2 / variance + variance.log())


def log_prior(
    count: Int64[Tensor, "*r b"], n: Int64[Tensor, " b"], config: OutlierConfig
) -> Float[Tensor, "*r b"]:
    """Log-probability of one set of `count` outliers among n anchors, Beta-Binomial."""
    a, b = config.prior_counts
    count, n = count.double(), n.double()
    return torch.lgamma(count + a) + torch.lgamma(n - count + b) - torch.lgamma(n + a + b)
