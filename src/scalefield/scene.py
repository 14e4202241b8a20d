"""An image as the kernel of `field` sees it: what does not depend on the anchors."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.basis.grids import sample
from scalefield.embedding import FieldMaps
from scalefield.kernel import Points
from scalefield.mde.output import MDEOutput

Kept = TypeVar("Kept")


@dataclass(frozen=True, eq=False)
class Scene:
    """An image as the kernel sees it: what does not depend on the anchors."""

    mde_output: MDEOutput
    maps: FieldMaps
    level: float
    """Median of log D_MDE, which log-depth is taken around."""
    depth_length: float
    """Log-depth over which the kernel changes most quickly."""
    kept: dict[type, tuple[int, Any]] = field(default_factory=dict, init=False)
    """What the last anchors needed of it, one of each kind, and which that is."""

    @property
    def unit(self) -> float:
        """Pixels in the square root of the image's area."""
        return math.sqrt(math.prod(self.mde_output.shape))

    @property
    def middle(self) -> Float[Tensor, " 2"]:
        """The image's middle in the units of `Points.position`."""
        height, width = self.mde_output.shape
        device = self.mde_output.prediction.device
        return torch.tensor([width / 2, height / 2], device=device).double() / self.unit

    @cached_property
    def log_depth(self) -> Float[Tensor, "h w"]:
        """log D_MDE around its median, at full resolution."""
        return (self.mde_output.mde_depth.log() - self.level).float()

    def alone(self) -> Scene:
        """The same image without what is kept for the next anchors, to be held by that."""
        scene = copy(self)
        vars(scene).update(kept={})
        return scene

    def keep(self, kind: type[Kept], which: int, make: Callable[[], Kept]) -> Kept:
        """What is kept of this kind, if it is the one wanted; else it makes room for that."""
        held = self.kept.get(kind)  # replaced as a whole: another thread may ask as well
        if held is None or held[0] != which:
            held = self.kept[kind] = (which, make())
        return held[1]

    @property
    def kept_bytes(self) -> int:
        """What is kept, in memory."""
        return sum(made.nbytes for _, made in [*self.kept.values()])

    def pixels(self, rows: Int64[np.ndarray, " n"], columns: Int64[np.ndarray, " n"]) -> Points:
        """Single pixels, as float64."""
        device = self.mde_output.prediction.device
        uv = torch.from_numpy(np.stack([columns, rows], axis=1)).to(device).double()
        values = sample(self.maps.maps, uv[None], self.mde_output.shape)[0].double()
        log_depth = self.mde_output.mde_depth[rows, columns].double().log() - self.level
        return self.maps.layout.points(uv / self.unit, log_depth, values)

    def anchors(self, anchors: Anchors) -> Points:
        """The pixels that the anchors fall in."""
        return self.pixels(*anchors.pixels(self.mde_output.shape))

    def cells(self, shape: tuple[int, int]) -> tuple[Points, Int64[np.ndarray, "n 2"]]:
        """The middle pixels of a grid's cells, row by row, and their (row, column)."""
        height, width = self.mde_output.shape
        rows = ((np.arange(shape[0]) + 0.5) * (height / shape[0])).astype(np.int64)
        columns = ((np.arange(shape[1]) + 0.5) * (width / shape[1])).astype(np.int64)
        chosen = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2)
        return self.pixels(chosen[:, 0], chosen[:, 1]), chosen
