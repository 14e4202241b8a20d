"""The network of `field`: the inputs of the kernel for every cell of an image's grid.

One trunk predicts the linear modes E, an embedding φ and an amplitude a for every stationary term,
the mean function μ, and the expected log-depth in metres of the image's median pixel.
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

MAX_MEAN = 0.7
"""Bound of the mean function: about a factor of two."""
MAX_LOG_AMPLITUDE = 1.2
"""Bound of log a."""


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
