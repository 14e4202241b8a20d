"""Training frames: what an MDE gives for an image beside the true depth at known pixels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64, Shaped, UInt8
from scipy.ndimage import distance_transform_edt
from scipy.spatial import cKDTree
from torch import Tensor

from scalefield.anchor_sampling import anchor_grid_shape, sample_anchors
from scalefield.basis.grids import grid_image, log_depth_and_level
from scalefield.basis.trunk import resize
from scalefield.datasets import Dataset, Frame
from scalefield.errors import InputError
from scalefield.mde import MDE, MDEOutput
from scalefield.runtime.progress import progress
from scalefield.seeding import seeded_rng
from scalefield.training.cross_fit import CrossFit

PIXELS = 8192
"""Known pixels kept of each frame, drawn once by its name."""
SKY_FACTOR = 10.0
"""Largest depth of the sky, relative to that of the farthest surface."""


@dataclass(frozen=True, eq=False)
class TrainingFrame:
    """One image: the generator's inputs, and known pixels with both depths."""

    name: str
    shape: tuple[int, int]
    features: Shaped[Tensor, "c hf wf"] | None
    """F on its own grid (or the generator's, where that is coarser), in float16 or uint8."""
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
    drawn: int
    """Leading rows of the tables: known pixels drawn at random. The others are anchors."""
    quantisation: Float[Tensor, "2 c"] | None = None
    """Step and least value of each channel of uint8 features; None for float16."""
    segments: Shaped[Tensor, "hg wg"] | None = None
    """Index of the segment (about: the object) that each cell of the grid belongs to."""

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
class FrameTable:
    """What training needs of a frame without any MDE: its image, and known pixels."""

    name: str
    group: str
    scene: str
    image: UInt8[Tensor, "h w 3"]
    rows: Int64[np.ndarray, " p"]
    """Pixels as row-major indices: random ones first, then the anchors of each regime."""
    true_log_depth: Float32[np.ndarray, " p"]
    anchors: dict[str | int, tuple[int, int]]
    """First and last + 1 of each regime's anchors among `rows`."""


def frame_table(
    frame: Frame, regimes: Sequence[str | int], *, pixels: int = PIXELS, seed: int = 0
) -> FrameTable:
    """Draw known pixels of a frame, and the protocol's anchors, by its name and the seed."""
    known = np.flatnonzero(frame.mask)
    if len(known) == 0:
        near, far = frame.depth_range_m
        raise InputError(f"{frame.name}: no pixel has a true depth of {near:g} … {far:g} m")
    rng = seeded_rng(seed, frame.name, "pixels")
    parts = [rng.choice(known, min(pixels, len(known)), replace=False)]
    ends, shape = {}, frame.mask.shape
    for regime in regimes:
        anchors = sample_anchors(frame.depth_m, frame.mask, regime, seed=seed, name=frame.name)
        first = sum(map(len, parts))
        parts.append(np.ravel_multi_index(anchors.pixels(shape), shape))
        ends[regime] = first, first + len(parts[-1])
    rows = np.concatenate(parts).astype(np.int64)
    return FrameTable(
        name=frame.name,
        group=frame.group,
        scene=frame.scene,
        image=torch.tensor(frame.image),
        rows=rows,
        true_log_depth=np.log(frame.depth_m.reshape(-1)[rows]).astype(np.float32),
        anchors=ends,
    )


@torch.no_grad()
def training_frame(
    table: FrameTable,
    output: MDEOutput,
    *,
    true: bool = False,
    device: str | torch.device | None = None,
) -> TrainingFrame:
    """A frame's table joined with what an MDE gives for its image; rows without D are left out.

    Tensors stay on the output's device, or go to the one given.
    """
    log_depth, level = log_depth_and_level(output.mde_depth[None])
    log_depth = log_depth[0].float()
    features = output.features
    if features is not None and features.shape[1] * features.shape[2] > log_depth.numel():
        features = resize(features[None], log_depth.shape[1:])[0]
    if features is not None:  # float16 ends at 65504
        half = features.clamp(-65504, 65504).half()
    place = torch.from_numpy(table.rows).to(output.prediction.device)
    valid = output.valid.reshape(-1)[place].cpu().numpy()
    mde_depth = output.mde_depth.reshape(-1)[place].cpu().numpy()
    kept_index = np.cumsum(valid) - 1  # of each row among those that are kept
    anchors = {
        regime: kept_index[first:end][valid[first:end]]
        for regime, (first, end) in table.anchors.items()
    }
    first_anchor = min((first for first, _ in table.anchors.values()), default=len(valid))
    drawn = int(valid[:first_anchor].sum())
    if drawn == 0 or not all(map(len, anchors.values())):
        raise InputError(f"{table.name}: no pixel has both a relative and a true depth")
    v, u = np.divmod(table.rows[valid], output.shape[1])
    image = grid_image(table.image.to(log_depth.device), log_depth.shape[1:]).half()
    return TrainingFrame(
        name=table.name,
        shape=output.shape,
        features=None if features is None else half.to(device or half.device),
        log_depth=log_depth.to(device or log_depth.device),
        image=image.to(device or image.device),
        level=float(level),
        group=table.group,
        true=true,
        pixels=np.stack([u, v], axis=1).astype(np.float32),
        mde_log_depth=np.log(mde_depth[valid]).astype(np.float32),
        true_log_depth=table.true_log_depth[valid],
        anchors=anchors,
        drawn=drawn,
    )


def prepare_frame(
    frame: Frame,
    mde: MDE | CrossFit | None,
    regimes: Sequence[str | int] = (),
    *,
    device: str | torch.device = "cpu",
) -> TrainingFrame:
    """Run the MDE on a frame and keep what training needs; anchors of `regimes` by the protocol.

    Without an MDE the frame's true depth takes its place, holes filled from their nearest pixels.
    """
    if mde is None:
        output = MDEOutput(filled(frame), "depth", model="truth")
    else:
        output = (mde.for_scene(frame.scene) if isinstance(mde, CrossFit) else mde)(frame.image)
    table = frame_table(frame, regimes)
    return training_frame(table, output, true=mde is None, device=device)


def filled(frame: Frame) -> Float[Tensor, "h w"]:
    """True depth everywhere: holes take the nearest known pixel's, and the sky a multiple of the
    largest depth, drawn by the frame's name, because estimators differ there."""
    nearest = distance_transform_edt(~frame.mask, return_distances=False, return_indices=True)
    depth_m = frame.depth_m[tuple(nearest)]
    if frame.sky is not None and frame.sky.any():
        beyond = SKY_FACTOR ** seeded_rng(0, frame.name, "sky").random()
        depth_m = np.where(frame.sky, beyond * depth_m[frame.mask].max(), depth_m)
    return torch.from_numpy(depth_m).float()


def prepare(
    dataset: Dataset,
    split: str,
    mde: MDE | CrossFit | None,
    regimes: Sequence[str | int] = (),
    device: str | torch.device = "cpu",
) -> list[TrainingFrame]:
    """All frames of a split with the predictions of `mde`, in the memory of the device."""
    names, frames = dataset.names(split), list[TrainingFrame]()
    with progress(len(names), desc=f"prepare {split}", unit="frame") as bar:
        for name in names:
            frames.append(prepare_frame(dataset.load(name), mde, regimes, device=device))
            bar.update()
    return frames


def by_bucket(
    frames: Sequence[TrainingFrame], order: Sequence[int] | None = None
) -> dict[tuple[int, ...], list[int]]:
    """Indices of the frames of each bucket, in the order of the frames or in the one given.

    The buckets of prepared frames on disk are known without reading them.
    """
    known = getattr(frames, "buckets", None) or [frame.bucket for frame in frames]
    members: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index in range(len(frames)) if order is None else order:
        members[known[index]].append(index)
    return members


def epoch_batches(
    frames: Sequence[TrainingFrame], batch: int, seed: int, epoch: int
) -> list[list[int]]:
    """Indices of an epoch's batches: every frame once, batches within a bucket, order by seed."""
    rng = seeded_rng(seed, "epoch", str(epoch))
    batches = [
        indices[i : i + batch]
        for indices in by_bucket(frames, rng.permutation(len(frames)).tolist()).values()
        for i in range(0, len(indices), batch)
    ]
    return [batches[i] for i in rng.permutation(len(batches))]


Numbers = TypeVar("Numbers", np.ndarray, Tensor)


def grid_candidates(
    cell: Numbers, shift: Numbers, grid: tuple[int, int], size: tuple[int, int]
) -> tuple[Numbers, Numbers]:
    """u and v of the centres of cells of the anchor grid of rows × columns over height × width,
    shifted by parts of a cell."""
    (rows, columns), (height, width) = grid, size
    u = (cell % columns + 0.5 + shift[..., 0]) * width / columns
    v = (cell // columns + 0.5 + shift[..., 1]) * height / rows
    return u, v


def draw_anchors(
    frame: TrainingFrame, n: int, jitter: float, rng: np.random.Generator
) -> Int64[np.ndarray, " n"]:
    """Rows of the frame's table for n anchors: the protocol's grid, shifted by up to `jitter` of a
    cell, each candidate moved to the nearest known pixel; one met twice is replaced by chance."""
    grid = anchor_grid_shape(n, frame.shape)
    cell = rng.permutation(grid[0] * grid[1])[:n]
    shift = (rng.random((n, 2)) - 0.5) * jitter
    candidates = np.stack(grid_candidates(cell, shift, grid, frame.shape), axis=1)
    nearest = np.asarray(frame.tree.query(candidates)[1], dtype=np.int64)
    first = np.unique(nearest, return_index=True)[1]
    again = np.setdiff1d(np.arange(n), first)
    nearest[again] = rng.integers(len(frame.pixels), size=len(again))
    return nearest


def protocol_anchors(frame: TrainingFrame, regime: str) -> Int64[np.ndarray, " n"]:
    """Rows of the anchors that the protocol draws for a frame."""
    if regime not in frame.anchors:
        kept = ", ".join(map(str, frame.anchors)) or "none"
        raise InputError(
            f"{frame.name}: prepared without the anchors of the regime {regime}; it has {kept}"
        )
    return frame.anchors[regime]


def without_features(frame: TrainingFrame) -> TrainingFrame:
    """The frame without F, which is then never read from disk nor sent to the device."""
    return replace(frame, features=None, quantisation=None)
