"""The unknown shift of an affine-invariant map: depth for a given shift, and its posterior.

Many estimators predict disparity up to a scale and a shift (MiDaS, Depth Anything), some of them
depth (Marigold, LeReS). Their values d are normalised to d' = (d − low) / (median − low), which
removes both, with `low` the value of the farthest pixels of a disparity map and of the nearest
pixels of a depth map. Then

    log D_MDE = −log(d' + eᵗ)  (disparity),      log D_MDE = log(d' + eᵗ)  (depth)

with one unknown number t: eᵗ is the disparity of the farthest pixels relative to the distance of
the median from them. Its prior is normal, and the likelihood is the evidence of the field at the
anchors. The field is fitted at the posterior mean of t; what remains unknown is a linear part of
its kernel, s(x) = σ_t ∂log D_MDE / ∂t, so that the anchors and the uncertainty both see it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from scalefield.field.error_scale import ErrorScale, log_evidence
from scalefield.field.kernel import Kernel, SumInputs
from scalefield.field.observations import Observations
from scalefield.mde.output import Kind, MDEOutput

LOW_QUANTILE = 0.005
"""Quantile of the map that counts as its low end."""
SAMPLES = 1 << 17
"""Pixels from which the quantiles are computed."""
NODES = 15
"""Values of t at which the evidence is computed, first over the prior, then around the mode."""
EXTENT = 3.5
"""Half the width of both ranges, in standard deviations."""
DECIMALS = 6
"""Decimals of the posterior's moments."""


Number = float | Float[Tensor, ""]


class Shift(NamedTuple):
    """t ~ N(mean, std²); tensors where nothing may wait for a GPU."""

    mean: Number
    std: Number


SHIFT_PRIOR = Shift(0.1, 1.2)
"""Prior of t for models without one of their own: the farthest pixels are between 1.1 and 7.5 times
as far as the median pixel in nine of ten images."""


@dataclass(frozen=True, eq=False)
class AffineMap:
    """A map in the normalisation that removes its scale and shift."""

    values: Float[Tensor, "*p"]
    """d' of the image or of some of its pixels."""
    sign: int
    """log D_MDE = sign · log(d' + eᵗ)."""
    low: Float[Tensor, ""]
    """Value of the prediction where d' = 0."""
    unit: Float[Tensor, ""]
    """Difference of the prediction where d' differs by 1."""

    @classmethod
    def of(cls, mde_output: MDEOutput) -> AffineMap:
        """The normalised map of an estimator's output; holes have the median."""
        disparity = mde_output.kind == "disparity"
        prediction = mde_output.disparity if disparity else mde_output.mde_depth
        return cls.normalised(prediction, prediction[mde_output.valid], mde_output.kind)

    @classmethod
    def normalised(
        cls, prediction: Float[Tensor, "h w"], known: Float[Tensor, "*k"], kind: Kind
    ) -> AffineMap:
        """A finite map, normalised by those of its values that are known."""
        known = known.flatten()
        known = known[:: 1 + len(known) // SAMPLES].sort().values.double()
        low, median, high = (known[round(q * (len(known) - 1))] for q in (LOW_QUANTILE, 0.5, 1.0))
        # Of a map with little but its low end, the range is the unit; a constant map has any.
        unit = torch.ones_like(low)
        for length in (low.abs(), high - low, median - low):
            unit = torch.where(length > 0, length, unit)
        values = (prediction.double() - low) / unit
        return cls(values.float(), -1 if kind == "disparity" else 1, low, unit)

    def log_depth(self, t: float | Tensor) -> Float[Tensor, "*p"]:
        """log D_MDE for a shift, or for several of shape (n, 1) at a list of pixels."""
        return self.sign * self._from_zero(t).log()

    def sensitivity(self, t: float | Tensor) -> Float[Tensor, "*p"]:
        """∂ log D_MDE / ∂t, between −1 and 1."""
        return self.sign * (exp(t) / self._from_zero(t)).clamp(max=1)

    def median_log_depth(self, t: float | Tensor) -> Float[Tensor, "*t"]:
        """log D_MDE of the image's median pixel, where d' = 1."""
        return self.sign * (torch.ones_like(self.low) * exp(t)).log1p()

    def offset(self, t: float) -> float:
        """b in the units of the prediction d: depth or disparity is proportional to d + b."""
        return math.exp(t) * float(self.unit) - float(self.low)

    def _from_zero(self, t: float | Tensor) -> Float[Tensor, "*p"]:
        # Values below the low end stay positive, at most a factor of two beyond it.
        return (self.values + exp(t)).clamp(min=0.5 * exp(t))


def exp(t: float | Tensor) -> Any:
    """eᵗ, without a copy to the device for a plain number."""
    return t.exp() if isinstance(t, Tensor) else math.exp(t)


def shift_posterior(
    kernel: Kernel,
    affine: AffineMap,
    observed: Observations,
    pixels: tuple[Tensor, Tensor],
    *,
    prior: Shift,
    scales: Sequence[ErrorScale],
) -> Shift:
    """Mean and standard deviation of t given observations made with the prior's mean, as tensors.

    The posterior density is computed at nodes over the prior, then at nodes around its mode.
    """
    at_anchors = dataclasses.replace(affine, values=affine.values[pixels].double())
    log_depth, median = at_anchors.log_depth(prior.mean), affine.median_log_depth(prior.mean)

    nodes = torch.linspace(-EXTENT, EXTENT, NODES, dtype=torch.float64, device=log_depth.device)

    def moments(centre: Number, std: Number) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        t = centre + std * nodes
        changes = at_anchors.log_depth(t[:, None]) - log_depth
        medians = affine.median_log_depth(t) - median
        log_density = evidence_of_changes(kernel, observed, changes, medians, scales)
        log_density = log_density - 0.5 * ((t - prior.mean) / prior.std) ** 2
        weights = log_density.softmax(dim=0)
        mean = weights @ t
        spacing = t[1] - t[0]
        return mean, (weights @ (t - mean) ** 2).sqrt().maximum(0.3 * spacing)

    mean, std = moments(*moments(*prior))
    # Rounding errors of the anchors' targets must not change the float32 map of the whole image.
    return Shift(mean.round(decimals=DECIMALS), std.round(decimals=DECIMALS))


def evidence_of_changes(
    kernel: Kernel,
    observed: Observations,
    changes: Float[Tensor, "t m"],
    median_changes: Float[Tensor, " t"],
    scales: Sequence[ErrorScale],
) -> Float[Tensor, " t"]:
    """Log marginal likelihood of observations, up to a constant, for several changes of log D_MDE
    at the pixels of the observations and at the image's median pixel, averaged over the scales of
    its errors.

    The shift is known in each of them, so that its linear part is left out.
    """
    inputs, y, noise, mask = observed
    if isinstance(inputs, SumInputs):
        of_pixels, changes = changes, inputs.sum(changes)
    else:
        of_pixels = changes
    inputs = inputs.changed(of_pixels, median_changes[:, None])
    noise, mask = (x.expand_as(changes) for x in (noise, mask))
    changed = Observations(inputs, y - changes, noise, mask)
    return log_evidence(kernel, changed, scales).logsumexp(dim=0)
