"""Learning `field`: the network and the kernel's numbers, end to end through the Cholesky solve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as nnf
from jaxtyping import Int64
from torch import Tensor, nn
from tqdm import tqdm

from scalefield.field.error_scale import ERROR_SCALES, ErrorScale
from scalefield.field.kernel import Kernel, StationaryTerm
from scalefield.field.model import FieldModel
from scalefield.field.network import FieldNet, FieldNetConfig
from scalefield.training.distortion import DistortionConfig
from scalefield.training.field_batches import (
    Bank,
    FieldBatch,
    draw_anchors,
    draw_batch,
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
from scalefield.training.loop import (
    Clock,
    Ema,
    OptimiserConfig,
    RunFolder,
    Schedule,
    StepReport,
    load_checkpoint,
    pick_device,
    save_checkpoint,
    step_generator,
)

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


@dataclass(frozen=True)
class FieldTraining(OptimiserConfig):
    """Hyper-parameters, chosen on val."""

    net: FieldNetConfig = field(default_factory=FieldNetConfig)
    anchors: tuple[int, int] = (1, 530)
    """Least and largest number of anchors; drawn log-uniformly for every step."""
    anchor_jitter: float = 1.0
    """Shift of the anchor grid's candidates, as a share of a grid cell."""
    steps: int = 2000
    """Steps of the optimiser; fewer where `time_limit_s` ends the run."""
    time_limit_s: float | None = None
    """Seconds after which training ends, with the learning rate following the time; None: never."""
    kernel_rate: float = 1e-2
    """Learning rate of the kernel's numbers, which are logarithms."""
    pixels: int = 1024
    """Known pixels an image that the losses look at in a step."""
    beta: float = 0.1
    """Residual of log-depth at which SmoothL1 changes from square to absolute."""
    likelihood: float = 0.02
    """Weight of the negative log-likelihood, which calibrates the standard deviation."""
    restraint: float = 0.05
    """Weight of mean μ²: keeps the mean function small where places and MDEs disagree."""
    level: float = 0.05
    """Weight of the expected level's error, for images without anchors."""
    distorted: float = 0.5
    """Share of an MDE's frames that are distorted further; true depth always is."""
    distortion: DistortionConfig = field(default_factory=DistortionConfig)
    """The errors that are drawn."""
    error_scales: tuple[ErrorScale, ...] = ERROR_SCALES
    """Hypotheses about how much an estimator errs; the anchors decide between them."""
    imageless: float = 0.3
    """Share of frames whose image is withheld: it is optional."""
    featureless: float = 0.3
    """Share of frames whose F is withheld: it is optional."""
    validate: tuple[str | int, ...] = (1, "low", "medium", "high")


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


def losses(
    learned: LearnedField,
    batch: FieldBatch,
    rows: Int64[Tensor, "b n"],
    pixels: Int64[Tensor, "b m"],
    config: FieldTraining,
) -> dict[str, Tensor]:
    """The losses' parts, AbsRel at `pixels`, and the weighted sum `loss`."""
    maps = network_maps(learned.net, batch)
    posterior = solve(learned.kernel(), batch, maps, rows, config.error_scales)
    points, truth = batch.points(maps, pixels), batch.target(pixels)
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
    report_every: int = 100,
) -> FieldModel:
    """Train, choose shrinkage and calibrate on val, and write `out`/model.

    `estimators` names those whose outputs the frames are; see `FieldModel.estimators`.
    """
    torch_device = pick_device(device)
    run = RunFolder(out, config)
    torch.manual_seed(config.seed)
    learned = LearnedField(config.net, start).to(torch_device)
    ema = Ema(learned, config.ema)
    best: LearnedField = ema.model  # type: ignore[assignment]
    optimiser = torch.optim.AdamW(
        [
            {"params": list(learned.net.parameters()), "lr": config.rate},
            {
                "params": list(learned.kernel.parameters()),
                "lr": config.kernel_rate,
                "weight_decay": 0,
            },
        ],
        weight_decay=config.weight_decay,
    )
    rates = [group["lr"] for group in optimiser.param_groups]
    first, schedule = 0, Schedule(config.steps, config.time_limit_s)
    if run.checkpoint.exists():
        first, _ = load_checkpoint(run.checkpoint, learned, ema, optimiser)
        schedule.resume(run.elapsed_s)
    chance = torch.stack([bank.chance.sum() for bank in train])
    clock = Clock(torch_device)
    progress = tqdm(
        range(first, config.steps), initial=first, total=config.steps, desc=out.name,
        disable=not show_progress, mininterval=20.0,
    )  # fmt: skip
    report = StepReport(out.name, schedule, report_every if show_progress else None)
    for step in progress:
        rng = step_generator(config.seed, step)
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * schedule.rate(step, config.warmup)
        with clock.waiting(step):
            bank = train[int(torch.multinomial(chance, 1, generator=rng))]
            n = draw_count(config.anchors, rng)
            batch = draw_batch(
                bank, config.batch, rng, imageless=config.imageless,
                featureless=config.featureless, distorted=config.distorted,
                distortion=config.distortion, anchors=n,
            )  # fmt: skip
            rows = draw_anchors(batch, n, config.anchor_jitter, rng)
            known = batch.mde_log_depth.shape[1]
            pixels = torch.randint(known, (config.batch, config.pixels), generator=rng).to(
                torch_device
            )
        with clock.working(step):
            parts = losses(learned, batch, rows, pixels, config)
            optimiser.zero_grad(set_to_none=True)
            parts["loss"].backward()
            nn.utils.clip_grad_norm_(learned.parameters(), 1.0)
            optimiser.step()
            ema.update(learned, step)
        report(step + 1, parts["loss"])
        ended = schedule.progress(step + 1) >= 1
        if (step + 1) % validate_every == 0 or ended:
            scores = summary(validated(best.net, best.kernel.plain(), val, config))
            last = {k: float(v.detach()) for k, v in parts.items()}
            run.log(step + 1, clock, elapsed_s=schedule.elapsed_s, **last, **scores)
            save_checkpoint(run.checkpoint, learned, ema, optimiser, step=step + 1, best=math.inf)
            progress.set_postfix({k: f"{v:.4f}" for k, v in scores.items()})
        if ended:
            break
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
