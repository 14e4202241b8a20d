"""MDE outputs kept on disk: one safetensors file an image, the same output with or without it."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from scalefield.errors import InputError, Notice, one_line
from scalefield.io import write_atomic
from scalefield.mde import MDE, estimate_batch
from scalefield.mde.output import Kind, MDEOutput, affine_by_default

FORMAT = 1
"""Part of every key: files of another layout are never read."""

DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError)
"""What a damaged file may cause on its way to an output."""


def default_cache() -> Path:
    """Default folder of stored outputs."""
    return Path(os.environ.get("SCALEFIELD_CACHE", "~/.cache/scalefield/mde")).expanduser()


@dataclass(frozen=True, eq=False)
class MDECache:
    """An MDE that reads outputs from `folder`, and computes and writes those that are missing.

    A file is found by the image's pixels, the MDE's name and revision, and its preprocessing.
    Features are kept in float16, maps in float32, and an output just computed is rounded in the
    same way, so that a result never depends on whether the file was there. Tensors are on the CPU.
    """

    folder: Path
    mde: MDE

    def __post_init__(self) -> None:
        if not isinstance(getattr(self.mde, "revision", None), str):
            raise InputError(
                f"the MDE {self.mde.name} has no `revision`, without which a cache cannot tell "
                "its weights from others"
            )

    @property
    def name(self) -> str:
        """The MDE's name."""
        return self.mde.name

    @property
    def revision(self) -> str:
        """The MDE's revision."""
        return self.mde.revision  # type: ignore[attr-defined]

    @property
    def options(self) -> dict[str, object]:
        """The MDE's preprocessing, where it has a choice."""
        return getattr(self.mde, "options", {})

    def __call__(self, image: UInt8[np.ndarray, "h w 3"]) -> MDEOutput:
        """The output for one image, from the disk or computed and written."""
        return self.batch([image])[0]

    def batch(self, images: Sequence[UInt8[np.ndarray, "h w 3"]]) -> list[MDEOutput]:
        """Outputs for several images of one size; those not on disk are computed together."""
        outputs = {i: self.load(image) for i, image in enumerate(images)}
        missing = [i for i, output in outputs.items() if output is None]
        computed = estimate_batch(self.mde, [images[i] for i in missing]) if missing else []
        for i, output in zip(missing, computed, strict=True):
            outputs[i] = self.store(images[i], output)
        return [output for output in outputs.values() if output is not None]

    def path(self, image: UInt8[np.ndarray, "h w 3"]) -> Path:
        """The file of the output for this image."""
        pixels = hashlib.sha256(image.tobytes()).hexdigest()
        key = [FORMAT, list(image.shape), pixels, self.name, self.revision, self.options]
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{digest[:32]}.safetensors"

    def load(self, image: UInt8[np.ndarray, "h w 3"]) -> MDEOutput | None:
        """What is on disk for this image; None if nothing is, or nothing whole."""
        from safetensors import SafetensorError, safe_open

        path = self.path(image)
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                metadata = json.loads(file.metadata()["record"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if metadata.pop("checksum") != checksum(tensors, metadata):
                raise ValueError("its checksum differs")
            output = _unpack(tensors, metadata, image)
            if output.shape != image.shape[:2] or output.kind not in get_args(Kind):
                raise ValueError("it belongs to another image")
        except (*DAMAGE, SafetensorError) as e:
            warnings.warn(
                f"{path} is damaged ({one_line(e)}) and is made again", Notice, stacklevel=2
            )
            return None
        return output

    def store(self, image: UInt8[np.ndarray, "h w 3"], output: MDEOutput) -> MDEOutput:
        """Write an output, and return it as `load` will."""
        from safetensors.torch import save

        maps = {"prediction": output.prediction, "confidence": output.confidence}
        tensors = {name: m.float().cpu().contiguous() for name, m in maps.items() if m is not None}
        if output.features is not None:
            half = output.features.half()
            # float16 ends at 65504; features beyond it stay float32 and do not become infinite.
            fits = bool(torch.isfinite(half).all())
            tensors["features"] = (half if fits else output.features.float()).cpu().contiguous()
        metadata: dict[str, Any] = {
            "kind": output.kind,
            "affine": output.affine,
            "model": output.model,
            "revision": output.revision,
            "options": output.options,
        }
        record = json.dumps({**metadata, "checksum": checksum(tensors, metadata)})
        write_atomic(self.path(image), save(tensors, metadata={"record": record}))
        return _unpack(tensors, metadata, image)


def _unpack(tensors: dict[str, Tensor], metadata: dict[str, Any], image: np.ndarray) -> MDEOutput:
    features = tensors.get("features")
    return MDEOutput(
        prediction=tensors["prediction"],
        kind=metadata["kind"],
        affine=metadata.get("affine", affine_by_default(metadata["kind"])),
        features=None if features is None else features.float(),
        confidence=tensors.get("confidence"),
        image=torch.tensor(image),
        model=metadata["model"],
        revision=metadata["revision"],
        options=metadata["options"],
    )


def checksum(tensors: dict[str, Tensor], metadata: dict[str, Any]) -> str:
    """Hash of all tensors and metadata, so that a flipped bit is detected."""
    digest = hashlib.blake2b(json.dumps(metadata, sort_keys=True).encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
