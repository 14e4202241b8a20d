"""The kernel's inputs over an image, from its relative depth and the maps of the network."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from scalefield.basis.grids import sample, upsample
from scalefield.field.kernel import KernelInputs
from scalefield.field.observations import Observations, Readings
from scalefield.field.shift import AffineMap, Shift
from scalefield.mde.output import MDEOutput
from scalefield.report import ShiftInterval


@dataclass(frozen=True)
class ChannelLayout:
    """How the channels of the network's output are divided."""

    modes: int = 16
    """Number of linear modes."""
    terms: int = 3
    """Number of stationary terms."""
    embedding_size: int = 8
    """Length of the embedding of each stationary term."""

    @property
    def sizes(self) -> list[int]:
        """Channels of E, φ, a and μ."""
        return [self.modes, self.terms * self.embedding_size, self.terms, 1]

    @property
    def total(self) -> int:
        """Channels in all."""
        return sum(self.sizes)

    def kernel_inputs(
        self,
        position: Float[Tensor, "*b n 2"],
        log_depth: Float[Tensor, "*b n"],
        values: Float[Tensor, "*b n c"],
        shift: Float[Tensor, "*b n"] | None = None,
    ) -> KernelInputs:
        """The kernel's inputs at pixels from the values of the maps there."""
        shift = torch.zeros_like(log_depth) if shift is None else shift
        modes, embedding, amplitude, mean = values.split(self.sizes, dim=-1)
        embedding = embedding.unflatten(-1, (self.terms, self.embedding_size))
        return KernelInputs(position, log_depth, modes, embedding, amplitude, mean[..., 0], shift)


class FieldMaps(NamedTuple):
    """Output of the network for b images, on its grid."""

    maps: Float[Tensor, "b c h w"]
    """Channels by `layout`."""
    expected_log_depth: Float[Tensor, " b"]
    """Expected log-depth in metres of the image's median pixel."""
    layout: ChannelLayout

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
        zero = torch.zeros_like(self.mean)
        return self._replace(maps=torch.cat([self.maps[:, :-1], zero], dim=1))


@dataclass(frozen=True, eq=False)
class ImageInputs:
    """The kernel's inputs over an image: relative depth and the network's maps."""

    mde_depth: Float[Tensor, "h w"]
    """D_MDE, positive and finite everywhere."""
    maps: FieldMaps
    log_depth_median: Float[Tensor, ""]
    """Median of log D_MDE, which is subtracted from log-depth."""
    affine: AffineMap | None = None
    """The map whose shift is unknown; None for maps that are known up to a scale."""
    shift: Float[Tensor, "h w"] | None = None
    """Change of log D_MDE for one standard deviation of that shift."""
    shift_prior: Shift | None = None
    """What is known of that shift before any measurement."""

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Height and width of the image."""
        height, width = self.mde_depth.shape
        return height, width

    @cached_property
    def device(self) -> torch.device:
        """Where the maps are."""
        return self.maps.maps.device

    @cached_property
    def unit_px(self) -> float:
        """Unit of `KernelInputs.position`: the square root of the image's area, in pixels."""
        return math.sqrt(math.prod(self.shape))

    def position(
        self, rows: Float[Tensor, " n"], columns: Float[Tensor, " n"]
    ) -> Float[Tensor, "n 2"]:
        """`KernelInputs.position` of pixels."""
        height, width = self.shape
        u, v = columns - (width - 1) / 2, rows - (height - 1) / 2
        return torch.stack([u, v], dim=1) / self.unit_px

    def pixel_uv(self, position: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
        """(u, v) in pixels of a `KernelInputs.position`."""
        height, width = self.shape
        u, v = (position * self.unit_px).unbind(dim=1)
        return torch.stack([u + (width - 1) / 2, v + (height - 1) / 2], dim=1)

    @cached_property
    def log_depth(self) -> Float[Tensor, "h w"]:
        """log D_MDE minus its median, at full resolution."""
        return (self.mde_depth.log() - self.log_depth_median).float()

    def sampled(self, rows: Int64[Tensor, " r"], columns: Int64[Tensor, " c"]) -> ImageInputs:
        """A smaller image of these rows and columns of this one."""

        def smaller(values: Float[Tensor, "h w"]) -> Float[Tensor, "r c"]:
            return values[rows[:, None], columns]

        affine, shift = self.affine, self.shift
        return dataclasses.replace(
            self,
            mde_depth=smaller(self.mde_depth),
            affine=affine and dataclasses.replace(affine, values=smaller(affine.values)),
            shift=None if shift is None else smaller(shift),
        )

    def with_shift(self, shift: Shift) -> ImageInputs:
        """The same image at the mean of a shift, whose deviation becomes a part of the kernel."""
        assert self.affine is not None
        median = self.affine.median_log_depth(shift.mean)
        return dataclasses.replace(
            self,
            mde_depth=self.affine.log_depth(shift.mean).exp(),
            log_depth_median=median.to(self.log_depth_median),
            shift=shift.std * self.affine.sensitivity(shift.mean),
        )

    def as_output(self, mde_output: MDEOutput) -> MDEOutput:
        """The estimator's output as depth at the shift of this image."""
        if self.affine is None:
            return mde_output
        depth = torch.where(mde_output.valid, self.mde_depth, torch.nan)
        return dataclasses.replace(mde_output, prediction=depth, kind="depth", affine=False)

    def shift_interval(self, shift: Shift | None) -> ShiftInterval | None:
        """The shift in the units of the map, with its 90 % interval."""
        if self.affine is None or shift is None:
            return None
        low, value, high = (
            self.affine.offset(float(shift.mean + z * shift.std)) for z in (-1.645, 0, 1.645)
        )
        return ShiftInterval(value, low, high)

    def pixels(self, rows: Int64[Tensor, " n"], columns: Int64[Tensor, " n"]) -> KernelInputs:
        """The kernel's inputs at pixels, in float64."""
        uv = torch.stack([columns, rows], dim=1).double()
        values = sample(self.maps.maps, uv[None], self.shape)[0].double()
        log_depth = self.mde_depth[rows, columns].double().log() - self.log_depth_median
        shift = None if self.shift is None else self.shift[rows, columns].double()
        position = self.position(rows.double(), columns.double())
        return self.maps.layout.kernel_inputs(position, log_depth, values, shift)

    @cached_property
    def wide_maps(self) -> Float[Tensor, "c hg w"]:
        """The network's maps, interpolated along the rows of its grid."""
        return upsample(self.maps.maps.float(), (self.maps.maps.shape[2], self.shape[1]))[0]

    def window(self, rows: slice, columns: slice) -> KernelInputs:
        """The kernel's inputs at every pixel of some rows and columns, row by row, in float32. In
        memory the pixels come last."""
        (height, width), size = self.shape, self.wide_maps.shape[1]
        low, high = ((row + 0.5) * size / height - 0.5 for row in (rows.start, rows.stop - 1))
        near = slice(max(math.floor(low), 0), math.floor(high) + 2)
        v, u = (torch.arange(x.start, x.stop, device=self.device) for x in (rows, columns))
        at = ((v + 0.5) * (size / height) - 0.5).clamp(0, size - 1)
        index = torch.arange(size, device=self.device)[near]
        weights = (1 - (at[:, None] - index).abs()).clamp(min=0)
        values = (weights @ self.wide_maps[:, near, columns]).flatten(1).mT
        centred = torch.broadcast_tensors(u - (width - 1) / 2, v[:, None] - (height - 1) / 2)
        position = torch.stack(centred).flatten(1).mT / self.unit_px
        shift = None if self.shift is None else self.shift[rows, columns].flatten()
        log_depth = self.log_depth[rows, columns].flatten()
        return self.maps.layout.kernel_inputs(position, log_depth, values, shift)

    def observe(self, readings: Readings) -> Observations:
        """The readings as observations of the Gaussian process."""
        rows, columns, log_depth, noise, mask = readings
        inputs = self.pixels(rows, columns)
        # The kernel's log-depth is that of D_MDE minus its median.
        y = log_depth - inputs.log_depth - self.log_depth_median
        return Observations(inputs, y.where(mask, 0), noise, mask)

    def cells(self, shape: tuple[int, int]) -> tuple[KernelInputs, Int64[np.ndarray, "n 2"]]:
        """The middle pixels of a grid's cells, row by row, and their (row, column)."""
        height, width = self.shape
        rows = ((np.arange(shape[0]) + 0.5) * (height / shape[0])).astype(np.int64)
        columns = ((np.arange(shape[1]) + 0.5) * (width / shape[1])).astype(np.int64)
        chosen = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2)
        return self.pixels(*map(self.tensor, chosen.T)), chosen

    def tensor(self, values: Shaped[np.ndarray, " n"]) -> Shaped[Tensor, " n"]:
        """Values as a tensor on the maps' device."""
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)
