"""Weights in the form their authors publish: checked, renamed, and kept as safetensors.

Two forms hold pickles: `pytorch_model.bin` of the hub, in the names of the transformers library,
and the release files of MiDaS (`dpt_hybrid-midas-501f0c75.pt`, `dpt_large-midas-2f21e586.pt`) and
Depth Anything (`depth_anything_v2_vits.pth`, …), in the names of timm and of their own heads. Both
are read with `torch.load(weights_only=True)`, which runs no code of the file, and are converted
once to `model.safetensors` and `config.json`.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalefield.errors import InputError, one_line
from scalefield.io import write_atomic, write_json

RELEASE_SUFFIXES = (".pt", ".pth")

HEAD_CHANNELS = 64
"""Channels of an attention head: the same in every published network, and not in the weights."""

Rule = tuple[str, str | Callable[[re.Match[str]], str] | None]
"""A pattern for a whole name, and the new name; None drops the weight."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a pickled state dict by name; a file that holds anything else is refused.

    A state dict under the single key `model` or `state_dict` is accepted as well.
    """
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, OSError) as e:
        named = re.search(r"\bGLOBAL ([\w.]+)", str(e))  # an object that torch does not load
        why = f"it names the Python object {named[1]}" if named else one_line(e, 120)
        raise InputError(
            f"{path}: not a file of weights alone, which is all that is read ({why})"
        ) from None
    if isinstance(found, Mapping) and len(found) == 1 and next(iter(found)) in WRAPPERS:
        found = next(iter(found.values()))
    if not isinstance(found, Mapping) or not found:
        raise InputError(f"{path}: wanted tensors by name, found {type(found).__name__}")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise InputError(
                f"{path}: wanted nothing but tensors by name, found {type(value).__name__} under "
                f"{one_line(name)!r}"
            )
    return dict(found)


WRAPPERS = ("model", "state_dict")


def convert_pickle(path: Path, config: Path, out: Path) -> None:
    """Write the tensors of a `pytorch_model.bin` as `out`/model.safetensors, beside its config."""
    write_converted(out, read_tensors(path), json.loads(config.read_bytes()), path)


def convert_release(path: Path, out: Path) -> None:
    """Write a release file of MiDaS or Depth Anything in the names of transformers."""
    state, config = from_release(read_tensors(path), path)
    write_converted(out, state, config, path)


def write_converted(
    out: Path, state: Mapping[str, Tensor], config: Mapping[str, Any], source: Path
) -> None:
    """Write config.json, then model.safetensors, whose presence marks a complete conversion."""
    from safetensors.torch import save

    # Cloned: tensors of one storage, which a pickle may hold, are not safetensors.
    tensors = {name: value.detach().clone().contiguous() for name, value in state.items()}
    write_json(out / "config.json", dict(config))
    write_json(out / "source.json", {"file": source.name})
    write_atomic(out / "model.safetensors", save(tensors, metadata={"format": "pt"}))


def from_release(
    state: Mapping[str, Tensor], path: Path
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and configuration for transformers of a release file's state dict.

    Sizes are read off the weights. Whether a Depth Anything is V1 or V2, relative or metric, is
    in the published name of the file alone.
    """
    try:
        if "pretrained.model.pos_embed" in state:
            hybrid = any(name.startswith(_MIDAS_BACKBONE) for name in state)
            rules, config = midas_rules(hybrid=hybrid), midas_config(state, hybrid=hybrid)
        elif "pretrained.pos_embed" in state and "depth_head.projects.0.weight" in state:
            rules, config = depth_anything_rules(), depth_anything_config(state, path.name)
        else:
            raise InputError(
                f"{path}: neither MiDaS DPT nor Depth Anything; its first weight is "
                f"{one_line(next(iter(state)))!r}"
            )
    except InputError:
        raise
    except (KeyError, IndexError, ValueError) as e:
        raise InputError(f"{path}: weights are missing, such as {one_line(e)}") from None
    return renamed(state, rules, path), config


def renamed(state: Mapping[str, Tensor], rules: list[Rule], path: Path) -> dict[str, Tensor]:
    """Every weight under its new name; timm's joint `qkv` becomes query, key and value."""
    result: dict[str, Tensor] = {}
    for name, value in state.items():
        new = _new_name(name, rules)
        if new is None:
            raise InputError(f"{path}: the weight {one_line(name)!r} belongs to another network")
        if not new:
            continue
        if ".qkv." in new:
            parts = zip(("query", "key", "value"), value.chunk(3, dim=0), strict=True)
            result |= {new.replace("qkv", f"attention.{part}"): tensor for part, tensor in parts}
        else:
            result[new] = value
    return result


def _new_name(name: str, rules: list[Rule]) -> str | None:
    """The name after the one rule that fits: empty where it is dropped, None where none fits."""
    for pattern, new in rules:
        found = re.fullmatch(pattern, name)
        if found:
            if new is None:
                return ""
            return new(found) if callable(new) else found.expand(new)
    return None


_PARAMETER = r"(weight|bias)"
_MIDAS_BACKBONE = "pretrained.model.patch_embed.backbone."


def _block_rules(prefix: str, layer: str, names: Mapping[str, str]) -> list[Rule]:
    """Rules for the parts of a transformer's blocks, from timm's names."""
    return [
        (rf"{prefix}\.blocks\.(\d+)\.{re.escape(theirs)}\.{_PARAMETER}", rf"{layer}.\1.{ours}.\2")
        for theirs, ours in names.items()
    ]


def _scratch_rules(prefix: str) -> list[Rule]:
    """Rules for the fusion of DPT, which both families have under the same names."""
    return [
        (rf"{prefix}layer([1-4])_rn\.weight", lambda m: f"neck.convs.{int(m[1]) - 1}.weight"),
        (
            rf"{prefix}refinenet([1-4])\.out_conv\.{_PARAMETER}",
            lambda m: f"neck.fusion_stage.layers.{4 - int(m[1])}.projection.{m[2]}",
        ),
        (
            rf"{prefix}refinenet([1-4])\.resConfUnit([12])\.conv([12])\.{_PARAMETER}",
            lambda m: (
                f"neck.fusion_stage.layers.{4 - int(m[1])}.residual_layer{m[2]}"
                f".convolution{m[3]}.{m[4]}"
            ),
        ),
    ]


def midas_rules(*, hybrid: bool) -> list[Rule]:
    """From the names of MiDaS DPT-Hybrid or DPT-Large (timm's ViT inside) to transformers'."""
    model, bit = r"pretrained\.model", "dpt.embeddings.backbone.bit"
    backbone = re.escape(_MIDAS_BACKBONE)
    projection = "projection" if hybrid else "patch_embeddings.projection"
    blocks = {
        "attn.qkv": "attention.qkv",
        "attn.proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
        "norm1": "layernorm_before",
        "norm2": "layernorm_after",
    }
    reassemble = "neck.reassemble_stage"
    return [
        (rf"{model}\.head\..*", None),  # ImageNet's classes
        (rf"{model}\.cls_token", "dpt.embeddings.cls_token"),
        (rf"{model}\.pos_embed", "dpt.embeddings.position_embeddings"),
        (rf"{model}\.patch_embed\.proj\.{_PARAMETER}", rf"dpt.embeddings.{projection}.\1"),
        (rf"{backbone}stem\.conv\.weight", f"{bit}.embedder.convolution.weight"),
        (rf"{backbone}stem\.norm\.{_PARAMETER}", rf"{bit}.embedder.norm.\1"),
        (
            rf"{backbone}stages\.(\d+)\.blocks\.(\d+)\."
            rf"((?:downsample\.)?(?:conv|norm)\d?)\.{_PARAMETER}",
            rf"{bit}.encoder.stages.\1.layers.\2.\3.\4",
        ),
        *_block_rules(model, "dpt.encoder.layer", blocks),
        (rf"{model}\.norm\.{_PARAMETER}", r"dpt.layernorm.\1"),
        (
            rf"pretrained\.act_postprocess([1-4])\.0\.project\.0\.{_PARAMETER}",
            lambda m: f"{reassemble}.readout_projects.{int(m[1]) - 1}.0.{m[2]}",
        ),
        (
            rf"pretrained\.act_postprocess([1-4])\.3\.{_PARAMETER}",
            lambda m: f"{reassemble}.layers.{int(m[1]) - 1}.projection.{m[2]}",
        ),
        (
            rf"pretrained\.act_postprocess([124])\.4\.{_PARAMETER}",
            lambda m: f"{reassemble}.layers.{int(m[1]) - 1}.resize.{m[2]}",
        ),
        *_scratch_rules(r"scratch\."),
        (rf"scratch\.output_conv\.([024])\.{_PARAMETER}", r"head.head.\1.\2"),
    ]


def depth_anything_rules() -> list[Rule]:
    """From the names of Depth Anything V1 and V2 (DINOv2's ViT inside) to transformers'."""
    head, reassemble = r"depth_head\.", "neck.reassemble_stage.layers"
    embeddings = "backbone.embeddings"
    blocks = {
        "attn.qkv": "attention.qkv",
        "attn.proj": "attention.output.dense",
        "mlp.fc1": "mlp.fc1",
        "mlp.fc2": "mlp.fc2",
        "norm1": "norm1",
        "norm2": "norm2",
    }
    layer = "backbone.encoder.layer"
    return [
        (r"pretrained\.(cls_token|mask_token)", rf"{embeddings}.\1"),
        (r"pretrained\.pos_embed", f"{embeddings}.position_embeddings"),
        (
            rf"pretrained\.patch_embed\.proj\.{_PARAMETER}",
            rf"{embeddings}.patch_embeddings.projection.\1",
        ),
        (r"pretrained\.blocks\.(\d+)\.ls([12])\.gamma", rf"{layer}.\1.layer_scale\2.lambda1"),
        *_block_rules("pretrained", layer, blocks),
        (rf"pretrained\.norm\.{_PARAMETER}", r"backbone.layernorm.\1"),
        (rf"{head}projects\.([0-3])\.{_PARAMETER}", rf"{reassemble}.\1.projection.\2"),
        (rf"{head}resize_layers\.([013])\.{_PARAMETER}", rf"{reassemble}.\1.resize.\2"),
        *_scratch_rules(rf"{head}scratch\."),
        (rf"{head}scratch\.output_conv1\.{_PARAMETER}", r"head.conv1.\1"),
        (rf"{head}scratch\.output_conv2\.0\.{_PARAMETER}", r"head.conv2.\1"),
        (rf"{head}scratch\.output_conv2\.2\.{_PARAMETER}", r"head.conv3.\1"),
    ]


def midas_config(state: Mapping[str, Tensor], *, hybrid: bool) -> dict[str, Any]:
    """config.json of a MiDaS DPT, sizes read off the weights."""
    model = "pretrained.model"
    positions = state[f"{model}.pos_embed"].shape
    depth = _count(state, rf"{model}\.blocks\.(\d+)\.")
    patch = 16 if hybrid else state[f"{model}.patch_embed.proj.weight"].shape[-1]
    grid = round((positions[1] - 1) ** 0.5)
    quarters = [depth * quarter // 4 - 1 for quarter in (1, 2, 3, 4)]
    config: dict[str, Any] = {
        "model_type": "dpt",
        "architectures": ["DPTForDepthEstimation"],
        "hidden_size": positions[2],
        "num_hidden_layers": depth,
        "num_attention_heads": max(1, positions[2] // HEAD_CHANNELS),
        "intermediate_size": state[f"{model}.blocks.0.mlp.fc1.weight"].shape[0],
        "image_size": grid * patch,
        "patch_size": patch,
        "qkv_bias": True,
        "layer_norm_eps": 1e-6,  # timm's, with which the networks were trained
        "is_hybrid": hybrid,
        "readout_type": "project",
        "backbone_out_indices": quarters,
        "neck_hidden_sizes": [state[f"scratch.layer{i}_rn.weight"].shape[1] for i in (1, 2, 3, 4)],
        "fusion_hidden_size": state["scratch.layer1_rn.weight"].shape[0],
        "reassemble_factors": [1, 1, 1, 0.5] if hybrid else [4, 2, 1, 0.5],
        "use_batch_norm_in_fusion_residual": False,
    }
    if not hybrid:
        return config | {"neck_ignore_stages": []}
    backbone = re.escape(_MIDAS_BACKBONE)
    stages = _count(state, rf"{backbone}stages\.(\d+)\.")
    widths = [
        state[f"{_MIDAS_BACKBONE}stages.{i}.blocks.0.conv3.weight"].shape[0] for i in range(stages)
    ]
    return config | {
        "neck_ignore_stages": [0, 1],
        "backbone_featmap_shape": [1, widths[-1], grid, grid],
        "backbone_config": {
            "model_type": "bit",
            "layer_type": "bottleneck",
            "embedding_size": state[f"{_MIDAS_BACKBONE}stem.conv.weight"].shape[0],
            "hidden_sizes": [*widths, 2 * widths[-1]],  # the last stage is not built
            "depths": [
                _count(state, rf"{backbone}stages\.{i}\.blocks\.(\d+)\.") for i in range(stages)
            ],
            "num_groups": 32,
            "hidden_act": "relu",
            "global_padding": "same",
            "embedding_dynamic_padding": True,
            "out_features": [f"stage{i + 1}" for i in range(stages)],
        },
    }


def depth_anything_config(state: Mapping[str, Tensor], file: str) -> dict[str, Any]:
    """config.json of a Depth Anything, sizes read off the weights, its version off the name."""
    found = re.fullmatch(
        r"depth_anything_(?:vit[sbl]14|v2_(?:metric_(hypersim|vkitti)_)?vit[sbl])\.pth", file
    )
    if found is None:
        raise InputError(
            f"{file}: Depth Anything V1 and V2 have equal weights' names and differ in the layers "
            "they use; keep the published name of the file, such as depth_anything_v2_vits.pth"
        )
    depth = _count(state, r"pretrained\.blocks\.(\d+)\.")
    tokens, width = state["pretrained.pos_embed"].shape[1:]
    patch = state["pretrained.patch_embed.proj.weight"].shape[-1]
    scratch = "depth_head.scratch.layer"
    layers = [depth - 3, depth - 2, depth - 1, depth]
    if "_v2_" in file:
        layers = [depth * quarter // 4 for quarter in (1, 2, 3, 4)]
        if depth == 24:
            layers[0] = 5  # as its authors have it for the large one
    metric = {"hypersim": 20, "vkitti": 80}.get(found[1] or "")
    return {
        "model_type": "depth_anything",
        "architectures": ["DepthAnythingForDepthEstimation"],
        "depth_estimation_type": "relative" if metric is None else "metric",
        "max_depth": 1 if metric is None else metric,
        "patch_size": patch,
        "reassemble_hidden_size": width,
        "neck_hidden_sizes": [state[f"{scratch}{i}_rn.weight"].shape[1] for i in (1, 2, 3, 4)],
        "fusion_hidden_size": state[f"{scratch}1_rn.weight"].shape[0],
        "head_hidden_size": state["depth_head.scratch.output_conv2.0.weight"].shape[0],
        "backbone_config": {
            "model_type": "dinov2",
            "hidden_size": width,
            "num_hidden_layers": depth,
            "num_attention_heads": max(1, width // HEAD_CHANNELS),
            "image_size": round((tokens - 1) ** 0.5) * patch,
            "patch_size": patch,
            "out_indices": layers,
            "out_features": [f"stage{i}" for i in layers],
            "apply_layernorm": True,
            "reshape_hidden_states": False,
        },
    }


def _count(state: Mapping[str, Tensor], pattern: str) -> int:
    """One more than the largest number that the pattern finds in a name."""
    found = (re.match(pattern, name) for name in state)
    numbers = [int(match[1]) for match in found if match]
    if not numbers:
        raise KeyError(pattern.replace(r"(\d+)", "0").replace("\\", "") + "…")
    return max(numbers) + 1
