"""The most probable log-depths given measurements that are no linear functions of them.

With x the deviation of the log-depths of the touched pixels from their prior mean and ψ the unknown
numbers of the camera, u = (x, ψ) ~ N(0, C), and rows g(u) measured as y, the mode minimises

    ½ uᵀC⁻¹u + Σ ½ (gᵢ(u) − yᵢ)²/σᵢ²  + Σ −log Φ((gᵢ(u) − yᵢ)/σᵢ)

where the second sum is over bounds. Gauss–Newton steps with a line search (Nocedal and Wright,
Numerical Optimization, 2006, chapter 10) find it, with u = Cz, so that C need not be inverted.
Each step replaces the rows by linear ones, whose Gaussian process the field is conditioned on:
Laplace's approximation (Rasmussen and Williams, 2006, section 3.4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from scalefield.field.cholesky import Cholesky

FIRST_STEPS = 20
NOISE_FACTORS = tuple(64 * 0.6**i for i in range(9))
"""Factors on the noise, where the first steps did not converge."""
EASED_STEPS = 6
"""Steps under each of them."""
LAST_STEPS = 100
MAX_HALVINGS = 30
ARMIJO = 1e-4
"""Least decrease of the objective relative to that of its linear model."""
TOLERANCE = 1e-5
"""Decrease of the objective that a step may promise where the search has ended."""
ROUNDING = 1e-7
"""The same relative to the objective, where no step decreases it."""
MIN_WEIGHT = 1e-9
"""Least weight of a bound relative to that of an observation with its softness as noise."""


class LinearRows(NamedTuple):
    """Rows g of u and their derivatives."""

    values: Float64[Tensor, " n"]
    jacobian: Float64[Tensor, "n m"]


class MeasuredRows(NamedTuple):
    """What was measured of the rows."""

    value: Float64[Tensor, " n"]
    noise: Float64[Tensor, " n"]
    bound: Bool[Tensor, " n"]


def find_mode(
    covariance: Float64[Tensor, "m m"],
    rows: Callable[[Float64[Tensor, " m"]], LinearRows],
    measured: MeasuredRows,
) -> tuple[Float64[Tensor, " m"], bool]:
    """The u that minimises the objective, from u = 0, and whether it was found.

    Where a few steps do not find it, the noise is increased and then lowered in steps: under larger
    noise the rows are more nearly linear.
    """
    start = covariance.new_zeros(len(covariance))
    z, converged = descend(covariance, rows, measured, start, FIRST_STEPS)
    if not converged:
        z = start
        for factor in NOISE_FACTORS:
            eased = measured._replace(noise=factor * measured.noise)
            z, _ = descend(covariance, rows, eased, z, EASED_STEPS)
        z, converged = descend(covariance, rows, measured, z, LAST_STEPS)
    return covariance @ z, converged


def descend(
    covariance: Float64[Tensor, "m m"],
    rows: Callable[[Float64[Tensor, " m"]], LinearRows],
    measured: MeasuredRows,
    start: Float64[Tensor, " m"],
    steps: int,
) -> tuple[Float64[Tensor, " m"], bool]:
    """z after at most `steps` steps from a start, and whether no step promises anything more."""
    z, u = start, covariance @ start
    at = rows(u)
    value = objective(z, u, at.values, measured)
    for _ in range(steps):
        target, noise = pseudo_targets(at, u, measured)
        J, missing = at.jacobian, (target - at.jacobian @ u) / noise**2
        gram = J @ covariance @ J.mT + torch.diag(noise**2)
        step = J.mT @ Cholesky.of(gram).solve(target[:, None])[:, 0] - z
        moved = covariance @ step
        decrement = (J @ moved) @ missing - u @ step
        if decrement < TOLERANCE:
            return z, True
        for length in 0.5 ** torch.arange(MAX_HALVINGS).double():
            new_z, new_u = z + length * step, u + length * moved
            new_at = rows(new_u)
            new_value = objective(new_z, new_u, new_at.values, measured)
            if new_value < value - ARMIJO * length * decrement:
                break
        else:
            return z, bool(decrement < ROUNDING * (1 + value.abs()))
        z, u, at, value = new_z, new_u, new_at, new_value
    return z, False


def objective(
    z: Float64[Tensor, " m"],
    u: Float64[Tensor, " m"],
    values: Float64[Tensor, " n"],
    measured: MeasuredRows,
) -> Float64[Tensor, ""]:
    """½ uᵀC⁻¹u − log-likelihood; NaN becomes infinite."""
    deviation = (values - measured.value) / measured.noise
    terms = torch.where(
        measured.bound, -torch.special.log_ndtr(deviation), 0.5 * deviation.square()
    )
    return (0.5 * z @ u + terms.sum()).nan_to_num(nan=torch.inf)


def pseudo_targets(
    at: LinearRows, u: Float64[Tensor, " m"], measured: MeasuredRows
) -> tuple[Float64[Tensor, " n"], Float64[Tensor, " n"]]:
    """Targets and noise of linear rows J u with the gradient and the curvature of the likelihood
    at u; a bound that is fulfilled has a very large noise."""
    missing = measured.value - at.values
    z = -missing / measured.noise
    slope = (-0.5 * z.square() - torch.special.log_ndtr(z)).exp() / math.sqrt(2 * math.pi)
    weight = (slope * (z + slope)).clamp(min=MIN_WEIGHT)
    missing = torch.where(measured.bound, measured.noise * slope / weight, missing)
    noise = torch.where(measured.bound, measured.noise * weight.rsqrt(), measured.noise)
    return missing + at.jacobian @ u, noise
