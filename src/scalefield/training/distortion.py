"""Synthetic errors of relative depth, drawn at random: what estimators do wrong.

A distortion is a function of log-depth and position. The grid that a network sees and the pixels
that a loss uses are therefore distorted alike.

Strength 1 stands for a small network in an unknown place. The errors of large published estimators
correspond to strengths of 0.05 to 0.3: log-depth is wrong by 1 to 13 % (median absolute deviation),
the difference between two pixels of one surface grows about linearly with their distance, the
slope over log-depth is ±0.1 to ±0.3, and one pixel in fifty is wrong by 5 to 10 times the median.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int64
from torch import Tensor

KNOTS = 8
STEPS = 3
SEGMENTS = 64
"""Segments of an image; those with a greater index share an error with another one."""
LEAST_DISPARITY = 0.005
"""Disparities are at least this, in units of the median's."""


@dataclass(frozen=True)
class DistortionConfig:
    """How strong and how frequent each error is. Standard deviations are those at strength 1."""

    least_strength: float = 0.05
    """Least strength for true depth; strengths are log-uniform."""
    most_strength: float = 1.3
    """Largest strength for true depth."""
    slope: float = 0.15
    """Log-depth is multiplied by exp(slope · z)."""
    warp: float = 0.2
    """Each of eight pieces of log-depth is stretched by exp(warp · z)."""
    shift: float = 0.25
    """Shift of disparity, in units of its median."""
    smooth: tuple[float, ...] = (0.11, 0.055, 0.028)
    """A smooth field over the image: its octaves have 4×5, 8×10 and 16×20 knots."""
    boxes: float = 0.15
    """Offset of the log-depth of a box in the image and a range of depths."""
    segments: float = 0.12
    """Offset of the log-depth of a whole segment, with heavy tails."""
    segment_share: float = 0.35
    """Share of segments with an offset."""
    blur: float = 0.4
    """Chance of blurred edges, whatever the strength."""
    affine: float = 0.25
    """Chance that the map is a disparity of unknown shift, whose estimate has an error."""
    affine_log_std: float = 0.6
    """Standard deviation of the log of the farthest disparity after the estimated shift, with few
    anchors; with n anchors it is divided by √(1 + n/3)."""
    quantised: float = 0.1
    """Chance that disparity has 8 bits between the image's minimum and maximum."""

    def residual_log_std(self, anchors: int) -> float:
        """Standard deviation of the log of the farthest disparity, with so many anchors."""
        return self.affine_log_std / math.sqrt(1 + anchors / 3)


@dataclass(frozen=True, eq=False)
class Distortion:
    """One random error for each of b images."""

    stretch: Float[Tensor, "b knots"]
    """Slopes of a monotone, piecewise linear warp of log-depth over −2 … 2."""
    shift: Float[Tensor, " b"]
    """Added to disparity, in units of the median's."""
    smooth: Float[Tensor, "b 1 hs ws"]
    """A smooth field over the image."""
    boxes: Float[Tensor, "b steps 6"]
    """Boxes: centre and half-size in −1 … 1, and a range of log-depth."""
    offsets: Float[Tensor, "b steps"]
    """Offset of the log-depth in each box."""
    segments: Float[Tensor, "b 1 h w"] | None = None
    """Offset of the log-depth of the segment that each cell of the grid belongs to."""
    blurred: Float[Tensor, "b 1 h w"] | None = None
    """Log-depth of the grid with blurred edges."""
    blur: Float[Tensor, " b"] | None = None
    """Weight of `blurred`, in 0 … 1."""
    disparity_range: Float[Tensor, "b 2"] | None = None
    """Least and largest disparity, between which it is quantised to 8 bits."""
    quantised: Bool[Tensor, " b"] | None = None
    """Images whose disparity is quantised."""
    residual: Float[Tensor, " b"] | None = None
    """Added to disparity at the end: the error of the estimated shift."""

    @classmethod
    def draw(
        cls,
        count: int,
        rng: torch.Generator,
        device: torch.device,
        strength: Float[Tensor, " b"],
        config: DistortionConfig | None = None,
    ) -> Distortion:
        """Errors of the given strengths that need no grid: 0 for none, 1 for small networks."""
        config = config or DistortionConfig()

        def normal(*shape: int) -> Tensor:
            return torch.randn(count, *shape, generator=rng)

        def on(chance: float) -> Tensor:
            return strength.cpu() * (torch.rand(count, generator=rng) < chance)

        stretch = (config.slope * normal(1) + config.warp * normal(KNOTS)) * on(0.6)[:, None]
        shift = config.shift * (normal() + 0.4) * on(0.4)
        finest = 4 * 2 ** (len(config.smooth) - 1), 5 * 2 ** (len(config.smooth) - 1)
        smooth = torch.zeros(count, 1, *finest)
        for octave, std in enumerate(config.smooth):
            knots = std * normal(1, 4 * 2**octave, 5 * 2**octave)
            smooth += nnf.interpolate(knots, finest, mode="bicubic", align_corners=False)
        smooth = smooth * on(0.6)[:, None, None, None]
        centre, size = torch.rand(count, STEPS, 2, generator=rng) * 2 - 1, normal(STEPS, 2).abs()
        depth = normal(STEPS)
        slab = torch.stack([depth - 0.4, depth + 0.4], dim=-1)
        boxes = torch.cat([centre, 0.1 + 0.4 * size, slab], dim=-1)
        offsets = config.boxes * normal(STEPS) * on(0.5)[:, None]
        drawn = (stretch.exp(), shift, smooth, boxes, offsets)
        return cls(*(values.to(device) for values in drawn))

    def with_grid(
        self,
        log_depth: Float[Tensor, "b 1 h w"],
        segments: Int64[Tensor, "b h w"],
        rng: torch.Generator,
        strength: Float[Tensor, " b"],
        *,
        config: DistortionConfig,
        anchors: int,
    ) -> Distortion:
        """The same with errors that depend on the image: segments, edges, quantisation, shift."""
        count, device = len(log_depth), log_depth.device

        def rand(*shape: int) -> Tensor:
            return torch.rand(count, *shape, generator=rng).to(device)

        def normal(*shape: int) -> Tensor:
            return torch.randn(count, *shape, generator=rng).to(device)

        heavy = normal(SEGMENTS) * (0.7 * normal(SEGMENTS)).exp()
        heavy = heavy * (rand(SEGMENTS) < config.segment_share) * (rand(1) < 0.6)
        offset = config.segments * strength[:, None] * heavy
        of_cell = offset.gather(1, (segments % SEGMENTS).flatten(1)).reshape(log_depth.shape)
        radius = int(torch.randint(1, 4, (), generator=rng))
        padded = nnf.pad(log_depth, (radius,) * 4, mode="replicate")
        changed = replace(
            self,
            segments=of_cell,
            blurred=nnf.avg_pool2d(padded, 2 * radius + 1, 1),
            blur=rand() * (rand() < config.blur),
        )
        disparity = (-changed.biased(log_depth.flatten(1), grid_positions(log_depth))).exp()
        farthest = disparity.quantile(0.02, dim=1)
        error = config.residual_log_std(anchors) * normal()
        affine = rand() < config.affine
        return replace(
            changed,
            disparity_range=torch.stack([disparity.amin(dim=1), disparity.amax(dim=1)], dim=1),
            quantised=rand() < config.quantised,
            residual=torch.where(affine, farthest * error.expm1(), 0),
        )

    def __call__(
        self, log_depth: Float[Tensor, "b n"], position: Float[Tensor, "b n 2"]
    ) -> Float[Tensor, "b n"]:
        """Distorted log-depth of pixels at positions in −1 … 1; log_depth is around its median."""
        warped = self.biased(log_depth, position)
        if self.disparity_range is None or self.quantised is None or self.residual is None:
            return warped
        disparity = (-warped).exp()
        low, high = self.disparity_range[:, None].unbind(-1)
        step = ((high - low) / 255).clamp(min=1e-9)
        rounded = low + ((disparity - low) / step).round().clamp(0, 255) * step
        disparity = torch.where(self.quantised[:, None], rounded, disparity)
        disparity = disparity + self.residual[:, None]
        return -disparity.clamp(min=LEAST_DISPARITY).log()

    def biased(
        self, log_depth: Float[Tensor, "b n"], position: Float[Tensor, "b n 2"]
    ) -> Float[Tensor, "b n"]:
        """Log-depth with all errors of the estimator, before quantisation and the shift's error."""
        grid = position[:, None].to(self.smooth.dtype)

        def sampled(maps: Tensor, mode: str) -> Tensor:
            return nnf.grid_sample(maps, grid, mode, "border", align_corners=False)[:, 0, 0]

        d = log_depth
        if self.blurred is not None and self.blur is not None:
            d = d + self.blur[:, None] * (sampled(self.blurred, "bilinear") - d)
        step = 4 / KNOTS
        warped = (d + 2).clamp(max=0) + (d - 2).clamp(min=0) - 2
        for i in range(KNOTS):
            warped = warped + self.stretch[:, i, None] * (d + 2 - i * step).clamp(0, step)
        inverse = (-warped).exp() + self.shift[:, None]
        warped = -inverse.clamp(min=LEAST_DISPARITY).log()
        warped = warped + sampled(self.smooth, "bicubic")
        for i in range(STEPS):
            u, v, half_u, half_v, near, far = (x[:, None] for x in self.boxes[:, i].unbind(-1))
            inside = ((position[..., 0] - u).abs() < half_u) & (
                (position[..., 1] - v).abs() < half_v
            )
            inside &= (d > near) & (d < far)
            warped = warped + self.offsets[:, i, None] * inside
        if self.segments is not None:
            warped = warped + sampled(self.segments, "nearest")
        return warped


def grid_positions(grid: Float[Tensor, "b 1 h w"]) -> Float[Tensor, "b n 2"]:
    """(u, v) in −1 … 1 of the centres of a grid's cells, row by row."""
    count, _, height, width = grid.shape
    u = (2 * torch.arange(width, device=grid.device) + 1) / width - 1
    v = (2 * torch.arange(height, device=grid.device) + 1) / height - 1
    cells = torch.stack(torch.meshgrid(u, v, indexing="xy"), dim=-1).flatten(0, 1)
    return cells.expand(count, -1, 2)
