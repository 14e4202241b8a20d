"""Training `lite`: relative depth from RGB, on any dataset that gives frames with metric depth."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float
from safetensors.torch import save
from torch import Tensor, nn

from scalefield.datasets import Dataset, Frame
from scalefield.errors import InputError
from scalefield.io import write_atomic, write_json
from scalefield.mde import MDE
from scalefield.mde.lite import LiteNet, LiteNetwork, load_imagenet_encoder, load_lite
from scalefield.runtime.progress import progress
from scalefield.seeding import seeded_rng
from scalefield.training.augmentation import (
    FrameBank,
    colour_jitter,
    random_crops,
    random_erasing,
)
from scalefield.training.loop import (
    RunFolder,
    Schedule,
    StepsConfig,
    Trainer,
    pick_device,
    step_generator,
)
from scalefield.training.synthetic_rooms import Rooms


@dataclass(frozen=True)
class MDETraining(StepsConfig):
    """Hyper-parameters of the recipe."""

    steps: int = 5000
    """Steps of the optimiser; fewer where `time_limit_s` ends the run."""
    batch: int = 32
    """Crops of a step."""
    crops: tuple[tuple[int, int], ...] = ((320, 416), (256, 512))
    """Heights and widths of training crops; each batch has one of them."""
    full_resolution: bool = False
    """Predict log-depth at the resolution of the input instead of half of it."""
    coarse_pass: bool = False
    """Whether the trained estimator adds a pass over the mirrored image at a lower resolution
    (`scalefield.mde.lite.LiteNetwork`), for two fifths more time."""
    rate: float = 7e-4
    """Learning rate of the decoder."""
    encoder_rate: float = 2e-4
    """Learning rate of the pretrained encoder."""
    weight_decay: float = 0.02
    """Weight decay of AdamW."""
    warmup: int = 100
    """Steps in which the rates rise from zero."""
    gradient_weight: float = 0.5
    """Weight of the multi-scale gradient loss, which makes edges sharp."""
    metric_weight: float = 0.05
    """Weight of the absolute log-depth loss, which keeps outputs near metres."""
    balance: float = 0.5
    """A source with n frames is drawn in proportion to n^(1 − balance)."""
    folds: int = 0
    """Number of folds of scenes for cross-fitting; 0 trains on all scenes."""
    fold: int = 0
    """Index of the fold that is left out."""
    rooms: int = 0
    """Rendered rooms beside the dataset's frames, in every fold; see `training.synthetic_rooms`."""


def fold_of(scene: str, folds: int) -> int:
    """The fold that a scene belongs to: by its name, so that it never changes."""
    return int(seeded_rng(0, "fold", scene).integers(folds))


def load_frames(dataset: Dataset, config: MDETraining, device: torch.device) -> FrameBank:
    """The split "train" without the fold left out, and rooms; large images are thinned to half a
    megapixel."""
    rooms = Rooms(config.rooms, config.seed, device=str(device))

    def load(job: tuple[Dataset, str]) -> tuple[Tensor, Tensor, str, str] | None:
        source, name = job
        frame = source.load(name)
        of_a_fold = config.folds and source is not rooms
        if of_a_fold and fold_of(frame.scene, config.folds) == config.fold:
            return None
        log_depth = np.where(frame.mask, np.log(np.where(frame.mask, frame.depth_m, 1)), np.nan)
        step = max(1, round((frame.mask.size / 5e5) ** 0.5))
        image = torch.from_numpy(frame.image[::step, ::step].copy()).permute(2, 0, 1)
        depth = torch.from_numpy(log_depth[None, ::step, ::step]).half()
        return image, depth, name.rsplit("/", 1)[0], frame.scene

    jobs = [(source, name) for source in (dataset, rooms) for name in source.names("train")]
    kept = []
    with ThreadPoolExecutor(8) as pool, progress(len(jobs), desc="read", unit="frame") as bar:
        for frame in pool.map(load, jobs):
            bar.update()
            if frame is not None:
                kept.append(frame)
    if not kept:
        raise InputError("no frame is left to train on")
    height, width = (max(frame[1].shape[side] for frame in kept) for side in (1, 2))
    images = torch.zeros(len(kept), 3, height, width, dtype=torch.uint8, device=device)
    log_depth = torch.full(
        (len(kept), 1, height, width), torch.nan, dtype=torch.float16, device=device
    )
    for i, (image, depth, _, _) in enumerate(kept):
        images[i, :, : image.shape[1], : image.shape[2]] = image.to(device)
        log_depth[i, :, : depth.shape[1], : depth.shape[2]] = depth.to(device)
    return FrameBank(
        images=images,
        log_depth=log_depth,
        sizes=torch.tensor([tuple(frame[1].shape[1:]) for frame in kept]).float(),
        sources=tuple(frame[2] for frame in kept),
        scenes=tuple(frame[3] for frame in kept),
    )


def relative_loss(
    log_depth: Float[Tensor, "b 1 h w"], truth: Float[Tensor, "b 1 h w"], config: MDETraining
) -> Float[Tensor, ""]:
    """L1 of log-depth after removing each image's median offset, its gradients, and a little
    of the absolute error."""
    known = torch.isfinite(truth)
    residual = torch.where(known, log_depth - truth.nan_to_num(), 0)
    only_known = torch.where(known, residual.detach(), torch.nan).flatten(1)
    median = only_known.nanmedian(dim=1).values.nan_to_num()[:, None, None, None]
    relative = (residual - median).abs()
    return (
        mean_per_image(relative, known)
        + config.gradient_weight * gradient_loss(residual, known)
        + config.metric_weight * mean_per_image(residual.abs(), known)
    )


def gradient_loss(
    residual: Float[Tensor, "b 1 h w"], known: Bool[Tensor, "b 1 h w"]
) -> Float[Tensor, ""]:
    """Mean |∇(log D − log D_gt)| between known neighbours, over four scales."""
    total = residual.new_zeros(())
    for scale in (1, 2, 4, 8):
        r, m = residual[:, :, ::scale, ::scale], known[:, :, ::scale, ::scale]
        across = mean_per_image((r[..., 1:] - r[..., :-1]).abs(), m[..., 1:] & m[..., :-1])
        down = mean_per_image(
            (r[..., 1:, :] - r[..., :-1, :]).abs(), m[..., 1:, :] & m[..., :-1, :]
        )
        total = total + across + down
    return total / 4


def mean_per_image(values: Float[Tensor, "b 1 h w"], known: Bool[Tensor, "b 1 h w"]) -> Tensor:
    """Mean over each image's known pixels, then over images."""
    known_values = torch.where(known, values, 0).sum(dim=(1, 2, 3))
    return (known_values / known.sum(dim=(1, 2, 3)).clamp(min=1)).mean()


CropLoss = Callable[[Tensor, Tensor, torch.Generator], Tensor]
"""From crops in −1 … 1, their log-depth and a step's generator: the loss."""


def fit(
    net: nn.Module,
    crop_loss: CropLoss,
    config: MDETraining,
    bank: FrameBank,
    *,
    run: RunFolder,
    save_every: int,
) -> nn.Module:
    """Minimise the loss of random crops with AdamW; return the moving average of `net`.

    `net.encoder` is pretrained and has a rate of its own.
    """
    pretrained = [p for name, p in net.named_parameters() if name.startswith("encoder.")]
    new = [p for name, p in net.named_parameters() if not name.startswith("encoder.")]
    rates = (config.encoder_rate, config.rate)
    groups = [{"params": p, "lr": r} for p, r in zip((pretrained, new), rates, strict=True)]
    schedule, device = Schedule(config.steps, config.time_limit_s), bank.images.device
    trainer = Trainer(net, groups, config, run, schedule, device, fused=bank.images.is_cuda)
    counts = Counter(bank.sources)
    chance = torch.tensor([counts[source] ** -config.balance for source in bank.sources])
    stride = 1 if config.full_resolution else 2
    for step in trainer.steps():
        rng = step_generator(config.seed, step)
        crop = config.crops[int(torch.randint(len(config.crops), (), generator=rng))]
        chosen = torch.multinomial(chance, config.batch, replacement=True, generator=rng)
        with trainer.clock.waiting(step):
            images, truth = random_crops(bank, chosen, crop, rng, stride=stride)
        with trainer.clock.working(step):
            net.train()
            loss = crop_loss(images, truth, rng)
            trainer.update(loss)
        if trainer.due(save_every):
            trainer.log(loss=float(loss.detach()))
            trainer.keep()
    return trainer.average


def weights_of(folder: Path, config: MDETraining) -> dict[str, Tensor]:
    """Weights of a model that a training with this configuration can continue."""
    network = load_lite(folder).network
    assert isinstance(network, LiteNetwork)
    if config.full_resolution != (network.net.upsampling is not None):
        raise InputError(
            f"{folder}: full_resolution is {not config.full_resolution} there, "
            f"wanted {config.full_resolution}"
        )
    return network.net.state_dict()


def train_mde(
    config: MDETraining,
    dataset: Dataset,
    out: Path,
    *,
    encoder: Path | None,
    start_from: Path | None = None,
    device: str = "auto",
    save_every: int = 500,
) -> None:
    """Train on the split "train" (without the fold left out) and write `out`/model.

    `start_from` is the folder of a model of this architecture that the training continues, in place
    of `encoder`.
    """
    torch_device = pick_device(device)
    run = RunFolder(out, config)
    bank = load_frames(dataset, config, torch_device)
    torch.manual_seed(config.seed)
    net = LiteNet(full_resolution=config.full_resolution)
    if start_from is not None:
        net.load_state_dict(weights_of(start_from, config))
    elif encoder is not None:
        load_imagenet_encoder(net, torch.load(encoder, weights_only=True, map_location="cpu"))
    net = net.to(torch_device)

    def crop_loss(images: Tensor, truth: Tensor, rng: torch.Generator) -> Tensor:
        seen = random_erasing(colour_jitter(images, rng), rng).contiguous()
        with torch.autocast(torch_device.type, torch.bfloat16, enabled=torch_device.type == "cuda"):
            log_depth, _ = net(seen)
        return relative_loss(log_depth.float(), truth, config)

    average = fit(net, crop_loss, config, bank, run=run, save_every=save_every)
    options = {name: getattr(config, name) for name in ("full_resolution", "coarse_pass")}
    write_model(out / "model", average, config, sorted(set(bank.scenes)), **options)


def write_model(
    folder: Path, net: nn.Module, config: MDETraining, scenes: list[str], **more: object
) -> None:
    """Weights in float16 with the scenes they were trained on, for the out-of-sample check."""
    state = {k: v.half() for k, v in net.state_dict().items() if v.is_floating_point()}
    data = save({k: v.cpu().contiguous() for k, v in state.items()})
    write_atomic(folder / "model.safetensors", data)
    # With a hash: equal settings make other weights with another encoder.
    digest = hashlib.sha256(data).hexdigest()[:8]
    revision = f"s{config.seed}-f{config.fold}of{config.folds}-{config.steps}-{digest}"
    write_json(folder / "config.json", {"revision": revision, "trained_on": scenes, **more})


def aligned_absrel(mde: MDE, frame: Frame) -> float:
    """AbsRel after the best affine fit in disparity over all known pixels: the shape alone."""
    predicted = mde(frame.image).mde_depth.cpu().numpy()[frame.mask].astype(np.float64)
    truth = frame.depth_m[frame.mask].astype(np.float64)
    design = np.stack([1 / predicted, np.ones_like(predicted)], axis=1)
    fit = design @ np.linalg.lstsq(design, 1 / truth, rcond=None)[0]
    depth = 1 / fit.clip(1 / truth.max(), 1 / truth.min())
    return float(np.mean(np.abs(depth - truth) / truth))
