"""`Recovery` and `Report`: what every method returns, and the one place that finishes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.mde.output import MDEOutput, Space

Map = Any
"""A map of the image's size: a torch tensor inside the package, numpy for numpy users."""

Form = Literal["depth", "disparity", "log_scale"]
"""What a method predicts."""

BAND_PIXELS = 1 << 17

DEPTH_LIMITS = (1e-3, 1e3)
"""Recovered depth stays within these multiples of the nearest and the farthest anchor."""


@dataclass(frozen=True)
class Rejection:
    """An anchor that was not used, by its index in the set the user gave, and why."""

    anchor: int
    reason: str


@dataclass(frozen=True)
class Report:
    """What was used, and everything a careful user would want to be told."""

    method: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    kind: str = ""
    anchors_given: int = 0
    anchors_used: int = 0
    rejected: tuple[Rejection, ...] = ()
    fallbacks: tuple[str, ...] = ()
    """Rungs of the method's ladder that were taken because the rung above did not hold."""
    warnings: tuple[str, ...] = ()
    residuals_log: tuple[float, ...] = ()
    """log D̂ − log depth_m at each used anchor."""
    limited_pixels: int = 0
    """Pixels whose prediction was non-positive or absurd and was held at `DEPTH_LIMITS`."""
    hole_pixels: int = 0
    """Pixels without an MDE prediction; their depth_m and log_scale are NaN."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, eq=False)
class Recovery:
    """Dense metric depth: depth_m = D_MDE · exp(log_scale), float32, of the image's size."""

    depth_m: Map
    log_scale: Map
    report: Report
    std_log: Map | None = None
    """Standard deviation of log_scale, which is that of log-depth (methods that know it)."""
    weights: Map | None = None
    """w, one weight a basis map (`basis` and `field` only)."""
    basis_maps: Map | None = None
    """K maps on the generator's grid. In `basis` they are E = G ⊙ B, and Eᵀw upsampled and the
    anchors' median make log_scale; in `field` they are its linear modes, beside those that bend."""
    gating: Map | None = None
    """G, K maps that sum to one at every cell (`basis` only)."""

    @classmethod
    def from_depth(
        cls, mde_output: MDEOutput, anchors: Anchors, depth_m: Tensor, **report: Any
    ) -> Recovery:
        """Finish a method that predicts depth; non-positive or infinite values are limited.

        `rejected=` are the anchors that the method dropped; residuals are those of the others.
        """
        return cls._finish(mde_output, anchors, depth_m, "depth", **report)

    @classmethod
    def from_space(
        cls,
        mde_output: MDEOutput,
        anchors: Anchors,
        prediction: Tensor,
        space: Space,
        **report: Any,
    ) -> Recovery:
        """Finish an aligner that predicts metric depth or metric disparity (1/m)."""
        return cls._finish(mde_output, anchors, prediction, space, **report)

    @classmethod
    def from_log_scale(
        cls,
        mde_output: MDEOutput,
        anchors: Anchors,
        log_scale: Tensor,
        **report: Any,
    ) -> Recovery:
        """Finish a method that predicts ℓ: D̂ = D_MDE · e^ℓ (Eq. estimate_depth)."""
        return cls._finish(mde_output, anchors, log_scale, "log_scale", **report)

    @classmethod
    def _finish(
        cls,
        mde_output: MDEOutput,
        anchors: Anchors,
        prediction: Tensor,
        form: Form,
        *,
        rejected: tuple[Rejection, ...] = (),
        std_log: Tensor | None = None,
        **report: Any,
    ) -> Recovery:
        given, shape = len(anchors), mde_output.shape
        anchors = without(anchors, rejected)
        limits = depth_limits(anchors)
        prediction = prediction.expand(shape)
        depth_m, log_scale, limited_pixels = _limited_maps(mde_output, prediction, form, limits)
        where = anchors.pixels(shape)
        predicted, _, _ = _limit(
            prediction[where], mde_output.mde_depth[where], mde_output.valid[where], form, limits
        )
        hole_pixels = int((~mde_output.valid).sum())
        if std_log is not None:
            std_log = std_log.float().expand(shape).contiguous()
            if hole_pixels:
                std_log = torch.where(mde_output.valid, std_log, torch.nan)
        residuals = np.log(predicted.detach().double().cpu().numpy()) - np.log(anchors.depth_m)
        return cls(
            depth_m=depth_m,
            log_scale=log_scale,
            std_log=std_log,
            report=Report(
                model=mde_output.model,
                kind=mde_output.kind,
                anchors_given=given,
                anchors_used=len(anchors),
                rejected=rejected,
                residuals_log=tuple(residuals.tolist()),
                limited_pixels=limited_pixels,
                hole_pixels=hole_pixels,
                **report,
            ),
        )

    def numpy(self) -> Recovery:
        """The same recovery with every map as a numpy array."""
        maps: dict[str, Any] = {
            f.name: value.detach().cpu().numpy()
            for f in dataclasses.fields(self)
            if isinstance(value := getattr(self, f.name), Tensor)
        }
        return dataclasses.replace(self, **maps)


def without(anchors: Anchors, rejected: Sequence[Rejection]) -> Anchors:
    """The anchors that are left, in their order."""
    if not rejected:
        return anchors
    return anchors[np.setdiff1d(np.arange(len(anchors)), [r.anchor for r in rejected])]


def depth_limits(anchors: Anchors) -> tuple[float, float]:
    """What depth is held between, given these anchors; what float32 can hold, given none."""
    if not len(anchors):
        return torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
    nearest, farthest = float(anchors.depth_m.min()), float(anchors.depth_m.max())
    return DEPTH_LIMITS[0] * nearest, DEPTH_LIMITS[1] * farthest


def _limited_maps(
    mde_output: MDEOutput,
    prediction: Float[Tensor, "h w"],
    form: Form,
    limits: tuple[float, float],
) -> tuple[Float[Tensor, "h w"], Float[Tensor, "h w"], int]:
    """`_limit` at every pixel, in float32 and NaN in holes."""
    (height, width), device = mde_output.shape, prediction.device
    depth_m, log_scale = (torch.empty(height, width, device=device) for _ in range(2))
    limited_pixels = 0
    # A band of rows at a time: what lies between stays small, and in a processor's cache.
    step = height if device.type == "cuda" else max(1, BAND_PIXELS // width)
    for top in range(0, height, step):
        band = slice(top, top + step)
        valid, mde_depth = mde_output.valid[band], mde_output.mde_depth[band]
        depth, scale, limited = _limit(prediction[band], mde_depth, valid, form, limits)
        depth_m[band] = torch.where(valid, depth.float(), torch.nan)
        log_scale[band] = torch.where(valid, scale.float(), torch.nan)
        limited_pixels += limited
    return depth_m, log_scale, limited_pixels


def _limit(
    prediction: Float[Tensor, "*p"],
    mde_depth: Float[Tensor, "*p"],
    valid: Bool[Tensor, "*p"],
    form: Form,
    limits: tuple[float, float],
) -> tuple[Float[Tensor, "*p"], Float[Tensor, "*p"], int]:
    """Depth within the limits, its log-scale, and at how many valid pixels they were needed."""
    match form:
        case "depth":
            depth_m = prediction
        case "disparity":
            depth_m = torch.where(prediction > 0, 1 / prediction, torch.inf)
        case "log_scale":
            depth_m = mde_depth * prediction.exp()
    limited = depth_m.clamp(*limits)
    changed = int(((limited != depth_m) & valid).sum())
    if form == "log_scale" and not changed:
        return limited, prediction, changed
    return limited, limited.double().log() - mde_depth.double().log(), changed
