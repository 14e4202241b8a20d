"""Training the teacher of `lite`: a pretrained ViT-S with a new decoder, on the same frames."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from scalefield.datasets import Dataset
from scalefield.errors import InputError, MissingExtra
from scalefield.mde.vit import VitNet, VitSize
from scalefield.training.augmentation import colour_jitter, random_erasing
from scalefield.training.loop import RunFolder, pick_device
from scalefield.training.mde import MDETraining, fit, load_frames, relative_loss, write_model

TEACHER = MDETraining(
    steps=4000, batch=16, rate=5e-4, encoder_rate=2e-5, weight_decay=0.05,
    crops=((308, 420), (252, 518)),
)  # fmt: skip
"""The recipe of `lite` with the rates of a pretrained transformer, and crops of multiples of 14."""


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
    """Copy an encoder that `backbone_from_onnx` found into the network."""
    try:
        net.encoder.load_state_dict(read_backbone(file))
    except RuntimeError as e:
        raise InputError(f"{file}: not the encoder of vit-s ({e})") from None


def read_backbone(file: Path) -> dict[str, Tensor]:
    """The state of the encoder that `backbone_from_onnx` found, as float32."""
    try:
        return {name: tensor.float() for name, tensor in load_file(file).items()}
    except (OSError, SafetensorError) as e:
        raise InputError(f"{file}: not the encoder of vit-s ({e})") from None


def backbone_from_onnx(file: Path) -> dict[str, Tensor]:
    """The ViT inside an ONNX file that PyTorch exported from transformers' Dinov2Model.

    The export keeps the names of biases, norms and scales. It transposes the matrices and loses
    their names, so each is found by the bias that is added to its product.
    """
    try:
        import onnx
        from onnx.numpy_helper import to_array
    except ImportError:
        raise MissingExtra("onnx", "onnx", "reading a backbone from an ONNX file") from None
    graph = onnx.load(file).graph
    found = {t.name: torch.from_numpy(to_array(t).copy()).float() for t in graph.initializer}
    matrix_of = {n.output[0]: n.input[1] for n in graph.node if n.op_type == "MatMul"}
    for node in graph.node:
        product = [name for name in node.input if name in matrix_of]
        bias = [name for name in node.input if name.endswith(".bias")]
        if node.op_type == "Add" and product and bias:
            weight = found[matrix_of[product[0]]]
            found[bias[0].removesuffix("bias") + "weight"] = weight.T.contiguous()
    (positions,) = (
        found[node.input[0]]
        for node in graph.node
        if node.name.startswith("/backbone/embeddings/Reshape") and node.input[0] in found
    )
    (cls_position,) = (
        found[node.input[0]]
        for node in graph.node
        if node.name.startswith("/backbone/embeddings/Concat") and node.input[0] in found
    )
    grid = round(positions.shape[1] ** 0.5)
    state = {
        "embed.weight": found["backbone.embeddings.patch_embeddings.projection.weight"],
        "embed.bias": found["backbone.embeddings.patch_embeddings.projection.bias"],
        "cls": found["backbone.embeddings.cls_token"],
        "cls_position": cls_position,
        "positions": positions.transpose(1, 2).unflatten(2, (grid, grid)).contiguous(),
        "norm.weight": found["backbone.layernorm.weight"],
        "norm.bias": found["backbone.layernorm.bias"],
    }
    theirs = {"project": "attention.output.dense", "fc1": "mlp.fc1", "fc2": "mlp.fc2"}
    theirs |= {"norm1": "norm1", "norm2": "norm2"}
    layer, index = "backbone.encoder.layer.0.", 0
    while layer + "norm1.weight" in found:
        block = f"blocks.{index}."
        for part in ("weight", "bias"):
            attention = (f"{layer}attention.attention.{x}." for x in ("query", "key", "value"))
            state[f"{block}qkv.{part}"] = torch.cat([found[name + part] for name in attention])
            for ours, their in theirs.items():
                state[f"{block}{ours}.{part}"] = found[f"{layer}{their}.{part}"]
        for i in (1, 2):
            state[f"{block}scale{i}"] = found[f"{layer}layer_scale{i}.lambda1"]
        index += 1
        layer = f"backbone.encoder.layer.{index}."
    return state
