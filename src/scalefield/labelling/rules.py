"""Rules that decide whether a pseudo-label is kept, and the reasons for its rejection."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from scalefield.defaults import MIN_SUPPORT
from scalefield.errors import InputError
from scalefield.report import Fallback, Warning

MOST = 1e9
"""Upper bound of limits that have none by themselves; JSON has no infinity."""


@dataclass(frozen=True)
class Figures:
    """Numbers about a label that the rules are applied to."""

    anchors: int
    """Number of anchors that the method used."""
    unused: float
    """Share of the anchors that were rejected."""
    held_out_error: float | None
    """Median relative error at anchors that were held out of the fit, in blocks where they are
    bunched or in rings; None for one anchor."""
    in_range: float
    """Share of the label's pixels between half the nearest anchor's depth and twice the
    farthest's."""
    labelled: float
    """Share of the image that the label has: pixels with a depth and with support."""
    coverage: float
    """Share of the image inside the anchors' bounding box."""
    std_log: float | None
    """Median standard deviation of log-depth over the label's pixels; None if the method has
    none."""
    hole_pixels: int
    """Pixels without a depth."""
    limited_pixels: int
    """Pixels whose prediction was limited."""
    fallbacks: tuple[Fallback, ...]
    """Simpler models that the method used."""
    warnings: tuple[Warning, ...]
    """Warnings of the recovery."""


@dataclass(frozen=True)
class Reason:
    """A rule that a label breaks."""

    rule: str
    """Name of the field of `Rules`."""
    value: float | int | str | None
    """The label's figure, or the code of a fallback or warning; None if the figure is unknown."""
    limit: float | int | None = None
    """The limit of the rule; None for a rule without one."""

    def __str__(self) -> str:
        value = f"{self.value:.3g}" if isinstance(self.value, int | float) else self.value
        limit = "" if self.limit is None else f", limit {self.limit:g}"
        return f"{self.rule}: {'unknown' if value is None else value}{limit}"


@dataclass(frozen=True)
class Rules:
    """Limits on a label's figures; a label that breaks none is kept."""

    min_anchors: int = 10
    """Smallest number of anchors that the method used."""
    max_error: float = 0.10
    """Largest median relative error at anchors that were held out of the fit."""
    max_unused: float = 0.3
    """Largest share of the anchors that were rejected."""
    min_in_range: float = 0.7
    """Smallest share of the label's pixels between half the nearest anchor's depth and twice the
    farthest's."""
    min_coverage: float = 0.1
    """Smallest share of the image inside the anchors' bounding box."""
    max_std_log: float = 0.2
    """Largest median standard deviation of log-depth over the label's pixels, for methods that have
    one."""
    min_support: float = MIN_SUPPORT
    """Support below which a pixel becomes NaN in the label, for methods that have support: it is
    extrapolated, as the sky is. The other rules judge the pixels that are left."""
    refuse_fallbacks: bool = False
    """Reject labels for which the method used a fallback."""
    refuse_warnings: bool = False
    """Reject labels with a warning in their report."""
    folds: int = 4
    """Number of folds in which anchors are held out."""

    def check(self) -> None:
        """Refuse limits that every label or no label would break; the message names the flag."""
        whole = {"min_anchors": 1, "folds": 2}
        most = {"min_in_range": 1.0, "min_coverage": 1.0, "max_unused": 1.0, "min_support": 1.0}
        for name, value in dataclasses.asdict(self).items():
            flag, highest = f"--{name.replace('_', '-')}", most.get(name, MOST)
            if name in whole and value < whole[name]:
                raise InputError(f"{flag} must be {whole[name]} or more, found {value}")
            if name not in whole and not 0 <= value <= highest:
                raise InputError(f"{flag} must be 0 … {highest:g}, found {value:g}")

    def judge(self, figures: Figures) -> list[Reason]:
        """The rules that a label breaks; a label without any is kept."""
        at_least = {
            "min_anchors": figures.anchors,
            "min_in_range": figures.in_range,
            "min_coverage": figures.coverage,
        }
        at_most = {
            "max_error": figures.held_out_error,
            "max_unused": figures.unused,
            "max_std_log": figures.std_log,
        }
        broken = [
            Reason(rule, value, limit)
            for rule, value in at_least.items()
            if value < (limit := getattr(self, rule))
        ]
        broken += [
            Reason(rule, value, limit)
            for rule, value in at_most.items()
            if value is not None and value > (limit := getattr(self, rule))
        ]
        if figures.held_out_error is None:
            broken.append(Reason("max_error", None, self.max_error))
        if self.refuse_fallbacks:
            broken += [Reason("refuse_fallbacks", each.code) for each in figures.fallbacks]
        if self.refuse_warnings:
            broken += [Reason("refuse_warnings", each.code) for each in figures.warnings]
        return broken
