"""Training the teacher of `lite`: a pretrained ViT-S with a new decoder, on the same frames."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from scalefield.datasets import Dataset
from scalefield.errors import InputError
from scalefield.mde.vit import VitNet, VitSize
from scalefield.training.augmentation import colour_jitter, random_erasing
from scalefield.training.loop import RunFolder, pick_device
from scalefield.training.mde import MDETraining, fit, load_frames, relative_loss, write_model


def train_teacher(
    config: MDETraining,
    dataset: Dataset,
    out: Path,
    *,
    backbone: Path | None,
    size: VitSize | None = None,
    device: str = "auto",
    save_every: int = 500,
) -> None:
    """Train on the split "train" (without the fold left out) and write `out`/model."""
    torch_device = pick_device(device)
    run = RunFolder(out, config)
    bank = load_frames(dataset, config, torch_device)
    torch.manual_seed(config.seed)
    net = VitNet(replace(size or VitSize(), stride=1 if config.full_resolution else 2))
    if backbone is not None:
        load_backbone(net, backbone)
    net = net.to(torch_device)

    def crop_loss(images: Tensor, truth: Tensor, rng: torch.Generator) -> Tensor:
        seen = random_erasing(colour_jitter(images, rng), rng)
        with torch.autocast(torch_device.type, torch.bfloat16, enabled=torch_device.type == "cuda"):
            log_depth = net(seen)
        return relative_loss(log_depth.float(), truth, config)

    average = fit(net, crop_loss, config, bank, run=run, save_every=save_every)
    scenes = sorted(set(bank.scenes))
    write_model(out / "model", average, config, scenes, size=asdict(net.size))


def load_backbone(net: VitNet, file: Path) -> None:
    """Copy an encoder that recipes/train_teacher.py converted into the network."""
    try:
        net.encoder.load_state_dict(read_backbone(file))
    except RuntimeError as e:
        raise InputError(f"{file}: not the encoder of vit-s ({e})") from None


def read_backbone(file: Path) -> dict[str, Tensor]:
    """The state of the encoder that recipes/train_teacher.py converted, as float32."""
    try:
        return {name: tensor.float() for name, tensor in load_file(file).items()}
    except (OSError, SafetensorError) as e:
        raise InputError(f"{file}: not the encoder of vit-s ({e})") from None
