"""Synthetic errors of relative depth, drawn at random: what estimators do wrong.

A distortion is a function of log-depth and position. The grid that a network sees and the pixels
that a loss uses are therefore distorted alike.

Strength 1 stands for a small network in an unknown place, 0.02 to 0.1 for a large published one.
The errors follow those of Depth Anything V2, MiDaS and ZoeDepth on 25 images. After the best affine
fit these are wrong by 2 to 4 % in log-depth (1.4826 times the median of the absolute error). Up to
nine tenths of that variance are a plane over the image and a slope over log-depth, and one pixel in
fifty is wrong by 5 to 9 times the median. Plane, slope and the errors of whole objects fall less
than the other errors from small networks to large ones: they are proportional to the cube root of
the strength, the other errors to the strength itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from scalefield.field.shift import LOW_QUANTILE, SHIFT_PRIOR

KNOTS = 8
STEPS = 3
SEGMENTS = 64
"""Segments of an image; those with a greater index share an error with another one."""
LEAST_DISPARITY = 0.005
"""Disparities are at least this, in units of the median's."""


@dataclass(frozen=True)
class DistortionConfig:
    """How strong and how frequent each error is. Standard deviations are those at strength 1."""

    least_strength: float = 0.005
    """Least strength for true depth; strengths are log-uniform."""
    most_strength: float = 0.9
    """Largest strength for true depth."""
    spread: float = 0.6
    """Standard deviation of the log of each error's own factor on the strength: in one image the
    plane dominates, in another one the steps between objects."""
    tilt: float = 0.22
    """Slopes of log-depth over both axes of the image, which are −1 … 1; with ∛strength."""
    slope: float = 0.3
    """Log-depth is multiplied by exp(slope · z); with ∛strength."""
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
    misplaced: float = 0.25
    """Offset of the log-depth of few whole segments; with ∛strength."""
    misplaced_share: float = 0.06
    """Share of segments with that offset."""
    blur: float = 0.4
    """Chance of blurred edges, whatever the strength."""
    affine: float = 0.45
    """Chance that the map is disparity of unknown scale and shift."""
    affine_std: float = 0.9
    """Standard deviation of the shift's estimate from two anchors; from n it is divided by
    √(n − 1), and joined with the prior of `scalefield.field.shift`."""
    affine_floor: float = 0.12
    """Standard deviation of that estimate from very many anchors: errors of the map act as a
    shift."""
    quantised_disparity: float = 0.15
    """Chance that disparity has 8 bits between the image's minimum and maximum."""
    quantised_depth: float = 0.05
    """Chance that depth has 8 bits, of which an image uses between 33 and 255 steps."""


@dataclass(frozen=True, eq=False)
class Quantisation:
    """Steps in which the depth or disparity of each of b images is stored."""

    active: Bool[Tensor, " b"]
    """Images that are quantised."""
    sign: Float[Tensor, " b"]
    """1 for depth, −1 for disparity."""
    low: Float[Tensor, " b"]
    """Value of the lowest step."""
    step: Float[Tensor, " b"]
    """Difference between two steps."""

    def __call__(self, log_depth: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """Log-depth of the nearest step; what rounds to zero is half a step from it."""
        sign, low, step = (x[:, None] for x in (self.sign, self.low, self.step))
        value = (sign * log_depth).exp()
        rounded = low + ((value - low) / step).round().clamp(0, 255) * step
        rounded = rounded.clamp(min=0.5 * step)
        return torch.where(self.active[:, None], sign * rounded.log(), log_depth)


@dataclass(frozen=True, eq=False)
class Distortion:
    """One random error for each of b images."""

    stretch: Float[Tensor, "b knots"]
    """Slopes of a monotone, piecewise linear warp of log-depth over −2 … 2."""
    shift: Float[Tensor, " b"]
    """Added to disparity, in units of the median's."""
    tilt: Float[Tensor, "b 2"]
    """Slopes of log-depth over both axes of the image."""
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
    quantisation: Quantisation | None = None
    """Steps of the map."""

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

        def on(chance: float, power: float = 1.0) -> Tensor:
            drawn = strength.cpu() ** power * (config.spread * normal()).exp()
            return drawn * (torch.rand(count, generator=rng) < chance)

        stretch = config.slope * normal(1) * on(0.6, power=1 / 3)[:, None]
        stretch = (stretch + config.warp * normal(KNOTS) * on(0.6)[:, None]).clamp(-1.2, 1.2)
        tilt = config.tilt * normal(2) * on(0.6, power=1 / 3)[:, None]
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
        return cls(
            stretch=stretch.exp().to(device),
            shift=shift.to(device),
            tilt=tilt.to(device),
            smooth=smooth.to(device),
            boxes=boxes.to(device),
            offsets=offsets.to(device),
        )

    def with_grid(
        self,
        log_depth: Float[Tensor, "b 1 h w"],
        segments: Int64[Tensor, "b h w"],
        rng: torch.Generator,
        strength: Float[Tensor, " b"],
        *,
        config: DistortionConfig,
    ) -> Distortion:
        """The same with errors that depend on the image: segments, edges, quantisation."""
        count, device = len(log_depth), log_depth.device

        def rand(*shape: int) -> Tensor:
            return torch.rand(count, *shape, generator=rng).to(device)

        def normal(*shape: int) -> Tensor:
            return torch.randn(count, *shape, generator=rng).to(device)

        heavy = normal(SEGMENTS) * (0.7 * normal(SEGMENTS)).exp()
        heavy = heavy * (rand(SEGMENTS) < config.segment_share) * (rand(1) < 0.6)
        misplaced = normal(SEGMENTS) * (rand(SEGMENTS) < config.misplaced_share)
        offset = config.segments * strength[:, None] * heavy
        offset = offset + config.misplaced * strength[:, None] ** (1 / 3) * misplaced
        of_cell = offset.gather(1, (segments % SEGMENTS).flatten(1)).reshape(log_depth.shape)
        radius = int(torch.randint(1, 4, (), generator=rng))
        padded = nnf.pad(log_depth, (radius,) * 4, mode="replicate")
        changed = replace(
            self,
            segments=of_cell,
            blurred=nnf.avg_pool2d(padded, 2 * radius + 1, 1),
            blur=rand() * (rand() < config.blur),
        )
        biased = changed.biased(log_depth.flatten(1), grid_positions(log_depth))
        kind = rand()
        depth = kind > 1 - config.quantised_depth
        sign = torch.where(depth, 1.0, -1.0)
        value = (sign[:, None] * biased).exp()
        low = torch.where(depth, 0.0, value.amin(dim=1))
        steps = torch.where(depth, 33 + 222 * rand(), 255.0)
        quantisation = Quantisation(
            active=depth | (kind < config.quantised_disparity),
            sign=sign,
            low=low,
            step=((value.amax(dim=1) - low) / steps).clamp(min=1e-9),
        )
        return replace(changed, quantisation=quantisation)

    def __call__(
        self, log_depth: Float[Tensor, "b n"], position: Float[Tensor, "b n 2"]
    ) -> Float[Tensor, "b n"]:
        """Distorted log-depth of pixels at positions in −1 … 1; log_depth is around its median."""
        biased = self.biased(log_depth, position)
        return biased if self.quantisation is None else self.quantisation(biased)

    def biased(
        self, log_depth: Float[Tensor, "b n"], position: Float[Tensor, "b n 2"]
    ) -> Float[Tensor, "b n"]:
        """Log-depth with all errors of the estimator, before quantisation."""
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
        warped = warped + sampled(self.smooth, "bicubic") + (position * self.tilt[:, None]).sum(-1)
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


@dataclass(frozen=True, eq=False)
class UnknownShift:
    """Maps whose scale and shift are lost, as `scalefield.field.shift` treats them.

    With d' = (disparity − low) / unit, log D_MDE = −log(d' + eᵗ). How a map was normalised (by its
    minimum and maximum, or by its median and mean deviation) therefore makes no difference. The
    network sees it at the prior mean of t, the kernel at an estimate of t with its deviation.
    """

    affine: Bool[Tensor, " b"]
    """Images of unknown shift; the others stay as they are."""
    low: Float[Tensor, " b"]
    """Disparity of the farthest pixels."""
    unit: Float[Tensor, " b"]
    """Disparity of the median pixel minus `low`."""
    estimate: Float[Tensor, " b"]
    """Estimated t."""
    std: Float[Tensor, " b"]
    """Standard deviation of the estimate."""

    @classmethod
    def draw(
        cls,
        grid: Float[Tensor, "b n"],
        rng: torch.Generator,
        *,
        config: DistortionConfig,
        anchors: int,
    ) -> UnknownShift:
        """Draw the maps that lose their shift, and estimates of it from `anchors` anchors: the
        posterior mean of a normal prior and a normal likelihood."""
        count, device = len(grid), grid.device
        affine = (torch.rand(count, generator=rng) < config.affine).to(device)
        noise = torch.randn(count, generator=rng).to(device)
        disparity = (-grid).exp()
        low = disparity.quantile(LOW_QUANTILE, dim=1)
        unit = (disparity.median(dim=1).values - low).clamp(min=1e-3)
        mean, std = map(float, SHIFT_PRIOR)
        prior_precision = std**-2
        precision = 0.0
        if anchors > 1:
            precision = 1 / (config.affine_std**2 / (anchors - 1) + config.affine_floor**2)
        weight = precision / (precision + prior_precision)
        error = noise / math.sqrt(precision) if precision else 0.0
        estimate = mean + weight * ((low / unit).log() + error - mean)
        estimate_std = torch.full_like(unit, (precision + prior_precision) ** -0.5)
        return cls(affine, low, unit, estimate, estimate_std)

    def seen(self, log_depth: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """Log-depth at the prior mean of the shift, for the network."""
        return self._log_depth(log_depth, torch.full_like(self.estimate, float(SHIFT_PRIOR.mean)))

    def estimated(self, log_depth: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """Log-depth at the estimated shift, for the kernel."""
        return self._log_depth(log_depth, self.estimate)

    def sensitivity(self, log_depth: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """Change of the log-depth for one standard deviation of the estimate."""
        power = self.estimate.exp()[:, None]
        change = -self.std[:, None] * (power / self._from_zero(log_depth, power)).clamp(max=1)
        return torch.where(self.affine[:, None], change, 0.0)

    def _from_zero(
        self, log_depth: Float[Tensor, "b n"], power: Float[Tensor, "b 1"]
    ) -> Float[Tensor, "b n"]:
        values = ((-log_depth).exp() - self.low[:, None]) / self.unit[:, None]
        return torch.maximum(values + power, 0.5 * power)

    def _log_depth(
        self, log_depth: Float[Tensor, "b n"], t: Float[Tensor, " b"]
    ) -> Float[Tensor, "b n"]:
        """Log-depth at a shift, around that of the median pixel, where d' = 1."""
        power = t.exp()[:, None]
        shifted = power.log1p() - self._from_zero(log_depth, power).log()
        return torch.where(self.affine[:, None], shifted, log_depth)


def grid_positions(grid: Float[Tensor, "b 1 h w"]) -> Float[Tensor, "b n 2"]:
    """(u, v) in −1 … 1 of the centres of a grid's cells, row by row."""
    count, _, height, width = grid.shape
    u = (2 * torch.arange(width, device=grid.device) + 1) / width - 1
    v = (2 * torch.arange(height, device=grid.device) + 1) / height - 1
    cells = torch.stack(torch.meshgrid(u, v, indexing="xy"), dim=-1).flatten(0, 1)
    return cells.expand(count, -1, 2)
