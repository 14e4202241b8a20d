"""The basis map generator: cues X(x) in, K image-adaptive basis maps E = G ⊙ B out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as nnf
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from scalefield.basis.cues import GRID_CELLS, geometric_cues
from scalefield.basis.ridge import Ridge
from scalefield.checked import checked
from scalefield.errors import InputError, brief
from scalefield.io import read_json, write_atomic, write_json


@dataclass(frozen=True)
class GeneratorConfig:
    """What a generator's weights file needs to be built again."""

    k: int = 8
    """K, the number of basis maps."""
    feature_channels: int = 0
    """Channels of F; 0 for a generator that has no use for them."""
    feature_width: int = 32
    """Channels that F is projected to."""
    width: int = 64
    """Channels of the trunk."""
    dilations: tuple[int, ...] = (1, 2, 4, 8, 1)
    """One residual block each, at half the grid's resolution."""
    cells: int = GRID_CELLS
    """Grid cells along the image's longer side."""
    zero_features: bool = False
    """The F = 0 ablation: features are replaced by zeros, the architecture stays."""
    ridge: Ridge = dataclasses.field(default_factory=Ridge)
    """The solve that the maps were trained through."""

    def __post_init__(self) -> None:
        dilated = self.dilations and all(1 <= d <= 256 for d in self.dilations)
        if self.k < 2 or self.feature_channels < 0 or not dilated:
            raise InputError(
                "a generator needs k ≥ 2, feature_channels ≥ 0 and dilations of 1 to 256, found "
                f"k={self.k}, feature_channels={self.feature_channels}, dilations={self.dilations}"
            )


class BasisMaps(NamedTuple):
    """E and the gating G it was made with, on the generator's grid."""

    basis_maps: Float[Tensor, "b k h w"]
    gating: Float[Tensor, "b k h w"]


class Generator(nn.Module):
    """Trunk T_θ, basis head (B₀ ≡ 1) and gating head (softmax over K), fully convolutional."""

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__()
        self.config = config
        width, reduced = config.width, config.feature_width if config.feature_channels else 0
        if config.feature_channels:
            # One group: F keeps the relation between its channels, but not its unit.
            self.feature_norm = nn.GroupNorm(1, config.feature_channels)
            self.feature_projection = nn.Conv2d(config.feature_channels, reduced, 1)
        self.trunk = Trunk(reduced + 5, width, config.dilations)
        self.basis_head = nn.Conv2d(width, config.k - 1, 1)
        self.gating_head = nn.Conv2d(width, config.k, 1)

    def forward(
        self, features: Float[Tensor, "b c hf wf"] | None, log_depth: Float[Tensor, "b 1 h w"]
    ) -> BasisMaps:
        """E and G on the grid of `log_depth` (centred; see `cues.grid_log_depth`)."""
        cues = geometric_cues(log_depth)
        if self.config.feature_channels:
            cues = torch.cat([self.project(features, log_depth), cues], dim=1)
        return self.from_cues(cues)

    def from_cues(self, cues: Float[Tensor, "b c h w"]) -> BasisMaps:
        """E and G from X(x) = [F, log D, ∇log D, x], all on the grid already."""
        shared = self.trunk(cues)  # H(x)
        learned = self.basis_head(shared)
        primitive = torch.cat([torch.ones_like(learned[:, :1]), learned], dim=1)  # B, with B₀ ≡ 1
        gating = self.gating_head(shared).softmax(dim=1)  # G (Eq. gating_simplex)
        return BasisMaps(gating * primitive, gating)  # E = G ⊙ B (Eq. element_modu)

    def project(
        self, features: Float[Tensor, "b c hf wf"] | None, log_depth: Float[Tensor, "b 1 h w"]
    ) -> Float[Tensor, "b c2 h w"]:
        """F on the grid, reduced to a few channels; absent features are zeros."""
        if self.config.zero_features:
            features = None
        return project(self.feature_norm, self.feature_projection, features, log_depth)

    @property
    def parameter_count(self) -> int:
        """Number of trained values."""
        return sum(p.numel() for p in self.parameters())

    def save(self, folder: str | Path, dtype: torch.dtype = torch.float32) -> None:
        """Write model.safetensors and config.json."""
        folder = Path(folder)
        state = {name: x.to(dtype).contiguous().cpu() for name, x in self.state_dict().items()}
        write_atomic(folder / "model.safetensors", save(state))
        write_json(folder / "config.json", dataclasses.asdict(self.config))

    @classmethod
    def load(cls, folder: str | Path) -> Generator:
        """Read what `save` wrote, ready for inference."""
        folder = Path(folder)
        config = read_config(folder / "config.json")
        try:
            state = load_file(folder / "model.safetensors")
            with torch.device("meta"):  # sizes that the weights do not have cost no memory
                generator = cls(config)
            # Copied: in the file they may lie off a boundary, and products differ in a last digit.
            weights = {name: tensor.to(torch.float32, copy=True) for name, tensor in state.items()}
            generator.load_state_dict(weights, assign=True)
        except (OSError, SafetensorError, RuntimeError, ValueError, TypeError) as e:
            why = brief(e)
            raise InputError(f"{folder}: not the weights of such a generator ({why})") from None
        return generator.eval().requires_grad_(False)

    @classmethod
    def from_pretrained(cls, source: str) -> Generator:
        """The generator of a hub id `owner/name[@revision]` or of a folder; see `hub`."""
        from scalefield.basis.pretrained import from_pretrained

        return from_pretrained(source)


def read_config(path: Path) -> GeneratorConfig:
    """The generator's configuration, every field checked by name."""
    values = read_json(path)
    try:
        values["ridge"] = checked(Ridge, values["ridge"])
        values["dilations"] = tuple(values["dilations"])
        return checked(GeneratorConfig, values)
    except (ValueError, KeyError, TypeError) as e:
        raise InputError(f"{path}: not a generator's configuration ({brief(e)})") from None


def project(
    feature_norm: nn.GroupNorm,
    feature_projection: nn.Conv2d,
    features: Float[Tensor, "b c hf wf"] | None,
    log_depth: Float[Tensor, "b 1 h w"],
) -> Float[Tensor, "b c2 h w"]:
    """F on the grid of `log_depth`, reduced to a few channels; absent features are zeros."""
    channels = feature_projection.in_channels
    if features is None:
        features = log_depth.new_zeros(log_depth.shape[0], channels, 1, 1)
    elif features.shape[1] != channels:
        raise InputError(
            f"this model was made for features of {channels} channels, "
            f"found {features.shape[1]}: it belongs to another MDE"
        )
    features, size = features.to(log_depth.dtype), log_depth.shape[2:]
    # The group norm by hand: with one group a GPU gives it to a single block of threads, and
    # fewer cells are left to be normalised once F has shrunk. First row by row, for many blocks.
    var, mean = torch.var_mean(features, dim=(1, 3), correction=0, keepdim=True)
    between, mean = torch.var_mean(mean, dim=2, correction=0, keepdim=True)
    var = var.mean(dim=2, keepdim=True) + between
    scale = (var + feature_norm.eps).rsqrt() * feature_norm.weight[:, None, None]
    shift = feature_norm.bias[:, None, None] - mean * scale
    if features.shape[2] > size[0] and features.shape[3] > size[1]:
        features = resize(features, size)
    reduced = feature_projection(torch.addcmul(shift, features, scale))
    if reduced.shape[2:] == (1, 1):  # the same everywhere; interpolation's gradient is slow
        return reduced.expand(-1, -1, *size)
    return resize(reduced, size)


class Trunk(nn.Module):
    """T_θ: cues X(x) to the shared representation H(x), on the same grid."""

    def __init__(self, inputs: int, width: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(inputs, width // 2), nn.GELU())
        self.down = conv(width // 2, width, stride=2)
        self.blocks = nn.Sequential(*(ResidualBlock(width, d) for d in dilations))
        self.merge = nn.Sequential(conv(width + width // 2, width), norm(width), nn.GELU())

    def forward(self, cues: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h w"]:
        """Residual blocks at half the resolution, merged with the fine stem."""
        fine = self.stem(cues)
        coarse = self.blocks(self.down(fine))
        size = cues.shape[2:]
        coarse = nnf.interpolate(coarse, size=size, mode="bilinear", align_corners=False)
        return self.merge(torch.cat([coarse, fine], dim=1))


class ResidualBlock(nn.Module):
    """x + two dilated 3×3 convolutions, GroupNorm before each."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            norm(width), nn.GELU(), conv(width, width, dilation=dilation),
            norm(width), nn.GELU(), conv(width, width),
        )  # fmt: skip

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """The input plus its learned correction."""
        return x + self.layers(x)


def conv(inputs: int, outputs: int, stride: int = 1, dilation: int = 1) -> nn.Conv2d:
    """A 3×3 convolution whose borders repeat; zeros would print the frame into the maps."""
    return nn.Conv2d(
        inputs, outputs, 3, stride, padding=dilation, dilation=dilation, padding_mode="replicate"
    )


def norm(width: int) -> nn.GroupNorm:
    """Eight channels a group."""
    return nn.GroupNorm(max(1, width // 8), width)


def resize(maps: Float[Tensor, "b c h w"], size: tuple[int, ...]) -> Float[Tensor, "b c h2 w2"]:
    """Cell averages when shrinking, bilinear when growing."""
    if tuple(maps.shape[2:]) == tuple(size):
        return maps
    if maps.shape[2] >= size[0] and maps.shape[3] >= size[1]:
        return nnf.interpolate(maps, size=size, mode="area")
    return nnf.interpolate(maps, size=size, mode="bilinear", align_corners=False)
