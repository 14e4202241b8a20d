"""The report of a recovery: rejected anchors, fallbacks and warnings, each with a code."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Rejection:
    """An anchor that was not used."""

    anchor: int
    """Index in the anchors that the user gave."""
    code: str
    """Stable identifier of the reason, for example "no_relative_depth"."""
    reason: str
    """The reason as a sentence."""


@dataclass(frozen=True)
class MeasurementReport:
    """A measurement of another kind than depth, and what the others say of it."""

    measurement: str
    """Its kind, pixels and value."""
    code: str = ""
    """"outlier" if it was not used because the others contradict it, "downweighted" if it was used
    with less weight, and otherwise empty."""
    predicted: float | None = None
    """The value that the others predict, in metres (square metres for an area); None for bounds,
    planes and others without a value."""
    std_log: float | None = None
    """Standard deviation of the logarithm of that prediction."""


@dataclass(frozen=True)
class CodedText:
    """A sentence with a code for programs."""

    code: str
    """Stable identifier, for example "kind_mismatch" of a warning or "scale_only" of a fallback."""
    text: str
    """The sentence."""

    def __str__(self) -> str:
        return self.text


class Warning(CodedText):
    """Something that a careful user should check."""


class Fallback(CodedText):
    """A simpler model that a method used because the data do not determine its full model."""


@dataclass(frozen=True)
class ShiftInterval:
    """The shift b of an affine-invariant map d: depth or disparity is proportional to d + b."""

    value: float
    """b in the units of the map."""
    low: float
    """Lower end of the 90 % interval."""
    high: float
    """Upper end of the 90 % interval."""


@dataclass(frozen=True)
class Report:
    """Inputs, rejected anchors, fallbacks, warnings and residuals of one recovery."""

    method: str = ""
    """Name of the method."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the method."""
    model: str = ""
    """Name of the MDE; "array" for a depth map that the user gave."""
    kind: str = ""
    """Whether the MDE's map was depth or disparity."""
    shift: ShiftInterval | None = None
    """Shift that was found for an affine-invariant map; None for other maps and methods."""
    anchors_given: int = 0
    """Number of anchors that the user gave."""
    anchors_used: int = 0
    """Number of anchors that the method used."""
    rejected: tuple[Rejection, ...] = ()
    """Anchors that were not used."""
    measurements: tuple[MeasurementReport, ...] = ()
    """Measurements of other kinds than depths, in the order in which they were given."""
    fallbacks: tuple[Fallback, ...] = ()
    """Simpler models that the method used."""
    warnings: tuple[Warning, ...] = ()
    """Warnings: facts that the user should check."""
    residuals_log: tuple[float, ...] = ()
    """log D̂ − log depth_m at each used anchor."""
    leave_one_out_log: tuple[float, ...] = ()
    """log D̂ − log depth_m at each used anchor, with D̂ predicted from the other anchors. Empty if
    it was not computed, and with a single anchor."""
    held_out_log: tuple[float, ...] = ()
    """The same at anchors that were left out together with their neighbours, of which many are a
    sample. Empty if the anchors are spread so evenly that `leave_one_out_log` says the same."""
    left_out_folds: int = 0
    """Number of folds if `leave_one_out_log` comes from a cross-validation that leaves several
    anchors out together; 0 if one anchor is left out at a time."""
    limited_pixels: int = 0
    """Pixels whose prediction was not positive, or out of the allowed range, and was limited."""
    hole_pixels: int = 0
    """Pixels without an MDE prediction; their depth_m and log_scale are NaN."""

    @property
    def errors_log(self) -> tuple[float, ...]:
        """The errors at anchors that were not fitted: `held_out_log`, or `leave_one_out_log`."""
        return self.held_out_log or self.leave_one_out_log

    def as_dict(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return dataclasses.asdict(self)

    def as_short_dict(self, most: int) -> dict[str, Any]:
        """`as_dict` with at most `most` entries in each list of anchors.

        Longer lists end there, and "shortened" has their full lengths by name.
        """
        plain = self.as_dict()
        lists = ("rejected", "residuals_log", "leave_one_out_log", "held_out_log")
        shortened = {name: len(plain[name]) for name in lists if len(plain[name]) > most}
        plain |= {name: plain[name][:most] for name in shortened}
        return {**plain, "shortened": shortened} if shortened else plain
