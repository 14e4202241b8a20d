"""What a reproduction will cost, measured on a few frames and steps of this machine."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from scalefield.anchor_sampling import REGIMES
from scalefield.basis.generator import Generator, GeneratorConfig
from scalefield.basis.grids import grid_shape
from scalefield.datasets import Frame
from scalefield.errors import InputError, counted
from scalefield.mde import open_mde
from scalefield.mde.hub import WeightsNotFound
from scalefield.reproduction.matrix import GeneratorJob
from scalefield.reproduction.stages import EstimatorSpec, Reproduction
from scalefield.training.bank import Batch, Pixels
from scalefield.training.basis import training_step
from scalefield.training.basis_config import BasisTraining
from scalefield.training.data import frame_table
from scalefield.training.loop import pick_device
from scalefield.training.preparation import split_names

BYTES_OF_F = {"uint8": 1, "float16": 2, "none": 0}
RECOVER_S_PER_MEGAPIXEL = 0.10
"""Assumed core-seconds of one row under one condition: the mean over the aligners and the universal
generators, measured at commit e42b3d8 (results/pipeline/recovery.json)."""
SAMPLED_FRAMES = 2
"""Frames of each dataset that are read to measure reading."""
LONGEST_STEP_S = 0.5
"""Time of a training step above which no larger batch is timed."""
REPORT_S = 10.0
"""Assumed core-seconds of the report of one dataset with one estimator, measured on tiny images."""
VALIDATION_SHARE = 1 / 3
"""Assumed time of a batch without its backward pass, as a share of a training step."""


@dataclass(frozen=True)
class Line:
    """A stage of the plan."""

    stage: str
    what: str
    seconds: float | None
    """None where nothing is known, such as without the MDE's weights."""
    gigabytes: float | None


@dataclass(frozen=True, eq=False)
class _Sample:
    """What was measured on a dataset's first frames."""

    frames: dict[str, int]
    """Frames of each split, after the limit."""
    read_s: float
    shape: tuple[int, int]
    image: np.ndarray

    @property
    def cells(self) -> int:
        """Cells of the generator's grid."""
        return int(np.prod(grid_shape(*self.shape)))

    @property
    def megapixels(self) -> float:
        """Size of an image."""
        return self.shape[0] * self.shape[1] / 1e6


@dataclass(frozen=True)
class _Predictions:
    """What was measured of an MDE on the first frame of each dataset."""

    channels: int
    """Channels of F; 0 without F."""
    seconds: dict[str, float] | None
    """Time of an image by dataset; None without weights."""
    cached_bytes: dict[str, int]
    """Size of an output in the cache by dataset; empty without weights."""


def plan(reproduction: Reproduction) -> list[Line]:
    """The stages with estimated time and disk; nothing is written."""
    reproduction.check()
    samples = {name: _sample(reproduction, name) for name in reproduction.datasets}
    lines = []
    for estimator in reproduction.estimators:
        measured = _measure_mde(reproduction, estimator, samples)
        if reproduction.trains:
            lines.append(_prepare_line(reproduction, estimator, samples, measured))
            lines.append(_train_line(reproduction, estimator, samples, measured.channels))
        lines.append(_evaluate_line(reproduction, estimator, samples, measured))
    if reproduction.tables:
        runs = len(reproduction.estimators) * len(samples)
        what = counted(runs, "run")
        lines.append(Line("report", what, REPORT_S * runs, 1e-3 * runs))
    return lines


def _sample(reproduction: Reproduction, name: str) -> _Sample:
    dataset = reproduction.datasets[name]
    names = {s: split_names(dataset, s, reproduction.limit, name) for s in reproduction.splits}
    chosen = reproduction.preparation
    began, read = time.perf_counter(), list[Frame]()
    for frame_name in names[reproduction.split]:
        try:
            frame = dataset.load(frame_name)
            frame_table(frame, chosen.regimes, pixels=chosen.pixels)
            read.append(frame)
        except InputError:
            continue
        if len(read) == SAMPLED_FRAMES:
            break
    if not read:
        raise InputError(f"no frame of the split {reproduction.split} of {name} can be read")
    seconds = (time.perf_counter() - began) / len(read)
    image = read[0].image
    counts = {split: len(listed) for split, listed in names.items()}
    return _Sample(counts, seconds, (image.shape[0], image.shape[1]), image)


def _measure_mde(
    reproduction: Reproduction, estimator: EstimatorSpec, samples: dict[str, _Sample]
) -> _Predictions:
    """Run the MDE on the smallest image, which stands for the others in proportion to their size;
    without weights, return what is known of it."""
    card = estimator.card
    try:
        mde = open_mde(estimator.source, str(pick_device(reproduction.device)))
    except WeightsNotFound:
        return _Predictions((card.feature_channels or 0) if card else 0, None, {})
    smallest = min(samples.values(), key=lambda sample: sample.megapixels)
    mde(smallest.image)  # the first call is slower
    began = time.perf_counter()
    output = mde(smallest.image)
    seconds, pixels = time.perf_counter() - began, output.prediction.numel()
    channels, kept = 0, 4 * pixels * (1 if output.confidence is None else 2)
    if output.features is not None:
        channels, kept = output.features.shape[0], kept + 2 * output.features.numel()
    ratios = {name: sample.megapixels / smallest.megapixels for name, sample in samples.items()}
    return _Predictions(
        channels,
        {name: seconds * ratio for name, ratio in ratios.items()},
        {name: round(kept * ratio) for name, ratio in ratios.items()},
    )


def _prepare_line(
    reproduction: Reproduction,
    estimator: EstimatorSpec,
    samples: dict[str, _Sample],
    measured: _Predictions,
) -> Line:
    chosen, channels, predict_s = reproduction.preparation, measured.channels, measured.seconds
    count, size, reading, predicting = 0, 0.0, 0.0, 0.0
    for name, sample in samples.items():
        frames = sample.frames["train"] + sample.frames["val"]
        table = (chosen.pixels + sum(high for _, high in REGIMES.values())) * 12
        frame_bytes = sample.cells * (channels * BYTES_OF_F[chosen.features] + 7) + table
        count += frames
        size += frames * frame_bytes / 1e9
        reading += frames * sample.read_s / max(1, reproduction.workers)
        predicting += frames * (0.0 if predict_s is None else predict_s[name])
    device = pick_device(reproduction.device)
    what = f"{count:,} frames on {device}, F of {channels} channels as {chosen.features}"
    seconds = None if predict_s is None else max(reading, predicting)
    return Line(f"prepare {estimator.label}", what, seconds, size)


def _train_line(
    reproduction: Reproduction,
    estimator: EstimatorSpec,
    samples: dict[str, _Sample],
    channels: int,
) -> Line:
    train, val = (sum(s.frames[split] for s in samples.values()) for split in ("train", "val"))
    jobs, largest = reproduction.job_list, max(samples.values(), key=lambda s: s.cells)
    device, at_once = str(pick_device(reproduction.device)), min(reproduction.jobs, len(jobs))
    # K adds little to a step: the largest is timed, for all.
    timed = max(jobs, key=lambda job: (job.k, not job.zero_features))
    step_s = step_seconds(reproduction.config(timed), channels, largest.shape, device)
    durations: dict[GeneratorJob, float] = {}
    steps = 0
    for job in jobs:
        config = reproduction.config(job)
        per_epoch, validated = math.ceil(train / config.batch), math.ceil(val / config.batch)
        steps += config.epochs * per_epoch
        equivalent_steps = config.epochs * (per_epoch + validated * VALIDATION_SHARE)
        durations[job] = equivalent_steps * step_s
    longest = max(
        own + (durations[job.start] if job.start else 0.0) for job, own in durations.items()
    )
    what = f"{len(jobs)} generators, {steps:,} steps, {at_once} at a time on {device}"
    megabytes = 2 + 8  # the model; a checkpoint with the optimiser's state
    seconds = max(sum(durations.values()) / at_once, longest)
    return Line(f"train {estimator.label}", what, seconds, len(jobs) * megabytes / 1e3)


def _evaluate_line(
    reproduction: Reproduction,
    estimator: EstimatorSpec,
    samples: dict[str, _Sample],
    measured: _Predictions,
) -> Line:
    count, seconds, size = 0, 0.0, 0.0
    for name, sample in samples.items():
        frames = sample.frames[reproduction.split]
        evaluation = reproduction.evaluation(estimator, name)
        conditions = evaluation.conditions
        recoveries = sum(row.applies(c) for row in evaluation.methods for c in conditions)
        each = recoveries * RECOVER_S_PER_MEGAPIXEL * sample.megapixels + sample.read_s
        count += frames
        seconds += frames * each / max(1, reproduction.workers)
        seconds += 0.0 if measured.seconds is None else frames * measured.seconds[name]
        size += frames * 1e-4
        if reproduction.cache is not None:
            size += frames * measured.cached_bytes.get(name, 0) / 1e9
    what = f"{count:,} frames" + (", MDE not counted" if measured.seconds is None else "")
    return Line(f"evaluate {estimator.label}", what, seconds, size)


def step_seconds(
    config: BasisTraining, channels: int, shape: tuple[int, int], device: str
) -> float:
    """Seconds of a training step on random frames of one image shape, data at hand.

    Batches grow to the configured one; if a smaller one takes LONGEST_STEP_S already, its time is
    multiplied, so that a slow machine answers soon as well.
    """
    on = pick_device(device)
    generator = Generator(
        GeneratorConfig(
            k=config.k, feature_channels=channels, width=config.width,
            zero_features=config.zero_features, ridge=config.ridge,
        )
    ).to(on).train()  # fmt: skip
    optimiser = torch.optim.AdamW(generator.parameters())

    def timed(batch: Batch) -> float:
        _synchronise(on)
        began = time.perf_counter()
        training_step(generator, optimiser, batch, config, 0)
        _synchronise(on)
        return time.perf_counter() - began

    frames = 1
    while True:
        batch = random_batch(replace(config, batch=frames), channels, shape, device=on)
        seconds = min(timed(batch), timed(batch))  # the first is slower
        if seconds > LONGEST_STEP_S or frames == config.batch:
            return seconds * config.batch / frames
        frames = min(4 * frames, config.batch)


def random_batch(
    config: BasisTraining, channels: int, shape: tuple[int, int], *, device: torch.device
) -> Batch:
    """A batch of the sizes that the configuration asks for, of random numbers."""
    rng = torch.Generator().manual_seed(0)
    size, b = grid_shape(*shape), config.batch
    n, p = config.anchors[1], config.pixels or 8192

    def numbers(*sizes: int) -> torch.Tensor:
        return torch.rand(sizes, generator=rng).to(device)

    def pixels(count: int) -> Pixels:
        positions = numbers(b, count, 2) * 2 - 1
        return Pixels(positions, numbers(b, 2), numbers(b, count), numbers(b, count))

    return Batch(
        log_depth=numbers(b, 1, *size),
        features=numbers(b, channels, *size) if channels and not config.zero_features else None,
        pixels=pixels(p),
        anchors=pixels(n),
        anchor_weights=torch.ones(b, n, device=device),
        offset_noise=torch.zeros(b, device=device),
    )


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def plan_text(lines: list[Line]) -> str:
    """The plan as a table for a terminal, with the sums below."""
    rows = [(line.stage, line.what, _time(line.seconds), _size(line.gigabytes)) for line in lines]
    known = [line.seconds for line in lines if line.seconds is not None]
    total = _time(sum(known)) + ("" if len(known) == len(lines) else " and more")
    disk = _size(sum(line.gigabytes or 0.0 for line in lines))
    rows = [("stage", "work", "time", "disk"), *rows, ("all", "", total, disk)]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "not known: no weights"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _size(gigabytes: float | None) -> str:
    if gigabytes is None:
        return ""
    return f"{gigabytes:.1f} GB" if gigabytes >= 0.1 else f"{1000 * gigabytes:.0f} MB"
