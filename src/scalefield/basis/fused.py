"""The generator on a GPU: convolutions by cuDNN, everything between them in Triton kernels.

Left to torch, most of the time goes into what lies between the convolutions: moments of few groups,
repeated borders, changes of layout. Here activations lie pixel by pixel, (b, h, w, c), and one pass
adds a convolution's bias, normalises, activates and repeats the border for the next. Sums are taken
in a fixed order, so the same inputs give the same bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as nnf
import triton
from jaxtyping import Float
from torch import Tensor, nn

from scalefield.basis import triton_kernels as kernels
from scalefield.basis.generator import Generator
from scalefield.basis.grids import LOG_DEPTH_LIMIT, grid_shape
from scalefield.basis.trunk import ResidualBlock

PARTS = 32
"""Largest number of parts into which an image is divided for its sums."""
PIXELS = 128
"""A program's pixels."""
SUMMED = 256
"""A program's pixels at a time where sums are taken."""
CUES = 16
"""Channels of log D, ∇log D and x: five, and zeros. With F they are 48, which is fast in cuDNN."""
WARPS = 8
"""A program's warps."""
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
        self.config, self.dtype = generator.config, generator.basis_head.weight.dtype
        self.trunk: Any = generator.trunk  # mypy sees its layers as plain modules
        stem: Any = self.trunk.stem[0]
        reduced = self.config.feature_width if self.config.feature_channels else 0
        # F comes first for the generator and last here, behind aligned cues.
        cues = nnf.pad(stem.weight[:, reduced:], (0, 0, 0, 0, 0, CUES - 5))
        self.stem = torch.cat([cues, stem.weight[:, :reduced]], dim=1)
        self.stem = self.stem.to(memory_format=torch.channels_last)
        if reduced:
            norm: Any = generator.feature_projection.norm
            projection: Any = generator.feature_projection.conv
            self.eps = norm.eps
            weight = projection.weight[:, :, 0, 0].float()
            self.projection = (weight * norm.weight.float()).T.contiguous().to(self.dtype)
            self.projected_ones = self.projection.float().sum(dim=0)
            self.projected_zero = weight @ norm.bias.float() + projection.bias.float()
        # B₀ ≡ 1 is a channel without weights and a bias of one; channels beyond K have no gate.
        k = self.config.k
        spare = triton.next_power_of_2(max(k, 16)) - k

        def head(layer: Any, before: int, rest: float) -> tuple[Tensor, Tensor]:
            weight = nnf.pad(layer.weight[:, :, 0, 0].T, (before, spare)).contiguous()
            bias = nnf.pad(layer.bias.float(), (before, 0), value=1.0)
            return weight, nnf.pad(bias, (0, spare), value=rest)

        self.basis_head = head(generator.basis_head, 1, 0.0)
        self.gating_head = head(generator.gating_head, 0, -torch.inf)

    @torch.no_grad()
    def __call__(
        self, features: Float[Tensor, "b c hf wf"] | None, mde_depth: Float[Tensor, "b h w"]
    ) -> Float[Tensor, "b k hg wg"]:
        """E in float32, as `Generator` makes it of `grids.grid_log_depth`."""
        trunk = self.trunk
        cues = self.lay_cues(features, mde_depth)
        fine = activate(convolve(cues, self.stem), trunk.stem[0].bias, None, 1)
        down = convolve(fine, trunk.down.weight, stride=2)
        coarse, sums = add_and_sum(down, trunk.down.bias, keep=True)
        for block in trunk.blocks:
            coarse, sums = through(block, coarse, sums)
        merge, norm, _ = trunk.merge
        merged = convolve(lay_beside(coarse, fine), merge.weight)
        _, sums = add_and_sum(merged, merge.bias, keep=False)
        return self.gate(merged, merge.bias, normed(norm, sums))

    def lay_cues(
        self, features: Float[Tensor, "b c hf wf"] | None, mde_depth: Float[Tensor, "b h w"]
    ) -> Float[Tensor, "b h2 w2 c2"]:
        """Cues X(x) on the grid, with a border for the stem."""
        batch, height, width = mde_depth.shape
        h, w = grid_shape(height, width, self.config.cells)
        log_depth = mde_depth.new_empty(batch, h, w, dtype=torch.float32)
        kernels.log_average[(triton.cdiv(h * w, SUMMED), batch)](
            mde_depth.float().contiguous(), log_depth, height, width, h, w,
            ROWS=window(height, h), COLUMNS=window(width, w), BLOCK=SUMMED,
        )  # fmt: skip
        reduced = self.stem.shape[1] - CUES
        out = log_depth.new_empty(batch, h + 2, w + 2, CUES + reduced, dtype=self.dtype)
        projected, gain, shift = out, out, out  # never read, unless there is F
        hf, wf, rows, columns = 1, 1, 0, 0
        if reduced and features is not None and not self.config.zero_features:
            projected, gain, shift = self.project(features, (h, w))
            hf, wf = projected.shape[1:3]
            rows, columns = window(hf, h), window(wf, w)
        elif reduced:
            shift = self.projected_zero.expand(batch, -1).contiguous()
        launch(
            kernels.lay_cues, (h + 2) * (w + 2), batch,
            projected, gain, shift, log_depth, median(log_depth), out, hf, wf, h, w,
            LOG_DEPTH_LIMIT, REDUCED=reduced, WIDE=padded(reduced), ROWS=rows, COLUMNS=columns,
            CUES=CUES,
        )  # fmt: skip
        return out

    def project(
        self, features: Float[Tensor, "b c hf wf"], size: tuple[int, int]
    ) -> tuple[Float[Tensor, "b h2 w2 c2"], Float[Tensor, " b"], Float[Tensor, "b c2"]]:
        """F reduced before its norm, on the grid or finer, and the gain and shift of that norm."""
        batch, channels, hf, wf = features.shape
        lying = features.to(self.dtype).permute(0, 2, 3, 1).contiguous()
        parts, reduced = triton.cdiv(hf * wf, PIXELS), self.projection.shape[1]
        projected = lying.new_empty(batch, hf, wf, reduced)
        sums = torch.empty(batch, parts, 2, device=lying.device)
        launch(
            kernels.project_and_sum, hf * wf, batch,
            lying, self.projection, projected, sums, hf * wf,
            C=channels, CHUNK=min(padded(channels), 128), REDUCED=reduced, OUT=padded(reduced),
        )  # fmt: skip
        first, second = (sums.sum(dim=1) / (channels * hf * wf)).unbind(dim=1)
        gain = ((second - first.square()).clamp(min=0) + self.eps).rsqrt()
        shift = self.projected_zero - (first * gain)[:, None] * self.projected_ones
        if hf < size[0] or wf < size[1]:  # as `generator.resize` does it
            maps = projected.permute(0, 3, 1, 2)
            maps = nnf.interpolate(maps, size, mode="bilinear", align_corners=False)
            projected = maps.permute(0, 2, 3, 1).contiguous()
        return projected, gain, shift

    def gate(
        self, merged: Float[Tensor, "b h w c"], bias: Float[Tensor, " c"], norm: Norm
    ) -> Float[Tensor, "b k h w"]:
        """E = G ⊙ B from the output of the last convolution."""
        batch, h, w, channels = merged.shape
        out = torch.empty(batch, self.config.k, h, w, device=merged.device)
        launch(
            kernels.gate, h * w, batch,
            merged, bias, *norm[:3], *self.basis_head, *self.gating_head, out, h * w,
            norm.sums.shape[1], norm.eps, C=channels, WIDE=padded(channels), PER_GROUP=GROUP,
            PARTS=PARTS, K=self.config.k, OUT=self.basis_head[0].shape[1],
        )  # fmt: skip
        return out


def apply(
    mde_depth: Float[Tensor, "b h w"], log_scale: Float[Tensor, "b hg wg"]
) -> Float[Tensor, "b h w"]:
    """D̂ = D · e^ℓ, with ℓ interpolated in the same kernel."""
    (batch, height, width), (h, w) = mde_depth.shape, log_scale.shape[1:]
    out = torch.empty_like(mde_depth)
    kernels.apply[(triton.cdiv(height * width, 1024), batch)](
        mde_depth, log_scale.contiguous(), out, height, width, h, w, BLOCK=1024
    )
    return out


def through(
    block: ResidualBlock, x: Float[Tensor, "b h w c"], sums: Float[Tensor, "b p 2 g"]
) -> tuple[Float[Tensor, "b h w c"], Float[Tensor, "b p 2 g"]]:
    """Output of a residual block, and its sums for the next norm."""
    layers: Any = block.layers
    norm1, _, conv1, norm2, _, conv2 = layers
    reach = conv1.dilation[0]
    y = activate(x, None, normed(norm1, sums), reach)
    y = convolve(y, conv1.weight, dilation=reach)
    _, sums = add_and_sum(y, conv1.bias, keep=False)
    y = activate(y, conv1.bias, normed(norm2, sums), 1)
    return add_and_sum(convolve(y, conv2.weight), conv2.bias, x, keep=True)


def normed(layer: nn.GroupNorm, sums: Float[Tensor, "b p 2 g"]) -> Norm:
    """Group norm of maps with these sums."""
    return Norm(sums, layer.weight, layer.bias, layer.eps)


def median(rows: Float[Tensor, "b h w"]) -> Float[Tensor, " b"]:
    """The lower median of each row."""
    count = rows[0].numel()
    if count > SORTED:
        return rows.flatten(1).median(dim=1).values
    out = rows.new_empty(len(rows))
    kernels.median[(len(rows),)](rows, out, count, WIDE=triton.next_power_of_2(count), num_warps=16)
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
    size = triton.cdiv(triton.cdiv(h * w, PARTS), SUMMED) * SUMMED
    parts = triton.cdiv(h * w, size)
    sums = torch.empty(batch, parts, 2, channels // GROUP, device=x.device)
    out = torch.empty_like(x) if keep else x
    kernels.add_and_sum[(parts, batch)](
        x, bias, x if residual is None else residual, out, sums, h * w,
        C=channels, WIDE=padded(channels), PER_GROUP=GROUP, ADD=residual is not None, KEEP=keep,
        SIZE=size, BLOCK=SUMMED,
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
    grid = (triton.cdiv(pixels, PIXELS), batch)
    kernel[grid](*args, **sizes, BLOCK=PIXELS, num_warps=WARPS)


def padded(channels: int) -> int:
    """The next power of two, at least 16, which matrix products require."""
    return triton.next_power_of_2(max(channels, 16))


def window(fine: int, coarse: int) -> int:
    """The most cells that one cell of a coarser grid touches."""
    return -(-fine // coarse) + (fine % coarse > 0)
