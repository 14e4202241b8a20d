"""Measurements at pixels of an image, and what the Gaussian process sees of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from scipy.spatial import cKDTree
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.basis.ridge import masked_median
from scalefield.field.kernel import Inputs

MIN_NOISE_STD = 1e-3
"""Least standard deviation of an anchor's log-depth: the pixel that it falls in and the relative
depth there agree no better, however precise the measurement."""
LAST_PIXEL = torch.iinfo(torch.int64).max
"""Key that sorts padding behind every pixel."""
COPY_DISTANCE = 0.008
"""Distance, in units of the position, within which two readings of one depth count as copies; at
least `COPY_PX` pixels."""
COPY_PX = 3
COPY_LOG_DEPTH = 0.02
"""Difference in log-depth within which they count as readings of one depth."""


class Readings(NamedTuple):
    """Log-depths that were measured at pixels."""

    rows: Int64[Tensor, " n"]
    columns: Int64[Tensor, " n"]
    log_depth: Float[Tensor, " n"]
    """Logarithm of the depth in metres."""
    noise: Float[Tensor, " n"]
    """Its standard deviation."""
    mask: Bool[Tensor, " n"]
    """Which rows are readings; the others are padding."""

    @classmethod
    def of(
        cls,
        anchors: Anchors,
        shape: tuple[int, int],
        noise_std: float,
        device: torch.device | str = "cpu",
    ) -> Readings:
        """The anchors on an image of this shape; `noise_std` is that of anchors without their own.
        Without any anchor, one masked row."""
        if len(anchors) == 0:
            pixel = torch.zeros(1, dtype=torch.int64, device=device)
            zero = torch.zeros(1, dtype=torch.float64, device=device)
            return cls(pixel, pixel, zero, zero + 1, zero > 0)
        sigma = anchors.sigma_log(noise_std, floor=MIN_NOISE_STD)
        given = (*anchors.pixels(shape), np.log(anchors.depth_m), sigma)
        rows, columns, log_depth, noise = (torch.from_numpy(x).to(device) for x in given)
        return cls(rows, columns, log_depth, noise, torch.ones_like(rows, dtype=torch.bool))

    def merged(self, *, static: bool = False) -> tuple[Readings, Int64[Tensor, " n"]]:
        """One reading of each pixel, in the order of the pixels, and for each of the given ones the
        index of that reading.

        The readings of a pixel have their mean, weighted by precision, and the least of their
        deviations, or the deviation of their values if that is larger: they share the error of
        the pixel, so that their number does not make them more precise. The result does not depend
        on the order of the given ones. With `static` the shape stays, and rows that are left over
        are masked.
        """
        pixel = torch.where(self.mask, (self.rows << 32) + self.columns, LAST_PIXEL)
        order = torch.arange(len(pixel), device=pixel.device)
        for key in (self.noise, self.log_depth, pixel):
            order = order[key[order].sort(stable=True).indices]
        rows, columns, log_depth, noise, mask = (x[order] for x in self)
        # `unique` would do, but a CUDA graph knows no result of variable size.
        changes = pixel[order].diff() != 0
        group = torch.cat([changes.new_zeros(1), changes]).cumsum(dim=0)
        size = len(group) if static else int(group.where(mask, 0).max()) + 1
        group = group.clamp(max=size - 1)  # padding joins the last reading, without weight

        def reduce(
            values: Float[Tensor, " n"], how: str, start: float = 0.0
        ) -> Float[Tensor, " g"]:
            return values.new_full((size,), start).scatter_reduce(0, group, values, how)

        weight = torch.where(mask, noise.double() ** -2, 0.0)
        weights = reduce(weight, "sum").clamp(min=torch.finfo(torch.float64).tiny)
        # Relative to one of the readings, so that equal ones are left as they are.
        level = reduce(log_depth.where(mask, torch.inf), "amin", torch.inf).nan_to_num(posinf=0.0)
        mean = level + reduce(weight * (log_depth - level[group]), "sum") / weights
        spread = (reduce(weight * (log_depth - mean[group]) ** 2, "sum") / weights).sqrt()
        least = reduce(noise.double().where(mask, torch.inf), "amin", torch.inf)
        known = reduce(mask.double(), "sum") > 0
        rows, columns = (
            x.new_zeros(size).scatter_reduce(0, group, x.where(mask, 0), "amax")
            for x in (rows, columns)
        )
        noise = torch.where(known, torch.maximum(least, spread), 1.0)
        merged = Readings(rows, columns, mean, noise, known)
        return merged, torch.empty_like(group).index_copy(0, order, group)

    def thinned(self, most: int) -> Readings:
        """At most `most` of the readings, evenly spaced in their order."""
        index, there = thin(self.mask, most)
        rows, columns, log_depth, noise, _ = (x[index] for x in self)
        return Readings(rows, columns, log_depth, noise, there)


class Observations(NamedTuple):
    """Measurements as the Gaussian process sees them."""

    inputs: Inputs
    y: Float[Tensor, " n"]
    """Targets log depth_m − log D_MDE."""
    noise: Float[Tensor, " n"]
    """Standard deviations of the targets."""
    mask: Bool[Tensor, " n"]
    """Which rows are observations; the others are padding or rejected."""

    def median_log_scale(self) -> Float[Tensor, "*b"]:
        """Median of y − μ over the observations of log-scales."""
        level = self.inputs.level
        of_scale = self.mask & (level > 0.5)
        return masked_median((self.y - self.inputs.mean) / level.where(of_scale, 1.0), of_scale)

    @property
    def rows(self) -> Float[Tensor, "n 4"]:
        """What distinguishes the observations of an image: position, target and noise."""
        return torch.cat([self.inputs.position, self.y[:, None], self.noise[:, None]], dim=1)

    def thinned(self, most: int) -> Observations:
        """At most `most` of the observations, evenly spaced in their order."""
        index, there = thin(self.mask, most)
        inputs, y, noise, _ = self
        return Observations(inputs[index], y[index], noise[index], there)

    def copies(self, unit_px: float) -> Int64[Tensor, " n"]:
        """For each observation the index of the one that it copies, or its own.

        Two observations are copies if each is the nearest to the other, and they are readings of
        one depth a few pixels apart. `unit_px` is the unit of the position in pixels. On a
        processor.
        """
        index = torch.arange(len(self.y))
        known = (self.mask & self.inputs.position.isfinite().all(dim=1)).nonzero()[:, 0]
        if len(known) < 2:
            return index
        position, distance = (
            self.inputs.position[known].numpy(),
            max(COPY_DISTANCE, COPY_PX / unit_px),
        )
        _, near = cKDTree(position).query(position, k=2, distance_upper_bound=distance)
        own = np.arange(len(known))
        other = np.where(near[:, 0] == own, near[:, 1], near[:, 0])
        log_depth = (self.y + self.inputs.log_depth)[known].numpy()
        there = other < len(known)
        other = np.where(there, other, own)
        alike = np.abs(log_depth - log_depth[other]) < COPY_LOG_DEPTH
        mutual = there & alike & (other[other] == own) & (other < own)
        index[known[mutual]] = known[torch.from_numpy(other[mutual])]
        return index


def thin(mask: Bool[Tensor, " n"], most: int) -> tuple[Int64[Tensor, " m"], Bool[Tensor, " m"]]:
    """Index of at most `most` rows of the mask, evenly spaced in their order, and whether there is
    one; all rows where they are no more."""
    n = len(mask)
    index = torch.arange(min(most, n), device=mask.device)
    if n <= most:
        return index, mask
    count = mask.sum()
    rank = index * count.clamp(min=most) // most
    index = torch.searchsorted(mask.cumsum(dim=0), rank + 1).clamp(max=n - 1)
    return index, rank < count
