"""Training `lite`: relative depth from RGB, on any dataset that gives frames with metric depth."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float
from safetensors.torch import save
from torch import Tensor
from tqdm import tqdm

from scalefield.datasets import Dataset, Frame
from scalefield.errors import InputError
from scalefield.files import write_atomic, write_json
from scalefield.mde import MDE
from scalefield.mde.lite import PREPROCESS, LiteNet, load_imagenet_encoder
from scalefield.sampling import generator as named_generator
from scalefield.training.loop import (
    Ema,
    RunFolder,
    cosine_rate,
    load_checkpoint,
    pick_device,
    save_checkpoint,
    step_generator,
)

CROPS = ((320, 416), (256, 512), (384, 352))
"""Heights and widths of training crops; each batch has one of them."""


@dataclass(frozen=True)
class MDETraining:
    """Hyper-parameters of the recipe."""

    steps: int = 3000
    batch: int = 32
    rate: float = 1e-3
    """Learning rate of the decoder."""
    encoder_rate: float = 3e-4
    """Learning rate of the pretrained encoder."""
    weight_decay: float = 0.02
    warmup: int = 150
    ema: float = 0.999
    gradient_weight: float = 0.5
    """Weight of the multi-scale gradient loss, which makes edges sharp."""
    metric_weight: float = 0.05
    """Weight of the absolute log-depth loss, which keeps outputs near metres."""
    balance: float = 0.5
    """A source with n frames is drawn in proportion to n^(1 − balance)."""
    folds: int = 0
    """Cross-fitting: split the scenes into so many folds … """
    fold: int = 0
    """… and leave this one out."""
    seed: int = 0


@dataclass(frozen=True, eq=False)
class DeviceFrame:
    """A frame ready for augmentation on the device."""

    image: Float[Tensor, "3 h w"]
    """float16, −1 … 1."""
    log_depth: Float[Tensor, "1 h w"]
    """float16; NaN where unknown."""
    source: str
    scene: str


def fold_of(scene: str, folds: int) -> int:
    """The fold that a scene belongs to: by its name, so that it never changes."""
    return int(named_generator(0, "fold", scene).integers(folds))


def load_frames(dataset: Dataset, names: list[str], device: torch.device) -> list[DeviceFrame]:
    """All frames in device memory, decoded by a few threads."""

    def load(name: str) -> DeviceFrame:
        frame = dataset.load(name)
        log_depth = np.where(frame.mask, np.log(np.where(frame.mask, frame.depth_m, 1)), np.nan)
        image = torch.from_numpy(frame.image.copy()).permute(2, 0, 1)
        return DeviceFrame(
            image=(image.to(device).float() / 127.5 - 1).half(),
            log_depth=torch.from_numpy(log_depth)[None].to(device).half(),
            source=name.rsplit("/", 1)[0],
            scene=frame.scene,
        )

    with ThreadPoolExecutor(8) as pool:
        return list(tqdm(pool.map(load, names), total=len(names), desc="frames", unit="frame"))


def augment(
    frame: DeviceFrame, crop: tuple[int, int], rng: torch.Generator
) -> tuple[Float[Tensor, "3 h w"], Float[Tensor, "1 h2 w2"]]:
    """A random window (place, scale, aspect, roll, mirror) with its log-depth at half the size."""
    height, width = frame.image.shape[1:]
    draw = torch.rand(6, generator=rng).tolist()
    working = PREPROCESS.target((height, width))
    density = working[0] / height * 2 ** (draw[0] - 0.5)
    aspect = 1.3 ** (draw[1] - 0.5)
    # The window must fit: source pixels covered along each side, at most the whole image.
    shrink = min(1.0, density * height / (crop[0] * aspect), density * width * aspect / crop[1])
    window_h, window_w = crop[0] * aspect * shrink / density, crop[1] / aspect * shrink / density
    centre_v = (window_h + (height - window_h) * 2 * draw[2]) / height - 1
    centre_u = (window_w + (width - window_w) * 2 * draw[3]) / width - 1
    roll = (draw[4] - 0.5) * 0.14
    mirror = -1.0 if draw[5] < 0.5 else 1.0
    cos, sin = float(np.cos(roll)), float(np.sin(roll))
    theta = torch.tensor(
        [
            [mirror * window_w / width * cos, -window_h / width * sin, centre_u],
            [mirror * window_w / height * sin, window_h / height * cos, centre_v],
        ],
        device=frame.image.device,
    )[None]
    image_at = nnf.affine_grid(theta, [1, 1, *crop], align_corners=False)
    depth_at = nnf.affine_grid(theta, [1, 1, crop[0] // 2, crop[1] // 2], align_corners=False)
    image = nnf.grid_sample(
        frame.image[None].float(), image_at, "bilinear", "reflection", align_corners=False
    )
    inside = (depth_at.abs() <= 1).all(dim=-1)[0]
    log_depth = nnf.grid_sample(
        frame.log_depth[None].float(), depth_at, "nearest", "border", align_corners=False
    )
    return image[0], torch.where(inside, log_depth[0], torch.nan)


def colour(images: Float[Tensor, "b 3 h w"], rng: torch.Generator) -> Float[Tensor, "b 3 h w"]:
    """Random exposure, contrast, gamma, white balance, saturation, blur and noise an image."""
    batch = images.shape[0]

    def draw(*shape: int) -> Tensor:
        return torch.rand(batch, *shape, 1, 1, generator=rng).to(images.device)

    x = (images + 1) / 2
    x = x.clamp(1e-3, 1) ** (2 ** ((draw(1) - 0.5) * 1.4))  # gamma
    x = x * (0.75 + 0.5 * draw(1)) * (0.85 + 0.3 * draw(3))  # exposure, white balance
    mean = x.mean(dim=(2, 3), keepdim=True)
    x = mean + (x - mean) * (0.6 + 0.8 * draw(1))  # contrast
    grey = x.mean(dim=1, keepdim=True)
    saturation = 1.6 * draw(1) * (draw(1) > 0.1)  # one in ten is grey
    x = grey + (x - grey) * saturation
    blurred = nnf.avg_pool2d(nnf.pad(x, (2, 2, 2, 2), mode="replicate"), 5, 1)
    x = x + (blurred - x) * (draw(1) - 0.4).clamp(min=0) * 1.5
    x = x + torch.randn_like(x) * 0.04 * draw(1)
    return x.clamp(0, 1) * 2 - 1


def relative_loss(
    log_depth: Float[Tensor, "b 1 h w"], truth: Float[Tensor, "b 1 h w"], config: MDETraining
) -> Float[Tensor, ""]:
    """L1 of log-depth after removing each image's median offset, its gradients, and a little
    of the absolute error."""
    known = torch.isfinite(truth)
    residual = torch.where(known, log_depth - truth.nan_to_num(), 0)
    unknown_far = torch.where(known, residual, torch.inf).flatten(1)
    middle = (known.flatten(1).sum(1) // 2).clamp(max=unknown_far.shape[1] - 1)
    median = unknown_far.sort(dim=1).values.gather(1, middle[:, None])
    median = median.nan_to_num(posinf=0)[:, :, None, None].detach()
    relative = (residual - median).abs()
    return (
        per_image(relative, known)
        + config.gradient_weight * gradient_loss(residual, known)
        + config.metric_weight * per_image(residual.abs(), known)
    )


def gradient_loss(
    residual: Float[Tensor, "b 1 h w"], known: Bool[Tensor, "b 1 h w"]
) -> Float[Tensor, ""]:
    """Mean |∇(log D − log D_gt)| between known neighbours, over four scales."""
    total = residual.new_zeros(())
    for scale in (1, 2, 4, 8):
        r, m = residual[:, :, ::scale, ::scale], known[:, :, ::scale, ::scale]
        across = per_image((r[..., 1:] - r[..., :-1]).abs(), m[..., 1:] & m[..., :-1])
        down = per_image((r[..., 1:, :] - r[..., :-1, :]).abs(), m[..., 1:, :] & m[..., :-1, :])
        total = total + across + down
    return total / 4


def per_image(values: Float[Tensor, "b 1 h w"], known: Bool[Tensor, "b 1 h w"]) -> Tensor:
    """Mean over each image's known pixels, then over images."""
    known_values = torch.where(known, values, 0).sum(dim=(1, 2, 3))
    return (known_values / known.sum(dim=(1, 2, 3)).clamp(min=1)).mean()


def train_mde(
    config: MDETraining,
    dataset: Dataset,
    out: Path,
    *,
    encoder: Path | None,
    device: str = "auto",
    save_every: int = 500,
) -> None:
    """Train on the split "train" (without the fold left out) and write `out`/model."""
    where = pick_device(device)
    run = RunFolder(out, config)
    frames = load_frames(dataset, dataset.names("train"), where)
    if config.folds:
        frames = [f for f in frames if fold_of(f.scene, config.folds) != config.fold]
    torch.manual_seed(config.seed)
    net = LiteNet()
    if encoder is not None:
        load_imagenet_encoder(net, torch.load(encoder, weights_only=True, map_location="cpu"))
    net = net.to(where).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    ema = Ema(net, config.ema)
    inside = set(net.encoder.parameters())
    groups = [
        {"params": list(net.encoder.parameters()), "lr": config.encoder_rate},
        {"params": [p for p in net.parameters() if p not in inside], "lr": config.rate},
    ]
    optimiser = torch.optim.AdamW(groups, weight_decay=config.weight_decay)
    rates = [group["lr"] for group in optimiser.param_groups]
    start = 0
    if run.checkpoint.exists():
        start, _ = load_checkpoint(run.checkpoint, net, ema, optimiser)

    counts = Counter(f.source for f in frames)
    chance = torch.tensor([counts[f.source] ** -config.balance for f in frames])
    progress = tqdm(range(start, config.steps), initial=start, total=config.steps, desc="lite")
    for step in progress:
        rng = step_generator(config.seed, step)
        crop = CROPS[int(torch.randint(len(CROPS), (), generator=rng))]
        chosen = torch.multinomial(chance, config.batch, replacement=True, generator=rng)
        pairs = [augment(frames[i], crop, rng) for i in chosen.tolist()]
        images = colour(torch.stack([p[0] for p in pairs]), rng)
        truth = torch.stack([p[1] for p in pairs])
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * cosine_rate(step, config.steps, config.warmup)
        net.train()
        with torch.autocast(where.type, torch.bfloat16, enabled=where.type == "cuda"):
            log_depth, _ = net(images.contiguous(memory_format=torch.channels_last))
        loss = relative_loss(log_depth.float(), truth, config)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        ema.update(net, step)
        if (step + 1) % save_every == 0 or step + 1 == config.steps:
            run.log(step + 1, loss=float(loss.detach()))
            save_checkpoint(run.checkpoint, net, ema, optimiser, step=step + 1, best=float("inf"))
    write_lite(out / "model", ema.model, config, sorted({f.scene for f in frames}))


def write_lite(folder: Path, net: torch.nn.Module, config: MDETraining, scenes: list[str]) -> None:
    """Weights in float16 with the scenes they were trained on, for the out-of-sample check."""
    state = {k: v.half() for k, v in net.state_dict().items() if v.is_floating_point()}
    write_atomic(
        folder / "model.safetensors", save({k: v.cpu().contiguous() for k, v in state.items()})
    )
    revision = f"s{config.seed}-f{config.fold}of{config.folds}-{config.steps}"
    write_json(folder / "config.json", {"revision": revision, "trained_on": scenes})


def trained_on(folder: Path) -> set[str]:
    """The scenes that a model's training saw."""
    try:
        return set(json.loads((Path(folder) / "config.json").read_text())["trained_on"])
    except (OSError, ValueError, KeyError) as e:
        raise InputError(
            f"{folder}: config.json does not say what it was trained on ({e})"
        ) from None


def aligned_absrel(mde: MDE, frame: Frame) -> float:
    """AbsRel after the best affine fit in disparity over all known pixels: the shape alone."""
    predicted = mde(frame.image).mde_depth.cpu().numpy()[frame.mask].astype(np.float64)
    truth = frame.depth_m[frame.mask].astype(np.float64)
    design = np.stack([1 / predicted, np.ones_like(predicted)], axis=1)
    fit = design @ np.linalg.lstsq(design, 1 / truth, rcond=None)[0]
    depth = 1 / fit.clip(1 / truth.max(), 1 / truth.min())
    return float(np.mean(np.abs(depth - truth) / truth))
