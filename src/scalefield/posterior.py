"""A Gaussian process given anchors: mean, variance, leave-one-out residuals, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scalefield.kernel import Kernel, Points, outer


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
        pairs = zip(vars(self.anchors).values(), vars(anchors).values(), strict=True)
        joined = Points(*(torch.cat(pair) for pair in pairs))
        return Posterior(self.kernel, joined, self.offset, factor, alpha)

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


GROSS = 0.8
"""Standard deviation of a gross error in log-depth: wrong by a factor of two, more or less."""
REACHES = (0.1, 0.3)
"""How far a missed object's errors reach, in units of the square root of the image's area, …"""
COHERENCE = 0.015
"""… and by how many nats an anchor they may explain more before anchors are not blamed."""
FEW = 20
"""Fewer anchors than these cannot tell how rough a field is; it is taken to be twice the usual."""
MOST_JUDGED = 300
"""Anchors that are held against one another at once."""
SCALES = (0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)
"""How much rougher than learned a field may be, before errors are blamed on its anchors."""


def doubt(
    kernel: Kernel, anchors: Points, y: Float[Tensor, " n"], noise: Float[Tensor, " n"]
) -> tuple[Bool[Tensor, " n"], float]:
    """Which anchors are believed, and how much better gross errors at the others explain y than a
    rough field does, in nats. Many anchors are judged by their neighbours, some hundreds at a
    time, so that the cost grows as their number."""
    blocks, judged = [torch.arange(len(y), device=y.device)], []
    while blocks:
        block = blocks.pop()
        if len(block) <= MOST_JUDGED:
            judged.append(block)
            continue
        place = anchors.position[block]
        axis = int((place.amax(dim=0) - place.amin(dim=0)).argmax())
        order = block[place[:, axis].argsort(stable=True)]
        blocks += [order[: len(order) // 2], order[len(order) // 2 :]]
    kept, proof = torch.ones_like(y, dtype=torch.bool), 0.0
    for block in judged:
        some = anchors[block], y[block], noise[block]
        believed = credence(kernel, *some) > 0.5
        kept[block] = believed
        proof += evidence(kernel, *some, believed)
    return kept, proof


def credence(
    kernel: Kernel,
    anchors: Points,
    y: Float[Tensor, " n"],
    noise: Float[Tensor, " n"],
    rounds: int = 25,
) -> Float[Tensor, " n"]:
    """The chance of each anchor to be no gross error, by what the others say of it.

    Expectation-maximisation over a mixture: an honest anchor has its own noise, a gross error that
    of `GROSS`. Each round hears every anchor as loudly as it is believed, compares its
    leave-one-out residual under both, and learns anew how many are wrong and how rough the field
    is. It begins with a rough field, under which only the grossest look wrong, and of fewer than
    five anchors none is doubted: there is no majority.
    """
    chance = torch.full_like(y, 0.9)
    if len(y) < 5:
        return torch.ones_like(y)
    covariance = kernel(anchors, anchors)
    residual = y - anchors.mean
    residual = residual - residual.quantile(0.5)
    wrong, scale = 0.1, 4.0 if len(y) >= FEW else 2.0
    for _ in range(rounds):
        heard = 1 / (chance / noise**2 + (1 - chance) / (noise**2 + GROSS**2))
        factor = torch.linalg.cholesky(covariance + torch.diag(heard))
        precision = torch.cholesky_inverse(factor)
        left_out = (precision @ residual) / precision.diagonal()
        variance = (1 / precision.diagonal() - heard).clamp(min=1e-8)
        honest = log_normal(left_out, scale**2 * (variance + noise**2))
        gross = log_normal(left_out, scale**2 * variance + GROSS**2)
        odds = honest - gross + math.log((1 - wrong) / wrong)
        before, chance = chance, odds.sigmoid().clamp(1e-6, 1 - 1e-9)
        # One gross error and nine honest anchors are taken for granted.
        wrong = (float((1 - chance).sum()) + 1) / (len(y) + 10)
        z = left_out.abs() / (variance + noise**2).sqrt()
        if len(y) >= FEW:
            scale = max(SCALES[0], 0.5 * scale + 0.5 * weighted_median(z, chance) / 0.6745)
        if float((chance - before).abs().max()) < 0.02:
            break
    return chance


def evidence(
    kernel: Kernel,
    anchors: Points,
    y: Float[Tensor, " n"],
    noise: Float[Tensor, " n"],
    kept: Bool[Tensor, " n"],
) -> float:
    """How much better gross errors at all but `kept` explain y than a rough field does, in nats.

    An MDE that misses whole objects looks as if anchors were wrong. But its errors hang together
    where those of anchors do not: where gross errors that are alike in a neighbourhood explain y
    better than independent ones, there is no evidence.
    """
    count, gross = len(y), int((~kept).sum())
    if gross in (0, count):
        return 0.0
    residual = y - anchors.mean
    residual = residual - residual.quantile(0.5)
    constant = kernel.constant**2
    bent = kernel(anchors, anchors) - constant

    def likelihood(errors: Float[Tensor, "n n"]) -> float:
        values = []
        for scale in SCALES:
            factor = torch.linalg.cholesky(constant + scale**2 * bent + errors)
            white = torch.linalg.solve_triangular(factor, residual[:, None], upper=False)
            values.append(-0.5 * float(white.square().sum()) - float(factor.diagonal().log().sum()))
        return max(values)

    measured = torch.diag(noise**2)
    wrong = GROSS**2 * outer((~kept).to(y), (~kept).to(y))
    apart = torch.cdist(anchors.position, anchors.position)
    single = likelihood(measured + torch.diag(wrong.diagonal()))
    alike = max(likelihood(measured + wrong * (-apart / reach).exp()) for reach in REACHES)
    if single < alike - COHERENCE * count:
        return 0.0
    share = gross / count
    choice = gross * math.log(share) + (count - gross) * math.log(1 - share)
    return single + choice - likelihood(measured)


def log_normal(x: Float[Tensor, " n"], variance: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Logarithm of a normal density, up to a constant."""
    return -0.5 * x.square() / variance - 0.5 * variance.log()


def weighted_median(values: Float[Tensor, " n"], weights: Float[Tensor, " n"]) -> float:
    """The value with half of the weight on either side."""
    ordered, order = values.sort()
    reached = weights[order].cumsum(0)
    return float(ordered[int(torch.searchsorted(reached, 0.5 * reached[-1:]))])
