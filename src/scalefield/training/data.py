"""Training frames for generators: an MDE's output beside the true depth, and batches of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64, Shaped, UInt8
from scipy.ndimage import distance_transform_edt
from scipy.spatial import cKDTree
from torch import Tensor
from tqdm import tqdm

from scalefield.anchor_sampling import anchor_grid_shape, sample_anchors
from scalefield.basis.grids import grid_image, log_depth_and_level
from scalefield.basis.trunk import resize
from scalefield.datasets import Dataset, Frame
from scalefield.errors import InputError
from scalefield.mde import MDE, MDEOutput
from scalefield.seeding import seeded_rng
from scalefield.training.cross_fit import CrossFit

PIXELS = 8192
"""Known pixels kept of each frame, drawn once by its name."""


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
    """All frames of a split with the predictions of `mde`, in the memory of the device."""
    names = tqdm(dataset.names(split), desc=f"prepare {split}", unit="frame")
    return [prepare_frame(dataset.load(name), mde, regimes, device=device) for name in names]


@dataclass(frozen=True, eq=False)
class Batch:
    """Frames of one bucket, stacked, with anchors and target pixels drawn for this step."""

    features: Shaped[Tensor, "b c hf wf"] | None
    """F as it is kept; float32 after `dequantised`."""
    log_depth: Float[Tensor, "b 1 hg wg"]
    anchor_positions: Float[Tensor, "b n 2"]
    """(u, v) in −1 … 1 over the image, so that frames of different sizes share a batch."""
    y: Float[Tensor, "b n"]
    anchor_weights: Float[Tensor, "b n"]
    """1, and 0 for padding."""
    pixel_positions: Float[Tensor, "b p 2"]
    mde_log_depth: Float[Tensor, "b p"]
    true_log_depth: Float[Tensor, "b p"]
    offset_noise: Float[Tensor, " b"]
    """Error to be put on the offset of the solve; see `BasisTraining.offset_noise`."""
    quantisation: Float[Tensor, "b 2 c"] | None = None
    """Step and least value of each channel of uint8 features."""

    def pin_memory(self) -> Batch:
        """A copy whose host tensors are in page-locked memory, which a GPU fetches while the host
        continues."""
        return self._each(lambda t: t.pin_memory() if t.device.type == "cpu" else t)

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device, features as they are kept."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def dequantised(self) -> Batch:
        """The batch with features in float32."""
        if self.features is None:
            return self
        features = self.features.float()
        if self.quantisation is not None:
            step, least = self.quantisation[..., None, None].unbind(1)
            features = torch.addcmul(least, features, step)
        return replace(self, features=features, quantisation=None)

    def select(self, rows: Int64[Tensor, " b2"], *, anchors: int, pixels: int) -> Batch:
        """These frames of the batch, with the first `anchors` and `pixels` of each."""
        chosen = self._each(lambda tensor: tensor[rows])
        return replace(
            chosen,
            anchor_positions=chosen.anchor_positions[:, :anchors],
            y=chosen.y[:, :anchors],
            anchor_weights=chosen.anchor_weights[:, :anchors],
            pixel_positions=chosen.pixel_positions[:, :pixels],
            mde_log_depth=chosen.mde_log_depth[:, :pixels],
            true_log_depth=chosen.true_log_depth[:, :pixels],
        )

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        tensors = {f.name: getattr(self, f.name) for f in fields(self)}
        changed = {k: None if v is None else change(v) for k, v in tensors.items()}
        return Batch(**changed)  # type: ignore[arg-type]


def buckets_of(frames: Sequence[TrainingFrame]) -> list[tuple[int, ...]]:
    """The bucket of each frame; that of prepared frames on disk is known without reading them."""
    known = getattr(frames, "buckets", None)
    return [frame.bucket for frame in frames] if known is None else known


def epoch_batches(
    frames: Sequence[TrainingFrame], batch: int, seed: int, epoch: int
) -> list[list[int]]:
    """Indices of an epoch's batches: every frame once, batches within a bucket, order by seed."""
    rng = seeded_rng(seed, "epoch", str(epoch))
    known = buckets_of(frames)
    buckets: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index in rng.permutation(len(frames)):
        buckets[known[index]].append(int(index))
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


def all_pixels(frames: Sequence[TrainingFrame]) -> list[Int64[np.ndarray, " p"]]:
    """Rows of all known pixels of each frame; a frame with fewer repeats them, because equal
    counts make one tensor."""
    most = max(frame.drawn for frame in frames)
    return [np.arange(most) % frame.drawn for frame in frames]


def protocol_batch(frames: Sequence[TrainingFrame], regime: str) -> Batch:
    """Frames of one bucket as they are, with the protocol's anchors of a regime and all pixels."""
    return make_batch(
        frames, [protocol_anchors(frame, regime) for frame in frames], all_pixels(frames)
    )


def unit_positions(
    frame: TrainingFrame, rows: Int64[np.ndarray, " n"], *, mirror: bool
) -> Float32[np.ndarray, "n 2"]:
    """Pixels of a frame in −1 … 1 over the image (`grids.to_unit`), mirrored with the image."""
    size = np.array([frame.shape[1], frame.shape[0]], np.float32)
    turn = np.array([-1 if mirror else 1, 1], np.float32)
    return ((frame.pixels[rows] + 0.5) * 2 / size - 1) * turn


def make_batch(
    frames: Sequence[TrainingFrame],
    anchor_rows: Sequence[Int64[np.ndarray, " _"]],
    pixel_rows: Sequence[Int64[np.ndarray, " p"]],
    *,
    mirror: Sequence[bool] = (),
    stretch: Sequence[float] = (),
    offset_noise: Sequence[float] = (),
) -> Batch:
    """Stack frames of one bucket; the shorter anchor sets are padded with weight zero.

    A frame is mirrored where `mirror` is true, and its D_MDE becomes D^stretch; frames stay as they
    are where these are empty. Maps stay on the frames' device and tables on the host: `Batch.to`
    brings them together.
    """
    count, most = len(frames), max(len(rows) for rows in anchor_rows)
    mirror, stretch = mirror or [False] * count, stretch or [1.0] * count
    anchor_positions = np.zeros((count, most, 2), np.float32)
    y, weights = np.zeros((2, count, most), np.float32)
    pixel_positions, mde_log_depth, true_log_depth = [], [], []
    for i, (frame, chosen, rows) in enumerate(zip(frames, anchor_rows, pixel_rows, strict=True)):
        gamma = np.float32(stretch[i])
        anchor_positions[i, : len(chosen)] = unit_positions(frame, chosen, mirror=mirror[i])
        mde_at_anchors = frame.mde_log_depth[chosen] * gamma
        y[i, : len(chosen)] = frame.true_log_depth[chosen] - mde_at_anchors
        weights[i, : len(chosen)] = 1
        pixel_positions.append(unit_positions(frame, rows, mirror=mirror[i]))
        mde_log_depth.append(frame.mde_log_depth[rows] * gamma)
        true_log_depth.append(frame.true_log_depth[rows])
    device = frames[0].log_depth.device
    stretched = torch.tensor(list(stretch), device=device, dtype=torch.float32)[:, None, None, None]

    def stack(maps: list[Tensor]) -> Tensor:
        return torch.stack(
            [m.flip(-1) if turn else m for m, turn in zip(maps, mirror, strict=True)]
        )

    kept = [frame.features for frame in frames if frame.features is not None]
    steps = [frame.quantisation for frame in frames if frame.quantisation is not None]
    return Batch(
        features=stack(kept) if kept else None,
        log_depth=stack([frame.log_depth for frame in frames]) * stretched,
        anchor_positions=torch.from_numpy(anchor_positions),
        y=torch.from_numpy(y),
        anchor_weights=torch.from_numpy(weights),
        pixel_positions=torch.from_numpy(np.stack(pixel_positions)),
        mde_log_depth=torch.from_numpy(np.stack(mde_log_depth)),
        true_log_depth=torch.from_numpy(np.stack(true_log_depth)),
        offset_noise=torch.tensor(list(offset_noise) or [0.0] * count, dtype=torch.float32),
        quantisation=torch.stack(steps) if steps else None,
    )
