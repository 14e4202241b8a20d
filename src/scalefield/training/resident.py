"""Training frames that lie in a device's memory, for sets of about a thousand frames.

Where every step sees a frame with the same anchors and pixels, as in the paper's recipe, a batch is
a selection of rows of tensors that are on the device already: nothing is computed on the host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import overload

import torch

from scalefield.training.data import Batch, TrainingFrame, protocol_batch, without_features
from scalefield.training.prepared import Entry, PreparedFrames


@dataclass(frozen=True, eq=False)
class _Stack:
    """All frames of one bucket as one batch on the device, with the sizes that each needs."""

    batch: Batch
    anchors: dict[int, int]
    """Number of anchors by frame."""
    pixels: dict[int, int]
    """Number of known pixels by frame."""
    row: dict[int, int]
    """Row of the batch by frame."""


@dataclass(frozen=True, eq=False)
class ResidentFrames(Sequence[TrainingFrame]):
    """Frames whose maps are on a device."""

    frames: tuple[TrainingFrame, ...]
    device: torch.device

    @classmethod
    def of(cls, prepared: PreparedFrames, device: torch.device | str) -> ResidentFrames:
        """Read all prepared frames; a process keeps the last two sets for its next call."""
        return _read(prepared.entries, str(device))

    def __len__(self) -> int:
        return len(self.frames)

    @overload
    def __getitem__(self, index: int) -> TrainingFrame: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[TrainingFrame]: ...

    def __getitem__(self, index: int | slice) -> TrainingFrame | Sequence[TrainingFrame]:
        """One frame, or some."""
        return self.frames[index]

    @cached_property
    def buckets(self) -> list[tuple[int, ...]]:
        """The bucket of each frame; see `TrainingFrame.bucket`."""
        return [frame.bucket for frame in self.frames]

    def gather(self, indices: Sequence[int], regime: str, *, zero_features: bool = False) -> Batch:
        """The batch of these frames, which are of one bucket, with the protocol's anchors.

        Equal to what `make_batch` gives for the same frames without mirroring, stretching or noise.
        """
        stack = self._stacks(regime, zero_features=zero_features)[self.buckets[indices[0]]]
        # Without waiting for the device, which has the steps before still to do.
        rows = torch.tensor([stack.row[i] for i in indices]).to(self.device, non_blocking=True)
        return stack.batch.select(
            rows,
            anchors=max(stack.anchors[i] for i in indices),
            pixels=max(stack.pixels[i] for i in indices),
        ).dequantised()

    @cached_property
    def _made(self) -> dict[tuple[str, bool], dict[tuple[int, ...], _Stack]]:
        return {}

    def _stacks(self, regime: str, *, zero_features: bool) -> dict[tuple[int, ...], _Stack]:
        key = regime, zero_features
        if key not in self._made:
            members: dict[tuple[int, ...], list[int]] = defaultdict(list)
            for i, bucket in enumerate(self.buckets):
                members[bucket].append(i)
            self._made.clear()  # a process trains one generator at a time
            self._made[key] = {
                bucket: self._stack(indices, regime, zero_features=zero_features)
                for bucket, indices in members.items()
            }
        return self._made[key]

    def _stack(self, indices: list[int], regime: str, *, zero_features: bool) -> _Stack:
        frames = [self.frames[i] for i in indices]
        if zero_features:
            frames = [without_features(frame) for frame in frames]
        return _Stack(
            protocol_batch(frames, regime).to(self.device),
            {i: len(self.frames[i].anchors[regime]) for i in indices},
            {i: self.frames[i].drawn for i in indices},
            {i: row for row, i in enumerate(indices)},
        )


@lru_cache(maxsize=2)
def _read(entries: tuple[Entry, ...], device: str) -> ResidentFrames:
    frames = tuple(PreparedFrames(entries).on(device))
    return ResidentFrames(frames, torch.device(device))
