"""`MDEOutput`: the output of a monocular depth estimator for one image, and its conversions."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from scalefield.errors import InputError

Kind = Literal["depth", "disparity"]
Space = Kind


def affine_by_default(kind: Kind) -> bool:
    """Whether the shift of a map counts as unknown where nothing is declared: that of disparity
    does, because most networks that predict disparity are trained up to a shift."""
    return kind == "disparity"


MEDIAN_LIMITS = (1e-20, 1e20)
"""Limits of the median of a map from a file or a user, so that metres divided by it are finite in
float32."""
DISPARITY_FLOOR = 1e-3
"""Disparities below this fraction of the image's 99th percentile count as equally far."""


@dataclass(frozen=True, eq=False)
class MDEOutput:
    """One image's relative depth (or disparity), with the features it was made from.

    Maps have the image's size; `features` keep their own, coarser grid. Every grid covers the
    whole image with pixel centres at (i + 0.5) / size, as `interpolate(align_corners=False)`.
    """

    prediction: Float[Tensor, "h w"]
    """The model's prediction, up to a scale and, if `affine`, up to a shift."""
    kind: Kind
    """Whether `prediction` grows with distance (depth) or falls with it (disparity)."""
    features: Float[Tensor, "c hf wf"] | None = None
    """F, the representation just before the depth head; None if the model has none."""
    confidence: Float[Tensor, "h w"] | None = None
    image: UInt8[Tensor, "h w 3"] | None = None
    """The RGB image, for methods that use it."""
    affine: bool = False
    """Whether the shift of `prediction` is unknown too: affine-invariant disparity (MiDaS, Depth
    Anything) or depth (Marigold, LeReS)."""
    model: str = "array"
    revision: str = ""
    options: dict[str, object] = field(default_factory=dict)
    """Preprocessing that influenced the prediction, for records and cache keys."""

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the image."""
        height, width = self.prediction.shape
        return height, width

    @property
    def stride(self) -> tuple[float, float] | None:
        """Image pixels per feature cell, down and across."""
        if self.features is None:
            return None
        return self.shape[0] / self.features.shape[1], self.shape[1] / self.features.shape[2]

    @cached_property
    def valid(self) -> Bool[Tensor, "h w"]:
        """Pixels that carry a prediction; holes are non-finite values and depths ≤ 0."""
        if self.kind == "disparity":
            return torch.isfinite(self.prediction)
        return (self.prediction > 0) & (self.prediction < torch.inf)  # False for NaN

    @cached_property
    def lost_share(self) -> float:
        """Share of the known disparities below zero; 1 if none is above zero."""
        if self.kind == "depth":
            return 0.0
        known = self.prediction[self.valid]
        return float((known < 0).float().mean()) if bool((known > 0).any()) else 1.0

    @cached_property
    def mde_depth(self) -> Float[Tensor, "h w"]:
        """D_MDE > 0, the relative depth; holes are filled with the median so that it is finite.

        The only place where disparity becomes depth: D = 1 / max(disparity, q), with q a small
        fraction of the image's 99th percentile, because such models end in a ReLU.
        """
        if self.kind == "depth":
            depth = self.prediction
        else:
            known = self.prediction[self.valid]
            if known.dtype != torch.float64:
                known = known.float()
            # kthvalue, because torch.quantile refuses more than 16 M elements.
            rank = max(1, round(0.99 * known.numel()))
            high = float(known.kthvalue(rank).values) if known.numel() else 1.0
            if high <= 0:  # nothing is near: in any unit, all is equally far
                high = float(known.abs().max()) or 1.0
            q = DISPARITY_FLOOR * high
            tiny = torch.finfo(self.prediction.dtype).tiny
            depth = 1 / self.prediction.clamp(min=max(q, tiny))
        if bool(self.valid.all()):
            return depth
        return torch.where(self.valid, depth, depth[self.valid].median())

    @cached_property
    def disparity(self) -> Float[Tensor, "h w"]:
        """The prediction in disparity space: as given by a disparity model, else 1 / D_MDE."""
        if self.kind == "depth":
            # Smaller numbers than `tiny` exist, and their inverse does not.
            return 1 / self.mde_depth.clamp(min=torch.finfo(self.prediction.dtype).tiny)
        if bool(self.valid.all()):
            return self.prediction
        return torch.where(self.valid, self.prediction, self.prediction[self.valid].median())

    def space_of_fit(self, given: Space | None, published: Space) -> Space:
        """The space in which an aligner fits scale and shift.

        By default that is disparity for affine-invariant disparity, where one scale and one shift
        are right, and the published one for other maps.
        """
        if given is not None:
            return given
        return "disparity" if self.affine and self.kind == "disparity" else published

    def in_space(self, space: Space) -> Float[Tensor, "h w"]:
        """The map an aligner fits: `mde_depth` or `disparity`."""
        return self.mde_depth if space == "depth" else self.disparity

    def require_usable(self) -> None:
        """Raise InputError if no value of the prediction is usable, or if they are too large or
        too small for float32."""
        if not bool(self.valid.any()):
            raise InputError(
                "the depth map has no usable value: all are NaN, infinite, or not above 0"
            )
        typical = float(self.prediction[self.valid].abs().median())
        least, most = MEDIAN_LIMITS
        if typical and not least <= typical <= most:
            raise InputError(
                f"the depth map has a median of {typical:g}, wanted is {least:g} to {most:g}; "
                "multiply the map by a constant, its unit does not matter"
            )
