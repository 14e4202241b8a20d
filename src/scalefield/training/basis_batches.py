"""Batches for the training of a basis map generator, made ahead of the step that uses them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from scalefield.seeding import seeded_rng
from scalefield.training.basis_config import BasisTraining
from scalefield.training.data import (
    Batch,
    TrainingFrame,
    all_pixels,
    draw_anchors,
    epoch_batches,
    make_batch,
    protocol_anchors,
    protocol_batch,
    without_features,
)
from scalefield.training.loop import prefetch, start_worker
from scalefield.training.prepared import PreparedFrames
from scalefield.training.resident import ResidentFrames


def training_batch(frames: Sequence[TrainingFrame], config: BasisTraining, step: int) -> Batch:
    """The frames as a batch with random anchors, pixels, mirroring and noise.

    The random numbers of a frame depend on the seed, the step and its name.
    """
    anchor_rows, drawn_pixels, mirror, stretch, noise = [], [], [], [], []
    frames = [without_features(frame) for frame in frames] if config.zero_features else frames
    for frame in frames:
        rng = seeded_rng(config.seed, str(step), frame.name)
        if config.anchor_draw == "protocol":
            anchor_rows.append(protocol_anchors(frame, config.validate))
        else:
            n = min(draw_count(config, rng), len(frame.pixels))
            anchor_rows.append(draw_anchors(frame, n, config.anchor_jitter, rng))
        if config.pixels:
            drawn_pixels.append(rng.integers(frame.drawn, size=config.pixels))
        mirror.append(bool(config.mirror and rng.random() < 0.5))
        stretch.append(float(np.exp(rng.normal() * config.stretch)))
        noise.append(rng.normal() * config.offset_noise)
    return make_batch(
        frames,
        anchor_rows,
        drawn_pixels or all_pixels(frames),
        mirror=mirror,
        stretch=stretch,
        offset_noise=noise,
    )


def draw_count(config: BasisTraining, rng: np.random.Generator) -> int:
    """A number of anchors between the least and the largest."""
    least, most = config.anchors
    if config.counts == "uniform":
        return int(rng.integers(least, most, endpoint=True))
    n = round(np.exp(rng.uniform(np.log(least - 0.5), np.log(most + 0.5))))
    return min(max(n, least), most)


class StepBatches(Dataset[Batch]):
    """The batches of steps `first` … `last` − 1, each made from the seed and the step alone."""

    def __init__(
        self,
        frames: Sequence[TrainingFrame],
        config: BasisTraining,
        *,
        first: int,
        last: int,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.frames, self.config = frames, config
        self.first, self.last, self.rank, self.world = first, last, rank, world
        self.per_epoch = len(epoch_batches(frames, config.batch, config.seed, 0))
        self._epoch: tuple[int, list[list[int]]] = (-1, [])

    def __len__(self) -> int:
        return self.last - self.first

    def __getitem__(self, index: int) -> Batch:
        """This process's part of the batch of step `first` + index."""
        # Torch asks for items until there is an end, and so does a plain loop.
        if index >= len(self):
            raise IndexError(index)
        frames = [self.frames[i] for i in self.frame_indices(index)]
        return training_batch(frames, self.config, self.first + index)

    def frame_indices(self, index: int) -> list[int]:
        """The frames of step `first` + index that this process takes."""
        indices = self.step_indices(self.first + index)
        return indices[self.rank :: self.world] or indices[:1]

    def step_indices(self, step: int) -> list[int]:
        """The frames of a step, of all processes."""
        epoch, place = divmod(step, self.per_epoch)
        if self._epoch[0] != epoch:
            batches = epoch_batches(self.frames, self.config.batch, self.config.seed, epoch)
            self._epoch = epoch, batches
        return self._epoch[1][place]

    def gradient_weight(self, step: int) -> float:
        """This process's number of frames of a step, divided by the mean over the processes."""
        indices = self.step_indices(step)
        return len(indices[self.rank :: self.world]) * self.world / len(indices)


class ValidationBatches(Dataset[Batch]):
    """Validation frames in batches, with the protocol's anchors of the regime and all pixels."""

    def __init__(
        self, frames: Sequence[TrainingFrame], config: BasisTraining, rank: int = 0, world: int = 1
    ) -> None:
        self.frames, self.config = frames, config
        self.batches = epoch_batches(frames, config.batch, 0, 0)[rank::world]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Batch:
        """One batch."""
        if index >= len(self.batches):
            raise IndexError(index)
        chosen = [self.frames[i] for i in self.frame_indices(index)]
        if self.config.zero_features:
            chosen = [without_features(frame) for frame in chosen]
        return protocol_batch(chosen, self.config.validate)

    def frame_indices(self, index: int) -> list[int]:
        """The frames of a batch."""
        return self.batches[index]


def stream(
    batches: StepBatches | ValidationBatches, device: torch.device, workers: int
) -> Iterator[Batch]:
    """The batches in order on the device, made ahead of time.

    `workers` processes of a DataLoader make them from prepared frames on disk. Without workers, or
    where frames lie in memory already, two threads do. Frames that lie on the device and are the
    same in every step are gathered there, without any work ahead of time.
    """
    frames, config = batches.frames, batches.config
    if isinstance(frames, ResidentFrames) and config.draws_nothing:
        for i in range(len(batches)):
            yield frames.gather(
                batches.frame_indices(i), config.validate, zero_features=config.zero_features
            )
        return
    if workers and isinstance(batches.frames, PreparedFrames):
        loader: DataLoader = DataLoader(
            batches,
            batch_size=None,
            num_workers=min(workers, max(1, len(batches))),
            pin_memory=device.type == "cuda",
            prefetch_factor=2,
            worker_init_fn=start_worker,
        )
        yield from (batch.to(device).dequantised() for batch in loader)
        return
    for batch in prefetch(batches.__getitem__, range(len(batches))):
        pinned = batch.pin_memory() if device.type == "cuda" else batch
        yield pinned.to(device).dequantised()


def load_validation_batches(
    frames: Sequence[TrainingFrame],
    config: BasisTraining,
    *,
    rank: int = 0,
    world: int = 1,
) -> list[Batch] | None:
    """The validation batches in host memory, which every epoch uses; None above a gibibyte."""
    if not isinstance(frames, PreparedFrames) or frames.size_bytes > 2**30 * world:
        return None
    batches = ValidationBatches(frames, config, rank, world)
    return [batches[i] for i in range(len(batches))]
