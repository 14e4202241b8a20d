"""Training the basis map generator through the solve, with the paper's four losses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
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
    Batch,
    TrainingFrame,
    draw_anchors,
    epoch_batches,
    make_batch,
)
from scalefield.training.loop import (
    Clock,
    Ema,
    OptimiserConfig,
    RunFolder,
    ahead,
    cosine_rate,
    load_checkpoint,
    pick_device,
    processes,
    save_checkpoint,
    step_generator,
    wait_for_all,
)
from scalefield.training.model_card import basis_card
from scalefield.training.prepared import PreparedFrames, start_worker
from scalefield.training.progress_plot import ProgressPicture
from scalefield.training.resident import ResidentFrames


@dataclass(frozen=True)
class BasisTraining(OptimiserConfig):
    """Hyper-parameters. The defaults were chosen on val; `paper_preset` has the paper's words."""

    k: int = 8
    """K, the number of basis maps."""
    anchors: tuple[int, int] = (1, 30)
    """Least and largest number of anchors of an image in a step."""
    anchor_draw: Literal["fresh", "protocol"] = "fresh"
    """fresh: new anchors in every step. protocol: in every step the anchors that the benchmark's
    protocol draws for the image in the regime `validate`, as the paper's fixed seed does."""
    counts: Literal["log-uniform", "uniform"] = "log-uniform"
    """How the number of fresh anchors is drawn between the two of `anchors`."""
    anchor_jitter: float = 1.0
    """Shift of the fresh anchors' grid candidates, as a share of a grid cell."""
    validate: str = "low"
    """Regime whose validation loss chooses the checkpoint."""
    epochs: int = 16
    """Passes over the training frames."""
    batch: int = 24
    """Frames of a step, over all processes."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 for no limit."""
    precision: Literal["auto", "float32"] = "auto"
    """auto: on a GPU the network runs in bfloat16, and losses and solve in float32 and float64."""
    width: int = 64
    """Channels of the trunk."""
    pixels: int = 2048
    """Known pixels an image that the dense loss uses in a step, drawn anew; 0 for all that were
    kept in preparation."""
    beta: float = 0.1
    """Residual of log-depth at which SmoothL1 changes from square to absolute."""
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

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(2, "k", "width")
        self.require_at_least(1, "epochs")
        self.require_at_least(0, "clip", "pixels", "beta", "anchor_jitter", "stretch")
        self.require_at_least(0, "offset_noise", "feature_dropout")
        least, most = self.anchors
        if not 1 <= least <= most:
            raise InputError(f"anchors must be two counts from 1 up, found {least} and {most}")

    @property
    def draws_nothing(self) -> bool:
        """Whether a frame has the same anchors, pixels and depth in every step."""
        changes = self.mirror or self.stretch or self.offset_noise or self.pixels
        return self.anchor_draw == "protocol" and not changes


def default_preset(k: int, regime: str, **changes: object) -> BasisTraining:
    """Our recipe: one model for all of low and below, or one from medium to high."""
    anchors = (1, 30) if regime == "low" else (30, 530)
    chosen = {"k": k, "anchors": anchors, "validate": regime}
    return BasisTraining(**(chosen | changes))  # type: ignore[arg-type]


def paper_preset(
    k: int, regime: str, *, fine_tune: bool = False, **changes: object
) -> BasisTraining:
    """The paper's recipe: 25 epochs in one regime, or 5 more to move a model to another one.

    The protocol's anchors with their fixed seed, all four losses as printed, a plain ridge, no
    augmentation, no average of the weights. What the paper leaves open keeps our defaults;
    docs/paper.md lists each choice.
    """
    literal = {
        "k": k,
        "anchors": REGIMES[regime],
        "anchor_draw": "protocol",
        "counts": "uniform",
        "anchor_jitter": 0.0,
        "validate": regime,
        "epochs": 5 if fine_tune else 25,
        "ema": 0.0,
        "clip": 0.0,
        "pixels": 0,
        "beta": 1.0,
        "mirror": False,
        "offset_noise": 0.0,
        "stretch": 0.0,
        "feature_dropout": 0.0,
        "losses": LossWeights(literal_gate_sum=True),
        "ridge": LITERAL,
    }
    return BasisTraining(**(literal | changes))  # type: ignore[arg-type]


DIVERGED = (
    "the training has diverged: the basis maps are not finite any more; choose a smaller learning "
    "rate, or a limit of the gradient"
)


def step_losses(generator: nn.Module, batch: Batch, config: BasisTraining) -> dict[str, Tensor]:
    """The four losses, AbsRel over the batch's pixels, and their weighted sum `loss`."""
    halved = batch.log_depth.device.type == "cuda" and config.precision == "auto"
    with torch.autocast(batch.log_depth.device.type, torch.bfloat16, enabled=halved):
        basis_maps, gating = generator(batch.features, batch.log_depth)
    basis_maps, gating = basis_maps.float(), gating.float()
    M = sample_at(basis_maps, batch.anchor_positions)
    try:
        solution = solve(M, batch.y, batch.anchor_weights, config.ridge, batch.offset_noise)
    except torch.linalg.LinAlgError:
        raise InputError(DIVERGED) from None
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


def training_batch(frames: Sequence[TrainingFrame], config: BasisTraining, step: int) -> Batch:
    """Anchors, pixels, mirroring and offset noise of this step, each frame's by its own name."""
    anchor_rows, pixel_rows, mirror, stretch, noise = [], [], [], [], []
    frames = [without_features(frame) for frame in frames] if config.zero_features else frames
    # Equal counts make one tensor: a frame with few known pixels repeats them.
    most = max(frame.drawn for frame in frames)
    for frame in frames:
        rng = seeded_rng(config.seed, str(step), frame.name)
        if config.anchor_draw == "protocol":
            anchor_rows.append(protocol_anchors(frame, config.validate))
        else:
            n = min(draw_count(config, rng), len(frame.pixels))
            anchor_rows.append(draw_anchors(frame, n, config.anchor_jitter, rng))
        pixel_rows.append(
            rng.integers(frame.drawn, size=config.pixels)
            if config.pixels
            else np.arange(most) % frame.drawn
        )
        mirror.append(bool(config.mirror and rng.random() < 0.5))
        stretch.append(float(np.exp(rng.normal() * config.stretch)))
        noise.append(rng.normal() * config.offset_noise)
    return make_batch(frames, anchor_rows, pixel_rows, mirror, stretch, offset_noise=noise)


def draw_count(config: BasisTraining, rng: np.random.Generator) -> int:
    """A number of anchors between the least and the largest."""
    least, most = config.anchors
    if config.counts == "uniform":
        return int(rng.integers(least, most, endpoint=True))
    n = round(np.exp(rng.uniform(np.log(least - 0.5), np.log(most + 0.5))))
    return min(max(n, least), most)


def protocol_anchors(frame: TrainingFrame, regime: str) -> Int64[np.ndarray, " n"]:
    """Rows of the anchors that the protocol draws for a frame."""
    if regime not in frame.anchors:
        kept = ", ".join(map(str, frame.anchors)) or "none"
        raise InputError(
            f"{frame.name}: prepared without the anchors of the regime {regime}; it has {kept}"
        )
    return frame.anchors[regime]


def without_features(frame: TrainingFrame) -> TrainingFrame:
    """The frame without F, which is then never read from disk nor sent to the device."""
    return replace(frame, features=None, quantisation=None)


def learn(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    batch: Batch,
    config: BasisTraining,
    step: int,
    *,
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
    losses = step_losses(model, batch, config)
    optimiser.zero_grad(set_to_none=True)
    (losses["loss"] * share).backward()
    if config.clip:
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
    optimiser.step()
    return losses


class StepBatches(Dataset[Batch]):
    """The batches of steps `first` … `last` − 1, each made from the seed and the step alone."""

    def __init__(
        self,
        frames: Sequence[TrainingFrame],
        config: BasisTraining,
        *,
        first: int,
        last: int,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.frames, self.config = frames, config
        self.first, self.last, self.rank, self.world = first, last, rank, world
        self.per_epoch = len(epoch_batches(frames, config.batch, config.seed, 0))
        self._epoch: tuple[int, list[list[int]]] = (-1, [])

    def __len__(self) -> int:
        """Number of steps."""
        return self.last - self.first

    def __getitem__(self, index: int) -> Batch:
        """This process's part of the batch of step `first` + index."""
        # Torch asks for items until there is an end, and so does a plain loop.
        if index >= len(self):
            raise IndexError(index)
        frames = [self.frames[i] for i in self.mine(index)]
        return training_batch(frames, self.config, self.first + index)

    def mine(self, index: int) -> list[int]:
        """The frames of step `first` + index that this process takes."""
        indices = self.indices(self.first + index)
        return indices[self.rank :: self.world] or indices[:1]

    def indices(self, step: int) -> list[int]:
        """The frames of a step, of all processes."""
        epoch, place = divmod(step, self.per_epoch)
        if self._epoch[0] != epoch:
            batches = epoch_batches(self.frames, self.config.batch, self.config.seed, epoch)
            self._epoch = epoch, batches
        return self._epoch[1][place]

    def share(self, step: int) -> float:
        """This process's part of a step's batch, in parts of the mean process's."""
        indices = self.indices(step)
        return len(indices[self.rank :: self.world]) * self.world / len(indices)


class ValidationBatches(Dataset[Batch]):
    """Validation frames in batches, with the protocol's anchors of the regime and all pixels."""

    def __init__(
        self, frames: Sequence[TrainingFrame], config: BasisTraining, rank: int = 0, world: int = 1
    ) -> None:
        self.frames, self.config = frames, config
        self.batches = epoch_batches(frames, config.batch, 0, 0)[rank::world]

    def __len__(self) -> int:
        """Number of batches of this process."""
        return len(self.batches)

    def __getitem__(self, index: int) -> Batch:
        """One batch."""
        if index >= len(self.batches):
            raise IndexError(index)
        chosen = [self.frames[i] for i in self.mine(index)]
        if self.config.zero_features:
            chosen = [without_features(frame) for frame in chosen]
        count, most = len(chosen), max(frame.drawn for frame in chosen)
        return make_batch(
            chosen,
            [protocol_anchors(frame, self.config.validate) for frame in chosen],
            [np.arange(most) % frame.drawn for frame in chosen],
            [False] * count,
            [1.0] * count,
        )

    def mine(self, index: int) -> list[int]:
        """The frames of a batch."""
        return self.batches[index]


def stream(
    batches: StepBatches | ValidationBatches, device: torch.device, workers: int
) -> Iterator[Batch]:
    """The batches in order on the device, made ahead of time.

    `workers` processes of a DataLoader make them from prepared frames on disk. Without workers, or
    where frames lie in memory already, two threads do. Frames that lie on the device and are the
    same in every step are gathered there, without any work ahead of time.
    """
    frames, config = batches.frames, batches.config
    if isinstance(frames, ResidentFrames) and config.draws_nothing:
        for i in range(len(batches)):
            yield frames.gather(
                batches.mine(i), config.validate, zero_features=config.zero_features
            )
        return
    if workers and isinstance(batches.frames, PreparedFrames):
        loader: DataLoader = DataLoader(
            batches,
            batch_size=None,
            num_workers=min(workers, max(1, len(batches))),
            pin_memory=device.type == "cuda",
            prefetch_factor=2,
            worker_init_fn=start_worker,
        )
        yield from (batch.to(device) for batch in loader)
        return
    for batch in ahead(batches.__getitem__, range(len(batches))):
        yield (batch.pin_host() if device.type == "cuda" else batch).to(device)


@torch.no_grad()
def validation(
    generator: nn.Module,
    frames: Sequence[TrainingFrame],
    config: BasisTraining,
    *,
    workers: int = 0,
    rank: int = 0,
    world: int = 1,
    kept: Sequence[Batch] | None = None,
) -> dict[str, float]:
    """Mean losses over frames with the protocol's anchors of the regime `config.validate`.

    Each process scores its part of the frames, and all get the mean over all of them. `kept` are
    the batches themselves, where `keep_batches` made them before.
    """
    device = next(generator.parameters()).device
    names: list[str] = []
    sums = torch.zeros(len(LOGGED), dtype=torch.float64, device=device)
    ready: Iterator[Batch] = (
        stream(ValidationBatches(frames, config, rank, world), device, workers)
        if kept is None
        else (batch.to(device) for batch in kept)
    )
    for batch in ready:
        losses = step_losses(generator, batch, config)
        names = list(losses)
        sums += torch.stack([value.double() for value in losses.values()]) * len(batch.y)
    if world > 1:
        torch.distributed.all_reduce(sums)
    means = dict(zip(names or LOGGED, (sums / len(frames)).tolist(), strict=True))
    if not math.isfinite(means["loss"]):  # on a GPU the solve does not report it
        raise InputError(DIVERGED)
    return means


def keep_batches(
    frames: Sequence[TrainingFrame],
    config: BasisTraining,
    *,
    rank: int = 0,
    world: int = 1,
    most_bytes: int = 2**30,
) -> list[Batch] | None:
    """The validation batches in host memory, which every epoch uses; None where they are large."""
    if not isinstance(frames, PreparedFrames) or frames.size_bytes > most_bytes * world:
        return None
    batches = ValidationBatches(frames, config, rank, world)
    return [batches[i] for i in range(len(batches))]


LOGGED = ("dense", "anchor", "decor", "gate", "loss", "absrel", "g0")
"""What `step_losses` gives, in its order."""


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
    ema = Ema(generator, config.ema)
    optimiser = torch.optim.AdamW(
        generator.parameters(), lr=config.rate, weight_decay=config.weight_decay
    )
    start, best = 0, float("inf")
    if run.checkpoint.exists():
        start, best = load_checkpoint(run.checkpoint, generator, ema, optimiser)
    model = nn.parallel.DistributedDataParallel(generator) if world > 1 else generator

    per_epoch = len(epoch_batches(train, config.batch, config.seed, 0))
    steps = config.epochs * per_epoch
    batches = StepBatches(train, config, first=start, last=steps, rank=rank, world=world)
    quiet = rank > 0 or not show_progress
    progress = tqdm(total=steps, initial=start, desc=out.name, unit="step", disable=quiet)
    clock, ready = Clock(on, run.elapsed_s if start else 0.0), stream(batches, on, workers)
    kept = keep_batches(val, config, rank=rank, world=world)
    drawing = ProgressPicture(out / "progress.png" if picture else None, val[0], config.validate)

    def save(step: int) -> None:
        if rank == 0:
            save_checkpoint(run.checkpoint, generator, ema, optimiser, step=step, best=best)

    for step in range(start, steps):
        generator.train()
        with clock.waiting(step):
            batch = next(ready)
        with clock.working(step):
            rate, share = cosine_rate(step, steps, config.warmup), batches.share(step)
            losses = learn(model, optimiser, batch, config, step, rate=rate, share=share)
            ema.update(generator, step)
        progress.update()
        if (step + 1) % per_epoch:
            if (step + 1) % checkpoint_every == 0:
                save(step + 1)
            continue
        scores = validation(
            ema.model, val, config, workers=workers, rank=rank, world=world, kept=kept
        )
        if rank == 0:
            last = {f"train_{k}": float(v.detach()) for k, v in losses.items()}
            last |= {f"val_{k}": v for k, v in scores.items()}
            run.log(step + 1, clock, elapsed_s=clock.elapsed_s, **last)
            if scores["loss"] < best:
                best = scores["loss"]
                data = f"Trained on {len(train)} frames, chosen on {len(val)} others."
                write_model(out, ema.model, source, data, config, scores["absrel"])
            drawing.draw(run.metrics(), ema.model, last=step + 1 == steps)
        save(step + 1)
        progress.set_postfix(val=f"{scores['dense']:.4f}", absrel=f"{scores['absrel']:.4f}")
    progress.close()
    wait_for_all(world)  # the first process may still be writing the model
    return Generator.load(out / "model")


def write_model(  # noqa: PLR0917
    out: Path, model: nn.Module, source: str, data: str, config: BasisTraining, absrel: float
) -> None:
    """The weights, and the model card beside them."""
    model.save(out / "model")  # type: ignore[operator]
    card = basis_card(out.name, source, data, config, absrel)
    write_atomic(out / "model" / "README.md", card.encode())


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
