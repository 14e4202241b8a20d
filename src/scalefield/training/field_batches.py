"""What `field` is trained on: frames in banks, batches drawn from them, and anchors in those."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as nnf
from jaxtyping import Float, Int64
from torch import Tensor

from scalefield.anchor_sampling import anchor_grid_shape
from scalefield.basis.grids import LOG_DEPTH_LIMIT, sample_at
from scalefield.field.error_scale import ErrorScale, scale_factors
from scalefield.field.exact import ExactPosterior
from scalefield.field.image_inputs import FieldMaps
from scalefield.field.kernel import Kernel, KernelInputs
from scalefield.field.network import FieldNet
from scalefield.field.observations import Observations
from scalefield.training.data import PIXELS, TrainingFrame
from scalefield.training.distortion import (
    Distortion,
    DistortionConfig,
    UnknownShift,
    grid_positions,
)

MOST_FOR_SCALE = 128
"""Largest number of anchors from which the scale of the errors is estimated."""
MOST_DRAWN = 1024
"""Largest number of pixels at the start of a frame's table that the protocol draws as anchors."""


@dataclass(frozen=True, eq=False)
class Bank:
    """Frames of one grid shape, stacked on the device."""

    log_depth: Float[Tensor, "f 1 h w"]
    image: Float[Tensor, "f 3 h w"]
    features: Float[Tensor, "f c hf wf"] | None
    positions: Float[Tensor, "f p 2"]
    """(u, v) of known pixels in −1 … 1."""
    units: Float[Tensor, "f 2"]
    """Half the image's width and height in units of its area's square root."""
    mde_log_depth: Float[Tensor, "f p"]
    """log D_MDE there, around the same median as `log_depth`."""
    true_log_depth: Float[Tensor, "f p"]
    anchors: dict[str | int, list[Int64[np.ndarray, " _"]]]
    chance: Float[Tensor, " f"]
    """How often each frame is drawn, on the CPU."""
    truth: Float[Tensor, " f"]
    """1 where D_MDE is the true depth and must be distorted."""
    groups: tuple[str, ...]
    segments: Int64[Tensor, "f h w"]
    """Index of the segment of each cell; zero where a frame has none."""


def make_banks(frames: Sequence[TrainingFrame]) -> list[Bank]:
    """All frames by grid shape; a source with n frames is drawn in proportion to √n.

    Features are kept where every frame of a bank has them.
    """
    counts = Counter(frame.group for frame in frames)
    buckets: dict[tuple[int, ...], list[TrainingFrame]] = defaultdict(list)
    for frame in frames:
        buckets[frame.bucket].append(frame)
    return [
        make_bank(members, torch.tensor([counts[f.group] ** -0.5 for f in members]))
        for members in buckets.values()
    ]


def make_bank(frames: Sequence[TrainingFrame], chance: Float[Tensor, " f"]) -> Bank:
    """Frames of one grid shape; one with few known pixels repeats them."""
    device = frames[0].log_depth.device

    def table(values: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.stack(values)).float().to(device)

    rows = [np.arange(PIXELS + MOST_DRAWN) % len(f.pixels) for f in frames]
    sizes = np.array([[f.shape[1], f.shape[0]] for f in frames], np.float32)
    triples = list(zip(frames, rows, sizes, strict=True))
    features = [f.features for f in frames if f.features is not None]
    return Bank(
        log_depth=torch.stack([f.log_depth for f in frames]),
        image=torch.stack([f.image for f in frames]),
        features=torch.stack(features) if len(features) == len(frames) else None,
        positions=table([(f.pixels[r] + 0.5) * 2 / size - 1 for f, r, size in triples]),
        units=table([0.5 * size / np.sqrt(size.prod()) for size in sizes]),
        mde_log_depth=table([f.mde_log_depth[r] - f.level for f, r, _ in triples]),
        true_log_depth=table([f.true_log_depth[r] for f, r, _ in triples]),
        anchors={regime: [f.anchors[regime] for f in frames] for regime in frames[0].anchors},
        chance=chance,
        truth=torch.tensor([float(f.true) for f in frames], device=device),
        groups=tuple(f.group for f in frames),
        segments=torch.stack([frame_segments(f) for f in frames]),
    )


def frame_segments(frame: TrainingFrame) -> Int64[Tensor, "h w"]:
    """Index of the segment of each cell; zeros for a frame without segments."""
    if frame.segments is None:
        return torch.zeros(
            frame.log_depth.shape[1:], dtype=torch.long, device=frame.log_depth.device
        )
    return frame.segments.long()


@dataclass(frozen=True, eq=False)
class FieldBatch:
    """Frames of one step."""

    log_depth: Float[Tensor, "b 1 h w"]
    image: Float[Tensor, "b 3 h w"]
    features: Float[Tensor, "b c hf wf"] | None
    positions: Float[Tensor, "b p 2"]
    units: Float[Tensor, "b 2"]
    mde_log_depth: Float[Tensor, "b p"]
    true_log_depth: Float[Tensor, "b p"]
    shift: Float[Tensor, "b p"] | None = None
    """`KernelInputs.shift` there; None where the shift of every map is known."""

    def points(self, maps: FieldMaps, rows: Int64[Tensor, "b m"]) -> KernelInputs:
        """Inputs of the kernel at some of the known pixels."""
        positions = self.positions.gather(1, rows[..., None].expand(-1, -1, 2))
        values = sample_at(maps.maps, positions)
        log_depth = self.mde_log_depth.gather(1, rows)
        shift = None if self.shift is None else self.shift.gather(1, rows)
        return maps.layout.kernel_inputs(positions * self.units[:, None], log_depth, values, shift)

    def target(self, rows: Int64[Tensor, "b m"]) -> Float[Tensor, "b m"]:
        """y there, up to the image's level."""
        return (self.true_log_depth - self.mde_log_depth).gather(1, rows).double()


def draw_batch(
    bank: Bank,
    size: int,
    rng: torch.Generator,
    *,
    imageless: float,
    featureless: float,
    distorted: float,
    distortion: DistortionConfig | None = None,
    anchors: int = 12,
) -> FieldBatch:
    """Frames drawn by their chance, mirrored and recoloured at random, shares of them without their
    image, without their features, distorted, and as disparity of unknown shift.

    `anchors` is the number of anchors that the batch is meant for: with more of them, an unknown
    shift is estimated better.
    """
    chosen = torch.multinomial(bank.chance, size, replacement=True, generator=rng)
    device = bank.log_depth.device
    chosen = chosen.to(device)

    def flags(share: float) -> Tensor:
        return (torch.rand(size, generator=rng) < share).to(device)

    mirror = flags(0.5)
    turn = torch.stack([1 - 2.0 * mirror, torch.ones_like(mirror, dtype=torch.float32)], dim=1)

    def turned(maps: Tensor) -> Tensor:
        maps = maps[chosen].float()
        return torch.where(mirror[:, None, None, None], maps.flip(-1), maps)

    log_depth, image = turned(bank.log_depth), recolour(turned(bank.image), rng)
    image = torch.where(flags(imageless)[:, None, None, None], torch.nan, image)
    features = None
    if bank.features is not None:
        features = turned(bank.features) * ~flags(featureless)[:, None, None, None]
    positions = bank.positions[chosen] * turn[:, None]
    mde_log_depth = bank.mde_log_depth[chosen]

    config = distortion or DistortionConfig()
    rare = flags(distorted).float() * torch.rand(size, generator=rng).to(device)
    lowest, highest = config.least_strength, config.most_strength
    log_uniform = lowest * (highest / lowest) ** torch.rand(size, generator=rng).to(device)
    strength = torch.where(bank.truth[chosen] > 0, log_uniform, rare)
    segments = bank.segments[chosen]
    segments = torch.where(mirror[:, None, None], segments.flip(-1), segments)
    distort = Distortion.draw(size, rng, device, strength, config).with_grid(
        log_depth, segments, rng, strength, config=config
    )
    grid = distort(log_depth.flatten(1), grid_positions(log_depth))
    level = grid.median(dim=1, keepdim=True).values
    grid, pixels = grid - level, distort(mde_log_depth, positions) - level
    unknown = UnknownShift.draw(grid, rng, config=config, anchors=anchors)
    seen = unknown.seen(grid).clamp(-LOG_DEPTH_LIMIT, LOG_DEPTH_LIMIT)
    return FieldBatch(
        log_depth=seen.reshape(log_depth.shape),
        image=image,
        features=features,
        positions=positions,
        units=bank.units[chosen],
        mde_log_depth=unknown.estimated(pixels),
        true_log_depth=bank.true_log_depth[chosen],
        shift=unknown.sensitivity(pixels),
    )


def recolour(image: Float[Tensor, "b 3 h w"], rng: torch.Generator) -> Float[Tensor, "b 3 h w"]:
    """Random gamma, white balance, contrast and saturation."""
    batch = image.shape[0]

    def draw(channels: int) -> Tensor:
        return (torch.rand(batch, channels, 1, 1, generator=rng) - 0.5).to(image.device)

    x = ((image + 1) / 2).clamp(1e-3, 1) ** (1.6 * draw(1)).exp()
    x = x * (1 + 0.5 * draw(1)) * (1 + 0.3 * draw(3))
    grey = x.mean(dim=1, keepdim=True)
    x = grey + (x - grey) * (1 + 1.6 * draw(1))
    return x * 2 - 1


def draw_anchors(
    batch: FieldBatch, n: int, jitter: float, rng: torch.Generator
) -> Int64[Tensor, "b n"]:
    """Rows of n anchors an image: the protocol's grid, shifted by up to `jitter` of a cell, each
    candidate moved to the nearest known pixel, one met twice replaced by chance."""
    count, known = batch.mde_log_depth.shape
    shape = batch.units[0] * 1000  # only its proportions matter
    rows, columns = anchor_grid_shape(n, (round(float(shape[1])), round(float(shape[0]))))
    cell = torch.rand(count, rows * columns, generator=rng).argsort(dim=1)[:, :n]
    shift = (torch.rand(count, n, 2, generator=rng) - 0.5) * jitter
    u = (cell % columns + 0.5 + shift[..., 0]) * 2 / columns - 1
    v = (cell // columns + 0.5 + shift[..., 1]) * 2 / rows - 1
    wanted = torch.stack([u, v], dim=-1).to(batch.units.device) * batch.units[:, None]
    spare = torch.randint(known, (count, n), generator=rng).to(batch.units.device)
    nearest = torch.cdist(wanted, batch.positions * batch.units[:, None]).argmin(dim=-1)
    ordered, order = nearest.sort(dim=1)
    again = nnf.pad(ordered[:, 1:] == ordered[:, :-1], (1, 0))
    ordered = torch.where(again, spare, ordered)
    return torch.empty_like(nearest).scatter(1, order, ordered)


def network_maps(net: FieldNet, batch: FieldBatch) -> FieldMaps:
    """The network's maps, in float32."""
    on_gpu = batch.log_depth.device.type == "cuda"
    with torch.autocast(batch.log_depth.device.type, torch.bfloat16, enabled=on_gpu):
        maps = net(batch.log_depth, batch.image, batch.features)
    return FieldMaps(maps.maps.float(), maps.expected_log_depth.float(), maps.layout)


def solve(
    kernel: Kernel,
    batch: FieldBatch,
    maps: FieldMaps,
    rows: Int64[Tensor, "b n"],
    scales: Sequence[ErrorScale],
) -> ExactPosterior:
    """The posterior given the anchors in `rows`, with the prior deviations that they suggest."""
    y, inputs = batch.target(rows), batch.points(maps, rows)
    noise = torch.full_like(y, float(kernel.noise_std))
    thinned = slice(None, None, 1 + (y.shape[1] - 1) // MOST_FOR_SCALE)
    with torch.no_grad():
        subset = KernelInputs(*(x[:, thinned].detach().double() for x in vars(inputs).values()))
        mask = torch.ones_like(y[:, thinned], dtype=torch.bool)
        observed = Observations(subset, y[:, thinned], noise[:, thinned], mask)
        factors = scale_factors(kernel, observed, scales)
    return ExactPosterior.fit(kernel.scaled(factors), inputs, y, noise)
