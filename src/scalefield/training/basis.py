"""Training the basis map generator through the solve, with the paper's four losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm

from scalefield.anchor_sampling import REGIMES
from scalefield.basis.generator import Generator, GeneratorConfig
from scalefield.basis.grids import sample_at
from scalefield.basis.losses import (
    LossWeights,
    anchor_loss,
    decorrelation_loss,
    dense_loss,
    gate_loss,
    weighted_mean,
)
from scalefield.basis.ridge import LITERAL, Ridge, solve
from scalefield.errors import InputError
from scalefield.io import write_atomic
from scalefield.seeding import seeded_rng
from scalefield.training.data import (
    PIXELS,
    Batch,
    TrainingFrame,
    draw_anchors,
    epoch_batches,
    make_batch,
)
from scalefield.training.loop import (
    Clock,
    Ema,
    RunFolder,
    ahead,
    cosine_rate,
    load_checkpoint,
    pick_device,
    processes,
    save_checkpoint,
    step_generator,
)
from scalefield.training.model_card import basis_card
from scalefield.training.progress_plot import draw_progress


@dataclass(frozen=True)
class BasisTraining:
    """Hyper-parameters. The defaults were chosen on val; `paper_preset` has the paper's words."""

    k: int = 8
    """K, the number of basis maps."""
    anchors: tuple[int, int] = (1, 30)
    """Least and largest number of anchors; drawn log-uniformly for every image and step."""
    anchor_jitter: float = 1.0
    """Shift of the anchor grid's candidates, as a share of a grid cell."""
    validate: str = "low"
    """Regime whose validation loss chooses the checkpoint."""
    epochs: int = 16
    batch: int = 24
    rate: float = 1e-3
    weight_decay: float = 0.05
    warmup: int = 50
    ema: float = 0.998
    pixels: int = 2048
    """Known pixels an image that the dense loss looks at in a step."""
    beta: float = 0.1
    """Where SmoothL1 turns from square to absolute, in log-depth."""
    mirror: bool = True
    """Mirror half of the images."""
    stretch: float = 0.15
    """D_MDE becomes D^γ with log γ of this standard deviation: biases that the places lack."""
    offset_noise: float = 0.3
    """Standard deviation of the error put on the offset, which keeps the global channel alive."""
    feature_dropout: float = 0.2
    """Chance of each channel of F to be dropped."""
    zero_features: bool = False
    """The F = 0 variant, same architecture."""
    losses: LossWeights = field(default_factory=LossWeights)
    ridge: Ridge = field(default_factory=Ridge)
    seed: int = 0


def default_preset(k: int, regime: str, **changes: object) -> BasisTraining:
    """Our recipe: one model for all of low and below, or one from medium to high."""
    anchors = (1, 30) if regime == "low" else (30, 530)
    chosen = {"k": k, "anchors": anchors, "validate": regime}
    return BasisTraining(**(chosen | changes))  # type: ignore[arg-type]


def paper_preset(
    k: int, regime: str, *, fine_tune: bool = False, **changes: object
) -> BasisTraining:
    """The paper's recipe: 25 epochs in one regime, or 5 more to move a model to another one."""
    literal = {
        "k": k,
        "anchors": REGIMES[regime],
        "anchor_jitter": 0.0,
        "validate": regime,
        "epochs": 5 if fine_tune else 25,
        "beta": 1.0,
        "offset_noise": 0.0,
        "stretch": 0.0,
        "feature_dropout": 0.0,
        "ridge": LITERAL,
    }
    return BasisTraining(**(literal | changes))  # type: ignore[arg-type]


def step_losses(
    generator: nn.Module,
    batch: Batch,
    config: BasisTraining,
    offset_noise: Float[Tensor, " b"] | None = None,
) -> dict[str, Tensor]:
    """The four losses, AbsRel over the batch's pixels, and their weighted sum `loss`."""
    on_gpu = batch.log_depth.device.type == "cuda"
    with torch.autocast(batch.log_depth.device.type, torch.bfloat16, enabled=on_gpu):
        basis_maps, gating = generator(batch.features, batch.log_depth)
    basis_maps, gating = basis_maps.float(), gating.float()
    M = sample_at(basis_maps, batch.anchor_positions)
    solution = solve(M, batch.y, batch.anchor_weights, config.ridge, offset_noise)
    weights, offset = solution.weights.float()[..., None], solution.offset.float()[:, None]
    fitted = (M @ weights)[..., 0] + offset
    log_scale = (sample_at(basis_maps, batch.pixel_positions) @ weights)[..., 0] + offset
    log_depth = batch.mde_log_depth + log_scale
    everywhere = torch.ones_like(log_depth)
    losses = {
        "dense": dense_loss(log_depth, batch.true_log_depth, everywhere, config.beta),
        "anchor": anchor_loss(fitted, batch.y, batch.anchor_weights),
        "decor": decorrelation_loss(basis_maps),
        "gate": gate_loss(gating, config.losses.literal_gate_sum),
    }
    total = (
        losses["dense"]
        + config.losses.anchor * losses["anchor"]
        + config.losses.decor * losses["decor"]
        + config.losses.gate * losses["gate"]
    )
    absrel = (log_depth.detach() - batch.true_log_depth).exp().sub(1).abs()
    return losses | {
        "loss": total,
        "absrel": weighted_mean(absrel, everywhere),
        "g0": gating[:, 0].detach().mean(),
    }


def training_batch(
    frames: Sequence[TrainingFrame], config: BasisTraining, step: int
) -> tuple[Batch, Float[Tensor, " b"]]:
    """Anchors, pixels, mirroring and offset noise of this step, each frame's by its own name."""
    anchor_rows, pixel_rows, mirror, stretch, noise = [], [], [], [], []
    least, most = config.anchors
    for frame in frames:
        rng = seeded_rng(config.seed, str(step), frame.name)
        n = round(np.exp(rng.uniform(np.log(least - 0.5), np.log(most + 0.5))))
        n = min(max(n, least), most, len(frame.pixels))
        anchor_rows.append(draw_anchors(frame, n, config.anchor_jitter, rng))
        pixel_rows.append(rng.integers(len(frame.pixels), size=config.pixels))
        mirror.append(bool(config.mirror and rng.random() < 0.5))
        stretch.append(float(np.exp(rng.normal() * config.stretch)))
        noise.append(rng.normal() * config.offset_noise)
    batch = make_batch(frames, anchor_rows, pixel_rows, mirror, stretch)
    return batch, torch.tensor(noise, dtype=torch.float32, device=batch.log_depth.device)


def learn(  # noqa: PLR0917
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    batch: Batch,
    noise: Float[Tensor, " b"],
    config: BasisTraining,
    step: int,
    rate: float,
    share: float,
) -> dict[str, Tensor]:
    """One step of the optimiser, at a part of the learning rate; the losses before it.

    `share` is this process's part of the batch, in parts of the mean process's.
    """
    if batch.features is not None and config.feature_dropout > 0:
        step_generator(config.seed, step)
        features = nn.functional.dropout2d(batch.features, config.feature_dropout)
        batch = replace(batch, features=features)
    for group in optimiser.param_groups:
        group["lr"] = config.rate * rate
    losses = step_losses(model, batch, config, noise)
    optimiser.zero_grad(set_to_none=True)
    (losses["loss"] * share).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    return losses


@torch.no_grad()
def validation(
    generator: nn.Module, frames: Sequence[TrainingFrame], config: BasisTraining
) -> dict[str, float]:
    """Mean losses over frames with the protocol's anchors of the regime `config.validate`."""
    sums: dict[str, float] = {}
    for indices in epoch_batches(frames, config.batch, 0, 0):
        chosen = [frames[i] for i in indices]
        # Equal pixel counts make one tensor: a frame with few known pixels repeats them.
        pixels = [np.arange(PIXELS) % len(f.pixels) for f in chosen]
        anchors = [f.anchors[config.validate] for f in chosen]
        count = len(chosen)
        batch = make_batch(chosen, anchors, pixels, [False] * count, [1.0] * count)
        for name, value in step_losses(generator, batch, config).items():
            sums[name] = sums.get(name, 0.0) + float(value) * len(chosen)
    return {name: value / len(frames) for name, value in sums.items()}


def train_basis(
    config: BasisTraining,
    train: Sequence[TrainingFrame],
    val: Sequence[TrainingFrame],
    out: Path,
    *,
    device: str = "auto",
    start_from: Generator | None = None,
    show_progress: bool = True,
) -> Generator:
    """Train and write `out`/model, the checkpoint with the lowest validation loss.

    `start_from` continues another model (the paper's fine-tuning). Under torchrun every process
    takes its share of each batch, and the gradients are those of the whole batch.
    """
    rank, world = processes()
    where = pick_device(device)
    run = RunFolder(out, config, main=rank == 0)
    generator = build(config, train, start_from).to(where)
    ema = Ema(generator, config.ema)
    optimiser = torch.optim.AdamW(
        generator.parameters(), lr=config.rate, weight_decay=config.weight_decay
    )
    start, best = 0, float("inf")
    if run.checkpoint.exists():
        start, best = load_checkpoint(run.checkpoint, generator, ema, optimiser)
    model: nn.Module = generator
    if world > 1:
        model = nn.parallel.DistributedDataParallel(generator)

    per_epoch = len(epoch_batches(train, config.batch, config.seed, 0))
    steps = config.epochs * per_epoch
    progress = tqdm(
        total=steps,
        initial=start,
        desc=out.name,
        unit="step",
        disable=rank > 0 or not show_progress,
    )
    clock = Clock(where)

    def drawn(job: tuple[int, list[int]]) -> tuple[Batch, Float[Tensor, " b"]]:
        step, indices = job
        mine = indices[rank::world] or indices[:1]  # a process always takes part
        return training_batch([train[i] for i in mine], config, step)

    for epoch in range(start // per_epoch, config.epochs):
        generator.train()
        batches = epoch_batches(train, config.batch, config.seed, epoch)
        jobs = [job for job in enumerate(batches, epoch * per_epoch) if job[0] >= start]
        ready = ahead(drawn, jobs)
        for step, indices in jobs:
            with clock.waiting(step):
                batch, noise = next(ready)
            with clock.working(step):
                share = len(indices[rank::world]) * world / len(indices)
                rate = cosine_rate(step, steps, config.warmup)
                losses = learn(model, optimiser, batch, noise, config, step, rate, share)
                ema.update(generator, step)
            progress.update()
        scores = validation(ema.model, val, config)
        if rank == 0:
            last = {f"train_{k}": float(v.detach()) for k, v in losses.items()}
            run.log(step + 1, clock, **last, **{f"val_{k}": v for k, v in scores.items()})
            if scores["loss"] < best:
                best = scores["loss"]
                ema.model.save(out / "model")  # type: ignore[operator]
                data = f"Trained on {len(train)} frames, chosen on {len(val)} others."
                write_card(out, data, config, scores["absrel"])
            draw_progress(out / "progress.png", run.metrics(), ema.model, val[0])
            save_checkpoint(run.checkpoint, generator, ema, optimiser, step=step + 1, best=best)
        progress.set_postfix(val=f"{scores['dense']:.4f}", absrel=f"{scores['absrel']:.4f}")
    progress.close()
    if world > 1:
        torch.distributed.barrier()  # the first process may still be writing the model
    return Generator.load(out / "model")


def write_card(out: Path, data: str, config: BasisTraining, absrel: float) -> None:
    """The model card beside the weights."""
    card = basis_card(out.name, "one MDE's output", data, config, absrel)
    write_atomic(out / "model" / "README.md", card.encode())


def build(
    config: BasisTraining, train: Sequence[TrainingFrame], start_from: Generator | None
) -> Generator:
    """A fresh generator for these frames, or a copy of the one to start from."""
    features = train[0].features
    wanted = GeneratorConfig(
        k=config.k,
        feature_channels=0 if features is None else features.shape[0],
        zero_features=config.zero_features,
        ridge=config.ridge,
    )
    torch.manual_seed(config.seed)
    generator = Generator(wanted)
    if start_from is not None:
        if start_from.config.k != config.k:
            raise InputError(
                f"the model to start from has K = {start_from.config.k}, not {config.k}"
            )
        generator.load_state_dict(start_from.state_dict())
    return generator
