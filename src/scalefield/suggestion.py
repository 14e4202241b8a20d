"""Where to measure next: the pixels whose depth would remove most of the field's doubt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.cues import grid_shape
from scalefield.defaults import MDE_NAME
from scalefield.errors import InputError
from scalefield.kernel import Points
from scalefield.mde import MDE, Kind, MDEOutput
from scalefield.methods.field import Field, FieldModel
from scalefield.scene import Scene

CANDIDATE_CELLS = 40
"""Cells along the longer side that are weighed against one another: up to 1,600 in all."""


@dataclass(frozen=True)
class Suggestion:
    """A pixel worth measuring."""

    u: int
    v: int
    std_log: float
    """Standard deviation of log-depth there, before it is measured."""
    removes: float
    """Share of the image's remaining variance that measuring it removes."""


def suggest(
    image: Any,
    anchors: Anchors | None = None,
    n: int = 3,
    *,
    mde: str | MDE = MDE_NAME,
    mde_depth: np.ndarray | Tensor | None = None,
    kind: Kind | None = None,
    reachable: Bool[np.ndarray, "h w"] | None = None,
    model: str | Path = "field",
) -> list[Suggestion]:
    """The `n` pixels to measure next, best first, given the anchors there are already.

    Greedy: each is the one whose measurement removes most posterior variance, summed over the
    image, the ones before it taken as measured. What they will say does not matter, only where
    they are. `reachable` marks the pixels that can be measured at all.
    """
    from scalefield.recovery import bring_depth, estimate, load_image

    pixels = None if image is None else load_image(image)
    if mde_depth is not None:
        output = bring_depth(mde_depth, kind, pixels)
    elif pixels is not None:
        output = estimate(pixels, mde, kind)
    else:
        raise InputError("nothing to look at: give an image, or mde_depth with its kind")
    return suggest_from(output, anchors, n, reachable=reachable, model=model)


def suggest_from(
    mde_output: MDEOutput,
    anchors: Anchors | None,
    n: int,
    *,
    reachable: Bool[np.ndarray, "h w"] | None = None,
    model: str | Path = "field",
) -> list[Suggestion]:
    """`suggest` once the MDE has spoken."""
    if n < 1:
        raise InputError(f"at least one pixel must be asked for, found n={n}")
    if reachable is not None and reachable.shape != mde_output.shape:
        raise InputError(
            f"the mask of reachable pixels has shape {reachable.shape}, the image "
            f"{mde_output.shape}"
        )
    field = Field(model=model)
    learned = field.load()
    scene = learned.scene(mde_output)
    points, pixels = scene.cells(grid_shape(*mde_output.shape, CANDIDATE_CELLS))
    rows, columns = pixels.T
    open_to = mde_output.valid.cpu().numpy()[rows, columns]
    if reachable is not None:
        open_to &= reachable[rows, columns]
    if not open_to.any():
        raise InputError("no reachable pixel has a relative depth, so none can be suggested")
    covariance = posterior_covariance(field, scene, anchors, points, learned)
    kernel = learned.kernel
    order, removed, before = greedy(covariance, float(kernel.noise), n, open_to)
    return [
        Suggestion(int(columns[i]), int(rows[i]), float(s * learned.calibration), float(r))
        for i, r, s in zip(order, removed, before, strict=True)
    ]


def posterior_covariance(
    field: Field, scene: Scene, anchors: Anchors | None, points: Points, model: FieldModel
) -> Float64[np.ndarray, "m m"]:
    """Covariance of ℓ between points, given the anchors (or none)."""
    if anchors is None or len(anchors) == 0:
        return model.kernel(points, points).cpu().numpy()
    return field.solve(scene, anchors, model).posterior.covariance(points).cpu().numpy()


def greedy(
    covariance: Float64[np.ndarray, "m m"],
    noise: float,
    n: int,
    open_to: Bool[np.ndarray, " m"],
) -> tuple[Int64[np.ndarray, " k"], Float64[np.ndarray, " k"], Float64[np.ndarray, " k"]]:
    """Rows whose measurement removes most of the trace, one after another; the share of the
    trace each removes, and its deviation before.

    Measuring row j takes c cᵀ/(c_j + σ²) off the covariance, with c its column.
    """
    covariance = covariance.copy()
    free = open_to.copy()
    order, removed, before = [], [], []
    for _ in range(min(n, int(free.sum()))):
        variance = covariance.diagonal().clip(min=0)
        gain = np.where(free, (covariance**2).sum(axis=0) / (variance + noise**2), -np.inf)
        best = int(gain.argmax())
        order.append(best)
        removed.append(gain[best] / max(variance.sum(), 1e-300))
        before.append(np.sqrt(variance[best]))
        column = covariance[:, best].copy()
        covariance -= np.outer(column, column) / (variance[best] + noise**2)
        free[best] = False
    return np.array(order, dtype=np.int64), np.array(removed), np.array(before)
