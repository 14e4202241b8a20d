"""Training frames for generators: an MDE's output beside the true depth, ready in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from scipy.ndimage import distance_transform_edt
from scipy.spatial import cKDTree
from torch import Tensor
from tqdm import tqdm

from scalefield.anchor_sampling import anchor_grid_shape, sample_anchors
from scalefield.basis.cues import grid_image, log_depth_and_level
from scalefield.basis.trunk import resize
from scalefield.datasets import Dataset, Frame
from scalefield.errors import InputError
from scalefield.mde import MDE, MDEOutput
from scalefield.seeding import seeded_rng

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
    image: Float[Tensor, "3 hg wg"]
    """RGB in −1 … 1 on the same grid, float16."""
    level: float
    """log D at the median, which `log_depth` is around."""
    group: str
    """The dataset's group, to which its frames' weights and scores belong."""
    true: bool
    """Whether D is the true depth itself, and no MDE's."""
    pixels: Float32[np.ndarray, "p 2"]
    """(u, v) of known pixels. The tables stay on the host, the maps on the device."""
    mde_log_depth: Float32[np.ndarray, " p"]
    """log D_MDE there."""
    true_log_depth: Float32[np.ndarray, " p"]
    """log D_gt there."""
    anchors: dict[str | int, Int64[np.ndarray, " _"]]
    """Rows of the tables above that the benchmark's protocol draws as anchors, by regime."""

    @property
    def bucket(self) -> tuple[int, ...]:
        """Frames of one bucket can be stacked."""
        cells = () if self.features is None else tuple(self.features.shape)
        return (*self.log_depth.shape[1:], *cells)

    @cached_property
    def tree(self) -> cKDTree:
        """Finds the known pixel nearest to a position."""
        return cKDTree(self.pixels)


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
    mde: MDE | CrossFit | None,
    regimes: Sequence[str | int] = (),
    *,
    device: str | torch.device = "cpu",
    seed: int = 0,
) -> TrainingFrame:
    """Run the MDE on a frame and keep what training needs; anchors of `regimes` by the protocol.

    Without an MDE the frame's true depth takes its place, holes filled from their nearest pixels.
    """
    if mde is None:
        output = MDEOutput(filled(frame), "depth", model="truth")
    else:
        output = (mde.for_scene(frame.scene) if isinstance(mde, CrossFit) else mde)(frame.image)
    name = frame.name
    log_depth, level = log_depth_and_level(output.mde_depth[None])
    log_depth = log_depth[0].float().to(device)
    features = output.features
    if features is not None and features.shape[1] * features.shape[2] > log_depth.numel():
        features = resize(features[None], log_depth.shape[1:])[0]

    rng = seeded_rng(seed, name, "pixels")
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
    mde_depth = output.mde_depth.cpu().numpy().reshape(-1)[table]
    return TrainingFrame(
        name=name,
        shape=output.shape,
        features=None if features is None else features.half().to(device),
        log_depth=log_depth,
        image=grid_image(torch.tensor(frame.image), log_depth.shape[1:]).half().to(device),
        level=float(level),
        group=frame.group,
        true=mde is None,
        pixels=np.stack([u, v], axis=1).astype(np.float32),
        mde_log_depth=np.log(mde_depth).astype(np.float32),
        true_log_depth=np.log(frame.depth_m[v, u]).astype(np.float32),
        anchors={
            regime: np.arange(end - len(indices), end)
            for (regime, indices), end in zip(drawn.items(), ends.tolist(), strict=True)
        },
    )


def filled(frame: Frame) -> Float[Tensor, "h w"]:
    """True depth everywhere: holes take the nearest known pixel's."""
    nearest = distance_transform_edt(~frame.mask, return_distances=False, return_indices=True)
    return torch.from_numpy(frame.depth_m[tuple(nearest)]).float()


def prepare(
    dataset: Dataset,
    split: str,
    mde: MDE | CrossFit | None,
    regimes: Sequence[str | int] = (),
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
    rng = seeded_rng(seed, "epoch", str(epoch))
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
) -> Int64[np.ndarray, " n"]:
    """Rows of the frame's table for n anchors: the protocol's grid, shifted by up to `jitter` of a
    cell, each candidate moved to the nearest known pixel; one met twice is replaced by chance."""
    height, width = frame.shape
    rows, columns = anchor_grid_shape(n, frame.shape)
    cell = rng.permutation(rows * columns)[:n]
    shift = (rng.random((n, 2)) - 0.5) * jitter
    u = (cell % columns + 0.5 + shift[:, 0]) * width / columns
    v = (cell // columns + 0.5 + shift[:, 1]) * height / rows
    nearest = np.asarray(frame.tree.query(np.stack([u, v], axis=1))[1], dtype=np.int64)
    first = np.unique(nearest, return_index=True)[1]
    again = np.setdiff1d(np.arange(n), first)
    nearest[again] = rng.integers(len(frame.pixels), size=len(again))
    return nearest


def make_batch(
    frames: Sequence[TrainingFrame],
    anchor_rows: Sequence[Int64[np.ndarray, " _"]],
    pixel_rows: Sequence[Int64[np.ndarray, " p"]],
    mirror: Sequence[bool],
    stretch: Sequence[float],
) -> Batch:
    """Stack frames of one bucket; the shorter anchor sets are padded with weight zero.

    A frame is mirrored where `mirror` says so, and its D_MDE becomes D^stretch.
    """
    count, most = len(frames), max(len(rows) for rows in anchor_rows)
    anchor_positions = np.zeros((count, most, 2), np.float32)
    y, weights = np.zeros((2, count, most), np.float32)
    pixel_positions, mde_log_depth, true_log_depth = [], [], []
    for i, (frame, chosen, rows) in enumerate(zip(frames, anchor_rows, pixel_rows, strict=True)):
        # Pixels in −1 … 1 over the image (`cues.to_unit`), turned over with a mirrored frame.
        size = np.array([frame.shape[1], frame.shape[0]], np.float32)
        turn = np.array([-1 if mirror[i] else 1, 1], np.float32)
        positions = ((frame.pixels + 0.5) * 2 / size - 1) * turn
        anchor_positions[i, : len(chosen)] = positions[chosen]
        mde = frame.mde_log_depth * np.float32(stretch[i])
        y[i, : len(chosen)] = frame.true_log_depth[chosen] - mde[chosen]
        weights[i, : len(chosen)] = 1
        pixel_positions.append(positions[rows])
        mde_log_depth.append(mde[rows])
        true_log_depth.append(frame.true_log_depth[rows])
    device = frames[0].log_depth.device
    turned = torch.tensor(list(mirror), device=device)[:, None, None, None]
    stretched = torch.tensor(list(stretch), device=device, dtype=torch.float32)[:, None, None, None]

    def stack(maps: list[Tensor]) -> Tensor:
        stacked = torch.stack(maps).float()
        return torch.where(turned, stacked.flip(-1), stacked)

    def send(array: np.ndarray | list[np.ndarray]) -> Tensor:
        table = torch.from_numpy(np.asarray(array))
        # From pinned memory a GPU fetches its tables by itself, while the host goes on.
        return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table

    features = [frame.features for frame in frames if frame.features is not None]
    return Batch(
        features=stack(features) if features else None,
        log_depth=stack([frame.log_depth for frame in frames]) * stretched,
        anchor_positions=send(anchor_positions),
        y=send(y),
        anchor_weights=send(weights),
        pixel_positions=send(pixel_positions),
        mde_log_depth=send(mde_log_depth),
        true_log_depth=send(true_log_depth),
    )
