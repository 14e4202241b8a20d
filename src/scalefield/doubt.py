"""Which anchors to believe: gross errors, told apart from what the estimator missed.

An anchor that the field cannot explain is either wrong or sees something that the MDE does not: an
object it missed, an edge it put elsewhere. The first must be dropped; dropping the second makes the
field worse. `gross_errors` finds both, by their likelihood; `vouched` tells them apart by their
neighbours, who see the same object and do not share an anchor's error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from scalefield.kernel import Kernel, Points

FEWEST = 5
"""Of fewer anchors none is doubted: there is no majority."""
MOST_JUDGED = 300
"""Anchors that are held against one another at once."""

GROSS = 0.8
"""Standard deviation of a gross error in log-depth: wrong by a factor of two, more or less."""
EXPECTED = (2.0, 6.0)
"""Wrong and honest anchors that are taken for granted before any is looked at."""
MOST_WRONG = 0.45
"""Share that may be wrong: with a majority of errors, nothing is known."""
SCALES = (4.0, 2.0, 1.0, 0.5)
"""How much rougher than learned a field may be. The roughest first: under it only the grossest
errors show, and they do not hide the lesser ones any more."""
SCALE_STD = 0.7
"""Standard deviation of the logarithm of that, before any anchor is looked at."""
FEW = 20
"""Fewer anchors than these cannot tell that a field is smoother than learned."""
LEAST_EVIDENCE = 6.0
"""Nats by which gross errors must explain the anchors better than any field without them does, …"""
LEAST_SUSPICION = 2.0
"""… and from how many on they are spoken of."""

NEIGHBOURS = 8
ALIKE = 0.12
"""Standard deviation of the difference between an anchor and a neighbour that sees the same."""
SAME_DEPTH = 0.25
"""Chance that they then agree in depth, as on an object that the MDE missed; else in scale."""
WARINESS = 0.5
"""Nats by which neighbours must explain an anchor better than a gross error does."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """What is held against the anchors; no anchor is in two of the three."""

    wrong: Bool[Tensor, " n"]
    """Gross errors, to be left out."""
    strange: Bool[Tensor, " n"]
    """Contradicted by the others, but too weakly to be left out."""
    vouched: Bool[Tensor, " n"]
    """Not explained by the field, but neighbours say the same: the MDE errs there."""


def doubt(
    kernel: Kernel, anchors: Points, y: Float[Tensor, " n"], noise: Float[Tensor, " n"]
) -> Verdict:
    """Judge the anchors whose targets are y, with standard deviations `noise`.

    Many are judged by those around them, some hundreds at a time, so that the cost grows as their
    number.
    """
    verdicts = np.zeros((3, len(y)), dtype=bool)
    for block in blocks(anchors.position.cpu().numpy()):
        if len(block) >= FEWEST:
            where = torch.from_numpy(block).to(y.device)
            verdicts[:, block] = judge(kernel, anchors[where], y[where], noise[where])
    return Verdict(*torch.from_numpy(verdicts).to(y.device))


def blocks(position: Float64[np.ndarray, "n 2"]) -> list[Int64[np.ndarray, " _"]]:
    """Rows of anchors that lie together, at most `MOST_JUDGED` each."""
    halves, made = [np.arange(len(position))], []
    while halves:
        rows = halves.pop()
        if len(rows) <= MOST_JUDGED:
            made.append(rows)
            continue
        axis = int(np.ptp(position[rows], axis=0).argmax())
        rows = rows[position[rows, axis].argsort(kind="stable")]
        halves += [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return made


def judge(
    kernel: Kernel, anchors: Points, y: Float[Tensor, " n"], noise: Float[Tensor, " n"]
) -> Bool[np.ndarray, "3 n"]:
    """The rows of one block's `Verdict`."""
    constant = float(kernel.constant) ** 2
    bent = kernel(anchors, anchors).cpu().numpy() - constant
    scale = (y - anchors.mean).cpu().numpy()
    scale = scale - np.median(scale)
    variance = noise.cpu().numpy() ** 2
    nobody = marked = np.zeros(len(y), dtype=bool)
    found, blameless = [], []
    for roughness in SCALES:
        if roughness < 1 and len(y) < FEW:
            continue
        covariance = constant + roughness**2 * bent
        prior = -0.5 * (math.log(roughness) / SCALE_STD) ** 2
        blame = gross_errors(covariance, scale, variance, marked)
        marked = blame.marked
        found.append((blame.score + prior, blame))
        blameless.append(likelihood(covariance + np.diag(variance), scale) + prior)
    score, blame = max(found, key=lambda pair: pair[0])
    proof = score - max(blameless) - chance(0, len(y))
    if proof < LEAST_SUSPICION:
        return np.stack([nobody, nobody, nobody])
    if proof < LEAST_EVIDENCE:
        grossest = next(blame.marked for _, blame in found if blame.marked.any())
        return np.stack([nobody, grossest, nobody])
    log_depth = (y + anchors.log_depth).cpu().numpy()
    seen = vouched(anchors.position.cpu().numpy(), scale, log_depth, blame)
    return np.stack([blame.marked & ~seen, nobody, seen])


@dataclass(frozen=True, eq=False)
class Blame:
    """Gross errors at some anchors, as an explanation of all."""

    score: float
    """Logarithm of its probability, up to a constant."""
    marked: Bool[np.ndarray, " n"]
    residual: Float64[np.ndarray, " n"]
    """What each anchor says beyond what the others expect of it, …"""
    variance: Float64[np.ndarray, " n"]
    """… and the variance of that, a marked one's with a gross error in it."""


def gross_errors(
    covariance: Float64[np.ndarray, "n n"],
    y: Float64[np.ndarray, " n"],
    variance: Float64[np.ndarray, " n"],
    marked: Bool[np.ndarray, " n"],
) -> Blame:
    """The marks that explain y best, as far as changing one at a time leads from `marked`.

    Maximises log N(y; 0, C + diag(σ² + GROSS² marked)) + log p(number of marks). With P the inverse
    and α = Py, a change by δ at anchor i adds ½ δ αᵢ² / (1 + δ Pᵢᵢ) − ½ log(1 + δ Pᵢᵢ), which is
    known for all i at once, and takes δ/(1 + δ Pᵢᵢ) PᵢPᵢᵀ off P.
    """
    n, marked = len(y), marked.copy()
    whole = torch.from_numpy(covariance + np.diag(variance + GROSS**2 * marked))
    factor = torch.linalg.cholesky(whole)
    P = torch.cholesky_inverse(factor).numpy()
    alpha = torch.mv(torch.from_numpy(P), torch.from_numpy(y)).numpy()
    score = -0.5 * float((y * alpha).sum()) - float(factor.diagonal().log().sum())
    for _ in range(4 * n):  # rounding must not turn in circles
        count = int(marked.sum())
        change = np.where(marked, -(GROSS**2), GROSS**2)
        growth = np.maximum(1 + change * P.diagonal(), 1e-12)
        gain = 0.5 * change * alpha**2 / growth - 0.5 * np.log(growth)
        more = chance(count + 1, n) if count < MOST_WRONG * n else -math.inf
        fewer = chance(count - 1, n) if count else -math.inf
        total = gain + np.where(marked, fewer, more) - chance(count, n)
        i = int(total.argmax())
        if total[i] <= 1e-9:
            break
        column, step = P[:, i].copy(), change[i] / growth[i]
        score += float(gain[i])
        alpha = alpha - step * alpha[i] * column
        P -= np.outer(step * column, column)
        marked[i] = not marked[i]
    diagonal = P.diagonal()
    score += chance(int(marked.sum()), n)
    return Blame(score, marked, alpha / diagonal, 1 / diagonal)


def likelihood(covariance: Float64[np.ndarray, "n n"], y: Float64[np.ndarray, " n"]) -> float:
    """log N(y; 0, covariance), up to a constant."""
    # By torch's threads: NumPy's own would fight with them for the cores.
    factor = torch.linalg.cholesky(torch.from_numpy(covariance))
    white = torch.linalg.solve_triangular(factor, torch.from_numpy(y)[:, None], upper=False)
    return -0.5 * float(white.square().sum()) - float(factor.diagonal().log().sum())


def chance(wrong: int, n: int) -> float:
    """Logarithm of the chance of just these of n anchors to be wrong, their share unknown."""
    a, b = EXPECTED
    return math.lgamma(wrong + a) + math.lgamma(n - wrong + b) - math.lgamma(n + a + b)


def vouched(
    position: Float64[np.ndarray, "n 2"],
    scale: Float64[np.ndarray, " n"],
    log_depth: Float64[np.ndarray, " n"],
    blame: Blame,
) -> Bool[np.ndarray, " n"]:
    """Which of the marked anchors have neighbours that see the same.

    A mixture explains the marked: gross errors, or neighbours of like depth or like scale. Its
    share is learned from them, so that one anchor is believed where many hang together, and not
    where most are scattered. One like neighbour may be chance; those after it count.
    """
    apart = np.square(position[:, None] - position).sum(axis=2)
    np.fill_diagonal(apart, np.inf)
    near = apart.argsort(axis=1, kind="stable")[:, :NEIGHBOURS]

    def alike(values: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, "n _"]:
        return np.exp(-0.5 * ((values[:, None] - values[near]) / ALIKE) ** 2) / ALIKE

    agreement = SAME_DEPTH * alike(log_depth) + (1 - SAME_DEPTH) * alike(scale)
    agreement = np.sort(agreement, axis=1)[:, -3:-1].mean(axis=1)
    gross = -0.5 * blame.residual**2 / blame.variance - 0.5 * np.log(blame.variance)
    odds = (np.log(agreement + 1e-12) - gross - WARINESS)[blame.marked]
    share = 0.5
    for _ in range(10):
        believed = 1 / (1 + np.exp(-odds) * (1 - share) / share)
        share = (believed.sum() + 1) / (len(odds) + 2)
    seen = blame.marked.copy()
    seen[blame.marked] = believed > 0.5
    return seen
