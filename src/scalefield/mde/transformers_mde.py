"""Depth models of the transformers library: MiDaS DPT, Depth Anything V1/V2, and all the others."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scalefield.errors import InputError, import_extra
from scalefield.mde.estimator import Estimator, Fit, Preprocess, Raw
from scalefield.mde.output import Kind

HALF = (0.5, 0.5, 0.5)

PREPROCESS = {
    # MiDaS was trained at any aspect ratio in multiples of 32; its hub files declare 384×384.
    "dpt": Preprocess((384, 384), "least", 32, HALF, HALF),
    "depth_anything": Preprocess((518, 518), "least", 14),
    # Its authors also reflect a border; a resize of the bare image keeps F aligned with it.
    "zoedepth": Preprocess((384, 512), "least", 32, HALF, HALF, "bilinear"),
    "glpn": Preprocess((480, 640), "native", 32, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), "bilinear"),
    "depth_pro": Preprocess((1536, 1536), "stretch", 1, HALF, HALF, "bilinear"),
}
"""What each architecture was trained with; others are read from preprocessor_config.json."""

NEVER_USED = "fusion_stage.layers.0.residual_layer1."
"""The coarsest level has nothing to add, so the published files lack these."""

PLAIN_DISPARITY = ("depth_pro",)
"""Architectures whose disparity has a known zero; that of the others has an unknown shift."""


def load_transformers(
    name: str, folder: Path, revision: str, device: str = "cpu", kind: Kind | None = None
) -> Estimator:
    """The estimator in a folder with config.json and model.safetensors."""
    transformers = import_extra("transformers", "mde", f"the MDE {name}")
    try:
        model, loading = transformers.AutoModelForDepthEstimation.from_pretrained(
            folder,
            use_safetensors=True,
            local_files_only=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError) as e:  # the last: a weight of another shape
        why = str(e).strip().splitlines()[0]
        raise InputError(f"{name}: transformers finds no depth model there ({why})") from None
    missing = [key for key in sorted(loading["missing_keys"]) if NEVER_USED not in key]
    if missing:  # transformers would go on with random numbers
        raise InputError(f"{folder}: {len(missing)} weights are missing, such as {missing[0]}")
    return wrap(name, model, revision, device=device, kind=kind, folder=folder)


def wrap(
    name: str,
    model: Any,
    revision: str,
    *,
    device: str = "cpu",
    kind: Kind | None = None,
    folder: Path | None = None,
) -> Estimator:
    """Any transformers model for depth estimation as an MDE."""
    kind = kind or model_kind(model.config)
    if kind is None:
        raise InputError(
            f"{name}: whether a {model.config.model_type} model gives depth or disparity is not "
            'known here; give kind="depth" or kind="disparity"'
        )
    network = TransformersNetwork(model).requires_grad_(False).eval().to(device)
    preprocess = preprocess_of(name, model, folder)
    affine = kind == "disparity" and model.config.model_type not in PLAIN_DISPARITY
    return Estimator(name, revision, kind, preprocess, network, device, affine)


def model_kind(config: Any) -> Kind | None:
    """What the architecture gives: depth or disparity; None where that is not known."""
    match config.model_type:
        case "dpt":
            # MiDaS (ViT, hybrid, BEiT, Swin) gives disparity; DINOv2's depth heads give depth.
            backbone = getattr(config.backbone_config, "model_type", None)
            return "depth" if backbone == "dinov2" else "disparity"
        case "depth_anything":
            return "depth" if config.depth_estimation_type == "metric" else "disparity"
        case "zoedepth" | "glpn":
            return "depth"
        case "depth_pro":
            return "disparity"  # inverse depth, before its own post-processing inverts it
    return None


def preprocess_of(name: str, model: Any, folder: Path | None) -> Preprocess:
    """What the model was trained with, by its architecture or else by the file beside it."""
    known = model.config.model_type in PREPROCESS
    # DPT with another library's backbone is another model each time.
    if known and (model.config.model_type != "dpt" or hasattr(model, "dpt")):
        return PREPROCESS[model.config.model_type]
    path = None if folder is None else folder / "preprocessor_config.json"
    if path is None or not path.is_file():
        raise InputError(f"{name}: no preprocessor_config.json describes its input")
    try:
        return read_preprocess(json.loads(path.read_bytes()))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise InputError(f"{path}: size, image_mean or image_std not understood ({e!r})") from None


def read_preprocess(config: dict[str, Any]) -> Preprocess:
    """The transformers library's description of an input as ours, padding left out."""
    size = (
        (config["size"]["height"], config["size"]["width"])
        if config.get("do_resize", True)
        else (1, 1)
    )
    fit: Fit = "native"
    if config.get("do_resize", True):
        fit = "least" if config.get("keep_aspect_ratio") else "stretch"
    multiple = int(config.get("ensure_multiple_of") or config.get("size_divisor") or 1)
    # Without rescaling, the means are those of values of 0 … 255.
    unit = 1 if config.get("do_rescale", True) else 255
    red, green, blue = (v / unit for v in config["image_mean"])
    std_red, std_green, std_blue = (v / unit for v in config["image_std"])
    return Preprocess(size, fit, multiple, (red, green, blue), (std_red, std_green, std_blue))


class TransformersNetwork(nn.Module):
    """The model's own prediction, and the last fused map of its neck as F where it has one."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> Raw:
        """Hooks carry F out, and the shape of non-square input into DPT, which drops it."""
        neck = getattr(self.model, "neck", None)
        fused: list[Tensor] = []
        with ExitStack() as hooks:
            if neck is not None:
                hooks.enter_context(
                    neck.register_forward_hook(lambda m, args, out: fused.append(_last(out)))
                )
            if self.model.config.model_type == "dpt" and hasattr(self.model, "dpt"):
                for hook in _any_shape(self.model, pixels):
                    hooks.enter_context(hook)
            prediction = self.model(pixel_values=pixels).predicted_depth
        return Raw(prediction, fused[0] if fused else None)


def _last(output: Any) -> Tensor:
    """The finest fused map; ZoeDepth's neck also returns its bottleneck."""
    return (output[0] if isinstance(output, tuple) else output)[-1]


def _any_shape(model: Any, pixels: Float[Tensor, "b 3 h w"]) -> list[Any]:
    """Run a DPT on a grid of any shape: its position embeddings are interpolated, and its neck gets
    the shape, which the library does not pass on."""
    patch = model.config.patch_size
    grid = pixels.shape[2] // patch, pixels.shape[3] // patch
    hooks = [model.neck.register_forward_pre_hook(lambda m, args: (args[0], *grid))]
    if model.config.is_hybrid:
        hooks.append(
            model.dpt.embeddings.register_forward_pre_hook(
                lambda m, args, kwargs: (args, {**kwargs, "interpolate_pos_encoding": True}),
                with_kwargs=True,
            )
        )
    return hooks
