"""Learning the kernel of `field`: a dozen numbers, through the Cholesky solve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from scalefield.cues import sample_at, to_unit
from scalefield.generator import Generator
from scalefield.kernel import Kernel, Points, Term
from scalefield.losses import dense_loss
from scalefield.posterior import Posterior
from scalefield.sampling import generator as named_generator
from scalefield.training.data import TrainingFrame, draw_anchors
from scalefield.training.loop import cosine_rate

START = Kernel(
    constant=2.0,
    linear=1.5,
    terms=(
        Term(0.15, 0.5, 0.6, "gaussian"),
        Term(0.2, 0.15, 0.6, "exponential"),
    ),
    noise=0.01,
)
"""Where training begins. The constant stays, because the global scale is free, and so does the
noise: anchors drawn from the true depth have none, and those of a user are good to a percent."""


@dataclass(frozen=True)
class FieldTraining:
    """Hyper-parameters."""

    anchors: tuple[int, int] = (1, 530)
    """Least and largest number of anchors; drawn log-uniformly for every image and step."""
    anchor_jitter: float = 1.0
    """Shift of the anchor grid's candidates, as a share of a grid cell."""
    steps: int = 300
    batch: int = 6
    rate: float = 0.05
    pixels: int = 512
    """Known pixels an image that the losses look at in a step."""
    beta: float = 0.1
    """Where SmoothL1 turns from square to absolute, in log-depth."""
    likelihood: float = 0.02
    """Weight of the negative log-likelihood, which makes the deviation honest."""
    seed: int = 0


class LearnedKernel(torch.nn.Module):
    """The kernel's positive numbers by their logarithms."""

    def __init__(self, start: Kernel) -> None:
        super().__init__()
        self.start = start
        numbers = [start.linear]
        for term in start.terms:
            numbers += [term.amplitude, term.position_length, term.depth_length]
        self.logarithms = torch.nn.Parameter(torch.tensor(numbers, dtype=torch.float64).log())

    def forward(self) -> Kernel:
        """The kernel as it stands, differentiable."""
        linear, *rest = self.logarithms.exp()
        terms = tuple(
            Term(rest[3 * i], rest[3 * i + 1], rest[3 * i + 2], term.shape)
            for i, term in enumerate(self.start.terms)
        )
        return Kernel(self.start.constant, linear, terms, self.start.noise)

    @torch.no_grad()
    def plain(self) -> Kernel:
        """The kernel in plain numbers."""
        kernel = self()
        terms = tuple(
            Term(
                round(float(t.amplitude), 5),
                round(float(t.position_length), 5),
                round(float(t.depth_length), 5),
                t.shape,
            )
            for t in kernel.terms
        )
        return Kernel(self.start.constant, round(float(kernel.linear), 5), terms, self.start.noise)


@torch.no_grad()
def table_points(frame: TrainingFrame, generator: Generator) -> Points:
    """All table rows of a frame, as the kernel sees them, float64 on the CPU."""
    maps = generator(None, frame.log_depth[None]).basis_maps
    pixels = torch.from_numpy(frame.pixels)
    where = to_unit(pixels, frame.shape).to(maps.device)
    basis = sample_at(maps, where[None])[0].double().cpu()
    log_depth = torch.from_numpy(frame.mde_log_depth).double()
    return Points(pixels.double() / max(frame.shape), log_depth, basis)


def frame_loss(
    kernel: Kernel, frame: TrainingFrame, points: Points, config: FieldTraining, step: int
) -> dict[str, Tensor]:
    """Loss of one frame with anchors and pixels drawn for this step."""
    rng = named_generator(config.seed, str(step), frame.name)
    least, most = config.anchors
    n = round(math.exp(rng.uniform(math.log(least), math.log(most + 0.5))))
    rows = torch.from_numpy(draw_anchors(frame, min(n, len(points)), config.anchor_jitter, rng))
    pixels = torch.from_numpy(rng.integers(len(points), size=config.pixels))
    truth = torch.from_numpy(frame.true_log_depth).double() - points.log_depth  # y everywhere
    noise = kernel.noise * torch.ones(len(rows), dtype=torch.float64)
    posterior = Posterior.fit(kernel, points[rows], truth[rows], noise)
    mean = posterior.mean(points[pixels])
    variance = posterior.variance(points[pixels]) + kernel.noise**2
    error = truth[pixels] - mean
    everywhere = torch.ones(1, config.pixels)
    dense = dense_loss(mean[None], truth[pixels][None], everywhere, config.beta)
    # Heavy tails: a wrong pixel or two shall not set the deviation of all.
    likelihood = (0.5 * (error.square() / variance).clamp(max=25) + 0.5 * variance.log()).mean()
    return {"dense": dense, "likelihood": likelihood, "absrel": error.expm1().abs().mean()}


def train_field(
    frames: Sequence[TrainingFrame], generator: Generator, config: FieldTraining
) -> tuple[Kernel, list[dict[str, Any]]]:
    """The learned kernel, and the losses' means every fifty steps."""
    torch.manual_seed(config.seed)
    learned = LearnedKernel(START)
    optimiser = torch.optim.Adam(learned.parameters(), lr=config.rate)
    points = [table_points(frame, generator) for frame in tqdm(frames, desc="basis maps")]
    lines: list[dict[str, Any]] = []
    sums: dict[str, float] = {}
    for step in tqdm(range(config.steps), desc="kernel"):
        for group in optimiser.param_groups:
            group["lr"] = config.rate * cosine_rate(step, config.steps, 10)
        optimiser.zero_grad()
        chosen = named_generator(config.seed, "field", str(step)).choice(
            len(frames), config.batch, replace=False
        )
        for i in chosen.tolist():
            losses = frame_loss(learned(), frames[i], points[i], config, step)
            total = losses["dense"] + config.likelihood * losses["likelihood"]
            (total / config.batch).backward()
            for name, value in losses.items():
                sums[name] = sums.get(name, 0.0) + float(value.detach()) / config.batch
        optimiser.step()
        if (step + 1) % 50 == 0:
            lines.append({"step": step + 1} | {k: round(v / 50, 5) for k, v in sums.items()})
            sums = {}
    return learned.plain(), lines


@torch.no_grad()
def standard_scores(
    kernel: Kernel,
    frames: Sequence[TrainingFrame],
    generator: Generator,
    regimes: Sequence[str],
) -> dict[str, Float[np.ndarray, " p"]]:
    """Errors over deviations at known pixels, by regime: N(0, 1) if the deviation is honest."""
    scores: dict[str, list[np.ndarray]] = {regime: [] for regime in regimes}
    for frame in frames:
        points = table_points(frame, generator)
        truth = torch.from_numpy(frame.true_log_depth).double() - points.log_depth
        for regime in regimes:
            rows = torch.from_numpy(frame.anchors[regime])
            noise = torch.full((len(rows),), float(kernel.noise), dtype=torch.float64)
            posterior = Posterior.fit(kernel, points[rows], truth[rows], noise)
            pixels = torch.from_numpy(
                named_generator(0, frame.name).integers(len(points), size=1000)
            )
            deviation = posterior.variance(points[pixels]).sqrt()
            error = truth[pixels] - posterior.mean(points[pixels])
            scores[regime].append((error / deviation.clamp(min=1e-9)).numpy())
    return {regime: np.concatenate(values) for regime, values in scores.items()}
