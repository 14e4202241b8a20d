"""The network of `field`: what the kernel looks at, for every cell of an image's grid.

One trunk gives linear modes E, for every bending term an embedding φ and an amplitude a, the mean
function μ, and the level: the log-depth that the image's median pixel is expected to have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as nnf
from jaxtyping import Float
from torch import Tensor, nn

from scalefield.basis.cues import geometric_cues
from scalefield.basis.grids import GRID_CELLS
from scalefield.basis.trunk import FeatureProjection, Trunk
from scalefield.kernel import Points

MOST_MEAN = 0.7
"""The mean function's bound: about a factor of two."""
MOST_AMPLITUDE = 1.2
"""Bound of log a."""


@dataclass(frozen=True)
class Layout:
    """How the maps' channels are divided."""

    modes: int = 16
    """K, the linear modes."""
    terms: int = 3
    """Bending terms, …"""
    channels: int = 8
    """… and the numbers in each one's embedding."""

    @property
    def total(self) -> int:
        """Channels in all: E, φ, a, μ."""
        return self.modes + self.terms * (self.channels + 1) + 1

    def points(
        self,
        position: Float[Tensor, "*b n 2"],
        log_depth: Float[Tensor, "*b n"],
        values: Float[Tensor, "*b n c"],
    ) -> Points:
        """The maps' values at pixels, as the kernel wants them."""
        sizes = [self.modes, self.terms * self.channels, self.terms, 1]
        modes, embedding, amplitude, mean = values.split(sizes, dim=-1)
        embedding = embedding.unflatten(-1, (self.terms, self.channels))
        return Points(position, log_depth, modes, embedding, amplitude, mean[..., 0])


class FieldMaps(NamedTuple):
    """What the network says of an image, on its grid."""

    maps: Float[Tensor, "b c h w"]
    """Channels by `layout`."""
    level: Float[Tensor, " b"]
    """Expected log-depth in metres of the image's median pixel."""
    layout: Layout

    @property
    def modes(self) -> Float[Tensor, "b k h w"]:
        """E."""
        return self.maps[:, : self.layout.modes]

    @property
    def mean(self) -> Float[Tensor, "b 1 h w"]:
        """μ."""
        return self.maps[:, -1:]

    def without_mean(self) -> FieldMaps:
        """The same with μ = 0."""
        silent = torch.zeros_like(self.mean)
        return self._replace(maps=torch.cat([self.maps[:, :-1], silent], dim=1))


@dataclass(frozen=True)
class FieldNetConfig:
    """What a field network's weights need to be built again."""

    layout: Layout = Layout()
    feature_channels: int = 0
    """Channels of F; 0 for the universal model, which serves any depth map."""
    feature_width: int = 16
    """Channels that F is projected to."""
    width: int = 64
    dilations: tuple[int, ...] = (1, 2, 4, 8, 1)
    cells: int = GRID_CELLS
    """Grid cells along the image's longer side."""
    embedding_trust: float = 1.0
    """φ is multiplied by this, …"""
    amplitude_trust: float = 1.0
    """… and log a by this: chosen on val after training, because the places of training are few,
    and the network believes too much of what it learned from them."""


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
        self.level = nn.Linear(width, 1)

    def forward(
        self,
        log_depth: Float[Tensor, "b 1 h w"],
        image: Float[Tensor, "b 3 h w"] | None = None,
        features: Float[Tensor, "b c hf wf"] | None = None,
    ) -> FieldMaps:
        """The maps on the grid of `log_depth` (centred; see `cues.grid_log_depth`).

        `image` is RGB in −1 … 1 on the same grid; an image of NaN, or none, is no image.
        """
        if image is None:
            image = torch.full_like(log_depth, torch.nan).expand(-1, 3, -1, -1)
        seen = torch.isfinite(image[:, :1])
        cues = [geometric_cues(log_depth), image.nan_to_num(), seen.to(log_depth.dtype)]
        if self.config.feature_channels:
            cues.append(self.feature_projection(features, log_depth))
        shared = self.trunk(torch.cat(cues, dim=1))
        pooled = torch.cat([shared.mean(dim=(2, 3)), shared.amax(dim=(2, 3))], dim=1)
        context = self.context(pooled)
        spread = context[:, :, None, None].expand(-1, -1, *shared.shape[2:])
        shared = nnf.gelu(self.merge(torch.cat([shared, spread], dim=1)))
        return FieldMaps(
            self.bounded(self.head(shared)), self.level(context)[:, 0], self.config.layout
        )

    def bounded(self, raw: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """E as it is, φ and a > 0 as far as they are trusted, μ small and without a constant of its
        own."""
        layout, config = self.config.layout, self.config
        sizes = [layout.modes, layout.terms * layout.channels, layout.terms, 1]
        modes, embedding, amplitude, mean = raw.split(sizes, dim=1)
        embedding = config.embedding_trust * embedding
        amplitude = (config.amplitude_trust * MOST_AMPLITUDE * amplitude.tanh()).exp()
        mean = MOST_MEAN * (mean / MOST_MEAN).tanh()
        mean = mean - mean.mean(dim=(2, 3), keepdim=True)
        return torch.cat([modes, embedding, amplitude, mean], dim=1)
