"""The network of `field`: the inputs of the kernel for every cell of an image's grid.

One trunk predicts the linear modes E, an embedding φ and an amplitude a for every stationary term,
the mean function μ, the expected log-depth in metres of the image's median pixel, and the shift of
an affine-invariant map.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as nnf
from jaxtyping import Float
from torch import Tensor, nn

from scalefield.basis.grids import GRID_CELLS, geometric_cues
from scalefield.basis.trunk import FeatureProjection, Trunk, pointwise
from scalefield.field.image_inputs import ChannelLayout, FieldMaps
from scalefield.field.shift import SHIFT_PRIOR

MAX_MEAN = 0.7
"""Bound of the mean function: about a factor of two."""
MAX_LOG_AMPLITUDE = 1.2
"""Bound of log a."""
MAX_SHIFT = 3.0
"""Bound of the shift's mean around that of the general prior."""
LOG_SHIFT_STD = (-1.2, 0.3)
"""Bounds of the logarithm of its standard deviation relative to that of the general prior."""


@dataclass(frozen=True)
class FieldNetConfig:
    """Architecture of a `FieldNet`."""

    layout: ChannelLayout = field(default_factory=ChannelLayout)
    feature_channels: int = 0
    """Channels of F; 0 for the universal model, which serves any depth map."""
    feature_width: int = 16
    """Channels that F is projected to."""
    width: int = 64
    dilations: tuple[int, ...] = (1, 2, 4, 8, 1)
    cells: int = GRID_CELLS
    """Grid cells along the image's longer side."""
    embedding_shrinkage: float = 1.0
    """Factor on φ, chosen on val after training: the places of training are few, and the network
    fits them too closely."""
    amplitude_shrinkage: float = 1.0
    """Factor on log a, chosen on val as well."""
    predicts_shift: bool = False
    """Whether the network predicts the shift of affine-invariant disparity, which depends on the
    kind of scene: the end of a street, or the wall behind a table."""


class FieldNet(nn.Module):
    """Log-depth, its gradients, coordinates, RGB and F (both optional) to `FieldMaps`."""

    def __init__(self, config: FieldNetConfig) -> None:
        super().__init__()
        self.config = config
        width, reduced = config.width, config.feature_width if config.feature_channels else 0
        if config.feature_channels:
            self.feature_projection = FeatureProjection(config.feature_channels, reduced)
        # Five geometric cues, three colours, and whether there is an image.
        self.trunk = Trunk(reduced + 9, width, config.dilations)
        self.context = nn.Sequential(nn.Linear(2 * width, width), nn.GELU())
        self.merge = nn.Conv2d(2 * width, width, 1)
        self.head = nn.Conv2d(width, config.layout.total, 1)
        self.level = nn.Linear(width, 1)  # the name in the published weights
        if config.predicts_shift:
            self.shift = nn.Linear(width, 2)
            nn.init.zeros_(self.shift.weight)
            nn.init.zeros_(self.shift.bias)

    def forward(
        self,
        log_depth: Float[Tensor, "b 1 h w"],
        image: Float[Tensor, "b 3 h w"] | None = None,
        features: Float[Tensor, "b c hf wf"] | None = None,
    ) -> FieldMaps:
        """The maps on the grid of `log_depth` (centred; see `grids.grid_log_depth`).

        `image` is RGB in −1 … 1 on the same grid; an image of NaN, or none, is no image.
        """
        if image is None:
            image = torch.full_like(log_depth, torch.nan).expand(-1, 3, -1, -1)
        projected = None
        if self.config.feature_channels:
            projected = self.feature_projection(features, log_depth)
        return self.from_cues(log_depth, image, projected)

    def from_cues(
        self,
        log_depth: Float[Tensor, "b 1 h w"],
        image: Float[Tensor, "b 3 h w"],
        projected: Float[Tensor, "b f h w"] | None,
    ) -> FieldMaps:
        """As `forward`, with the features projected and on the grid; an image of NaN is no
        image."""
        has_image = torch.isfinite(image[:, :1])
        cues = [geometric_cues(log_depth), image.nan_to_num(), has_image.to(log_depth.dtype)]
        if projected is not None:
            cues.append(projected)
        shared = self.trunk(torch.cat(cues, dim=1))
        pooled = torch.cat([shared.mean(dim=(2, 3)), shared.amax(dim=(2, 3))], dim=1)
        context = self.context(pooled)
        context_map = context[:, :, None, None].expand(-1, -1, *shared.shape[2:])
        shared = nnf.gelu(pointwise(self.merge, torch.cat([shared, context_map], dim=1)))
        return FieldMaps(
            self.bounded(pointwise(self.head, shared)),
            self.level(context)[:, 0],
            self.config.layout,
            shift_moments(self.shift(context)) if self.config.predicts_shift else None,
        )

    def bounded(self, raw: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """E unchanged, φ and log a shrunk, a > 0, μ bounded and of zero mean over the image."""
        config = self.config
        modes, embedding, amplitude, mean = raw.split(config.layout.sizes, dim=1)
        embedding = config.embedding_shrinkage * embedding
        amplitude = (config.amplitude_shrinkage * MAX_LOG_AMPLITUDE * amplitude.tanh()).exp()
        mean = MAX_MEAN * (mean / MAX_MEAN).tanh()
        mean = mean - mean.mean(dim=(2, 3), keepdim=True)
        return torch.cat([modes, embedding, amplitude, mean], dim=1)


def shift_moments(raw: Float[Tensor, "b 2"]) -> Float[Tensor, "b 2"]:
    """Mean and standard deviation of the shift; those of `SHIFT_PRIOR` where `raw` is zero."""
    mean = SHIFT_PRIOR.mean + MAX_SHIFT * (raw[:, 0] / MAX_SHIFT).tanh()
    std = SHIFT_PRIOR.std * raw[:, 1].clamp(*LOG_SHIFT_STD).exp()
    return torch.stack([mean, std], dim=1)
