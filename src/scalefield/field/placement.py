"""Where to measure next: greedy design of measurements for the field.

Each suggested pixel minimises the mean log-variance of the field over the image, given the ones
before it (Krause, Singh and Guestrin, Near-optimal sensor placements in Gaussian processes, 2008).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from scalefield.anchors import Anchors, AnchorsLike, require_anchors
from scalefield.basis.grids import grid_shape
from scalefield.errors import InputError
from scalefield.field import explain
from scalefield.field.condition import condition
from scalefield.field.image_inputs import ImageInputs
from scalefield.field.model import load_field
from scalefield.field.observations import Readings
from scalefield.mde.output import MDEOutput
from scalefield.runtime.threads import one_thread

CELLS = 40
"""Cells along the longer side at whose middle pixels the variance is computed, up to 1,600 in all.
These pixels can be suggested."""
STD_FLOOR = 0.03
"""Standard deviation of log-depth below which a pixel needs no measurement."""


@dataclass(frozen=True)
class Suggestion:
    """A pixel worth measuring."""

    u: int
    v: int
    std_log: float
    """Standard deviation of log-depth there, before it is measured."""
    removes: float
    """Share by which measuring it reduces the deviation, in the geometric mean over the image."""
    anchor: int | None = None
    """Its number, where the choice was among given anchors."""


def suggest_from(
    mde_output: MDEOutput,
    anchors: AnchorsLike,
    n: int,
    *,
    reachable: Bool[np.ndarray, "h w"] | None = None,
    among: AnchorsLike = None,
    model: str | Path = "field",
    image: ImageInputs | None = None,
) -> list[Suggestion]:
    """`suggest` for an existing MDEOutput, and for the model's inputs over it if they exist."""
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
        raise InputError(f"at least one pixel must be asked for, found n={n!r}")
    anchors = require_anchors("anchors", anchors)
    among = None if among is None else require_anchors("among", among)
    valid = mde_output.valid.cpu().numpy()
    possible = valid if reachable is None else valid & _mask(reachable, mde_output.shape)
    if len(anchors):
        anchors = anchors[valid[anchors.pixels(mde_output.shape)]]  # as `recover` leaves them out
    learned = load_field(model)
    image, kernel = image or learned.image_inputs(mde_output), learned.prior_kernel
    _, pixels = image.cells(grid_shape(*mde_output.shape, CELLS))
    cells, pixels_seen, numbers = len(pixels), pixels, None
    noise = np.full(cells, float(kernel.noise_std))
    if among is not None:
        numbers = one_a_cell(among, mde_output.shape)
        chosen = among[numbers]
        pixels = np.stack(chosen.pixels(mde_output.shape), axis=1)
        readings = Readings.of(chosen, image.shape, float(kernel.noise_std), image.device)
        pixels_seen = np.concatenate([pixels_seen, pixels])
        noise = readings.noise.cpu().numpy()
    rows, columns = pixels.T
    allowed = possible[rows, columns]
    if not allowed.any():
        if among is None:
            raise InputError("no reachable pixel has a relative depth, so none can be suggested")
        raise InputError(
            f"none of the {len(among)} anchors to choose among lies on a reachable pixel with a "
            "relative depth"
        )
    rows_seen, columns_seen = map(image.tensor, pixels_seen.T)
    if len(anchors):
        readings = Readings.of(anchors, image.shape, float(kernel.noise_std), image.device)
        posterior = condition(learned, image, readings)
        # What extrapolation adds ends with the anchor that encloses a pixel: no linear update.
        with one_thread():
            joint = explain.joint(posterior.fit, rows_seen, columns_seen, extrapolated=False)
        covariance = joint.covariance
    else:
        seen = image.pixels(rows_seen, columns_seen)
        covariance = learned.std_scale**2 * kernel(seen, seen)
    order, removed, before = greedy(covariance.cpu().numpy(), cells, noise, n, allowed)
    if not len(anchors):
        # Before the first measurement the scale is known as well as the model expects it, which is
        # what `recover` reports without anchors. A measurement then replaces the expectation.
        std = learned.scale_prior_std / learned.std_scale
        expected = dataclasses.replace(kernel, constant_std=std).variance(seen)
        expected = learned.std_scale**2 * expected
        before[0] = float(expected[len(seen) - len(noise) + order[0]].sqrt())
        change = mean_log_variance(covariance.diagonal()[:cells]) - mean_log_variance(
            expected[:cells]
        )
        removed[0] = max(0.0, 1 - (1 - removed[0]) * math.exp(0.5 * change))
    else:
        first = (image.tensor(x[order[:1]]) for x in (rows, columns))
        before[0] = float(posterior.at(*first)[1])
    return [
        Suggestion(
            u=int(columns[i]),
            v=int(rows[i]),
            std_log=float(std),
            removes=float(share),
            anchor=None if numbers is None else int(numbers[i]),
        )
        for i, share, std in zip(order, removed, before, strict=True)
    ]


def mean_log_variance(variance: Float64[Tensor, " p"]) -> float:
    """Mean of log(variance + σ₀²), the logarithm of what `greedy` minimises."""
    return float((variance.clamp(min=0) + STD_FLOOR**2).log().mean())


def _mask(reachable: object, shape: tuple[int, int]) -> Bool[np.ndarray, "h w"]:
    """The user's mask, which must be one."""
    mask = np.asarray(reachable)
    if mask.dtype != bool or mask.shape != shape:
        raise InputError(
            f"the mask of reachable pixels must be booleans of shape {shape}, found "
            f"{mask.dtype} of {mask.shape}"
        )
    return mask


def one_a_cell(anchors: Anchors, shape: tuple[int, int]) -> Int64[np.ndarray, " m"]:
    """Numbers of anchors to choose among: of more than there are cells, the first in each."""
    rows, columns = anchors.pixels(shape)
    down, across = grid_shape(*shape, CELLS)
    if len(anchors) <= down * across:
        return np.arange(len(anchors))
    cell = rows * down // shape[0] * across + columns * across // shape[1]
    return np.sort(np.unique(cell, return_index=True)[1])


def greedy(
    covariance: Float64[np.ndarray, "p p"],
    cells: int,
    noise: Float64[np.ndarray, " c"],
    n: int,
    allowed: Bool[np.ndarray, " c"],
) -> tuple[Int64[np.ndarray, " k"], Float64[np.ndarray, " k"], Float64[np.ndarray, " k"]]:
    """Candidates whose measurement reduces the log-variance of the first `cells` points most, one
    after another; the share by which each reduces the deviation, and its own deviation before.

    The candidates are the last points, which may be the same. Measuring one takes c cᵀ/(c_j + σ²)
    off the covariance, with c its column.
    """
    covariance, first = covariance.copy(), len(covariance) - len(noise)
    free = allowed.copy()
    order, removed, before = [], [], []
    for _ in range(min(n, int(free.sum()))):
        own = covariance.diagonal()[first:].clip(min=0) + noise**2
        variance = covariance.diagonal()[:cells, None]
        left = variance - covariance[:cells, first:] ** 2 / own
        log_variance = np.log(left.clip(min=0) + STD_FLOOR**2).mean(axis=0)
        now = float(np.log(variance.clip(min=0) + STD_FLOOR**2).mean())
        best = int(np.where(free, log_variance, np.inf).argmin())
        order.append(best)
        removed.append(1 - np.exp(0.5 * (log_variance[best] - now)))
        before.append(np.sqrt(max(own[best] - noise[best] ** 2, 0)))
        column = covariance[:, first + best].copy()
        covariance -= np.outer(column, column / own[best])
        free[best] = False
    return np.array(order, dtype=np.int64), np.array(removed), np.array(before)
