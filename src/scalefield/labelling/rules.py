"""Keep or reject: what a pseudo-label must show to be trained on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from scalefield.errors import InputError

MOST = 1e9
"""Of what has no end by itself; JSON, which keeps the rules, knows no infinity."""


@dataclass(frozen=True)
class Rules:
    """When a label is kept; every rule that it breaks is written beside it."""

    min_anchors: int = 10
    """Anchors that the method used."""
    max_error: float = 0.10
    """Median relative error at anchors that were held out of the fit."""
    max_unused: float = 0.3
    """Share of the anchors that were rejected."""
    min_in_range: float = 0.7
    """Share of pixels whose depth is no less than half the nearest anchor's and no more than
    twice the farthest's."""
    min_spread: float = 0.1
    """Share of the image inside the anchors' bounding box."""
    max_std_log: float = 0.2
    """Median standard deviation of log-depth, where the method knows it."""
    refuse_fallbacks: bool = False
    """Reject labels for which the method had to take a simpler way."""
    refuse_warnings: bool = False
    """Reject labels with a warning in their report."""
    folds: int = 4
    """Parts that the anchors are held out in, one after the other."""

    def check(self) -> None:
        """Refuse limits that no label, or every label, would break, naming the flag."""
        whole = {"min_anchors": 1, "folds": 2}
        most = {"min_in_range": 1.0, "min_spread": 1.0, "max_unused": 1.0}
        for name, value in dataclasses.asdict(self).items():
            flag, highest = f"--{name.replace('_', '-')}", most.get(name, MOST)
            if name in whole and value < whole[name]:
                raise InputError(f"{flag} must be {whole[name]} or more, found {value}")
            if name not in whole and not 0 <= value <= highest:
                raise InputError(f"{flag} must be 0 … {highest:g}, found {value:g}")

    def judge(self, figures: dict[str, Any]) -> list[str]:
        """The rules that a label breaks, as sentences; an empty list keeps it."""
        least = {"anchors": self.min_anchors, "in_range": self.min_in_range}
        least["spread"] = self.min_spread
        most = {"held_out_error": self.max_error, "unused": self.max_unused}
        most["std_log"] = self.max_std_log
        broken = [
            f"{name} {figures[name]:.3g}, at least {limit:g} wanted"
            for name, limit in least.items()
            if figures[name] < limit
        ]
        broken += [
            f"{name} {figures[name]:.3g}, at most {limit:g} wanted"
            for name, limit in most.items()
            if figures.get(name) is not None and figures[name] > limit
        ]
        if figures["held_out_error"] is None:
            broken.append("held_out_error unknown: one anchor cannot test itself")
        if self.refuse_fallbacks:
            broken += [f"fallback: {text}" for text in figures["fallbacks"]]
        if self.refuse_warnings:
            broken += [f"warning: {text}" for text in figures["warnings"]]
        return broken
