"""Depth Anything 3 for one view: a compact implementation with the published weights.

Modules have the published names, so that the official safetensors load by name. Parts that do not
influence the depth of a single view are left out: cameras, rays, Gaussians, and the sky of the
networks for one view. `DA3` equals the published network to float32 accuracy (depth, confidence and
F). The depth of `da3-metric` is in metres after multiplication by the focal length / 300 px.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from scalefield.errors import InputError
from scalefield.mde.estimator import Estimator, Preprocess, Raw

PREPROCESS = Preprocess(size=(504, 504), fit="inside", multiple=14, resample="area")


@dataclass(frozen=True)
class DA3Config:
    """The sizes in which the networks differ."""

    width: int
    depth: int
    heads: int
    out_layers: tuple[int, int, int, int]
    """Blocks whose tokens go to the head."""
    alternate_from: int
    """From this block on: a camera token, normalised queries and keys, RoPE, and every odd
    block attends across views (here: with all patches at one position)."""
    head_channels: tuple[int, int, int, int]
    fused_channels: int
    """Channels of F."""
    patch: int = 14
    grid: int = 37
    """Side, in patches, of the learned position embedding."""
    one_view: bool = False
    """Whether the network is one of those for a single view (mono, metric): a plain ViT without a
    camera token, and a head without positions, without confidence and without a norm."""

    @property
    def token_width(self) -> int:
        """Channels of the tokens that go to the head."""
        return self.width if self.one_view else 2 * self.width


SMALL = DA3Config(384, 12, 6, (5, 7, 9, 11), 4, (48, 96, 192, 384), 64)
BASE = DA3Config(768, 12, 12, (5, 7, 9, 11), 4, (96, 192, 384, 768), 128)
LARGE = DA3Config(1024, 24, 16, (11, 15, 19, 23), 8, (256, 512, 1024, 1024), 256)
ONE_VIEW = DA3Config(1024, 24, 16, (4, 11, 17, 23), 24, (256, 512, 1024, 1024), 256, one_view=True)
CONFIGS = {
    "da3-small": SMALL,
    "da3-base": BASE,
    "da3-large": LARGE,
    "da3-mono": ONE_VIEW,
    "da3-metric": ONE_VIEW,
}


def load_da3(name: str, weights: Path, revision: str, device: str = "cpu") -> Estimator:
    """The estimator whose weights are in this safetensors file; its size is read off them."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        published = load_file(weights)
    except (SafetensorError, OSError) as e:
        raise InputError(f"{weights}: not a readable safetensors file ({e})") from None
    state = single_view({key.removeprefix("model."): value for key, value in published.items()})
    token = state.get("backbone.pretrained.cls_token")
    width = None if token is None else token.shape[-1]
    one_view = "backbone.pretrained.camera_token" not in state
    sizes = {
        size: config
        for size, config in CONFIGS.items()
        if (config.width, config.one_view) == (width, one_view)
    }
    if not sizes or (name in CONFIGS and name not in sizes):
        wanted = name if name in CONFIGS else ", ".join(CONFIGS)
        found = ", ".join(sizes) or "others"
        raise InputError(f"{weights}: wanted the weights of {wanted}, found {found}")
    with torch.device("meta"):  # no memory and no random numbers for what is replaced at once
        model = DA3(next(iter(sizes.values())))
    _check_names(weights, model.state_dict(), state)
    model.load_state_dict(state, assign=True)
    network = model.float().requires_grad_(False).eval().to(device)
    return Estimator(name, revision, "depth", PREPROCESS, network, device)


def single_view(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The published weights without those of cameras, Gaussians, sky and (aux) rays."""
    others = ("cam_enc.", "cam_dec.", "gs_head.", "gs_adapter.", "head.scratch.sky_output_conv2.")
    return {k: v for k, v in state.items() if not k.startswith(others) and "_aux." not in k}


def _check_names(weights: Path, ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Every weight under its name and in its shape, no more and no less."""
    wanted, found = ({f"{k} {[*v.shape]}" for k, v in state.items()} for state in (ours, theirs))
    if wanted == found:
        return
    missing, foreign = sorted(wanted - found), sorted(found - wanted)
    raise InputError(
        f"{weights}: not the weights of a DA3 network: {len(missing)} are missing "
        f"({', '.join(missing[:3])}) and {len(foreign)} are foreign ({', '.join(foreign[:3])})"
    )


class DA3(nn.Module):
    """Pixels (ImageNet-normalised, sides divisible by 14) to depth, confidence and F."""

    def __init__(self, config: DA3Config) -> None:
        super().__init__()
        self.backbone = nn.ModuleDict({"pretrained": Backbone(config)})
        self.head = Head(config)

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> Raw:
        """Depth up to scale = exp(logit); confidence = 1 + exp(logit)."""
        return self.head(self.backbone["pretrained"](pixels), pixels.shape[-2:])


class Backbone(nn.Module):
    """DINOv2's ViT, whose later blocks have RoPE and a camera token in place of the class's."""

    def __init__(self, config: DA3Config) -> None:
        super().__init__()
        c, width = config, config.width
        self.config = config
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, c.patch, c.patch)})
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        if not c.one_view:
            self.camera_token = nn.Parameter(torch.zeros(1, 2, width))
            """Tokens of the reference view, which a single view is, and of the others."""
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + c.grid**2, width))
        self.blocks = nn.ModuleList(
            Block(width, c.heads, qk_norm=i >= c.alternate_from) for i in range(c.depth)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> list[Float[Tensor, "b n c2"]]:
        """Patch tokens after each of `out_layers`: the last local state, then the normalised."""
        c = self.config
        patches = self.patch_embed["proj"](pixels)  # b c ph pw
        rows, columns = patches.shape[-2:]
        x = torch.cat([self.cls_token.expand(len(pixels), -1, -1), _tokens(patches)], dim=1)
        x = x + self._positions(rows, columns)
        rope = Rope.for_grid(rows, columns, c.width // c.heads, pixels.device)
        outputs = []
        for i, block in enumerate(self.blocks):
            if i < c.alternate_from:
                x = local = block(x, None)
            else:
                if i == c.alternate_from:
                    camera = self.camera_token[:, :1].expand(len(x), -1, -1)
                    x = torch.cat([camera, x[:, 1:]], dim=1)
                across_views = i % 2 == 1
                x = block(x, rope.one_place if across_views else rope.grid)
                local = local if across_views else x
            if i in c.out_layers:
                tokens = self.norm(x)
                if not c.one_view:
                    tokens = torch.cat([local, tokens], dim=-1)
                outputs.append(tokens[:, 1:])
        return outputs

    def _positions(self, rows: int, columns: int) -> Float[Tensor, "1 n c"]:
        """The learned embedding, bicubically interpolated from its own grid."""
        side = self.config.grid
        if rows == columns == side:
            return self.pos_embed
        grid = self.pos_embed[:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
        # DINOv2 was trained with scales that are off by this 0.1, so they are part of the weights.
        scale = (rows + 0.1) / side, (columns + 0.1) / side
        grid = F.interpolate(grid, scale_factor=scale, mode="bicubic")
        return torch.cat([self.pos_embed[:, :1], _tokens(grid)], dim=1)


@dataclass(frozen=True, eq=False)
class Rope:
    """Rotations of queries and keys: cosines and sines, one row a token, the first the camera's."""

    grid: tuple[Tensor, Tensor]
    """Patches at their (row, column), counted from one; the camera token at zero."""
    one_place: tuple[Tensor, Tensor]
    """Every patch at (1, 1), as for attention across views."""

    @classmethod
    def for_grid(cls, rows: int, columns: int, channels: int, device: torch.device) -> Rope:
        """Half of a head's channels turn with the row, half with the column."""
        axes = (torch.arange(1, n + 1, device=device) for n in (rows, columns))
        patches = F.pad(torch.cartesian_prod(*axes), (0, 0, 1, 0))  # n 2
        half = channels // 2
        frequencies = 100.0 ** -(torch.arange(0, half, 2, device=device) / half)

        def rotations(positions: Tensor) -> tuple[Tensor, Tensor]:
            angles = positions[:, :, None] * frequencies  # n 2 channels/4
            angles = torch.cat([angles, angles], dim=-1).flatten(1)  # n channels
            return angles.cos(), angles.sin()

        return cls(rotations(patches), rotations(patches.clamp(max=1)))


def _rotate(x: Float[Tensor, "b heads n d"], rope: tuple[Tensor, Tensor]) -> Tensor:
    y1, y2, x1, x2 = x.chunk(4, dim=-1)
    cos, sin = rope
    return x * cos + torch.cat([-y2, y1, -x2, x1], dim=-1) * sin


class Block(nn.Module):
    """Pre-norm attention and MLP, each scaled channel by channel before it is added."""

    def __init__(self, width: int, heads: int, *, qk_norm: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads, qk_norm=qk_norm)
        self.ls1 = LayerScale(width)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.ModuleDict(
            {"fc1": nn.Linear(width, 4 * width), "fc2": nn.Linear(4 * width, width)}
        )
        self.ls2 = LayerScale(width)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        """Tokens to tokens."""
        x = x + self.ls1(self.attn(self.norm1(x), rope))
        return x + self.ls2(self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x)))))


class Attention(nn.Module):
    """Self-attention, with normalised and rotated queries and keys where the block has them."""

    def __init__(self, width: int, heads: int, *, qk_norm: bool) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.q_norm = nn.LayerNorm(width // heads) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(width // heads) if qk_norm else nn.Identity()
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        """Tokens to tokens."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None:
            q, k = _rotate(q, rope), _rotate(k, rope)
        x = F.scaled_dot_product_attention(q, k, v)  # b heads n d
        return self.proj(x.transpose(1, 2).flatten(2))


class LayerScale(nn.Module):
    """A learned factor for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Scaled tokens."""
        return x * self.gamma


class Head(nn.Module):
    """The DPT head: four levels of tokens are fused from coarse to fine; F is the last of them."""

    def __init__(self, config: DA3Config) -> None:
        super().__init__()
        c1, c2, _, c4 = config.head_channels
        f = config.fused_channels
        self.norm = nn.Identity() if config.one_view else nn.LayerNorm(config.token_width)
        self.projects = nn.ModuleList(
            nn.Conv2d(config.token_width, c, 1) for c in config.head_channels
        )
        self.resize_layers = nn.ModuleList(
            [
                nn.ConvTranspose2d(c1, c1, 4, stride=4),
                nn.ConvTranspose2d(c2, c2, 2, stride=2),
                nn.Identity(),
                nn.Conv2d(c4, c4, 3, stride=2, padding=1),
            ]
        )
        self.scratch = nn.ModuleDict(
            {
                **{
                    f"layer{i}_rn": nn.Conv2d(c, f, 3, padding=1, bias=False)
                    for i, c in enumerate(config.head_channels, 1)
                },
                **{f"refinenet{i}": Fusion(f, lateral=i < 4) for i in (1, 2, 3, 4)},
                "output_conv1": nn.Conv2d(f, f // 2, 3, padding=1),
                "output_conv2": nn.Sequential(
                    nn.Conv2d(f // 2, 32, 3, padding=1),
                    nn.ReLU(),
                    nn.Conv2d(32, 1 if config.one_view else 2, 1),
                ),
            }
        )
        self.patch, self.one_view = config.patch, config.one_view

    def forward(self, tokens: list[Float[Tensor, "b n c"]], shape: tuple[int, int]) -> Raw:
        """Depth and confidence at the pixels' shape, F at eight cells a patch."""
        aspect = None if self.one_view else shape[1] / shape[0]
        grid = shape[0] // self.patch, shape[1] // self.patch
        s = self.scratch
        levels = []
        for level, project, resize in zip(tokens, self.projects, self.resize_layers, strict=True):
            patches = self.norm(level).transpose(1, 2).unflatten(2, grid)  # b c ph pw
            levels.append(resize(_add_positions(project(patches), aspect)))
        one, two = s["layer1_rn"](levels[0]), s["layer2_rn"](levels[1])
        three, four = s["layer3_rn"](levels[2]), s["layer4_rn"](levels[3])

        x = s["refinenet4"](four, None, size=three.shape[-2:])
        x = s["refinenet3"](x, three, size=two.shape[-2:])
        x = s["refinenet2"](x, two, size=one.shape[-2:])
        height, width = one.shape[-2:]
        features = s["refinenet1"](x, one, size=(2 * height, 2 * width))

        x = _enlarge(s["output_conv1"](features), shape)
        logits = s["output_conv2"](_add_positions(x, aspect))
        confidence = None if self.one_view else logits[:, 1].exp() + 1
        return Raw(logits[:, 0].exp(), features, confidence)


class Fusion(nn.Module):
    """Adds the finer level to the coarser one, refines, and enlarges to the next level's size."""

    def __init__(self, channels: int, *, lateral: bool = True) -> None:
        super().__init__()
        if lateral:
            self.resConfUnit1 = Residual(channels)
        self.resConfUnit2 = Residual(channels)
        self.out_conv = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor, lateral: Tensor | None, size: tuple[int, int]) -> Tensor:
        """The fused map at `size`."""
        if lateral is not None:
            x = x + self.resConfUnit1(lateral)
        return self.out_conv(_enlarge(self.resConfUnit2(x), size))


class Residual(nn.Module):
    """Two convolutions, activated before, around a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """x + convolutions of x."""
        return x + self.conv2(F.relu(self.conv1(F.relu(x))))


def _enlarge(x: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(x, size=size, mode="bilinear", align_corners=True)


def _tokens(maps: Float[Tensor, "b c h w"]) -> Float[Tensor, "b n c"]:
    return maps.flatten(2).transpose(1, 2)


def _add_positions(x: Float[Tensor, "b c h w"], aspect: float | None) -> Float[Tensor, "b c h w"]:
    """Adds a tenth of the sines and cosines of each cell's place in a plane of unit diagonal;
    nothing without an aspect ratio."""
    if aspect is None:
        return x
    channels, height, width = x.shape[1:]
    diagonal = (aspect**2 + 1) ** 0.5
    quarter = channels // 4
    frequencies = 100.0 ** -(torch.arange(quarter, device=x.device) / quarter)

    def waves(span: float, n: int) -> Tensor:
        end = span * (n - 1) / n
        place = torch.linspace(-end, end, n, device=x.device)
        angles = frequencies[:, None] * place  # channels/4 n
        return torch.cat([angles.sin(), angles.cos()])

    across = waves(aspect / diagonal, width)[:, None, :].expand(-1, height, -1)
    down = waves(1 / diagonal, height)[:, :, None].expand(-1, -1, width)
    return x + 0.1 * torch.cat([across, down])
