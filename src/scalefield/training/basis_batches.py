"""Batches for the training of a basis map generator, made ahead of the step that uses them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from scalefield.seeding import seeded_rng
from scalefield.training.bank import Bank, Batch, ResidentFrames, make_bank
from scalefield.training.basis_config import BasisTraining
from scalefield.training.data import (
    TrainingFrame,
    draw_anchors,
    epoch_batches,
    protocol_anchors,
    without_features,
)
from scalefield.training.loop import prefetch, start_worker
from scalefield.training.prepared import PreparedFrames


def training_batch(
    frames: Sequence[TrainingFrame], config: BasisTraining, step: int, bank: Bank | None = None
) -> Batch:
    """The frames as a batch with random anchors, pixels, mirroring and noise.

    The random numbers of a frame depend on the seed, the step and its name. `bank` holds the frames
    where they are stacked already.
    """
    if bank is None:
        parts = [without_features(frame) for frame in frames] if config.zero_features else frames
        bank = make_bank(parts)
    if config.draws_nothing:
        return bank.batch([protocol_anchors(frame, config.validate) for frame in frames])
    anchors, pixels, mirror, stretch, noise = [], [], [], [], []
    for frame in frames:
        rng = seeded_rng(config.seed, str(step), frame.name)
        if config.anchor_draw == "protocol":
            anchors.append(protocol_anchors(frame, config.validate))
        else:
            n = min(draw_count(config, rng), len(frame.pixels))
            anchors.append(draw_anchors(frame, n, config.anchor_jitter, rng))
        if config.pixels:
            pixels.append(rng.integers(frame.drawn, size=config.pixels))
        mirror.append(bool(config.mirror and rng.random() < 0.5))
        stretch.append(float(np.exp(rng.normal() * config.stretch)))
        noise.append(rng.normal() * config.offset_noise)
    return bank.batch(anchors, pixels, mirror=mirror, stretch=stretch, offset_noise=noise)


def draw_count(config: BasisTraining, rng: np.random.Generator) -> int:
    """A number of anchors between the least and the largest."""
    least, most = config.anchors
    if config.counts == "uniform":
        return int(rng.integers(least, most, endpoint=True))
    n = round(np.exp(rng.uniform(np.log(least - 0.5), np.log(most + 0.5))))
    return min(max(n, least), most)


class Batches(Dataset[Batch]):
    """The batches of a plan, each made from the seed and the number of its step alone."""

    def __init__(
        self,
        frames: Sequence[TrainingFrame],
        config: BasisTraining,
        plan: Sequence[list[int]],
        first: int = 0,
    ) -> None:
        """`plan` has the indices of the frames of steps `first`, `first` + 1, …"""
        self.frames, self.config, self.plan, self.first = frames, config, plan, first

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, index: int) -> Batch:
        """The batch of step `first` + index."""
        # Torch asks for items until there is an end, and so does a plain loop.
        if index >= len(self):
            raise IndexError(index)
        indices, bank = self.plan[index], None
        if isinstance(self.frames, ResidentFrames):
            bank = self.frames.bank(indices, features=not self.config.zero_features)
        frames = [self.frames[i] for i in indices]
        return training_batch(frames, self.config, self.first + index, bank)


def step_plan(frames: Sequence[TrainingFrame], config: BasisTraining) -> list[list[int]]:
    """Indices of the frames of every step of a training, of all processes."""
    return [
        indices
        for epoch in range(config.epochs)
        for indices in epoch_batches(frames, config.batch, config.seed, epoch)
    ]


def validation_batches(
    frames: Sequence[TrainingFrame], config: BasisTraining, rank: int = 0, world: int = 1
) -> Batches | list[Batch]:
    """A process's share of the frames in batches, with the protocol's anchors and all pixels.

    Every epoch uses them: those of prepared frames are kept in host memory up to a gibibyte.
    """
    still = replace(
        config, anchor_draw="protocol", mirror=False, stretch=0.0, offset_noise=0.0, pixels=0
    )
    batches = Batches(frames, still, epoch_batches(frames, config.batch, 0, 0)[rank::world])
    small = isinstance(frames, PreparedFrames) and frames.size_bytes <= 2**30 * world
    return [batches[i] for i in range(len(batches))] if small else batches


def stream(
    batches: Batches | list[Batch], device: torch.device, workers: int = 0
) -> Iterator[Batch]:
    """The batches in order on the device, made ahead of time.

    `workers` processes of a DataLoader make them from prepared frames on disk. Without workers, or
    where frames lie in memory already, two threads do. Frames that lie on the device and are the
    same in every step are gathered there, without any work ahead of time.
    """
    made: Iterable[Batch]
    if not isinstance(batches, Batches):
        made = batches
    elif isinstance(batches.frames, ResidentFrames) and batches.config.draws_nothing:
        made = map(batches.__getitem__, range(len(batches)))
    elif workers and isinstance(batches.frames, PreparedFrames):
        made = DataLoader(
            batches,
            batch_size=None,
            num_workers=min(workers, max(1, len(batches))),
            pin_memory=device.type == "cuda",
            prefetch_factor=2,
            worker_init_fn=start_worker,
        )
    else:
        make = batches.__getitem__
        pinned = (lambda i: make(i).pin_memory()) if device.type == "cuda" else make
        made = prefetch(pinned, range(len(batches)))
    return (batch.to(device).dequantised() for batch in made)
