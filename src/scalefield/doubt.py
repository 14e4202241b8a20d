"""Which anchors to believe: gross errors, told apart from what the estimator missed.

An anchor that the field cannot explain is either wrong or sees something that the MDE does not: an
object it missed, an edge it put elsewhere. The first must be dropped; dropping the second makes the
field worse. `Blame.search` finds both, by their likelihood; `vouched` tells them apart by their
neighbours, who see the same object and do not share an anchor's error. What is left to doubt makes
an anchor vague, and only what has hardly a say any more is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, islice

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from scalefield.kernel import Kernel, Points
from scalefield.runtime.devices import one_thread

FEWEST = 5
"""Of fewer anchors none is doubted: there is no majority."""
MOST_JUDGED = 300
"""Anchors that are held against one another."""

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
EVIDENCE = 6.0
"""Nats by which gross errors explain the anchors better than any field without them does, where it
is as likely as not that there are any, …"""
LEAST_SUSPICION = 2.0
"""… and from how many on they are spoken of."""
BEYOND = math.log(8)
"""Errors of more than this, against the median of all, need no such proof: centimetres for metres,
or a digit too many, are what people write."""
LEAST_SAY = 0.1
"""Anchors with a lesser share of their say than this are left out."""
CALMING = 3.0
"""Power of the roughness that weakens doubt: two turn a rough field's variance into that of the
learned one, and the third is chosen on val."""

NEIGHBOURS = 10
ALIKE = 0.12
"""Standard deviation of the difference between an anchor and a neighbour that sees the same."""
SAME_DEPTH = 0.5
"""Chance that they then agree in depth, as on an object that the MDE missed; else in scale."""
WARINESS = 1.1
"""Nats by which neighbours must explain an anchor better than a gross error does."""
TOGETHER = 0.1
"""Nats that each marked neighbour adds, beyond as many as there are everywhere: errors are
scattered, and what the MDE missed hangs together."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """What is held against the anchors; no anchor is in two of the three."""

    wrong: Bool[Tensor, " n"]
    """Gross errors, to be left out."""
    strange: Bool[Tensor, " n"]
    """Contradicted by the others, but too weakly to be left out."""
    vouched: Bool[Tensor, " n"]
    """Not explained by the field, but neighbours say the same: the MDE errs there."""
    noise: Float[Tensor, " n"]
    """Standard deviations to use: the given ones, and more the more is held against an anchor."""


def doubt(
    kernel: Kernel, anchors: Points, y: Float[Tensor, " n"], noise: Float[Tensor, " n"]
) -> Verdict:
    """Judge the anchors whose targets are y, with standard deviations `noise`.

    Many are judged by those around them, some hundreds at a time, so that the cost grows as their
    number.
    """
    verdicts = np.zeros((3, len(y)), dtype=bool)
    vague = np.zeros(len(y))
    judged = [block for block in blocks(anchors.position.cpu().numpy()) if len(block) >= FEWEST]
    with one_thread():
        for some in alike(judged, blocks_at_once(y)):
            where = torch.from_numpy(some).to(y.device)
            found = judge(kernel, anchors[where], y[where], noise[where])
            for block, (marks, added) in zip(some, found, strict=True):
                verdicts[:, block], vague[block] = marks, added
    wrong, strange, vouched = torch.from_numpy(verdicts).to(y.device)
    noise = (noise.double() ** 2 + torch.from_numpy(vague).to(y.device)).sqrt()
    return Verdict(wrong, strange, vouched, noise)


def blocks_at_once(where: Tensor) -> int:
    """Blocks whose fields are solved at once: a processor is busy with few, a GPU is not."""
    return 64 if where.is_cuda else 4


def alike(
    blocks: list[Int64[np.ndarray, " _"]], at_once: int
) -> Iterator[Int64[np.ndarray, "b n"]]:
    """Blocks of one size, a few at a time."""
    for _, same in groupby(sorted(blocks, key=len), key=len):
        while some := [*islice(same, at_once)]:
            yield np.stack(some)


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
    kernel: Kernel, anchors: Points, y: Float[Tensor, "b n"], noise: Float[Tensor, "b n"]
) -> list[tuple[Bool[np.ndarray, "3 n"], Float64[np.ndarray, " n"]]]:
    """Each block's `verdict`."""
    constant = float(kernel.constant) ** 2
    bent = kernel(anchors, anchors) - constant
    scale = y - anchors.mean
    scale = scale - scale.quantile(0.5, dim=1, keepdim=True)
    scales = [r for r in SCALES if r >= 1 or y.shape[1] >= FEW]
    rough = torch.tensor(scales, dtype=bent.dtype, device=bent.device)[:, None, None]
    whole = constant + rough**2 * bent[:, None] + torch.diag_embed(noise.double() ** 2)[:, None]
    fields = honest(whole, scale)
    seen = (anchors.position, scale, y + anchors.log_depth)
    tables = zip(*(values.cpu().numpy() for values in seen), strict=True)
    return [verdict(scales, own, *table) for own, table in zip(fields, tables, strict=True)]


def verdict(
    scales: list[float],
    fields: list[Blame],
    position: Float64[np.ndarray, "n 2"],
    scale: Float64[np.ndarray, " n"],
    log_depth: Float64[np.ndarray, " n"],
) -> tuple[Bool[np.ndarray, "3 n"], Float64[np.ndarray, " n"]]:
    """What a block's anchors are blamed for, given fields of each roughness that blame none: the
    marks of a `Verdict`, and the variance that doubt adds.

    An anchor whose residual has the variance v pulls the field s times as far once that is v/s:
    v/s − v is added to the noise of one that has the share s of its say.
    """
    n = len(scale)
    marked = np.zeros(n, dtype=bool)
    found, blameless = [], []
    for roughness, field in zip(scales, fields, strict=True):
        prior = -0.5 * (math.log(roughness) / SCALE_STD) ** 2
        blameless.append(field.score + prior)
        field.search(marked)
        marked = field.marked.copy()
        total = field.score + chance(int(marked.sum()), n) + prior
        found.append((total, roughness, field))
    score, roughness, blame = max(found, key=lambda one: one[0])
    proof = score - max(blameless) - chance(0, n)
    if proof < LEAST_SUSPICION:
        return np.zeros((3, n), dtype=bool), np.zeros(n)
    seen = vouched(position, scale, log_depth, blame)
    proven = np.where(blame.gross > GROSS**2, 1.0, 1 / (1 + math.exp(EVIDENCE - proof)))
    say = 1 - (1 - seen) * (1 - blame.say()) * proven
    trusted = blame.marked & (seen > 0.5)
    wrong = blame.marked & ~trusted & (say < LEAST_SAY)
    # Of what is hardly proven only the grossest is spoken of.
    grossest = next(field.marked for *_, field in found if field.marked.any())
    strange = (grossest if proof < EVIDENCE else blame.marked) & ~trusted & ~wrong
    added = blame.honest_variance / roughness**CALMING * (1 / say - 1)
    return np.stack([wrong, strange, trusted]), added


@dataclass(eq=False)
class Blame:
    """Gross errors at some anchors, as an explanation of all: y ~ N(0, C + diag(gross · marked)).

    With P the covariance's inverse and α = Py, a change by δ = ±gross at anchor i adds
    ½ δ αᵢ² / (1 + δ Pᵢᵢ) − ½ log(1 + δ Pᵢᵢ) to the logarithm of y's density, which is known for all
    i at once, and takes δ / (1 + δ Pᵢᵢ) PᵢPᵢᵀ off P. What is taken off is kept apart, for of P only
    the diagonal and a few columns are ever looked at.
    """

    score: float
    """Logarithm of the density, up to a constant."""
    gross: Float64[np.ndarray, " n"]
    """Variance of a gross error: GROSS², or as large as it shows where that is beyond all."""
    marked: Bool[np.ndarray, " n"]
    P: Float64[np.ndarray, "n n"]
    """Without any mark: P − Tᵀ diag(w) T is the one with them, where …"""
    alpha: Float64[np.ndarray, " n"]
    taken: Float64[np.ndarray, "k n"]
    """… T are the rows taken off, …"""
    weights: Float64[np.ndarray, " k"]
    """… w their weights, …"""
    precision: Float64[np.ndarray, " n"]
    """… and this is what that leaves of its diagonal."""

    @classmethod
    def nobody(
        cls,
        score: float,
        y: Float64[np.ndarray, " n"],
        P: Float64[np.ndarray, "n n"],
        alpha: Float64[np.ndarray, " n"],
    ) -> Blame:
        """No gross error at all."""
        gross = np.where(np.abs(y) > BEYOND, y, GROSS) ** 2
        marked, taken = np.zeros(len(y), dtype=bool), np.empty((0, len(y)))
        return cls(score, gross, marked, P, alpha, taken, np.empty(0), P.diagonal())

    @property
    def residual(self) -> Float64[np.ndarray, " n"]:
        """What each anchor says beyond what the others expect of it, …"""
        return self.alpha / self.precision

    @property
    def variance(self) -> Float64[np.ndarray, " n"]:
        """… and the variance of that, a marked one's with a gross error in it, …"""
        return 1 / self.precision

    @property
    def honest_variance(self) -> Float64[np.ndarray, " n"]:
        """… or without."""
        return np.maximum(self.variance - self.gross * self.marked, 1e-12)

    def say(self) -> Float64[np.ndarray, " n"]:
        """How far each anchor pulls the field, of what it would if it were honest for sure.

        With the chance to be wrong it pulls only as a measurement with a gross error does, whose
        standard deviation is its residual where that is more.
        """
        n, count, (a, b) = len(self.marked), int(self.marked.sum()), EXPECTED
        _, gain = self.gains()
        odds = np.where(self.marked, -gain, gain) + math.log((count + a) / (n - count + b))
        error = np.maximum(self.gross, self.residual**2)
        # The odds are squared, as chosen on val: less is doubted of those that are not marked.
        return 1 - error / (error + self.honest_variance) / (1 + np.exp(-2 * odds))

    def search(self, marked: Bool[np.ndarray, " n"]) -> None:
        """Marks that explain y best together with the chance of so many, as far as changing one at
        a time leads from `marked`."""
        n = len(marked)
        if marked.any():
            self.mark(np.flatnonzero(marked))
        for _ in range(4 * n):  # rounding must not turn in circles
            count = int(np.count_nonzero(self.marked))
            step, gain = self.gains()
            more = chance(count + 1, n) if count < MOST_WRONG * n else -math.inf
            fewer = chance(count - 1, n) if count else -math.inf
            total = gain + np.where(self.marked, fewer, more)
            i = int(total.argmax())
            if total[i] - chance(count, n) <= 1e-9:
                break
            self.score += float(gain[i])
            self.take(self.columns(i)[None], step[i : i + 1], self.alpha[i : i + 1])
            self.marked[i] = not self.marked[i]

    def mark(self, some: Int64[np.ndarray, " m"]) -> None:
        """The changes at several anchors that no mark is on, at once."""
        columns, said, std = self.columns(some), self.alpha[some], np.sqrt(self.gross[some])
        core = torch.from_numpy(np.eye(len(some)) + std[:, None] * columns[some] * std)
        factor = torch.linalg.cholesky(core)
        heard = torch.from_numpy(std[:, None] * np.column_stack([said, columns.T]))
        white = torch.linalg.solve_triangular(factor, heard, upper=False).numpy()
        self.score += 0.5 * float(white[:, 0] @ white[:, 0]) - float(factor.diagonal().log().sum())
        self.take(white[:, 1:], np.ones(len(some)), white[:, 0])
        self.marked[some] = True

    def gains(self) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
        """For each anchor's change, δ / (1 + δ Pᵢᵢ) and what it adds to the score."""
        delta = np.where(self.marked, -self.gross, self.gross)
        growth = np.maximum(1 + delta * self.precision, 1e-12)
        step = delta / growth
        return step, 0.5 * (step * self.alpha**2 - np.log(growth))

    def columns(self, some: int | Int64[np.ndarray, " m"]) -> Float64[np.ndarray, "n ..."]:
        """Those of P with the marks, one or several."""
        return self.P[:, some] - self.taken.T @ (self.weights * self.taken[:, some].T).T

    def take(
        self,
        rows: Float64[np.ndarray, "m n"],
        weights: Float64[np.ndarray, " m"],
        said: Float64[np.ndarray, " m"],
    ) -> None:
        """Take rows off P, and off α what they said."""
        self.alpha = self.alpha - (weights * said) @ rows
        self.precision = self.precision - weights @ rows**2
        self.taken = np.concatenate([self.taken, rows])
        self.weights = np.concatenate([self.weights, weights])


def honest(covariance: Float64[Tensor, "b f n n"], y: Float64[Tensor, "b n"]) -> list[list[Blame]]:
    """That no anchor is wrong: for each block, under each of several covariances."""
    factor = torch.linalg.cholesky(covariance)
    P = inverse(factor)
    alpha = (P @ y[:, None, :, None])[..., 0]
    log_volume = factor.diagonal(dim1=2, dim2=3).log().sum(dim=2)
    score = -0.5 * (alpha * y[:, None]).sum(dim=2) - log_volume
    tables = (score.tolist(), y.cpu().numpy(), P.cpu().numpy(), alpha.cpu().numpy())
    return [
        [Blame.nobody(one, own, *field) for one, *field in zip(scores, *fields, strict=True)]
        for scores, own, *fields in zip(*tables, strict=True)
    ]


def inverse(factor: Float64[Tensor, "*b n n"]) -> Float64[Tensor, "*b n n"]:
    """(LLᵀ)⁻¹. On a GPU `cholesky_inverse` may take one matrix after another."""
    if not factor.is_cuda:
        return torch.cholesky_inverse(factor)
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    half = torch.linalg.solve_triangular(factor, eye.expand_as(factor), upper=False)
    return half.mT @ half


@lru_cache(maxsize=1 << 12)
def chance(wrong: int, n: int) -> float:
    """Logarithm of the chance of just these of n anchors to be wrong, their share unknown."""
    a, b = EXPECTED
    return math.lgamma(wrong + a) + math.lgamma(n - wrong + b) - math.lgamma(n + a + b)


def vouched(
    position: Float64[np.ndarray, "n 2"],
    scale: Float64[np.ndarray, " n"],
    log_depth: Float64[np.ndarray, " n"],
    blame: Blame,
) -> Float64[np.ndarray, " n"]:
    """The chance that a marked anchor's neighbours see the same; 0 for the others.

    A mixture explains the marked: gross errors, or neighbours of like depth or like scale. Its
    share is learned from them, so that one anchor is believed where many hang together, and not
    where most are scattered. One like neighbour may be chance; those after it count.
    """
    marked = np.flatnonzero(blame.marked)
    apart = np.square(position[marked, None] - position).sum(axis=2)
    apart[np.arange(len(marked)), marked] = np.inf
    near = apart.argsort(axis=1, kind="stable")[:, :NEIGHBOURS]

    def alike(values: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, "m _"]:
        return np.exp(-0.5 * ((values[marked, None] - values[near]) / ALIKE) ** 2) / ALIKE

    agreement = SAME_DEPTH * alike(log_depth) + (1 - SAME_DEPTH) * alike(scale)
    agreement = np.sort(agreement, axis=1)[:, -3:-1].mean(axis=1)
    gross = -0.5 * blame.residual**2 / blame.variance - 0.5 * np.log(blame.variance)
    odds = np.log(agreement + 1e-12) - gross[marked] - WARINESS
    odds += TOGETHER * (blame.marked[near] - blame.marked.mean()).sum(axis=1)
    share = 0.5
    for _ in range(10):
        believed = 1 / (1 + np.exp(-odds) * (1 - share) / share)
        share = (believed.sum() + 0.5) / (len(odds) + 1)
    seen = np.zeros(len(scale))
    seen[marked] = believed
    return seen
