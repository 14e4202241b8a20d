"""The kernel's inputs over an image: everything that does not depend on the anchors."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.basis.grids import sample
from scalefield.field.kernel import PLANE_LEVEL, KernelInputs, bounded_relative_depth
from scalefield.field.network import FieldMaps
from scalefield.field.shift import AffineMap, Shift
from scalefield.mde.output import MDEOutput
from scalefield.report import ShiftInterval


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

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the image."""
        height, width = self.mde_depth.shape
        return height, width

    @property
    def device(self) -> torch.device:
        """Where the maps are."""
        return self.maps.maps.device

    @property
    def unit_px(self) -> float:
        """Unit of `KernelInputs.position`: the square root of the image's area, in pixels."""
        return math.sqrt(math.prod(self.shape))

    def position(
        self, rows: Float[Tensor, " n"], columns: Float[Tensor, " n"]
    ) -> Float[Tensor, "n 2"]:
        """`KernelInputs.position` of pixels."""
        height, width = self.shape
        return (
            torch.stack([columns - (width - 1) / 2, rows - (height - 1) / 2], dim=1) / self.unit_px
        )

    def pixel_uv(self, position: Float[Tensor, "n 2"]) -> Float[Tensor, "n 2"]:
        """(u, v) in pixels of a `KernelInputs.position`."""
        height, width = self.shape
        u, v = (position * self.unit_px).unbind(dim=1)
        return torch.stack([u + (width - 1) / 2, v + (height - 1) / 2], dim=1)

    def plane(self, coefficients: Float[Tensor, " 3"]) -> Float[Tensor, "h w"]:
        """coefficientsᵀq at every pixel, with q its `KernelInputs.plane`."""
        height, width = self.shape
        u, v = (
            (torch.arange(size, device=self.device) - (size - 1) / 2) / self.unit_px
            for size in (width, height)
        )
        over_u, over_v, level = coefficients
        plane = over_v * v[:, None] + over_u * u + level * PLANE_LEVEL
        return plane * bounded_relative_depth(self.log_depth)

    @cached_property
    def log_depth(self) -> Float[Tensor, "h w"]:
        """log D_MDE minus its median, at full resolution."""
        return (self.mde_depth.log() - self.log_depth_median).float()

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

    def anchors(self, anchors: Anchors) -> KernelInputs:
        """The kernel's inputs at the anchors' pixels."""
        rows, columns = anchors.pixels(self.shape)
        return self.pixels(self.index(rows), self.index(columns))

    def cells(self, shape: tuple[int, int]) -> tuple[KernelInputs, Int64[np.ndarray, "n 2"]]:
        """The middle pixels of a grid's cells, row by row, and their (row, column)."""
        height, width = self.shape
        rows = ((np.arange(shape[0]) + 0.5) * (height / shape[0])).astype(np.int64)
        columns = ((np.arange(shape[1]) + 0.5) * (width / shape[1])).astype(np.int64)
        chosen = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2)
        return self.pixels(self.index(chosen[:, 0]), self.index(chosen[:, 1])), chosen

    def index(self, values: Int64[np.ndarray, " n"]) -> Int64[Tensor, " n"]:
        """Indices as a tensor on the maps' device."""
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)
