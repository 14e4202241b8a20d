"""The basis map generator: cues X(x) in, K image-adaptive basis maps E = G ⊙ B out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from scalefield.basis.grids import GRID_CELLS, geometric_cues
from scalefield.basis.ridge import Ridge
from scalefield.basis.trunk import FeatureProjection, Trunk
from scalefield.errors import InputError, one_line
from scalefield.io import read_json, write_atomic, write_json
from scalefield.validation import from_json


@dataclass(frozen=True)
class GeneratorConfig:
    """Configuration of a generator, stored beside its weights."""

    k: int = 8
    """K, the number of basis maps."""
    feature_channels: int = 0
    """Channels of F; 0 for a generator without features."""
    feature_width: int = 32
    """Channels that F is projected to."""
    width: int = 64
    """Channels of the trunk."""
    dilations: tuple[int, ...] = (1, 2, 4, 8, 1)
    """Dilations of the residual blocks, which work at half the grid's resolution."""
    cells: int = GRID_CELLS
    """Grid cells along the image's longer side."""
    zero_features: bool = False
    """The F = 0 ablation: features are replaced by zeros, the architecture is the same."""
    ridge: Ridge = dataclasses.field(default_factory=Ridge)
    """Settings of the solve that the maps were trained with."""

    def __post_init__(self) -> None:
        dilated = self.dilations and all(1 <= d <= 256 for d in self.dilations)
        if self.k < 2 or self.feature_channels < 0 or not dilated:
            raise InputError(
                "a generator needs k ≥ 2, feature_channels ≥ 0 and dilations of 1 to 256, found "
                f"k={self.k}, feature_channels={self.feature_channels}, dilations={self.dilations}"
            )

    @property
    def used_channels(self) -> int:
        """Channels of F that the generator uses; 0 for F = 0."""
        return 0 if self.zero_features else self.feature_channels


class BasisMaps(NamedTuple):
    """Basis maps E and gating G on the generator's grid."""

    basis_maps: Float[Tensor, "b k h w"]
    gating: Float[Tensor, "b k h w"]


class Generator(nn.Module):
    """Trunk T_θ, basis head (B₀ ≡ 1) and gating head (softmax over K), fully convolutional."""

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__()
        self.config = config
        width, reduced = config.width, config.feature_width if config.feature_channels else 0
        if config.feature_channels:
            self.feature_projection = FeatureProjection(config.feature_channels, reduced)
        self.trunk = Trunk(reduced + 5, width, config.dilations)
        self.basis_head = nn.Conv2d(width, config.k - 1, 1)
        self.gating_head = nn.Conv2d(width, config.k, 1)

    def forward(
        self, features: Float[Tensor, "b c hf wf"] | None, log_depth: Float[Tensor, "b 1 h w"]
    ) -> BasisMaps:
        """E and G on the grid of `log_depth` (centred; see `grids.grid_log_depth`)."""
        cues = geometric_cues(log_depth)
        if self.config.feature_channels:
            used = None if self.config.zero_features else features
            cues = torch.cat([self.feature_projection(used, log_depth), cues], dim=1)
        return self.from_cues(cues)

    def from_cues(self, cues: Float[Tensor, "b c h w"]) -> BasisMaps:
        """E and G from X(x) = [F, log D, ∇log D, x] on the grid."""
        shared = self.trunk(cues)  # H(x)
        learned = self.basis_head(shared)
        primitive = torch.cat([torch.ones_like(learned[:, :1]), learned], dim=1)  # B, with B₀ ≡ 1
        gating = self.gating_head(shared).softmax(dim=1)  # G (Eq. 18)
        return BasisMaps(gating * primitive, gating)  # E = G ⊙ B (Eq. 19)

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
            why = one_line(e)
            raise InputError(f"{folder}: not the weights of such a generator ({why})") from None
        return generator.eval().requires_grad_(False)


def read_config(path: Path) -> GeneratorConfig:
    """The generator's configuration, every field checked by name."""
    values = read_json(path)
    try:
        values["ridge"] = from_json(Ridge, values["ridge"])
        values["dilations"] = tuple(values["dilations"])
        return from_json(GeneratorConfig, values)
    except (ValueError, KeyError, TypeError) as e:
        raise InputError(f"{path}: not a generator's configuration ({one_line(e)})") from None
