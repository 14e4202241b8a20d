"""Training the basis map generator through the solve, with the paper's four losses."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scalefield.basis.generator import Generator, GeneratorConfig
from scalefield.basis.grids import sample_at
from scalefield.basis.losses import (
    anchor_loss,
    decorrelation_loss,
    dense_loss,
    gate_loss,
    weighted_mean,
)
from scalefield.basis.ridge import solve
from scalefield.errors import InputError
from scalefield.io import write_atomic
from scalefield.training.bank import Batch
from scalefield.training.basis_batches import (
    Batches,
    step_plan,
    stream,
    validation_batches,
)
from scalefield.training.basis_config import BasisTraining
from scalefield.training.data import TrainingFrame
from scalefield.training.loop import (
    RunFolder,
    Schedule,
    Trainer,
    descend,
    pick_device,
    processes,
    step_generator,
    wait_for_all,
)
from scalefield.training.progress_plot import ProgressPicture

DIVERGED = (
    "the training has diverged: the basis maps are not finite any more; choose a smaller learning "
    "rate, or a limit of the gradient"
)


CARD = """# {name}

A basis map generator with K = {k} for {source}, {features}.

{data}

{epochs} epochs with {least} to {most} anchors an image, seed {seed}. On the validation frames, with
the anchors of the regime {validate}: AbsRel {absrel:.3f}.

Every other choice:

```json
{config}
```
"""
"""Model card of a generator."""


def step_losses(generator: nn.Module, batch: Batch, config: BasisTraining) -> dict[str, Tensor]:
    """The four losses, AbsRel over the batch's pixels, and their weighted sum `loss`."""
    halved = batch.log_depth.device.type == "cuda" and config.precision == "auto"
    with torch.autocast(batch.log_depth.device.type, torch.bfloat16, enabled=halved):
        basis_maps, gating = generator(batch.features, batch.log_depth)
    basis_maps, gating = basis_maps.float(), gating.float()
    M, y = sample_at(basis_maps, batch.anchors.positions), batch.anchors.y
    try:
        solution = solve(M, y, batch.anchor_weights, config.ridge, batch.offset_noise)
    except torch.linalg.LinAlgError:
        raise InputError(DIVERGED) from None
    weights, offset = solution.weights.float()[..., None], solution.offset.float()[:, None]
    fitted = (M @ weights)[..., 0] + offset
    log_scale = (sample_at(basis_maps, batch.pixels.positions) @ weights)[..., 0] + offset
    log_depth, true_log_depth = batch.pixels.mde_log_depth + log_scale, batch.pixels.true_log_depth
    everywhere = torch.ones_like(log_depth)
    losses = {
        "dense": dense_loss(log_depth, true_log_depth, everywhere, config.beta),
        "anchor": anchor_loss(fitted, y, batch.anchor_weights),
        "decor": decorrelation_loss(basis_maps),
        "gate": gate_loss(gating, config.losses.gate_reduction),
    }
    total = (
        losses["dense"]
        + config.losses.anchor * losses["anchor"]
        + config.losses.decor * losses["decor"]
        + config.losses.gate * losses["gate"]
    )
    absrel = (log_depth.detach() - true_log_depth).exp().sub(1).abs()
    return losses | {
        "loss": total,
        "absrel": weighted_mean(absrel, everywhere),
        "g0": gating[:, 0].detach().mean(),
    }


def training_step(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    batch: Batch,
    config: BasisTraining,
    step: int,
    *,
    gradient_weight: float = 1.0,
) -> dict[str, Tensor]:
    """Make one step of the optimiser; return its losses.

    `gradient_weight` is this process's number of frames divided by the mean over the processes.
    """
    if batch.features is not None and config.feature_dropout > 0:
        step_generator(config.seed, step)
        features = nn.functional.dropout2d(batch.features, config.feature_dropout)
        batch = replace(batch, features=features)
    losses = step_losses(model, batch, config)
    descend(model, optimiser, losses["loss"] * gradient_weight, config.clip)
    return losses


@torch.no_grad()
def validation(
    generator: nn.Module,
    frames: Sequence[TrainingFrame],
    config: BasisTraining,
    *,
    workers: int = 0,
    world: int = 1,
    batches: Batches | list[Batch] | None = None,
) -> dict[str, float]:
    """Mean losses over frames with the protocol's anchors of the regime `config.validate`.

    `batches` are this process's share of the frames, by default all of them; all `world` processes
    get the mean over all frames.
    """
    device = next(generator.parameters()).device
    batches = validation_batches(frames, config) if batches is None else batches
    sums = torch.zeros(len(LOGGED), dtype=torch.float64, device=device)
    for batch in stream(batches, device, workers):
        losses = step_losses(generator, batch, config)
        sums += torch.stack([losses[name].double() for name in LOGGED]) * len(batch.log_depth)
    if world > 1:
        torch.distributed.all_reduce(sums)
    means = dict(zip(LOGGED, (sums / len(frames)).tolist(), strict=True))
    if not math.isfinite(means["loss"]):  # on a GPU the solve does not report it
        raise InputError(DIVERGED)
    return means


LOGGED = ("dense", "anchor", "decor", "gate", "loss", "absrel", "g0")
"""What `step_losses` gives."""


def train_basis(
    config: BasisTraining,
    train: Sequence[TrainingFrame],
    val: Sequence[TrainingFrame],
    out: Path,
    *,
    device: str = "auto",
    start_from: Generator | None = None,
    workers: int = 0,
    checkpoint_every: int = 500,
    tensorboard: bool = False,
    picture: bool = True,
    source: str = "one MDE's output",
    show_progress: bool = True,
) -> Generator:
    """Train and write `out`/model, the checkpoint with the lowest validation loss.

    `start_from` continues another model (the paper's fine-tuning). Under torchrun every process
    takes its share of each batch, and the gradients are those of the whole batch. `workers`
    processes read prepared frames from disk. The state is saved every `checkpoint_every` steps and
    after each epoch. `picture` draws progress.png now and then. `source` names the MDE in the model
    card.
    """
    if not len(train) or not len(val):
        raise InputError(f"training needs frames, found {len(train)} and {len(val)} to validate")
    rank, world = processes()
    on = pick_device(device)
    run = RunFolder(out, config, main=rank == 0, tensorboard=tensorboard)
    generator = build(config, train, start_from).to(on)
    plan = step_plan(train, config)
    per_epoch = len(plan) // config.epochs
    trainer = Trainer(
        generator, [{"params": list(generator.parameters())}], config, run, Schedule(len(plan)), on,
        show_progress=rank == 0 and show_progress,
    )  # fmt: skip
    model = nn.parallel.DistributedDataParallel(generator) if world > 1 else generator
    shares = [indices[rank::world] for indices in plan]
    own = [share or indices[:1] for share, indices in zip(shares, plan, strict=True)]
    ready = stream(Batches(train, config, own[trainer.step :], trainer.step), on, workers)
    val_batches = validation_batches(val, config, rank, world)
    picture_file = out / "progress.png" if picture else None
    drawing = ProgressPicture(picture_file, val[0], config.validate)

    for step in trainer.steps():
        generator.train()
        with trainer.clock.waiting(step):
            batch = next(ready)
        with trainer.clock.working(step):
            weight = len(shares[step]) * world / len(plan[step])
            losses = training_step(
                model, trainer.optimiser, batch, config, step, gradient_weight=weight
            )
            trainer.update_average()
        if trainer.step % per_epoch:
            if trainer.step % checkpoint_every == 0:
                trainer.keep()
            continue
        scores = validation(
            trainer.average, val, config, workers=workers, world=world, batches=val_batches
        )
        if rank == 0:
            trainer.log(
                **{f"train_{name}": float(value.detach()) for name, value in losses.items()},
                **{f"val_{name}": value for name, value in scores.items()},
            )
            if scores["loss"] < trainer.best:
                trainer.best = scores["loss"]
                data = f"Trained on {len(train)} frames, chosen on {len(val)} others."
                write_model(out, trainer.average, source, data, config, scores["absrel"])
            drawing.draw(run.metrics(), trainer.average, last=trainer.ended)
        trainer.keep()
        trainer.show(val=scores["dense"], absrel=scores["absrel"])
    wait_for_all(world)  # the first process may still be writing the model
    return Generator.load(out / "model")


def write_model(  # noqa: PLR0917
    out: Path, model: nn.Module, source: str, data: str, config: BasisTraining, absrel: float
) -> None:
    """The weights, and the model card beside them."""
    model.save(out / "model")  # type: ignore[operator]
    card = basis_card(out.name, source, data, config, absrel)
    write_atomic(out / "model" / "README.md", card.encode())


def basis_card(name: str, source: str, data: str, config: Any, absrel: float) -> str:
    """The card of a basis map generator, made from its `BasisTraining` (or that of run.json)."""
    values = config if isinstance(config, dict) else asdict(config)
    least, most = values["anchors"]
    absent = "without features (F = 0), so that any relative depth map will do"
    return CARD.format(
        name=name,
        source=source,
        features=absent if values["zero_features"] else "with its features F",
        data=data,
        least=least,
        most=most,
        absrel=absrel,
        config=json.dumps(values, indent=1),
        **{key: values[key] for key in ("k", "epochs", "seed", "validate")},
    )


def build(
    config: BasisTraining, train: Sequence[TrainingFrame], start_from: Generator | None
) -> Generator:
    """A fresh generator for these frames, or a copy of the one to start from."""
    features = train[0].features
    wanted = GeneratorConfig(
        k=config.k,
        feature_channels=0 if features is None else features.shape[0],
        width=config.width,
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
        try:
            generator.load_state_dict(start_from.state_dict())
        except RuntimeError:
            raise InputError(
                "the model to start from has another architecture: "
                f"{start_from.config} where {wanted} is wanted"
            ) from None
    return generator
