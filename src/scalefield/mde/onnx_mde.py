"""Any ONNX file as an MDE, described by a small JSON file beside it.

`model.json` beside `model.onnx` (or anywhere, with `"onnx": PATH`) holds the fields of
`OnnxConfig`, for FastDepth for example

    {"kind": "depth", "size": [224, 224], "multiple": 32, "dynamic": true,
     "mean": [0, 0, 0], "std": [1, 1, 1], "features": "346"}
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from scalefield.errors import InputError, import_extra, one_line
from scalefield.io import read_bytes, read_json
from scalefield.mde.estimator import IMAGENET_MEAN, IMAGENET_STD, Estimator, Preprocess, Raw
from scalefield.mde.output import Kind, affine_by_default

MOST_SIDE = 8192
"""Largest number of pixels along a side of a network's input; larger sizes are probably
mistyped."""


@dataclass(frozen=True)
class OnnxConfig:
    """Description of an ONNX file: what the file itself does not state."""

    kind: Kind
    """Whether the output is depth or disparity."""
    size: tuple[int, int]
    """Height and width that the image is fitted to."""
    fit: Literal["inside", "least", "native"] = "least"
    """How the image is fitted, for networks that accept any size; see `Preprocess`."""
    multiple: int = 1
    """Sides are multiples of this, for networks that accept any size."""
    dynamic: bool = False
    """Accept any size, even if the file states a fixed one; otherwise images are stretched."""
    mean: tuple[float, float, float] = IMAGENET_MEAN
    """Mean of each channel, subtracted from RGB of 0 … 1."""
    std: tuple[float, float, float] = IMAGENET_STD
    """Divisor of each channel after the mean is subtracted; 1/255 for networks that take values of
    0 … 255."""
    output: str | None = None
    """Name of the output with the prediction; by default the first."""
    features: str | None = None
    """Name of the value inside the graph that is F."""
    confidence: str | None = None
    """Name of the output with the confidence."""
    name: str | None = None
    """Name for records; by default that of the file."""
    affine: bool | None = None
    """Whether the shift of the output is unknown too; by default that of disparity is."""

    @property
    def preprocess(self) -> Preprocess:
        """The network's input."""
        if not self.dynamic:
            return Preprocess(self.size, "stretch", 1, self.mean, self.std)
        return Preprocess(self.size, self.fit, self.multiple, self.mean, self.std)


def load_onnx(path: Path, config: OnnxConfig | None = None, device: str = "cpu") -> Estimator:
    """The estimator of a `.onnx` file, or of the `.json` that describes one."""
    if config is None:
        path, config = read_description(path)
    data = read_bytes(path)
    network = OnnxNetwork(path, data, config, device)
    revision = "sha256:" + hashlib.sha256(data).hexdigest()[:16]
    # The nodes are not preprocessing, but another F is another output all the same.
    nodes = ",".join(filter(None, (config.output, config.features, config.confidence)))
    name = config.name or path.stem
    affine = affine_by_default(config.kind) if config.affine is None else config.affine
    return Estimator(
        name, f"{revision}:{nodes}", config.kind, config.preprocess, network, device, affine
    )


def read_description(path: Path) -> tuple[Path, OnnxConfig]:
    """The ONNX file and its description, given either of the two."""
    sidecar = path.with_suffix(".json")
    if path.suffix == ".onnx" and not sidecar.is_file():
        raise InputError(
            f"{path}: an ONNX file does not record what it computes; describe it in {sidecar}, "
            'for example {"kind": "disparity", "size": [384, 384]}'
        )
    description = read_json(sidecar)
    if not isinstance(description, dict) or not isinstance(description.get("onnx", ""), str):
        raise InputError(f"{sidecar}: not a description of an ONNX file: wanted names and values")
    onnx = sidecar.parent / description.pop("onnx", sidecar.with_suffix(".onnx").name)
    return onnx, parse_config(description, str(sidecar))


def parse_config(description: dict[str, Any], path: str) -> OnnxConfig:
    """The config that these JSON values describe, each of them checked."""
    text: Check = ("a text", lambda v: isinstance(v, str), str)
    three: Check = (
        "a list of three numbers",
        lambda v: _numbers(v, 3),
        lambda v: tuple(map(float, v)),
    )
    checks: dict[str, Check] = {
        "kind": ('"depth" or "disparity"', lambda v: v in ("depth", "disparity"), str),
        "size": (
            f"[height, width] of 1 to {MOST_SIDE} pixels",
            lambda v: _numbers(v, 2) and all(1 <= side <= MOST_SIDE for side in v),
            lambda v: tuple(map(int, v)),
        ),
        "fit": ("inside, least or native", lambda v: v in ("inside", "least", "native"), str),
        "multiple": (
            f"a whole number from 1 to {MOST_SIDE}",
            lambda v: type(v) is int and 0 < v <= MOST_SIDE,
            int,
        ),
        "affine": ("true or false", lambda v: isinstance(v, bool), bool),
        "dynamic": ("true or false", lambda v: isinstance(v, bool), bool),
        "mean": three, "std": three,
        "output": text, "features": text, "confidence": text, "name": text,
    }  # fmt: skip
    if foreign := set(description) - set(checks):
        raise InputError(
            f"{path}: no field {one_line(min(foreign))!r}; there are {', '.join(checks)}"
        )
    for name in ("kind", "size"):
        if name not in description:
            raise InputError(f"{path}: lacks {name!r}: {checks[name][0]}")
    for name, value in description.items():
        wanted, good, _ = checks[name]
        if not good(value):
            raise InputError(f"{path}: {name} must be {wanted}, found {one_line(repr(value))}")
    values: dict[str, Any] = {name: checks[name][2](value) for name, value in description.items()}
    return OnnxConfig(**values)


Check = tuple[str, Callable[[Any], bool], Callable[[Any], Any]]


def _numbers(values: Any, n: int) -> bool:
    """Whether a value is a list of `n` finite numbers."""
    if not isinstance(values, list) or len(values) != n:
        return False
    return all(type(v) in (int, float) and abs(v) <= 1e300 for v in values)  # not so for NaN


class OnnxNetwork:
    """Runs the graph one image at a time, with F as one more output."""

    def __init__(self, path: Path, data: bytes, config: OnnxConfig, device: str) -> None:
        self.path = path
        self.names, model = _prepare(path, data, config)
        self.has_features = config.features is not None
        self.session = _start(path, model, device)
        self.input = self.session.get_inputs()[0].name

    def __call__(self, pixels: Float[Tensor, "b 3 h w"]) -> Raw:
        """Each output as float32 on the pixels' device."""
        runs = [self._run(image[None]) for image in pixels.cpu().numpy()]
        maps = [
            torch.from_numpy(np.concatenate(values)).float().to(pixels.device)
            for values in zip(*runs, strict=True)
        ]
        features = maps.pop(1) if self.has_features else None
        for m in maps:
            if m.ndim not in (3, 4) or (m.ndim == 4 and m.shape[1] != 1):
                raise InputError(
                    f"{self.path}: a map should have the shape (1, h, w) or (1, 1, h, w), "
                    f"found {(1, *m.shape[1:])}"
                )
        prediction, *confidence = (m.flatten(0, -3) for m in maps)  # b h w
        return Raw(prediction, features, confidence[0] if confidence else None)

    def _run(self, image: Float[np.ndarray, "1 3 h w"]) -> list[np.ndarray]:
        try:
            return self.session.run(self.names, {self.input: image})
        except _runtime_errors() as e:
            height, width = image.shape[2:]
            raise InputError(
                f"{self.path}: fails on {width}×{height} pixels ({one_line(e)})"
            ) from None


def _prepare(path: Path, data: bytes, config: OnnxConfig) -> tuple[list[str], Any]:
    """The names to ask for (prediction, F, confidence), and the graph that gives them."""
    onnx = import_extra("onnx", "onnx", f"the MDE {path}")
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        model = onnx.load_model_from_string(data)
    except DecodeError as e:
        raise InputError(f"{path}: not a readable ONNX file ({one_line(e)})") from None
    graph = model.graph
    if not graph.output:
        raise InputError(f"{path}: not a readable ONNX file (its graph has no output)")
    wanted = (config.output or graph.output[0].name, config.features, config.confidence)
    names = [name for name in wanted if name]
    values = [name for node in graph.node for name in node.output]
    for name in names:
        if name not in values:
            raise InputError(f"{path}: no value {name!r} in the graph; its last are {values[-8:]}")
        if name not in {output.name for output in graph.output}:
            info = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            graph.output.append(info)
    if config.dynamic:
        _forget_sizes(graph)
    return names, model


def _forget_sizes(graph: Any) -> None:
    """Clear the stated heights and widths, so that any size may enter."""
    del graph.value_info[:]
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    for value in (*inputs, *graph.output):
        for dim in value.type.tensor_type.shape.dim[2:]:
            dim.Clear()


def _start(path: Path, model: Any, device: str) -> Any:
    onnxruntime = import_extra("onnxruntime", "onnx", f"the MDE {path}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # cleared sizes make it warn about each output
    providers = ["CPUExecutionProvider"]
    if device.startswith("cuda"):
        providers.insert(0, "CUDAExecutionProvider")
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers)
    except _runtime_errors() as e:
        raise InputError(f"{path}: onnxruntime cannot run it ({one_line(e)})") from None


def _runtime_errors() -> tuple[type[Exception], ...]:
    """The errors of onnxruntime, which have no base of their own; some cannot be decoded."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return (
        state.Fail, state.InvalidArgument, state.InvalidGraph, state.NotImplemented,
        state.RuntimeException, UnicodeDecodeError,
    )  # fmt: skip
