"""Batches that `field` is trained on, drawn from banks of frames, and the solve with anchors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as nnf
from jaxtyping import Float, Int64
from torch import Tensor

from scalefield.anchor_sampling import anchor_grid_shape
from scalefield.basis.grids import LOG_DEPTH_LIMIT, sample_at
from scalefield.field.error_scale import ERROR_SCALES, ErrorScale, scale_factors
from scalefield.field.exact import ExactPosterior
from scalefield.field.image_inputs import FieldMaps
from scalefield.field.kernel import Kernel, KernelInputs
from scalefield.field.network import FieldNet, FieldNetConfig
from scalefield.field.observations import Observations
from scalefield.training.bank import Bank, Batch, Pixels, mirrored
from scalefield.training.data import grid_candidates
from scalefield.training.distortion import (
    Distortion,
    DistortionConfig,
    UnknownShift,
    grid_positions,
)
from scalefield.training.loop import StepsConfig

MOST_FOR_SCALE = 128
"""Largest number of anchors from which the scale of the errors is estimated."""


@dataclass(frozen=True)
class FieldTraining(StepsConfig):
    """Hyper-parameters, chosen on val."""

    net: FieldNetConfig = field(default_factory=FieldNetConfig)
    anchors: tuple[int, int] = (1, 530)
    """Least and largest number of anchors; drawn log-uniformly for every step."""
    anchor_jitter: float = 1.0
    """Shift of the anchor grid's candidates, as a share of a grid cell."""
    kernel_rate: float = 1e-2
    """Learning rate of the kernel's numbers, which are logarithms."""
    pixels: int = 1024
    """Known pixels an image that the losses look at in a step."""
    beta: float = 0.1
    """Residual of log-depth at which SmoothL1 changes from square to absolute."""
    likelihood: float = 0.02
    """Weight of the negative log-likelihood, which calibrates the standard deviation."""
    restraint: float = 0.05
    """Weight of mean μ²: keeps the mean function small where places and MDEs disagree."""
    level: float = 0.05
    """Weight of the expected level's error, for images without anchors."""
    distorted: float = 0.5
    """Share of an MDE's frames that are distorted further; true depth always is."""
    distortion: DistortionConfig = field(default_factory=DistortionConfig)
    """The errors that are drawn."""
    error_scales: tuple[ErrorScale, ...] = ERROR_SCALES
    """Hypotheses about how much an estimator errs; the anchors decide between them."""
    imageless: float = 0.3
    """Share of frames whose image is withheld: it is optional."""
    featureless: float = 0.3
    """Share of frames whose F is withheld: it is optional."""
    validate: tuple[str | int, ...] = (1, "low", "medium", "high")


def draw_batch(bank: Bank, config: FieldTraining, n: int, rng: torch.Generator) -> Batch:
    """Frames drawn by their chance with n anchors each, mirrored and recoloured at random, shares
    of them without their image, without their features, distorted, and as disparity of unknown
    shift, which more anchors estimate better."""
    size, device, errors = config.batch, bank.device, config.distortion
    chosen = torch.multinomial(bank.chance, size, replacement=True, generator=rng)
    frames = bank.select(chosen.tolist())

    def flags(share: float) -> Tensor:
        return (torch.rand(size, generator=rng) < share).to(device)

    mirror = flags(0.5)
    log_depth = mirrored(frames.log_depth.float(), mirror)
    image = recolour(mirrored(frames.image.float(), mirror), rng)
    image = torch.where(flags(config.imageless)[:, None, None, None], torch.nan, image)
    features = None
    if frames.features is not None:
        withheld = flags(config.featureless)[:, None, None, None]
        features = mirrored(frames.features.float(), mirror) * ~withheld
    table = frames.pixels.mirrored(mirror)

    rare = flags(config.distorted).float() * torch.rand(size, generator=rng).to(device)
    lowest, highest = errors.least_strength, errors.most_strength
    log_uniform = lowest * (highest / lowest) ** torch.rand(size, generator=rng).to(device)
    strength = torch.where(frames.truth > 0, log_uniform, rare)
    distort = Distortion.draw(size, rng, device, strength, errors).with_grid(
        log_depth, mirrored(frames.segments, mirror), rng, strength, config=errors
    )
    grid = distort(log_depth.flatten(1), grid_positions(log_depth))
    level = grid.median(dim=1, keepdim=True).values
    around_level = table.mde_log_depth - frames.level[:, None]
    grid, pixels = grid - level, distort(around_level, table.positions) - level
    unknown = UnknownShift.draw(grid, rng, config=errors, anchors=n)
    seen = unknown.seen(grid).clamp(-LOG_DEPTH_LIMIT, LOG_DEPTH_LIMIT)
    table = replace(
        table, mde_log_depth=unknown.estimated(pixels), shift=unknown.sensitivity(pixels)
    )
    anchors = draw_anchors(table, n, config.anchor_jitter, rng)
    known = table.mde_log_depth.shape[1]
    rows = torch.randint(known, (size, config.pixels), generator=rng).to(device)
    return Batch(
        log_depth=seen.reshape(log_depth.shape),
        features=features,
        pixels=table.at(rows),
        anchors=table.at(anchors),
        anchor_weights=torch.ones(size, n, device=device),
        image=image,
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
    table: Pixels, n: int, jitter: float, rng: torch.Generator
) -> Int64[Tensor, "b n"]:
    """Rows of n anchors an image: the protocol's grid, shifted by up to `jitter` of a cell, each
    candidate moved to the nearest known pixel, one met twice replaced by chance."""
    (count, known), units = table.mde_log_depth.shape, table.units
    shape = units[0] * 1000  # only its proportions matter
    grid = anchor_grid_shape(n, (round(float(shape[1])), round(float(shape[0]))))
    cell = torch.rand(count, grid[0] * grid[1], generator=rng).argsort(dim=1)[:, :n]
    shift = (torch.rand(count, n, 2, generator=rng) - 0.5) * jitter
    wanted = torch.stack(grid_candidates(cell, shift, grid, (2, 2)), dim=-1) - 1
    wanted = wanted.to(units.device) * units[:, None]
    spare = torch.randint(known, (count, n), generator=rng).to(units.device)
    nearest = torch.cdist(wanted, table.positions * units[:, None]).argmin(dim=-1)
    ordered, order = nearest.sort(dim=1)
    again = nnf.pad(ordered[:, 1:] == ordered[:, :-1], (1, 0))
    ordered = torch.where(again, spare, ordered)
    return torch.empty_like(nearest).scatter(1, order, ordered)


def network_maps(net: FieldNet, frames: Batch | Bank) -> FieldMaps:
    """The network's maps, in float32."""
    device, features = frames.log_depth.device.type, frames.features
    image = None if frames.image is None else frames.image.float()
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        maps = net(frames.log_depth.float(), image, None if features is None else features.float())
    return FieldMaps(maps.maps.float(), maps.expected_log_depth.float(), maps.layout)


def kernel_inputs(maps: FieldMaps, pixels: Pixels) -> KernelInputs:
    """Inputs of the kernel at known pixels."""
    values = sample_at(maps.maps, pixels.positions)
    positions = pixels.positions * pixels.units[:, None]
    return maps.layout.kernel_inputs(positions, pixels.mde_log_depth, values, pixels.shift)


def solve(
    kernel: Kernel,
    maps: FieldMaps,
    anchors: Pixels,
    scales: Sequence[ErrorScale],
) -> ExactPosterior:
    """The posterior given anchors, with the prior deviations that they suggest."""
    y, inputs = anchors.y.double(), kernel_inputs(maps, anchors)
    noise = torch.full_like(y, float(kernel.noise_std))
    thinned = slice(None, None, 1 + (y.shape[1] - 1) // MOST_FOR_SCALE)
    with torch.no_grad():
        subset = KernelInputs(*(x[:, thinned].detach().double() for x in vars(inputs).values()))
        mask = torch.ones_like(y[:, thinned], dtype=torch.bool)
        observed = Observations(subset, y[:, thinned], noise[:, thinned], mask)
        factors = scale_factors(kernel, observed, scales)
    return ExactPosterior.fit(kernel.scaled(factors), inputs, y, noise)
