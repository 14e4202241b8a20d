"""Prepared training frames on disk, memory-mapped when they are read.

Each frame is a safetensors file. F is kept on the generator's grid, as 8-bit numbers with a step
and an offset for each channel, or as float16.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from jaxtyping import Float, UInt8
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from scalefield.errors import InputError, one_line
from scalefield.training.data import TrainingFrame


class Entry(NamedTuple):
    """Path of a prepared frame, with what must be known before it is read."""

    file: str
    bucket: tuple[int, ...]
    """See `TrainingFrame.bucket`."""


@dataclass(frozen=True)
class PreparedFrames(Sequence[TrainingFrame]):
    """Prepared frames, read from disk one by one when they are asked for."""

    entries: tuple[Entry, ...]

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def __getitem__(self, index: int) -> TrainingFrame: ...

    @overload
    def __getitem__(self, index: slice) -> PreparedFrames: ...

    def __getitem__(self, index: int | slice) -> TrainingFrame | PreparedFrames:
        """One frame, its maps memory-mapped; or some frames, still on disk."""
        if isinstance(index, slice):
            return PreparedFrames(self.entries[index])
        return read_frame(Path(self.entries[index].file))

    def __add__(self, other: PreparedFrames) -> PreparedFrames:
        """The frames of both, as one run trains on several datasets."""
        return PreparedFrames(self.entries + other.entries)

    @property
    def buckets(self) -> list[tuple[int, ...]]:
        """The bucket of each frame; see `TrainingFrame.bucket`."""
        return [entry.bucket for entry in self.entries]

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(Path(entry.file).stat().st_size for entry in self.entries)


def quantise(
    features: Float[Tensor, "c h w"],
) -> tuple[UInt8[Tensor, "c h w"], Float[Tensor, "2 c"]]:
    """F in 8 bits: each channel's values from its least to its largest, in 255 equal steps."""
    least, largest = features.float().flatten(1).aminmax(dim=1)
    step = ((largest - least) / 255).clamp(min=torch.finfo(torch.float32).tiny)
    scaled = (features.float() - least[:, None, None]) / step[:, None, None]
    return scaled.round().clamp(0, 255).to(torch.uint8), torch.stack([step, least])


def pack_frame(frame: TrainingFrame, scene: str, kept: str) -> bytes:
    """The file of a frame."""
    whole = np.int16 if max(frame.shape) <= np.iinfo(np.int16).max else np.int32
    tensors: dict[str, Tensor] = {
        "log_depth": frame.log_depth,
        "image": ((frame.image.float() + 1) * 127.5).round().to(torch.uint8),
        "pixels": torch.from_numpy(frame.pixels.astype(whole)),
        "mde_log_depth": torch.from_numpy(frame.mde_log_depth),
        "true_log_depth": torch.from_numpy(frame.true_log_depth),
    }
    for regime, rows in frame.anchors.items():
        tensors[f"anchors/{regime}"] = torch.from_numpy(rows.astype(np.int32))
    if frame.features is not None and kept != "none":
        tensors["features"] = frame.features.half()
        if kept == "uint8":
            tensors["features"], tensors["quantisation"] = quantise(frame.features)
    record = {
        "name": frame.name,
        "scene": scene,
        "group": frame.group,
        "shape": frame.shape,
        "level": frame.level,
        "true": frame.true,
        "drawn": frame.drawn,
        "regimes": list(frame.anchors),
    }
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return save(tensors, metadata={"record": json.dumps(record)})


@contextmanager
def opened_frame(file: Path) -> Iterator[Any]:
    """A prepared frame's file, opened; one that is damaged raises InputError."""
    try:
        with safe_open(file, "pt") as opened:
            yield opened
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError) as e:
        raise InputError(f"{file}: not a prepared frame ({one_line(e)}); delete it") from None


def read_frame(file: Path) -> TrainingFrame:
    """A prepared frame; its maps are mapped from the file and not copied."""
    with opened_frame(file) as opened:
        record = json.loads(opened.metadata()["record"])
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        return TrainingFrame(
            name=record["name"],
            shape=tuple(record["shape"]),
            features=tensors.get("features"),
            log_depth=tensors["log_depth"],
            image=(tensors["image"].float() / 127.5 - 1).half(),
            level=record["level"],
            group=record["group"],
            true=record["true"],
            pixels=tensors["pixels"].numpy().astype(np.float32),
            mde_log_depth=tensors["mde_log_depth"].numpy(),
            true_log_depth=tensors["true_log_depth"].numpy(),
            anchors={
                regime: tensors[f"anchors/{regime}"].numpy().astype(np.int64)
                for regime in record["regimes"]
            },
            drawn=record["drawn"],
            quantisation=tensors.get("quantisation"),
        )


def read_entry(file: Path) -> Entry:
    """What must be known of a prepared frame before it is read."""
    with opened_frame(file) as opened:
        cells = tuple(opened.get_slice("log_depth").get_shape()[1:])
        if "features" in opened.keys():  # noqa: SIM118
            cells += tuple(opened.get_slice("features").get_shape())
        return Entry(str(file), cells)
