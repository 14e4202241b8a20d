"""Validation of `field`, and what is chosen on val: shrinkage, roughness and calibration."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from scalefield.field.condition import empirical_bayes_scale, sum_abs_z
from scalefield.field.error_scale import ErrorScale
from scalefield.field.kernel import Kernel
from scalefield.field.network import FieldNet, FieldNetConfig
from scalefield.training.bank import MOST_DRAWN, Bank
from scalefield.training.data import PIXELS
from scalefield.training.field_batches import kernel_inputs, network_maps, solve


@dataclass(frozen=True, eq=False)
class Outcome:
    """Prediction of the field for one frame with one set of anchors."""

    group: str
    regime: str | int
    n: int
    scores: Float[Tensor, " m"]
    """Errors over deviations at known pixels."""
    absrel: float
    sum_abs_z: Float[Tensor, ""]
    """Σ |z| √(π/2) over the anchors' leave-one-out residuals z."""
    scale_error: float
    """Error of the expected log-depth of the median pixel."""


@torch.no_grad()
def outcomes(
    net: FieldNet,
    kernel: Kernel,
    val: Sequence[Bank],
    regimes: Sequence[str | int],
    scales: Sequence[ErrorScale],
) -> list[Outcome]:
    """The field on frames with the protocol's anchors."""
    found = []
    for bank in val:
        everywhere = torch.arange(MOST_DRAWN, PIXELS, 4, device=bank.device)[None]
        for i, group in enumerate(bank.groups):
            one = bank.select([i])
            level = one.level[:, None]
            table = replace(one.pixels, mde_log_depth=one.pixels.mde_log_depth - level)
            pixels = table.at(everywhere)
            maps = network_maps(net, one)
            points, truth = kernel_inputs(maps, pixels), pixels.y.double()
            for regime in regimes:
                rows = torch.from_numpy(bank.anchors[regime][i])[None].to(bank.device)
                posterior = solve(kernel, maps, table.at(rows), scales)
                error = (truth - posterior.mean(points))[0]
                residual, deviation = (x[0] for x in posterior.leave_one_out())
                found.append(
                    Outcome(
                        group=group,
                        regime=regime,
                        n=rows.shape[1],
                        scores=(error / posterior.variance(points)[0].sqrt()).cpu(),
                        absrel=float((-error).expm1().abs().mean()),
                        sum_abs_z=sum_abs_z(residual, deviation).cpu(),
                        scale_error=float((truth - points.mean).median() - maps.expected_log_depth),
                    )
                )
    return found


def summary(found: Sequence[Outcome]) -> dict[str, float]:
    """AbsRel by regime, mean over groups."""
    table: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for outcome in found:
        table[f"absrel {outcome.regime}"][outcome.group].append(outcome.absrel)
    return {
        regime: float(np.mean([np.mean(values) for values in groups.values()]))
        for regime, groups in table.items()
    }


SHRINKAGES = (0.3, 0.45, 0.7, 1.0)
ROUGHNESS = (1.0, 1.3, 1.6, 2.0)


def tune_on_validation(
    net: FieldNet,
    kernel: Kernel,
    val: Sequence[Bank],
    regimes: Sequence[str | int],
    scales: Sequence[ErrorScale],
) -> tuple[FieldNet, Kernel]:
    """The network with shrunk embeddings and amplitudes, and the kernel with rougher terms, that
    are best on val.

    In training, embeddings and amplitudes fit its few places ever better and others worse, and the
    field comes out too smooth. The factor on φ, the factor on log a and the factor on the
    amplitudes of the exponential terms are chosen one after another, by the product of AbsRel over
    the regimes.
    """

    def score(settings: tuple[FieldNetConfig, Kernel]) -> float:
        found = outcomes(with_config(net, settings[0]), settings[1], val, regimes, scales)
        return math.prod(summary(found).values())

    start = net.config
    embedding = [(replace(start, embedding_shrinkage=s), kernel) for s in SHRINKAGES]
    config, _ = min(embedding, key=score)
    amplitude = [(replace(config, amplitude_shrinkage=s), kernel) for s in SHRINKAGES]
    config, _ = min(amplitude, key=score)
    rough = []
    for factor in ROUGHNESS:
        factors = {"rbf": 1.0, "exponential": factor}
        terms = (replace(t, amplitude=t.amplitude * factors[t.family]) for t in kernel.terms)
        rough.append((config, replace(kernel, terms=tuple(terms))))
    config, kernel = min(rough, key=score)
    return with_config(net, config), kernel


def with_config(net: FieldNet, config: FieldNetConfig) -> FieldNet:
    """The same weights under another configuration of the same shapes."""
    changed = copy(net)
    changed.config = config
    return changed


def calibrate(found: Sequence[Outcome], coverage: float = 0.9) -> dict[str, float]:
    """Calibration of a `FieldModel` for which intervals have their nominal coverage on val.

    The factor on the standard deviation is std_scale · n^−std_decay · empirical_bayes_scale. Of a
    small grid of prior_count and std_decay those are taken whose coverage is nearest to the nominal
    one over groups and regimes, each with the std_scale that is right in the mean.
    """
    half = math.sqrt(2) * float(torch.erfinv(torch.tensor(coverage)))
    cells: dict[tuple[str, str | int], list[Outcome]] = defaultdict(list)
    for outcome in found:
        cells[outcome.group, outcome.regime].append(outcome)
    best, chosen = math.inf, {}
    for prior_count in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0):
        for std_decay in (-0.1, -0.05, 0.0, 0.05, 0.1, 0.15):
            scaled = []
            for members in cells.values():
                values = [
                    o.scores.abs()
                    / (empirical_bayes_scale(o.sum_abs_z, o.n, prior_count) * o.n**-std_decay)
                    for o in members
                ]
                scaled.append(torch.cat(values))
            # Every group and regime has the same weight, however many pixels it has.
            quantiles = torch.stack(
                [torch.quantile(v[:: max(1, len(v) // 5000)], coverage) for v in scaled]
            )
            factor = float(quantiles.log().mean().exp()) / half
            covered = torch.stack([(v < half * factor).double().mean() for v in scaled])
            cost = float((covered - coverage).abs().mean())
            if cost < best:
                best = cost
                chosen = {
                    "std_scale": round(factor, 4),
                    "prior_count": prior_count,
                    "std_decay": std_decay,
                }
    errors = np.array(
        [outcome.scale_error for outcome in found if outcome.regime == found[0].regime]
    )
    return chosen | {"scale_prior_std": round(float(np.sqrt(np.mean(errors**2))), 3)}
