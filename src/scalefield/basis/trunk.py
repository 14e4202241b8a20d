"""The parts that the basis map generator and the network of `field` share: trunk and features."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as nnf
from jaxtyping import Float
from torch import Tensor, nn

from scalefield.errors import InputError
from scalefield.runtime.threads import worker_threads

BAND_ROWS = 32
"""Rows of a band of a convolution on a processor."""

Convolve = Callable[..., Tensor]
"""A function as `convolve`."""


class FeatureProjection(nn.Module):
    """An MDE's features F, normalised, reduced to a few channels and resized to the grid."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        # One group: F keeps the relation between its channels, but not its unit.
        self.norm = nn.GroupNorm(1, channels)
        self.conv = nn.Conv2d(channels, width, 1)

    def forward(
        self, features: Float[Tensor, "b c hf wf"] | None, log_depth: Float[Tensor, "b 1 h w"]
    ) -> Float[Tensor, "b c2 h w"]:
        """Projected features on the grid of `log_depth`; absent features count as zeros."""
        channels = self.conv.in_channels
        if features is None:
            features = log_depth.new_zeros(log_depth.shape[0], channels, 1, 1)
        elif features.shape[1] != channels:
            raise InputError(
                f"this model was made for features of {channels} channels, "
                f"found {features.shape[1]}: it belongs to another MDE"
            )
        features, size = features.to(log_depth.dtype), log_depth.shape[2:]
        # The group norm is written out: with one group a GPU runs it on a single block of
        # threads, and fewer cells need to be normalised once F has shrunk. Statistics are taken
        # row by row first, which uses many blocks.
        var, mean = torch.var_mean(features, dim=(1, 3), correction=0, keepdim=True)
        between, mean = torch.var_mean(mean, dim=2, correction=0, keepdim=True)
        var = var.mean(dim=2, keepdim=True) + between
        scale = (var + self.norm.eps).rsqrt() * self.norm.weight[:, None, None]
        shift = self.norm.bias[:, None, None] - mean * scale
        if features.shape[2] > size[0] and features.shape[3] > size[1]:
            features = resize(features, size)
        reduced = self.conv(torch.addcmul(shift, features, scale))
        if reduced.shape[2:] == (1, 1):  # one value everywhere; interpolation's gradient is slow
            return reduced.expand(-1, -1, *size)
        return resize(reduced, size)

    def reduce(self, features: Float[Tensor, "b c hf wf"]) -> Float[Tensor, "b c2 hf wf"]:
        """Normalised and projected features on their own grid, as plain layers for export."""
        return self.conv(self.norm(features))


class Trunk(nn.Module):
    """T_θ: cues X(x) to the shared representation H(x), on the same grid."""

    def __init__(self, inputs: int, width: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(inputs, width // 2), nn.GELU())
        self.down = conv(width // 2, width, stride=2)
        self.blocks = nn.Sequential(*(ResidualBlock(width, d) for d in dilations))
        self.merge = nn.Sequential(conv(width + width // 2, width), norm(width), nn.GELU())

    def forward(self, cues: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h w"]:
        """Residual blocks at half the resolution, merged with the fine stem.

        Without gradients on a processor, convolutions are computed in bands of rows by threads that
        do not wait for one another: torch's own threads would do so at every operation, and on a
        busy machine each wait is a time slice.
        """
        at_once = cues.is_cuda or torch.is_grad_enabled() or torch.jit.is_tracing()
        if at_once or torch.compiler.is_compiling():
            return self.evaluate(cues, convolve)
        with worker_threads() as thread_map:
            return self.evaluate(cues, partial(convolve_in_bands, thread_map=thread_map))

    def evaluate(self, cues: Float[Tensor, "b c h w"], convolve: Convolve) -> Tensor:
        """`forward` with a function that evaluates each convolution."""
        stem, merge = cast(nn.Conv2d, self.stem[0]), cast(nn.Conv2d, self.merge[0])
        fine = nnf.gelu(convolve(stem, cues))
        coarse = convolve(self.down, fine)
        for block in self.blocks:
            coarse = block(coarse, convolve)
        size = cues.shape[2:]
        coarse = nnf.interpolate(coarse, size=size, mode="bilinear", align_corners=False)
        return self.merge[1:](convolve(merge, torch.cat([coarse, fine], dim=1)))


class ResidualBlock(nn.Module):
    """x + two dilated 3×3 convolutions, GroupNorm before each."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            norm(width), nn.GELU(), conv(width, width, dilation=dilation),
            norm(width), nn.GELU(), conv(width, width),
        )  # fmt: skip

    def forward(self, x: Float[Tensor, "b c h w"], convolve: Convolve) -> Tensor:
        """The input plus its learned correction."""
        layers: tuple[Any, ...] = tuple(self.layers)
        norm1, _, conv1, norm2, _, conv2 = layers
        return x + convolve(conv2, convolve(conv1, x, norm1), norm2)


def conv(inputs: int, outputs: int, stride: int = 1, dilation: int = 1) -> nn.Conv2d:
    """A 3×3 convolution whose borders repeat; zeros would print the frame into the maps."""
    return nn.Conv2d(
        inputs, outputs, 3, stride, padding=dilation, dilation=dilation, padding_mode="replicate"
    )


def convolve(
    layer: nn.Conv2d, x: Float[Tensor, "b c h w"], norm: nn.GroupNorm | None = None
) -> Float[Tensor, "b c2 h2 w2"]:
    """layer(x), or layer(GELU(norm(x)))."""
    return layer(x if norm is None else nnf.gelu(norm(x)))


def convolve_in_bands(
    layer: nn.Conv2d,
    x: Float[Tensor, "b c h w"],
    norm: nn.GroupNorm | None = None,
    *,
    thread_map: Callable[..., Iterable[Tensor]],
) -> Float[Tensor, "b c2 h2 w2"]:
    """`convolve` in bands of rows, for a layer made by `conv`.

    The bands do not depend on the number of threads, so neither does the result.
    """
    (stride, _), (dilation, _) = layer.stride, layer.dilation
    height, rows = x.shape[2], (x.shape[2] - 1) // stride + 1
    if norm is not None:
        groups = x.unflatten(1, (norm.num_groups, -1)).flatten(2)
        mean = groups.mean(dim=2)
        # `var_mean` takes several times as long on a processor.
        var = (groups.square().mean(dim=2) - mean.square()).clamp(min=0)
        size = x.shape[1] // norm.num_groups
        scale = (var + norm.eps).rsqrt().repeat_interleave(size, dim=1) * norm.weight
        shift = norm.bias - mean.repeat_interleave(size, dim=1) * scale
        scale, shift = scale[..., None, None], shift[..., None, None]

    @torch.no_grad()  # a setting of each thread
    def band(first: int) -> Float[Tensor, "b c2 rows w2"]:
        last = min(first + BAND_ROWS, rows)
        top, bottom = first * stride - dilation, (last - 1) * stride + dilation + 1
        part = x[:, :, max(top, 0) : min(bottom, height)]
        if norm is not None:
            part = nnf.gelu(torch.addcmul(shift, part, scale))
        beyond = (dilation, dilation, max(-top, 0), max(bottom - height, 0))
        part = nnf.pad(part, beyond, mode="replicate")
        return nnf.conv2d(part, layer.weight, layer.bias, stride, 0, dilation)

    return torch.cat(list(thread_map(band, range(0, rows, BAND_ROWS))), dim=2)


def pointwise(layer: nn.Conv2d, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h w"]:
    """A 1×1 convolution as a matrix product, which one thread of a processor does faster."""
    product = layer.weight.flatten(1) @ x.flatten(2)
    if layer.bias is not None:
        product = product + layer.bias[:, None]
    return product.unflatten(2, x.shape[2:])


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
