"""What `field` reaches on val, and what is chosen by it: trust, roughness and calibration."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from scalefield.embedding import FieldNet, FieldNetConfig
from scalefield.kernel import Kernel
from scalefield.methods.field import strangeness, tempered
from scalefield.training.data import PIXELS
from scalefield.training.field_batches import MOST_DRAWN, Bank, FieldBatch, see, solve


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the field said of one frame with one set of anchors."""

    group: str
    regime: str | int
    n: int
    scores: Float[Tensor, " m"]
    """Errors over deviations at known pixels."""
    absrel: float
    strangeness: float
    """Σ |z| √(π/2) over the anchors' leave-one-out residuals z; see `methods.field.tempered`."""
    level: float
    """Error of the expected level."""


@torch.no_grad()
def outcomes(
    net: FieldNet, kernel: Kernel, val: Sequence[Bank], regimes: Sequence[str | int]
) -> list[Outcome]:
    """The field on frames with the protocol's anchors."""
    found = []
    for bank in val:
        everywhere = torch.arange(MOST_DRAWN, PIXELS, 4, device=bank.positions.device)[None]
        for i, group in enumerate(bank.groups):
            one = slice(i, i + 1)
            batch = FieldBatch(
                log_depth=bank.log_depth[one].float(),
                image=bank.image[one].float(),
                features=None if bank.features is None else bank.features[one].float(),
                positions=bank.positions[one],
                units=bank.units[one],
                mde_log_depth=bank.mde_log_depth[one],
                true_log_depth=bank.true_log_depth[one],
            )
            maps = see(net, batch)
            points, truth = batch.points(maps, everywhere), batch.target(everywhere)
            for regime in regimes:
                rows = torch.from_numpy(bank.anchors[regime][i])[None].to(batch.units.device)
                posterior = solve(kernel, batch, maps, rows)
                error = (truth - posterior.mean(points))[0]
                residual, deviation = posterior[0].leave_one_out()
                found.append(
                    Outcome(
                        group=group,
                        regime=regime,
                        n=rows.shape[1],
                        scores=(error / posterior.variance(points)[0].sqrt()).cpu(),
                        absrel=float((-error).expm1().abs().mean()),
                        strangeness=strangeness(residual, deviation),
                        level=float((truth - points.mean).median() - maps.level),
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


TRUSTS = (0.3, 0.45, 0.7, 1.0)
ROUGHNESS = (1.0, 1.3, 1.6, 2.0)


def settle(
    net: FieldNet, kernel: Kernel, val: Sequence[Bank], regimes: Sequence[str | int]
) -> Kernel:
    """Make the network's and the kernel's beliefs what is best on val.

    In training, embeddings and amplitudes fit its few places ever better, and others worse; the
    field comes out too smooth for those. One after another the trust in φ, the trust in a, and a
    factor on the rough terms are chosen by the product of AbsRel over the regimes. The trusts
    become the network's; the kernel is the value.
    """

    def score(settings: tuple[FieldNetConfig, Kernel]) -> float:
        net.config = settings[0]
        return math.prod(summary(outcomes(net, settings[1], val, regimes)).values())

    config = net.config
    config, _ = min(((replace(config, embedding_trust=t), kernel) for t in TRUSTS), key=score)
    config, _ = min(((replace(config, amplitude_trust=t), kernel) for t in TRUSTS), key=score)
    config, kernel = min(((config, roughened(kernel, factor)) for factor in ROUGHNESS), key=score)
    net.config = config
    return kernel


def roughened(kernel: Kernel, factor: float) -> Kernel:
    """The kernel with stronger exponential terms."""
    factors = {"gaussian": 1.0, "exponential": factor}
    terms = (replace(t, amplitude=t.amplitude * factors[t.shape]) for t in kernel.terms)
    return replace(kernel, terms=tuple(terms))


def calibrate(found: Sequence[Outcome], coverage: float = 0.9) -> dict[str, float]:
    """`FieldModel`'s numbers that make intervals cover what they promise, group by group.

    The deviation's factor is calibration · n^−decay · temper; of a small grid of patience and
    decay those are taken whose coverage is nearest to the promise over groups and regimes, each
    with the calibration that is right in the mean.
    """
    half = math.sqrt(2) * float(torch.erfinv(torch.tensor(coverage)))
    cells: dict[tuple[str, str | int], list[Outcome]] = defaultdict(list)
    for outcome in found:
        cells[outcome.group, outcome.regime].append(outcome)
    best, chosen = math.inf, {}
    for patience in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0):
        for decay in (0.0, 0.03, 0.06, 0.09, 0.12, 0.15):
            scaled = []
            for members in cells.values():
                values = [
                    o.scores.abs() / (tempered(o.strangeness, o.n, patience) * o.n**-decay)
                    for o in members
                ]
                scaled.append(torch.cat(values))
            # Every cell speaks with the same weight, however many pixels it has.
            quantiles = torch.stack(
                [torch.quantile(v[:: max(1, len(v) // 5000)], coverage) for v in scaled]
            )
            factor = float(quantiles.log().mean().exp()) / half
            covered = torch.stack([(v < half * factor).double().mean() for v in scaled])
            cost = float((covered - coverage).abs().mean())
            if cost < best:
                best = cost
                chosen = {"calibration": round(factor, 4), "patience": patience, "decay": decay}
    errors = np.array([outcome.level for outcome in found if outcome.regime == found[0].regime])
    return chosen | {"level_std": round(float(np.sqrt(np.mean(errors**2))), 3)}
