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

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.basis.ridge import masked_median
from scalefield.field.blocks import Blocks, Cholesky, Observations
from scalefield.field.config import OutlierConfig
from scalefield.field.kernel import Kernel, TermFeatures
from scalefield.report import Rejection, Warning

PADDING_VARIANCE = 1e9
"""Noise variance of rows of a block that hold no anchor."""
WEIGHT_STEPS = 10
"""Weights are rounded to tenths, so that the edit of one anchor seldom changes those of others."""
CLOSED_PENALTY = 1e30
"""Subtracted from the gain of anchors that cannot become outliers, in units of `Sweep.closed`."""


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

    def report(
        self, anchors: Anchors, order: Int64[np.ndarray, " n"]
    ) -> tuple[tuple[Rejection, ...], tuple[Warning, ...]]:
        """Rejections and warnings; `order` has the index of each observation in the anchors."""
        marks = (self.rejected, self.downweighted, self.corroborated)
        rejected, downweighted, corroborated = (np.sort(order[m.cpu().numpy()]) for m in marks)
        warnings: tuple[Warning, ...] = ()
        if len(downweighted):
            listed = anchors.describe(downweighted)
            text = f"used with less weight, because the others contradict them: {listed}"
            warnings += (Warning("outliers_downweighted", text),)
        if len(corroborated):
            text = (
                "used, because neighbours confirm them; the relative depth seems to be wrong "
                "there: " + anchors.describe(corroborated)
            )
            warnings += (Warning("outliers_corroborated", text),)
        reason = "contradicted by the others"
        return tuple(Rejection(int(i), "outlier", reason) for i in rejected), warnings


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
    config: OutlierConfig,
    static: bool = False,
) -> OutlierResult:
    """Search every block of anchors. `static` makes a fixed number of steps, without a sync."""
    n, count = len(observations.y), observations.mask.sum()
    blocks = blocks.padded(config.segment_size)

    def search_blocks(part: Blocks) -> Float[Tensor, "b s 4"]:
        block = gather_blocks(kernel, observations, part, config)
        state, clean = search(block, float(kernel.constant_std) ** 2, config, static)
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
        weight, conflict, corroborated = relative_weights(block, state, clean, count, config)
        # An anchor with variance v of its residual moves the field w times as far once that is v/w.
        added = state.variance / state.roughness[:, None] ** 2 * (1 / weight - 1) * block.mask
        confirmed, uncertain = conflict & corroborated, conflict & ~corroborated
        rejected = uncertain & (weight <= config.min_weight)
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
    covariance = kernel.local_covariance(features) + H @ H.mT
    target = (y - inputs.mean)[index]
    target = (target - masked_median(target, mask)[:, None]).masked_fill(~mask, 0)
    gross = target.abs() > config.gross_log_error
    return BlockTargets(
        target,
        (y + inputs.log_depth)[index],
        torch.where(mask, noise[index] ** 2, PADDING_VARIANCE),
        torch.where(gross, target**2, config.error_std**2),
        covariance,
        inputs.position[index].masked_fill(~mask[..., None], torch.inf),
        mask,
    )


def search(
    block: BlockTargets, constant: float, config: OutlierConfig, static: bool = False
) -> tuple[SearchState, Float[Tensor, " b"]]:
    """The outliers under the roughness of highest evidence, and the best evidence without any.

    All values of roughness are searched at once, as further blocks. The number of rows of a block
    must be a multiple of `config.segment_size`.
    """
    b, repeats, n = len(block.mask), len(config.roughness), block.mask.sum(dim=1)
    roughness = torch.stack([block.target.new_full((b,), r) for r in config.roughness])
    covariance = block.covariance * roughness[..., None, None].square() + constant
    covariance.diagonal(dim1=2, dim2=3).add_(block.variance)
    cholesky = Cholesky.of(covariance.flatten(0, 1))
    P, half_log_det = cholesky.inverse(), cholesky.half_log_det()
    target, mask, error = (
        x.repeat(repeats, *[1] * (x.ndim - 1)) for x in (block.target, block.mask, block.error)
    )
    first = Sweep.start(P, target, mask, error, config)
    last_row, precision, closed, log_det = (
        x.unflatten(0, (repeats, b)) for x in first.run(config, static)
    )
    evidence = -half_log_det.unflatten(0, (repeats, b))
    evidence = evidence - 0.5 * (roughness.log() / config.roughness_log_std) ** 2
    outlier = (closed > 0) & block.mask
    counts = nnf.pad(outlier.sum(dim=2), (0, 0, 1, 0))  # none at first
    prior = log_prior(counts, n, config)
    clean = (evidence - 0.5 * first.last_row[:, -1].unflatten(0, (repeats, b))).amax(dim=0)
    clean = clean + prior[0]
    evidence = evidence - 0.5 * last_row[..., -1] - log_det + prior[1:]
    best = evidence.argmax(dim=0), torch.arange(b, device=n.device)
    outlier, roughness, evidence, last_row, precision = (
        x[best] for x in (outlier, roughness, evidence, last_row, precision)
    )
    residual = last_row[:, :-1] / precision
    variance = (1 / precision - block.error * outlier).clamp(min=1e-10)
    factor = log_bayes_factor(residual / variance, 1 / variance, block.error)
    return SearchState(outlier, roughness, evidence, residual, variance, factor), clean


def log_bayes_factor(
    alpha: Float[Tensor, "b s"], precision: Float[Tensor, "b s"], error: Float[Tensor, "b s"]
) -> Float[Tensor, "b s"]:
    """log p(residual | outlier) − log p(residual | inlier), of the leave-one-out residual α/P with
    variance 1/P, to which an outlier adds the variance e of its error:
    ½ (e α²/(1 + eP) − log(1 + eP))."""
    ratio = (error * precision).add_(1)
    return ratio.log().mul_(-0.5).addcdiv_(error * alpha**2, ratio, value=0.5)


@dataclass(frozen=True, eq=False)
class Sweep:
    """Outliers of b blocks of s anchors in the course of the search.

    With C the covariance of the targets y and P = C⁻¹, an outlier adds its error variance to the
    diagonal of C, which subtracts ZᵀZ from P, with one row of Z for each outlier. All that the
    search needs is in the matrix M = [P, Py; yᵀP, yᵀPy], which changes in the same way, so C is
    factorised only once.
    """

    matrix: Float[Tensor, "b m m"]
    """P before the first step, then M."""
    last_row: Float[Tensor, "b s_1"]
    """Last row of M: Py and yᵀPy."""
    precision: Float[Tensor, "b s"]
    """Diagonal of P."""
    closed: Float[Tensor, "b s"]
    """Positive for outliers and for padding, which cannot become outliers."""
    left: Int64[Tensor, "b 1"]
    """Number of outliers that may be added."""
    pivots: Float[Tensor, "b t q"]
    """Their product is √(det C) relative to that without outliers; 1 for steps to come."""
    error: Float[Tensor, "b s"]
    """As in `BlockTargets`."""
    log_odds: Float[Tensor, "b l"]
    """Prior log-odds of one more outlier, by the number that may be added."""

    @classmethod
    def start(
        cls,
        P: Float[Tensor, "b s s"],
        target: Float[Tensor, "b s"],
        mask: Bool[Tensor, "b s"],
        error: Float[Tensor, "b s"],
        config: OutlierConfig,
    ) -> Sweep:
        """The state without outliers."""
        alpha = (P @ target[..., None])[..., 0]
        square = (alpha * target).sum(dim=1, keepdim=True)
        rows, n = mask.shape[1], mask.sum(dim=1, keepdim=True).double()
        most = (config.max_share * n).floor()
        count = most - torch.arange(1 + int(config.max_share * rows), device=n.device)
        a, b = config.prior_counts  # a difference of `log_prior`
        return cls(
            P,
            torch.cat([alpha, square], dim=1),
            P.diagonal(dim1=1, dim2=2),
            (~mask).to(P.dtype),
            (most * (n >= config.min_anchors)).long(),
            P.new_ones(len(P), config.iterations, rows // config.segment_size),
            error,
            ((count + a) / (n - count - 1 + b)).log(),
        )

    def __getitem__(self, index: Tensor) -> Sweep:
        """The blocks at an index."""
        return Sweep(*(values[index] for values in vars(self).values()))

    def run(self, config: OutlierConfig, static: bool) -> tuple[Tensor, ...]:
        """`result` at the end of the search. `static` makes all steps with all blocks; otherwise
        only blocks that change take a further step."""
        state = self
        if static:
            for step in range(config.iterations):
                state = state.add_outliers(step, *state.choose(config))
            return state.result()
        active, order, results = torch.arange(len(self.left), device=self.left.device), [], []
        for step in range(config.iterations):
            index, chosen = state.choose(config)
            changed = chosen.any(dim=1)
            if not bool(changed.all()):
                order.append(active[~changed])
                results.append(tuple(values[~changed] for values in state.result()))
                active, index, chosen = active[changed], index[changed], chosen[changed]
                state = state[changed]
            if not len(active):
                break
            state = state.add_outliers(step, index, chosen)
        inverse = torch.cat([*order, active]).argsort()
        results.append(state.result())
        return tuple(torch.cat(values)[inverse] for values in zip(*results, strict=True))

    def result(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The last row of M, the diagonal of P, which rows are closed, ½ log det C relative to that
        without outliers."""
        return self.last_row, self.precision, self.closed, self.pivots.log().sum(dim=(1, 2))

    def choose(self, config: OutlierConfig) -> tuple[Int64[Tensor, "b q"], Bool[Tensor, "b q"]]:
        """The anchor that gains most in each segment of successive anchors, and whether it becomes
        an outlier."""
        gain = log_bayes_factor(self.last_row[:, :-1], self.precision, self.error)
        gain = gain.add_(self.log_odds.gather(1, self.left))
        index, chosen = best_of_segments(gain.sub_(self.closed, alpha=CLOSED_PENALTY), config)
        return index, chosen & (chosen.cumsum(dim=1) <= self.left)

    def add_outliers(
        self, step: int, index: Int64[Tensor, "b q"], chosen: Bool[Tensor, "b q"]
    ) -> Sweep:
        """The state with the chosen anchors of each segment as outliers, in the memory of this one:
        copies would take as long as the step."""
        segments, matrix = index.shape[1], self.matrix
        if step == 0:
            matrix = torch.cat([matrix, self.last_row[:, None, :-1]], dim=1)
            matrix = torch.cat([matrix, self.last_row[..., None]], dim=2)

        def at_index(values: Float[Tensor, "b s *c"]) -> Float[Tensor, "b q *c"]:
            at = index.reshape(*index.shape, *[1] * (values.ndim - 1))
            at = at.expand(-1, -1, 1, *values.shape[2:])
            return values.unflatten(1, (segments, -1)).gather(2, at)[:, :, 0]

        std = (at_index(self.error).sqrt() * chosen)[..., None]
        rows = at_index(matrix[:, :-1]) * std
        inner = at_index(rows[..., :-1].mT) * std
        inner.diagonal(dim1=1, dim2=2).add_(1)
        factor = torch.linalg.cholesky_ex(inner).L
        Z = torch.linalg.solve_triangular(factor, rows, upper=False)
        matrix.baddbmm_(Z.mT, Z, alpha=-1)
        self.pivots[:, step] = factor.diagonal(dim1=1, dim2=2)
        self.closed.unflatten(1, (segments, -1)).scatter_add_(2, index[..., None], std)
        return dataclasses.replace(
            self,
            matrix=matrix,
            last_row=matrix[:, -1],
            precision=matrix.diagonal(dim1=1, dim2=2)[:, :-1],
            left=self.left - chosen.sum(dim=1, keepdim=True),
        )


def best_of_segments(
    gain: Float[Tensor, "b s"], config: OutlierConfig
) -> tuple[Int64[Tensor, "b q"], Bool[Tensor, "b q"]]:
    """The anchor of highest gain in each segment of successive anchors, as an index within it, and
    whether that gain is positive and near the highest of the block: the smaller ones may be due to
    the larger ones."""
    best = gain.unflatten(1, (-1, config.segment_size)).max(dim=2)
    highest = best.values.amax(dim=1, keepdim=True)
    # No gain exceeds its share of a highest one that is negative.
    return best.indices, best.values.sub(highest, alpha=config.min_relative_gain) > 0


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
    error = torch.maximum(block.error, state.residual**2)
    confirmed = corroboration(block, state, anchors, config)
    # The best of n candidates became the first outlier, which by itself raises the evidence.
    present = torch.sigmoid(state.evidence - clean - n.clamp(min=1).log())
    present = torch.where(block.error > config.error_std**2, 1.0, present[:, None])
    present = present * (count > 0)[:, None]
    weight = 1 - (1 - confirmed) * wrong * error / (error + state.variance) * present
    weight = (WEIGHT_STEPS * weight).round() / WEIGHT_STEPS
    weight = torch.where(block.mask, weight.clamp(min=0.5 / WEIGHT_STEPS), 1.0)
    return weight, state.outlier & (present > 0.5), confirmed > 0.5


def corroboration(
    block: BlockTargets, state: SearchState, anchors: Int64[Tensor, ""], config: OutlierConfig
) -> Float[Tensor, "b s"]:
    """Probability that an outlier's neighbours confirm it; 0 for the other anchors.

    A mixture explains the outliers: errors, or neighbours of like depth or like scale. Its share is
    estimated from them. The denser the anchors, the more of them a missed object holds, and the
    more must agree.
    """
    std, near = config.agreement_std, Neighbours.of(block.position, config.neighbours)
    both = torch.stack([block.log_depth, block.target])
    apart = (both[..., None] - near.gather(both, torch.inf)) / std
    agreement = torch.exp(-0.5 * apart**2).mean(dim=0) / std
    first = (anchors / 1000).round().clamp(1, 3)
    rank = torch.arange(agreement.shape[2], device=agreement.device)
    counted = (rank >= first) & (rank < first + 3)
    best = (agreement.sort(dim=2, descending=True).values * counted).sum(dim=2) / 3
    error_density = state.bayes_factor + normal_log_density(state.residual, state.variance)
    odds = (best + 1e-12).log() - error_density + config.corroboration_log_odds
    odds = odds.masked_fill(~state.outlier, -torch.inf)
    probability, total = torch.sigmoid(odds), state.outlier.sum(dim=1, keepdim=True) + 1
    for _ in range(4):
        mixture = (probability.sum(dim=1, keepdim=True) + 0.5) / total
        probability = torch.sigmoid(odds + torch.logit(mixture))
    return probability


class Neighbours(NamedTuple):
    """The nearest anchors of each anchor within its block."""

    anchors: Int64[Tensor, "b s k"]
    known: Bool[Tensor, "b s k"]
    """Whether there is such a neighbour."""

    @classmethod
    def of(cls, position: Float[Tensor, "b s 2"], count: int) -> Neighbours:
        """The nearest `count`; anchors at infinity are none."""
        u, v = (x[:, :, None] - x[:, None] for x in position.unbind(dim=-1))
        apart = u.square_().addcmul_(v, v).nan_to_num_(nan=torch.inf, posinf=torch.inf)
        apart.diagonal(dim1=1, dim2=2).fill_(torch.inf)
        near = apart.topk(min(count, apart.shape[2]), largest=False)
        return cls(near.indices, near.values.isfinite())

    def gather(self, values: Float[Tensor, "*v b s"], missing: float) -> Float[Tensor, "*v b s k"]:
        """Values at each anchor's neighbours."""
        rows = torch.arange(len(self.anchors), device=values.device)[:, None, None]
        return values[..., rows, self.anchors].masked_fill(~self.known, missing)


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
