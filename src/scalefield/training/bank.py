"""Training frames of one grid shape, stacked on a device, and the batches drawn from them.

At known pixels a batch has y = log D_gt − log D_MDE, which is what generators and `field` predict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from scalefield.training.data import PIXELS, TrainingFrame, by_bucket
from scalefield.training.prepared import PreparedFrames

T = TypeVar("T")

MOST_DRAWN = 1024
"""Largest number of anchors of all regimes that follow the random pixels of a frame's table."""
FIELD_ROWS = PIXELS + MOST_DRAWN
"""Rows of the tables that `field` is trained on."""


@dataclass(frozen=True, eq=False)
class Pixels:
    """Known pixels of each frame of a batch."""

    positions: Float[Tensor, "b p 2"]
    """(u, v) in −1 … 1 over the image, so that frames of different sizes share a batch."""
    units: Float[Tensor, "b 2"]
    """Half the image's width and height in units of its area's square root."""
    mde_log_depth: Float[Tensor, "b p"]
    true_log_depth: Float[Tensor, "b p"]
    shift: Float[Tensor, "b p"] | None = None
    """`KernelInputs.shift` there; None where the shift of every map is known."""

    @property
    def y(self) -> Float[Tensor, "b p"]:
        """log D_gt − log D_MDE."""
        return self.true_log_depth - self.mde_log_depth

    def at(self, rows: Int64[Tensor, "b n"]) -> Pixels:
        """Some of the pixels of each frame."""
        return Pixels(
            self.positions.gather(1, rows[..., None].expand(-1, -1, 2)),
            self.units,
            self.mde_log_depth.gather(1, rows),
            self.true_log_depth.gather(1, rows),
            None if self.shift is None else self.shift.gather(1, rows),
        )

    def mirrored(self, flags: Bool[Tensor, " b"]) -> Pixels:
        """The pixels of mirrored images where `flags` are true."""
        turn = torch.stack([1 - 2.0 * flags, torch.ones_like(flags, dtype=torch.float32)], dim=1)
        return replace(self, positions=self.positions * turn[:, None])


@dataclass(frozen=True, eq=False)
class Batch:
    """Frames of one step, with anchors and with the pixels that the losses use."""

    log_depth: Float[Tensor, "b 1 h w"]
    """Centred log D on the generator's grid."""
    features: Shaped[Tensor, "b c hf wf"] | None
    """F as it is kept; float32 after `dequantised`."""
    pixels: Pixels
    anchors: Pixels
    anchor_weights: Float[Tensor, "b n"]
    """1, and 0 for padding."""
    quantisation: Float[Tensor, "b 2 c"] | None = None
    """Step and least value of each channel of uint8 features."""
    offset_noise: Float[Tensor, " b"] | None = None
    """Error to be put on the offset of the solve; see `BasisTraining.offset_noise`."""
    image: Float[Tensor, "b 3 h w"] | None = None
    """RGB in −1 … 1, NaN where it is withheld. Generators do not use it."""

    def pin_memory(self) -> Batch:
        """A copy whose host tensors are in page-locked memory, which a GPU fetches while the host
        continues."""
        return map_tensors(self, lambda t: t.pin_memory() if t.device.type == "cpu" else t)

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device, features as they are kept."""
        return map_tensors(self, lambda tensor: tensor.to(device, non_blocking=True))

    def dequantised(self) -> Batch:
        """The batch with features in float32."""
        if self.features is None:
            return self
        features = self.features.float()
        if self.quantisation is not None:
            step, least = self.quantisation[..., None, None].unbind(1)
            features = torch.addcmul(least, features, step)
        return replace(self, features=features, quantisation=None)


def map_tensors(value: T, change: Callable[[Tensor], Tensor]) -> T:
    """A dataclass with all its tensors changed, also those of dataclasses within it."""

    def changed(part: Any) -> Any:
        if isinstance(part, Tensor):
            return change(part)
        return map_tensors(part, change) if is_dataclass(part) else part

    parts = {f.name: changed(getattr(value, f.name)) for f in fields(value)}  # type: ignore[arg-type]
    return replace(value, **parts)  # type: ignore[type-var]


def mirrored(maps: Shaped[Tensor, "b *c h w"], flags: Bool[Tensor, " b"]) -> Tensor:
    """The maps, mirrored where `flags` are true."""
    return torch.where(flags.reshape(-1, *[1] * (maps.ndim - 1)), maps.flip(-1), maps)


@dataclass(frozen=True, eq=False)
class Bank:
    """Frames of one bucket, stacked on a device, with all their known pixels."""

    log_depth: Float[Tensor, "f 1 h w"]
    image: Float[Tensor, "f 3 h w"]
    features: Shaped[Tensor, "f c hf wf"] | None
    """As they are kept; None unless every frame has them."""
    quantisation: Float[Tensor, "f 2 c"] | None
    segments: Int64[Tensor, "f h w"]
    """Index of the segment of each cell; zero where a frame has none."""
    pixels: Pixels
    """The frames' tables; a frame with fewer pixels than others repeats them."""
    level: Float[Tensor, " f"]
    """log D at the median, which `log_depth` is around."""
    truth: Float[Tensor, " f"]
    """1 where D_MDE is the true depth and must be distorted."""
    chance: Float[Tensor, " f"]
    """How often `field` draws each frame, on the CPU."""
    groups: tuple[str, ...]
    drawn: tuple[int, ...]
    """Leading rows of each table that were drawn at random."""
    anchors: dict[str | int, tuple[Int64[np.ndarray, " _"], ...]]
    """Rows of each table that the protocol draws as anchors, by regime."""

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.log_depth.device

    def select(self, rows: Sequence[int]) -> Bank:
        """Some of the frames, which may repeat."""
        host = torch.tensor(rows)
        index = host.to(self.device, non_blocking=True)
        chosen = map_tensors(self, lambda x: x[index if x.device == self.device else host])
        return replace(
            chosen,
            groups=tuple(self.groups[row] for row in rows),
            drawn=tuple(self.drawn[row] for row in rows),
            anchors={
                regime: tuple(found[row] for row in rows) for regime, found in self.anchors.items()
            },
        )

    def batch(
        self,
        anchors: Sequence[Int64[np.ndarray, " _"]],
        pixels: Sequence[Int64[np.ndarray, " p"]] = (),
        *,
        mirror: Sequence[bool] = (),
        stretch: Sequence[float] = (),
        offset_noise: Sequence[float] = (),
    ) -> Batch:
        """All frames with these rows of their tables as anchors and pixels.

        The shorter anchor sets are padded with weight zero. Without `pixels` all that were drawn at
        random are taken; a frame with fewer repeats them. A frame is mirrored where `mirror` is
        true, and its D_MDE becomes D^stretch; frames stay as they are where these are empty.
        """
        rows = np.zeros((len(self.drawn), max(map(len, anchors))), np.int64)
        weights = np.zeros(rows.shape, np.float32)
        for i, found in enumerate(anchors):
            rows[i, : len(found)], weights[i, : len(found)] = found, 1
        if pixels:
            pixel_rows = self._sent(np.stack(pixels))
        else:
            every = torch.arange(max(self.drawn), device=self.device)
            pixel_rows = every % self._sent(self.drawn)[:, None]
        log_depth, features, table = self.log_depth, self.features, self.pixels
        if any(mirror):
            flags = self._sent(mirror)
            log_depth, table = mirrored(log_depth, flags), table.mirrored(flags)
            features = None if features is None else mirrored(features, flags)
        if stretch:
            gamma = self._sent(np.array(stretch, np.float32))
            log_depth = log_depth * gamma[:, None, None, None]
            table = replace(table, mde_log_depth=table.mde_log_depth * gamma[:, None])
        noise = np.array(offset_noise or [0.0] * len(rows), np.float32)
        return Batch(
            log_depth=log_depth,
            features=features,
            pixels=table.at(pixel_rows),
            anchors=table.at(self._sent(rows)),
            anchor_weights=self._sent(weights),
            quantisation=self.quantisation,
            offset_noise=self._sent(noise),
        )

    def _sent(self, values: Any) -> Tensor:
        """Small numbers on the device, without waiting for the steps that it still has to do."""
        return torch.as_tensor(values).to(self.device, non_blocking=True)


def make_bank(
    frames: Sequence[TrainingFrame],
    device: torch.device | str | None = None,
    *,
    chance: Float[Tensor, " f"] | None = None,
    least_rows: int = 0,
) -> Bank:
    """Frames of one bucket on a device, or on their own, with tables of `least_rows` or more."""
    device = frames[0].log_depth.device if device is None else device
    length = max(least_rows, *(len(frame.pixels) for frame in frames))
    rows = [np.arange(length) % len(frame.pixels) for frame in frames]
    sizes = [np.array([frame.shape[1], frame.shape[0]], np.float32) for frame in frames]

    def stack(maps: Sequence[Tensor]) -> Tensor:
        return torch.stack([part.to(device) for part in maps])

    def table(values: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.stack(values)).to(device)

    triples = list(zip(frames, rows, sizes, strict=True))
    features = [frame.features for frame in frames if frame.features is not None]
    steps = [frame.quantisation for frame in frames if frame.quantisation is not None]
    return Bank(
        log_depth=stack([frame.log_depth for frame in frames]),
        image=stack([frame.image for frame in frames]),
        features=stack(features) if len(features) == len(frames) else None,
        quantisation=stack(steps) if steps else None,
        segments=stack([frame_segments(frame) for frame in frames]),
        pixels=Pixels(
            table([(f.pixels[r] + 0.5) * 2 / size - 1 for f, r, size in triples]),
            table([0.5 * size / np.sqrt(size.prod()) for size in sizes]),
            table([frame.mde_log_depth[r] for frame, r, _ in triples]),
            table([frame.true_log_depth[r] for frame, r, _ in triples]),
        ),
        level=torch.tensor([frame.level for frame in frames], device=device),
        truth=torch.tensor([float(frame.true) for frame in frames], device=device),
        chance=torch.ones(len(frames)) if chance is None else chance,
        groups=tuple(frame.group for frame in frames),
        drawn=tuple(frame.drawn for frame in frames),
        anchors={
            regime: tuple(frame.anchors[regime] for frame in frames) for regime in frames[0].anchors
        },
    )


def make_banks(
    frames: Sequence[TrainingFrame],
    device: torch.device | str | None = None,
    *,
    least_rows: int = FIELD_ROWS,
) -> list[Bank]:
    """All frames by bucket; a source with n frames is drawn in proportion to √n."""
    counts = Counter(frame.group for frame in frames)
    return [
        make_bank(
            [frames[i] for i in indices],
            device,
            chance=torch.tensor([counts[frames[i].group] ** -0.5 for i in indices]),
            least_rows=least_rows,
        )
        for indices in by_bucket(frames).values()
    ]


def frame_segments(frame: TrainingFrame) -> Int64[Tensor, "h w"]:
    """Index of the segment of each cell; zeros for a frame without segments."""
    if frame.segments is None:
        return torch.zeros_like(frame.log_depth[0], dtype=torch.long)
    return frame.segments.long()


class ResidentFrames(list[TrainingFrame]):
    """Prepared frames that are also on a device, for sets of about a thousand frames.

    Where every step sees a frame with the same anchors and pixels, as in the paper's recipe, a
    batch is a selection of rows of a bank: nothing is computed on the host.
    """

    def __init__(self, frames: PreparedFrames, device: torch.device | str) -> None:
        """Read all frames; the maps of those in the list stay mapped from the files."""
        super().__init__(frames)
        members = by_bucket(self)
        self.rows = {i: row for indices in members.values() for row, i in enumerate(indices)}
        self.banks = {
            b: make_bank([self[i] for i in found], device) for b, found in members.items()
        }

    @staticmethod
    @lru_cache(maxsize=2)
    def of(frames: PreparedFrames, device: torch.device | str) -> ResidentFrames:
        """Frames on a device; a process keeps the last two sets for its next call."""
        return ResidentFrames(frames, device)

    def bank(self, indices: Sequence[int], *, features: bool = True) -> Bank:
        """These frames, which are of one bucket, on the device; with or without F."""
        bank = self.banks[self[indices[0]].bucket]
        bank = bank if features else replace(bank, features=None, quantisation=None)
        return bank.select([self.rows[i] for i in indices])
