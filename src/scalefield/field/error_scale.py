"""How much the estimator errs in one image: factors on the prior deviations of the field.

The errors of large estimators are smaller than those of small networks, they are smoother, and a
larger share of them is a plane in disparity. Each of a few hypotheses scales the smooth parts of
the kernel by one factor, its exponential terms by another, and the plane by a third. Their evidence
at the anchors weights them, and the prior covariance of the field is the weighted mean of theirs:
each factor is the root of its weighted mean square. Factors are rounded to quarter octaves, so that
the edit of one anchor seldom changes the field elsewhere.

The field is only an approximate model of the errors, so that its evidence overstates what many
anchors tell about the hypotheses. It is raised to the power c/(n + c): that of n anchors counts as
much as that of nc/(n + c) of them, fewer than c (a power posterior: Holmes and Walker, Assigning a
value to a power likelihood in a general Bayesian model, 2017).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from scalefield.field.cholesky import Cholesky
from scalefield.field.kernel import Kernel, ScaleFactors
from scalefield.field.observations import Observations

STEPS_PER_OCTAVE = 4
"""Values of a factor between 1 and 2."""
EVIDENCE_COUNT = 3.0
"""c: the evidence of any number of anchors counts as that of fewer than c. Chosen on validation
images and on stored outputs of published estimators."""


class ErrorScale(NamedTuple):
    """A hypothesis about the errors of an estimator."""

    probability: float
    """Its prior probability."""
    smooth: float
    """Factor on the prior deviation of the modes and the RBF terms."""
    rough: float
    """Factor on the prior deviation of the exponential terms."""
    plane: float
    """Factor on the prior deviation of the plane."""


ERROR_SCALES = (
    ErrorScale(probability=0.48, smooth=1.0, rough=1.0, plane=1.0),
    ErrorScale(probability=0.192, smooth=0.3, rough=0.1, plane=3.0),
    ErrorScale(probability=0.128, smooth=0.1, rough=0.03, plane=3.0),
    ErrorScale(probability=0.2, smooth=0.03, rough=0.01, plane=0.3),
)
"""A small network in an unknown place, two strong estimators, and a nearly perfect map."""


def log_evidence(
    kernel: Kernel, observed: Observations, scales: Sequence[ErrorScale]
) -> Float[Tensor, "h ..."]:
    """Log of the probability of each of h scales times the marginal likelihood of observations of b
    images around their median, up to a constant."""
    inputs, y, noise, mask = observed
    median = observed.median_log_scale()[..., None]
    target = (y - inputs.mean - median * inputs.level).where(mask, 0)
    unscaled, parts = kernel.covariance_parts(inputs)
    # Plain numbers: a CUDA graph holds no copy from the host.
    covariance = torch.stack(
        [
            unscaled + sum(f**2 * part for f, part in zip(scale[1:], parts, strict=True))
            for scale in scales
        ]
    )
    pairs = mask[..., :, None] & mask[..., None, :]
    variance = torch.where(mask, noise**2, 1.0)
    cholesky = Cholesky.of(covariance.where(pairs, 0) + torch.diag_embed(variance))
    target = target.expand(len(scales), *target.shape)
    square = (target * cholesky.solve(target[..., None])[..., 0]).sum(dim=-1)
    log_likelihood = -0.5 * square - cholesky.half_log_det()
    prior = [math.log(scale.probability) for scale in scales]
    return torch.stack([p + x for p, x in zip(prior, log_likelihood, strict=True)])


def scale_factors(
    kernel: Kernel, observed: Observations, scales: Sequence[ErrorScale]
) -> ScaleFactors:
    """Factors of the mean prior covariance given observations of b images."""
    power = EVIDENCE_COUNT / (observed.mask.sum(dim=-1) + EVIDENCE_COUNT)
    evidence = log_evidence(kernel, observed, scales)
    prior = [(1 - power) * math.log(scale.probability) for scale in scales]
    weights = (torch.stack(prior) + power * evidence).softmax(dim=0)

    def rounded(factors: Sequence[float]) -> Float[Tensor, "*b"]:
        terms = [w * factor**2 for w, factor in zip(weights, factors, strict=True)]
        log2 = 0.5 * torch.stack(terms).sum(dim=0).log2()
        return torch.exp2((STEPS_PER_OCTAVE * log2).round() / STEPS_PER_OCTAVE)

    _, *factors = zip(*scales, strict=True)
    return ScaleFactors(*map(rounded, factors))


def prior_factors(scales: Sequence[ErrorScale]) -> ScaleFactors:
    """Factors of the mean prior covariance without any observation."""
    squares = ([s.probability * s[i] ** 2 for s in scales] for i in (1, 2, 3))
    return ScaleFactors(*(math.sqrt(sum(terms)) for terms in squares))


def kernel_of_image(
    kernel: Kernel, observed: Observations, scales: Sequence[ErrorScale], most: int
) -> Kernel:
    """The kernel with the prior deviations that the observations of an image suggest: at most so
    many of them, evenly spaced in their order."""
    return kernel.scaled(scale_factors(kernel, observed.thinned(most), scales))
