"""Learning `field`: the network and the kernel's numbers, end to end through the Cholesky solve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from scalefield.field.kernel import Kernel, StationaryTerm
from scalefield.field.model import FieldModel
from scalefield.field.network import FieldNet, FieldNetConfig
from scalefield.training.bank import Bank, Batch
from scalefield.training.field_batches import (
    FieldTraining,
    draw_batch,
    kernel_inputs,
    network_maps,
    solve,
)
from scalefield.training.field_validation import (
    Outcome,
    calibrate,
    outcomes,
    summary,
    tune_on_validation,
)
from scalefield.training.loop import RunFolder, Schedule, Trainer, pick_device, step_generator

START = Kernel(
    constant_std=2.0,
    mode_std=1.0,
    terms=(
        StationaryTerm(0.15, 0.5, 0.6, "rbf"),
        StationaryTerm(0.15, 1.0, 0.4, "rbf"),
        StationaryTerm(0.2, 0.3, 0.6, "exponential"),
    ),
    noise_std=0.002,
    slope_std=0.2,
    mean_weight_std=0.5,
    plane_std=0.1,
)
"""Where training begins. The constant stays, because the global scale is free, and so does the
noise: anchors drawn from the true depth have none, and those of a user are good to a percent."""


class LearnedKernel(nn.Module):
    """The kernel's positive numbers by their logarithms."""

    def __init__(self, start: Kernel) -> None:
        super().__init__()
        self.start = start
        numbers = [start.mode_std, start.slope_std, start.mean_weight_std, start.plane_std]
        for term in start.terms:
            numbers += [term.amplitude, term.position_lengthscale, term.depth_lengthscale]
        self.logarithms = nn.Parameter(torch.tensor(numbers, dtype=torch.float64).log())

    def forward(self) -> Kernel:
        """The present kernel, differentiable."""
        return self.built(list(self.logarithms.exp()))

    def plain(self) -> Kernel:
        """The kernel in plain numbers."""
        return self.built([round(float(x), 5) for x in self.logarithms.detach().exp()])

    def built(self, numbers: Sequence[float | Tensor]) -> Kernel:
        """A kernel with these numbers in place of those learned."""
        mode_std, slope_std, mean_weight_std, plane_std, *rest = numbers
        terms = tuple(
            StationaryTerm(rest[3 * i], rest[3 * i + 1], rest[3 * i + 2], term.family)
            for i, term in enumerate(self.start.terms)
        )
        return Kernel(
            self.start.constant_std,
            mode_std,
            terms,
            self.start.noise_std,
            slope_std,
            mean_weight_std,
            plane_std,
        )


class LearnedField(nn.Module):
    """Everything that training changes."""

    def __init__(self, config: FieldNetConfig, start: Kernel = START) -> None:
        super().__init__()
        self.net = FieldNet(config)
        self.kernel = LearnedKernel(start)


def losses(learned: LearnedField, batch: Batch, config: FieldTraining) -> dict[str, Tensor]:
    """The losses' parts, AbsRel at the batch's pixels, and the weighted sum `loss`."""
    maps = network_maps(learned.net, batch)
    posterior = solve(learned.kernel(), maps, batch.anchors, config.error_scales)
    points, truth = kernel_inputs(maps, batch.pixels), batch.pixels.y.double()
    mean = posterior.mean(points)
    variance = posterior.variance(points) + posterior.kernel.noise_std**2
    error = truth - mean
    # Heavy tails: a wrong pixel or two shall not set the deviation of all.
    likelihood = 0.5 * (error.square() / variance).clamp(max=25) + 0.5 * variance.log()
    expected = (truth - points.mean).median(dim=1).values
    parts = {
        "dense": nnf.smooth_l1_loss(mean, truth, beta=config.beta),
        "likelihood": likelihood.mean(),
        "mean": maps.mean.square().mean(),
        "level": nnf.smooth_l1_loss(maps.expected_log_depth.double(), expected, beta=config.beta),
        "absrel": (-error).expm1().abs().mean(),
    }
    total = (
        parts["dense"]
        + config.likelihood * parts["likelihood"]
        + config.restraint * parts["mean"]
        + config.level * parts["level"]
    )
    return parts | {"loss": total}


def validated(
    net: FieldNet, kernel: Kernel, val: Sequence[Bank], config: FieldTraining
) -> list[Outcome]:
    """The field on the frames of val."""
    return outcomes(net, kernel, val, config.validate, config.error_scales)


def draw_count(limits: tuple[int, int], rng: torch.Generator) -> int:
    """A number of anchors, log-uniform between the limits."""
    least, most = limits
    fraction = float(torch.rand((), generator=rng))
    return round(math.exp(math.log(least) + fraction * math.log((most + 0.5) / least)))


def train_field(
    config: FieldTraining,
    train: Sequence[Bank],
    val: Sequence[Bank],
    out: Path,
    *,
    device: str = "auto",
    start: Kernel = START,
    estimators: Sequence[str] | None = None,
    validate_every: int = 1000,
    show_progress: bool = True,
) -> FieldModel:
    """Train, choose shrinkage and calibrate on val, and write `out`/model.

    `estimators` names those whose outputs the frames are; see `FieldModel.estimators`.
    """
    torch_device = pick_device(device)
    run = RunFolder(out, config)
    torch.manual_seed(config.seed)
    learned = LearnedField(config.net, start).to(torch_device)
    groups = [
        {"params": list(learned.net.parameters()), "lr": config.rate},
        {"params": list(learned.kernel.parameters()), "lr": config.kernel_rate, "weight_decay": 0},
    ]
    trainer = Trainer(
        learned, groups, config, run, Schedule(config.steps, config.time_limit_s), torch_device,
        show_progress=show_progress,
    )  # fmt: skip
    best: LearnedField = trainer.average
    chance = torch.stack([bank.chance.sum() for bank in train])
    for step in trainer.steps():
        rng = step_generator(config.seed, step)
        with trainer.clock.waiting(step):
            bank = train[int(torch.multinomial(chance, 1, generator=rng))]
            batch = draw_batch(bank, config, draw_count(config.anchors, rng), rng)
        with trainer.clock.working(step):
            parts = losses(learned, batch, config)
            trainer.update(parts["loss"])
        if trainer.due(validate_every):
            scores = summary(validated(best.net, best.kernel.plain(), val, config))
            trainer.log(**{k: float(v.detach()) for k, v in parts.items()}, **scores)
            trainer.keep()
    net, kernel = tune_on_validation(
        best.net, best.kernel.plain(), val, config.validate, config.error_scales
    )
    numbers: dict[str, Any] = {**calibrate(validated(net, kernel, val, config))}
    numbers["error_scales"] = config.error_scales
    if estimators is not None:
        numbers["estimators"] = tuple(estimators)
    model = FieldModel(kernel, net, **numbers)
    model.save(out / "model")
    return model
