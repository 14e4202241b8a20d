"""Training frames for generators: an MDE's output beside the true depth, ready in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from tqdm import tqdm

from scalefield.cues import grid_log_depth, to_unit
from scalefield.datasets import Dataset, Frame
from scalefield.errors import InputError
from scalefield.generator import resize
from scalefield.mde import MDE
from scalefield.sampling import generator as named_generator
from scalefield.sampling import grid_shape, sample_anchors

PIXELS = 8192
"""Known pixels kept of each frame, drawn once by its name."""


@dataclass(frozen=True, eq=False)
class TrainingFrame:
    """One image: the generator's inputs, and known pixels with both depths."""

    name: str
    shape: tuple[int, int]
    features: Float[Tensor, "c hf wf"] | None
    """F in float16, on its own grid (or the generator's, where that is coarser)."""
    log_depth: Float[Tensor, "1 hg wg"]
    """Centred log D on the generator's grid."""
    pixels: Float[Tensor, "p 2"]
    """(u, v) of known pixels."""
    mde_log_depth: Float[Tensor, " p"]
    """log D_MDE there."""
    true_log_depth: Float[Tensor, " p"]
    """log D_gt there."""
    anchors: dict[str, Int64[Tensor, " n"]]
    """Rows of the tables above that the benchmark's protocol draws as anchors, by regime."""

    @property
    def bucket(self) -> tuple[int, ...]:
        """Frames of one bucket can be stacked."""
        cells = () if self.features is None else tuple(self.features.shape)
        return (*self.log_depth.shape[1:], *cells)


@dataclass(frozen=True, eq=False)
class CrossFit:
    """Models of one kind, each trained without some places: every frame gets one that never saw it.

    On its own training frames an MDE is far better than anywhere else, and a generator trained
    there learns to correct errors that it will not meet.
    """

    models: tuple[tuple[MDE, frozenset[str]], ...]
    """Each MDE with the scenes that it was trained on."""

    def for_scene(self, scene: str) -> MDE:
        """The first model whose training never saw the scene."""
        for mde, scenes in self.models:
            if scene not in scenes:
                return mde
        raise InputError(
            f"every one of the {len(self.models)} MDEs was trained on the scene {scene!r}, and a "
            "generator must be trained out of sample; cross-fit the MDE with --folds"
        )


@torch.no_grad()
def prepare_frame(
    frame: Frame,
    mde: MDE | CrossFit,
    regimes: Sequence[str] = (),
    *,
    device: str | torch.device = "cpu",
    seed: int = 0,
) -> TrainingFrame:
    """Run the MDE on a frame and keep what training needs; anchors of `regimes` by the protocol."""
    output = (mde.for_scene(frame.scene) if isinstance(mde, CrossFit) else mde)(frame.image)
    name = frame.name
    log_depth = grid_log_depth(output.mde_depth[None].float())[0].to(device)
    features = output.features
    if features is not None and features.shape[1] * features.shape[2] > log_depth.numel():
        features = resize(features[None], log_depth.shape[1:])[0]

    rng = named_generator(seed, name, "pixels")
    known = np.flatnonzero(frame.mask & output.valid.cpu().numpy())
    if len(known) == 0:
        raise InputError(f"{name}: no pixel has both a relative and a true depth")
    drawn = {
        regime: np.ravel_multi_index(
            sample_anchors(frame.depth_m, frame.mask, regime, seed=seed, name=name).pixels(
                frame.mask.shape
            ),
            frame.mask.shape,
        )
        for regime in regimes
    }
    table = rng.choice(known, min(PIXELS, len(known)), replace=False)
    table = np.concatenate([*drawn.values(), table])
    ends = np.cumsum([len(indices) for indices in drawn.values()])
    v, u = np.divmod(table, frame.mask.shape[1])
    mde_depth = output.mde_depth.flatten()[torch.from_numpy(table).to(output.mde_depth.device)]
    return TrainingFrame(
        name=name,
        shape=output.shape,
        features=None if features is None else features.half().to(device),
        log_depth=log_depth,
        pixels=torch.from_numpy(np.stack([u, v], axis=1)).to(device).float(),
        mde_log_depth=mde_depth.float().log().to(device),
        true_log_depth=torch.from_numpy(np.log(frame.depth_m[v, u])).to(device).float(),
        anchors={
            regime: torch.arange(end - len(indices), end, device=device)
            for (regime, indices), end in zip(drawn.items(), ends.tolist(), strict=True)
        },
    )


def prepare(
    dataset: Dataset,
    split: str,
    mde: MDE | CrossFit,
    regimes: Sequence[str] = (),
    device: str | torch.device = "cpu",
) -> list[TrainingFrame]:
    """All frames of a split, as `mde` sees them, in the device's memory."""
    names = tqdm(dataset.names(split), desc=f"prepare {split}", unit="frame")
    return [prepare_frame(dataset.load(name), mde, regimes, device=device) for name in names]


@dataclass(frozen=True, eq=False)
class Batch:
    """Frames of one bucket, stacked, with anchors and target pixels drawn for this step."""

    features: Float[Tensor, "b c hf wf"] | None
    log_depth: Float[Tensor, "b 1 hg wg"]
    anchor_positions: Float[Tensor, "b n 2"]
    """(u, v) in −1 … 1 over the image, so that frames of different sizes share a batch."""
    y: Float[Tensor, "b n"]
    anchor_weights: Float[Tensor, "b n"]
    """1, and 0 for padding."""
    pixel_positions: Float[Tensor, "b p 2"]
    mde_log_depth: Float[Tensor, "b p"]
    true_log_depth: Float[Tensor, "b p"]


def epoch_batches(
    frames: Sequence[TrainingFrame], batch: int, seed: int, epoch: int
) -> list[list[int]]:
    """Indices of an epoch's batches: every frame once, batches within a bucket, order by seed."""
    rng = named_generator(seed, "epoch", str(epoch))
    buckets: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index in rng.permutation(len(frames)):
        buckets[frames[index].bucket].append(int(index))
    batches = [
        indices[i : i + batch]
        for indices in buckets.values()
        for i in range(0, len(indices), batch)
    ]
    return [batches[i] for i in rng.permutation(len(batches))]


def draw_anchors(
    frame: TrainingFrame, n: int, jitter: float, rng: np.random.Generator
) -> Int64[Tensor, " n"]:
    """Rows of the frame's table for n anchors: the protocol's grid, shifted by up to `jitter` of a
    cell, each candidate moved to the nearest known pixel; one met twice is replaced by chance."""
    height, width = frame.shape
    rows, columns = grid_shape(n, frame.shape)
    cell = rng.permutation(rows * columns)[:n]
    shift = (rng.random((n, 2)) - 0.5) * jitter
    u = (cell % columns + 0.5 + shift[:, 0]) * width / columns
    v = (cell // columns + 0.5 + shift[:, 1]) * height / rows
    wanted = torch.from_numpy(np.stack([u, v], axis=1)).to(frame.pixels)
    nearest = torch.cdist(wanted, frame.pixels).argmin(dim=1)
    order = nearest.argsort(stable=True)
    again = torch.zeros_like(nearest, dtype=torch.bool)
    again[order[1:]] = nearest[order[1:]] == nearest[order[:-1]]
    chance = torch.from_numpy(rng.integers(len(frame.pixels), size=n)).to(nearest.device)
    return torch.where(again, chance, nearest)


def make_batch(
    frames: Sequence[TrainingFrame],
    anchor_rows: Sequence[Int64[Tensor, " _"]],
    pixel_rows: Sequence[Int64[Tensor, " _"]],
    mirror: Sequence[bool],
) -> Batch:
    """Stack frames of one bucket; the shorter anchor sets are padded with weight zero."""
    most = max(len(rows) for rows in anchor_rows)
    device = frames[0].log_depth.device
    count = len(frames)
    positions = torch.zeros(count, most, 2, device=device)
    y, weights = torch.zeros(2, count, most, device=device)
    flips = [torch.tensor([-1.0 if m else 1.0, 1.0], device=device) for m in mirror]
    for i, (frame, rows) in enumerate(zip(frames, anchor_rows, strict=True)):
        positions[i, : len(rows)] = to_unit(frame.pixels[rows], frame.shape) * flips[i]
        y[i, : len(rows)] = frame.true_log_depth[rows] - frame.mde_log_depth[rows]
        weights[i, : len(rows)] = 1

    def stack(maps: Iterator[Tensor]) -> Tensor:
        return torch.stack([x.flip(-1) if m else x for x, m in zip(maps, mirror, strict=True)])

    pairs = list(zip(frames, pixel_rows, strict=True))
    return Batch(
        features=(
            None
            if frames[0].features is None
            else stack(f.features.float() for f in frames if f.features is not None)
        ),
        log_depth=stack(f.log_depth for f in frames),
        anchor_positions=positions,
        y=y,
        anchor_weights=weights,
        pixel_positions=torch.stack(
            [
                to_unit(f.pixels[r], f.shape) * flip
                for (f, r), flip in zip(pairs, flips, strict=True)
            ]
        ),
        mde_log_depth=torch.stack([f.mde_log_depth[rows] for f, rows in pairs]),
        true_log_depth=torch.stack([f.true_log_depth[rows] for f, rows in pairs]),
    )
