"""A larger MDE than `lite`: ViT-S/14 with DINOv2's layout, and a DPT decoder.

recipes/permissive.py trains it on rendered scenes, recipes/train_teacher.py as a teacher of `lite`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as nnf
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from scalefield.errors import InputError
from scalefield.io.weights import WEIGHTS, verify_checksums
from scalefield.mde.estimator import IMAGENET_MEAN, IMAGENET_STD, Estimator, Raw
from scalefield.mde.lite import PREPROCESS as LITE_PREPROCESS
from scalefield.mde.lite import exact, grow

PATCH = 14
PREPROCESS = replace(LITE_PREPROCESS, multiple=PATCH)


@dataclass(frozen=True)
class VitSize:
    """Sizes of the network; these are ViT-S with the decoder of the smallest DPT."""

    width: int = 384
    depth: int = 12
    heads: int = 6
    grid: int = 37
    """Patches along a side of the square images that the positions were learned on."""
    decoder: int = 64
    stride: int = 2
    """Pixels of the input along a side of a pixel of log-depth."""
    drop_path: float = 0.1
    """Chance of leaving a branch out of a block in training."""

    @property
    def taps(self) -> tuple[int, ...]:
        """The blocks whose outputs the decoder uses: the last of each quarter."""
        return tuple(self.depth * quarter // 4 - 1 for quarter in (1, 2, 3, 4))


class Block(nn.Module):
    """Attention and a two-layer perceptron, each on normalised tokens and scaled by channel."""

    def __init__(self, size: VitSize) -> None:
        super().__init__()
        width = size.width
        self.heads, self.drop = size.heads, size.drop_path
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.scale1 = nn.Parameter(torch.ones(width))
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)
        self.scale2 = nn.Parameter(torch.ones(width))

    def forward(self, x: Float[Tensor, "b t c"]) -> Float[Tensor, "b t c"]:
        """x + s₁ · attention(x), then + s₂ · mlp of it."""
        qkv = self.qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each b, heads, t, c / heads
        seen = nnf.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.drop_path(self.scale1 * self.project(seen))
        return x + self.drop_path(self.scale2 * self.fc2(nnf.gelu(self.fc1(self.norm2(x)))))

    def drop_path(self, branch: Float[Tensor, "b t c"]) -> Float[Tensor, "b t c"]:
        """Stochastic depth: in training, the branch is dropped for some images and scaled for the
        others."""
        if not self.training or self.drop == 0:
            return branch
        kept = torch.rand(branch.shape[0], 1, 1, device=branch.device) >= self.drop
        return branch * kept / (1 - self.drop)


class Vit(nn.Module):
    """The encoder: one class token and one token a patch."""

    def __init__(self, size: VitSize) -> None:
        super().__init__()
        self.taps = size.taps
        self.embed = nn.Conv2d(3, size.width, PATCH, PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, size.width))
        self.cls_position = nn.Parameter(torch.zeros(1, 1, size.width))
        self.positions = nn.Parameter(torch.randn(1, size.width, size.grid, size.grid) * 0.02)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.depth))
        self.norm = nn.LayerNorm(size.width, eps=1e-6)

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> list[Tensor]:
        """Normalised patch tokens after the tapped blocks, as maps at stride 14."""
        patches = self.embed(x)
        grid = patches.shape[2:]
        positions = nnf.interpolate(self.positions, grid, mode="bicubic", align_corners=False)
        tokens = (patches + positions).flatten(2).transpose(1, 2)
        first = (self.cls + self.cls_position).expand(len(x), -1, -1)
        tokens = torch.cat([first, tokens], dim=1)
        maps = []
        for i, block in enumerate(self.blocks):
            tokens = block(tokens)
            if i in self.taps:
                maps.append(self.norm(tokens)[:, 1:].transpose(1, 2).unflatten(2, grid))
        return maps


class Residual(nn.Module):
    """Two convolutions, activated before, around a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """x + convolutions of x."""
        return x + self.conv2(nnf.relu(self.conv1(nnf.relu(x))))


class Dpt(nn.Module):
    """The decoder: maps of the encoder at strides 3.5, 7, 14 and 28, fused from coarse to fine."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        channels = [inputs // 8, inputs // 4, inputs // 2, inputs]
        resize: list[nn.Module] = [
            nn.ConvTranspose2d(channels[0], channels[0], 4, 4),
            nn.ConvTranspose2d(channels[1], channels[1], 2, 2),
            nn.Identity(),
            nn.Conv2d(channels[3], channels[3], 3, 2, padding=1),
        ]
        self.lateral = nn.ModuleList(
            nn.Sequential(nn.Conv2d(inputs, c, 1), layer, nn.Conv2d(c, width, 3, padding=1))
            for c, layer in zip(channels, resize, strict=True)
        )
        self.skip = nn.ModuleList(Residual(width) for _ in channels[:-1])
        self.refine = nn.ModuleList(Residual(width) for _ in channels)
        self.reduce = nn.Conv2d(width, width // 2, 3, padding=1)
        self.head = nn.Sequential(
            nn.Conv2d(width // 2, width // 2, 3, padding=1), nn.ReLU(), nn.Conv2d(width // 2, 1, 1)
        )

    def forward(self, maps: list[Tensor], size: tuple[int, int]) -> Float[Tensor, "b 1 h w"]:
        """One map of the size wanted."""
        return self.predict(self.fuse(maps), size)

    def predict(self, fused: Tensor, size: tuple[int, int]) -> Float[Tensor, "b 1 h w"]:
        """The map that the head makes of the fused one."""
        *hidden, last = self.head
        y = grow(self.reduce(fused), size)
        for layer in hidden:
            y = layer(y)
        with exact(y):
            return last(y.float())

    def fuse(self, maps: list[Tensor]) -> Float[Tensor, "b c h w"]:
        """F: the finest fused map, at stride 3.5."""
        *finer, y = [layer(x) for layer, x in zip(self.lateral, maps, strict=True)]
        y = self.refine[-1](y)
        for skip, refine, x in zip(
            self.skip[::-1], self.refine[-2::-1], reversed(finer), strict=True
        ):
            y = refine(grow(y, x.shape[2:]) + skip(x))
        return y


class VitNet(nn.Module):
    """RGB in −1 … 1 at a multiple of 14; log-depth (up to a constant) at `VitSize.stride`."""

    mean: Tensor
    std: Tensor

    def __init__(self, size: VitSize | None = None) -> None:
        super().__init__()
        self.size = size or VitSize()
        self.encoder = Vit(self.size)
        self.decoder = Dpt(self.size.width, self.size.decoder)
        for name, values in (("mean", IMAGENET_MEAN), ("std", IMAGENET_STD)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 1 h2 w2"]:
        """log D."""
        return self.log_depth_and_features(x)[0]

    def log_depth_and_features(self, x: Float[Tensor, "b 3 h w"]) -> tuple[Tensor, Tensor]:
        """log D, and F, the decoder's finest map, at stride 3.5."""
        size = x.shape[2] // self.size.stride, x.shape[3] // self.size.stride
        fused = self.decoder.fuse(self.encoder(((x + 1) / 2 - self.mean) / self.std))
        return self.decoder.predict(fused, size), fused


class VitNetwork:
    """VitNet as the network of an `Estimator`: depth and F, in bfloat16 where that is fast."""

    def __init__(self, net: VitNet, device: str) -> None:
        self.net = net.eval().requires_grad_(False).to(device)

    @torch.no_grad()
    def log_depth(self, pixels: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 1 h2 w2"]:
        """log D of RGB in −1 … 1 at a multiple of 14."""
        return self._run(pixels)[0]

    def _run(self, pixels: Float[Tensor, "b 3 h w"]) -> tuple[Tensor, Tensor]:
        on_gpu = pixels.device.type == "cuda"
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=on_gpu):
            log_depth, features = self.net.log_depth_and_features(pixels)
        return log_depth.float(), features.float()

    @torch.no_grad()
    def __call__(self, pixels: Float[Tensor, "b 3 h w"]) -> Raw:
        """Depth at the network's resolution, and F."""
        log_depth, features = self._run(pixels)
        # Bounded, so that an odd image cannot overflow the exponential.
        return Raw(log_depth[:, 0].clamp(-10, 10).exp(), features)


@lru_cache(maxsize=8)
def load_vit(folder: str | Path, device: str = "cpu") -> Estimator:
    """A shipped model of this architecture, or one trained by the recipe of the teacher."""
    folder = verify_checksums(Path(folder))
    net, revision = read_vit(folder)
    name = folder.name if folder.parent == WEIGHTS else "vit-s"
    return Estimator(name, revision, "depth", PREPROCESS, VitNetwork(net, device), device)


def read_vit(folder: Path) -> tuple[VitNet, str]:
    """The network in a folder of the recipe, and its revision."""
    try:
        config = json.loads((folder / "config.json").read_text())
        net = VitNet(VitSize(**config["size"]))
        state = load_file(folder / "model.safetensors")
        net.load_state_dict({name: tensor.float() for name, tensor in state.items()})
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as e:
        raise InputError(f"{folder}: not the weights of vit-s ({e})") from None
    return net, config["revision"]
