"""The generator on a GPU: cuDNN's convolutions, and all between them in seven kernels.

Left to torch, nine tenths of the time go into what lies between the convolutions: moments of few
groups, repeated borders, changes of layout. Here activations lie pixel by pixel, (b, h, w, c), and
one pass adds a convolution's bias, normalises, activates and repeats the border for the next.
Sums are taken in a fixed order, so the same inputs give the same bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as nnf
import triton
from jaxtyping import Float
from torch import Tensor, nn

from scalefield import kernels
from scalefield.cues import LOG_DEPTH_LIMIT, grid_shape
from scalefield.generator import Generator, ResidualBlock

PARTS = 32
"""Into so many parts, at most, an image is cut for its sums."""
PIXELS = 128
"""A program's pixels at a time."""
CELLS = 32
"""A program's cells of a row where F is averaged."""
CUES = 8
"""Channels of log D, ∇log D and x: five, and three of zeros for alignment."""
GROUP = 8
"""Channels of a norm's group."""
SORTED = 1 << 15
"""The most cells whose median one program finds."""


class Norm(NamedTuple):
    """A group norm of maps that still lack their convolution's bias."""

    sums: Float[Tensor, "b p 2 g"]
    weight: Float[Tensor, " c"]
    bias: Float[Tensor, " c"]
    eps: float


class FusedGenerator:
    """The basis maps of a generator, for inference on its own device and in its own type."""

    def __init__(self, generator: Generator) -> None:
        self.generator, self.config = generator, generator.config
        self.dtype = generator.basis_head.weight.dtype
        trunk = generator.trunk
        stem, self.merge, self.merge_norm = trunk.stem[0], trunk.merge[0], trunk.merge[1]
        reduced = self.config.feature_width if self.config.feature_channels else 0
        # F comes first for the generator and last here, behind aligned cues.
        cues = nnf.pad(stem.weight[:, reduced:], (0, 0, 0, 0, 0, CUES - 5))
        self.stem = torch.cat([cues, stem.weight[:, :reduced]], dim=1)
        self.stem = self.stem.to(memory_format=torch.channels_last)
        if reduced:
            norm, projection = generator.feature_norm, generator.feature_projection
            weight = projection.weight[:, :, 0, 0].float()
            self.projection = (weight * norm.weight.float()).T.contiguous().to(self.dtype)
            self.projected_ones = self.projection.float().sum(dim=0)
            self.projected_zero = weight @ norm.bias.float() + projection.bias.float()
        # B₀ ≡ 1 is a channel without weights and a bias of one; channels beyond K have no gate.
        k = self.config.k
        spare = triton.next_power_of_2(max(k, 16)) - k

        def head(layer: nn.Conv2d, before: int, rest: float) -> tuple[Tensor, Tensor]:
            weight = nnf.pad(layer.weight[:, :, 0, 0].T, (before, spare)).contiguous()
            bias = nnf.pad(layer.bias.float(), (before, 0), value=1.0)
            return weight, nnf.pad(bias, (0, spare), value=rest)

        self.basis_head = head(generator.basis_head, 1, 0.0)
        self.gating_head = head(generator.gating_head, 0, -torch.inf)

    @torch.no_grad()
    def __call__(
        self, features: Float[Tensor, "b c hf wf"] | None, mde_depth: Float[Tensor, "b h w"]
    ) -> Float[Tensor, "b k hg wg"]:
        """E in float32, as `Generator` makes it of `cues.grid_log_depth`."""
        trunk = self.generator.trunk
        cues = self.lay_cues(features, mde_depth)
        fine = activate(convolve(cues, self.stem), trunk.stem[0].bias, None, 1)
        down = convolve(fine, trunk.down.weight, stride=2)
        coarse, sums = add_and_sum(down, trunk.down.bias, keep=True)
        for block in trunk.blocks:
            coarse, sums = through(block, coarse, sums)
        merged = convolve(lay_beside(coarse, fine), self.merge.weight)
        _, sums = add_and_sum(merged, self.merge.bias, keep=False)
        return self.gate(merged, normed(self.merge_norm, sums))

    def lay_cues(
        self, features: Float[Tensor, "b c hf wf"] | None, mde_depth: Float[Tensor, "b h w"]
    ) -> Float[Tensor, "b h2 w2 c2"]:
        """Cues X(x) on the grid, with a border for the stem."""
        batch, height, width = mde_depth.shape
        h, w = grid_shape(height, width, self.config.cells)
        log_depth = mde_depth.new_empty(batch, h, w, dtype=torch.float32)
        launch(
            kernels.log_average, h * w, batch,
            mde_depth.float().contiguous(), log_depth, height, width, h, w,
            ROWS=window(height, h), COLUMNS=window(width, w),
        )  # fmt: skip
        reduced = self.stem.shape[1] - CUES
        out = log_depth.new_empty(batch, h + 2, w + 2, CUES + reduced, dtype=self.dtype)
        projected, gain, shift = out, out, out  # never read, unless there is F
        if self.config.zero_features:
            features = None
        if features is not None and reduced:
            projected, gain, shift = self.project(features, (h, w))
        elif reduced:
            shift = self.projected_zero.expand(batch, -1).contiguous()
        launch(
            kernels.lay_cues, (h + 2) * (w + 2), batch,
            projected, gain, shift, log_depth, median(log_depth), out, h, w, LOG_DEPTH_LIMIT,
            REDUCED=reduced, WIDE=padded(reduced), FEATURES=projected is not out, CUES=CUES,
        )  # fmt: skip
        return out

    def project(
        self, features: Float[Tensor, "b c hf wf"], size: tuple[int, int]
    ) -> tuple[Float[Tensor, "b h w c2"], Float[Tensor, " b"], Float[Tensor, "b c2"]]:
        """F reduced on the grid before its norm, and what the norm makes of it: gain and shift."""
        batch, channels, hf, wf = features.shape
        (h, w), reduced = size, self.projection.shape[1]
        lying = features.to(self.dtype).permute(0, 2, 3, 1).contiguous()
        if hf > h and wf > w:
            tiles = triton.cdiv(w, CELLS)
            projected = lying.new_empty(batch, h, w, reduced)
            sums = torch.empty(batch, h * tiles, 2, device=lying.device)
            kernels.pool_and_project[(tiles, h, batch)](
                lying, self.projection, projected, sums, hf, wf, h, w,
                C=channels, WIDE=padded(channels), REDUCED=reduced, OUT=padded(reduced),
                ROWS=window(hf, h), SPAN=padded(CELLS * wf // w + 2), BLOCK=CELLS,
            )  # fmt: skip
            first, second = (sums.sum(dim=1) / (channels * hf * wf)).unbind(dim=1)
            var = second - first.square()
        else:  # few cells: nothing to be gained
            var, first = torch.var_mean(lying.float(), dim=(1, 2, 3), correction=0)
            raw = (lying @ self.projection).permute(0, 3, 1, 2)
            projected = nnf.interpolate(raw, size, mode="bilinear", align_corners=False)
            projected = projected.permute(0, 2, 3, 1).contiguous()
        gain = (var + self.generator.feature_norm.eps).rsqrt()
        shift = self.projected_zero - (first * gain)[:, None] * self.projected_ones
        return projected, gain, shift

    def gate(self, merged: Float[Tensor, "b h w c"], norm: Norm) -> Float[Tensor, "b k h w"]:
        """E = G ⊙ B from what the last convolution made."""
        batch, h, w, channels = merged.shape
        out = torch.empty(batch, self.config.k, h, w, device=merged.device)
        launch(
            kernels.gate, h * w, batch,
            merged, self.merge.bias, *norm[:3], *self.basis_head, *self.gating_head, out, h * w,
            norm.sums.shape[1], norm.eps, C=channels, WIDE=padded(channels), PER_GROUP=GROUP,
            PARTS=PARTS, K=self.config.k, OUT=self.basis_head[0].shape[1],
        )  # fmt: skip
        return out


def apply(
    mde_depth: Float[Tensor, "b h w"], log_scale: Float[Tensor, "b hg wg"]
) -> Float[Tensor, "b h w"]:
    """D̂ = D · e^ℓ, with ℓ interpolated on the way."""
    (batch, height, width), (h, w) = mde_depth.shape, log_scale.shape[1:]
    out = torch.empty_like(mde_depth)
    kernels.apply[(triton.cdiv(height * width, 1024), batch)](
        mde_depth, log_scale.contiguous(), out, height, width, h, w, BLOCK=1024
    )
    return out


def through(
    block: ResidualBlock, x: Float[Tensor, "b h w c"], sums: Float[Tensor, "b p 2 g"]
) -> tuple[Float[Tensor, "b h w c"], Float[Tensor, "b p 2 g"]]:
    """x + the block's correction of it, and the result's sums."""
    norm1, _, conv1, norm2, _, conv2 = block.layers
    reach = conv1.dilation[0]
    y = activate(x, None, normed(norm1, sums), reach)
    y = convolve(y, conv1.weight, dilation=reach)
    _, sums = add_and_sum(y, conv1.bias, keep=False)
    y = activate(y, conv1.bias, normed(norm2, sums), 1)
    return add_and_sum(convolve(y, conv2.weight), conv2.bias, x, keep=True)


def normed(layer: nn.GroupNorm, sums: Float[Tensor, "b p 2 g"]) -> Norm:
    """The norm of maps with these sums."""
    return Norm(sums, layer.weight, layer.bias, layer.eps)


def median(rows: Float[Tensor, "b h w"]) -> Float[Tensor, " b"]:
    """The lower median of each."""
    count = rows[0].numel()
    if count > SORTED:
        return rows.flatten(1).median(dim=1).values
    out = rows.new_empty(len(rows))
    kernels.median[(len(rows),)](
        rows, out, count, WIDE=triton.next_power_of_2(count), num_warps=16
    )
    return out


def convolve(
    x: Float[Tensor, "b h w c"],
    weight: Float[Tensor, "c2 c kh kw"],
    *,
    stride: int = 1,
    dilation: int = 1,
) -> Float[Tensor, "b h2 w2 c2"]:
    """A convolution of maps that have their border already; the bias is left to what follows."""
    y = nnf.conv2d(x.permute(0, 3, 1, 2), weight, None, stride, 0, dilation)
    return y.permute(0, 2, 3, 1).contiguous()


def add_and_sum(
    x: Float[Tensor, "b h w c"],
    bias: Float[Tensor, " c"],
    residual: Float[Tensor, "b h w c"] | None = None,
    *,
    keep: bool,
) -> tuple[Float[Tensor, "b h w c"], Float[Tensor, "b p 2 g"]]:
    """x + bias (+ residual), where it is to be kept, and for each part of the image and group of
    channels the sums of it and of its square."""
    batch, h, w, channels = x.shape
    size = triton.cdiv(triton.cdiv(h * w, PARTS), PIXELS) * PIXELS
    parts = triton.cdiv(h * w, size)
    sums = torch.empty(batch, parts, 2, channels // GROUP, device=x.device)
    out = torch.empty_like(x) if keep else x
    kernels.add_and_sum[(parts, batch)](
        x, bias, x if residual is None else residual, out, sums, h * w,
        C=channels, WIDE=padded(channels), PER_GROUP=GROUP, ADD=residual is not None, KEEP=keep,
        SIZE=size, BLOCK=PIXELS,
    )  # fmt: skip
    return out, sums


def activate(
    x: Float[Tensor, "b h w c"], bias: Float[Tensor, " c"] | None, norm: Norm | None, border: int
) -> Float[Tensor, "b h2 w2 c"]:
    """GELU(norm(x + bias)), whose border cells are repeated outwards."""
    batch, h, w, channels = x.shape
    high, wide = h + 2 * border, w + 2 * border
    out = x.new_empty(batch, high, wide, channels)
    sums, weight, shift, eps = norm or (x, x, x, 0.0)
    launch(
        kernels.activate, high * wide, batch,
        x, x if bias is None else bias, sums, weight, shift, out, h, w, border, sums.shape[1], eps,
        C=channels, WIDE=padded(channels), PER_GROUP=GROUP, PARTS=PARTS,
        NORM=norm is not None, BIAS=bias is not None,
    )  # fmt: skip
    return out


def lay_beside(
    coarse: Float[Tensor, "b hc wc c"], fine: Float[Tensor, "b h w c2"]
) -> Float[Tensor, "b h w c3"]:
    """Coarse maps, grown to the fine ones' size without their border, beside the fine ones."""
    batch, hc, wc, c1 = coarse.shape
    _, high, wide, c2 = fine.shape
    out = fine.new_empty(batch, high, wide, c1 + c2)
    launch(
        kernels.lay_beside, high * wide, batch, coarse, fine, out, hc, wc, high - 2, wide - 2,
        C1=c1, WIDE1=padded(c1), C2=c2, WIDE2=padded(c2),
    )  # fmt: skip
    return out


def launch(kernel: Any, pixels: int, batch: int, *args: object, **sizes: object) -> None:
    """A kernel over blocks of an image's pixels, and over images."""
    kernel[(triton.cdiv(pixels, PIXELS), batch)](*args, **sizes, BLOCK=PIXELS)


def padded(channels: int) -> int:
    """The power of two that holds them; matrix products want 16 at least."""
    return triton.next_power_of_2(max(channels, 16))


def window(fine: int, coarse: int) -> int:
    """The most cells that one cell of a coarser grid touches."""
    return -(-fine // coarse) + (fine % coarse > 0)
