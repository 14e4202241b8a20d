"""What a log-scale field is made of, and how much of it each part explains."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

FLAT = 1e-12
"""Variance that is float32's rounding, and no field's."""


@dataclass(frozen=True, eq=False)
class Decomposition:
    """Maps that sum to a log-scale field."""

    parts: dict[str, Float[Tensor, "h w"]]
    """By name: global scale, mean function, slope over log-depth, modes, stationary terms."""
    valid: Bool[Tensor, "h w"]
    """Pixels that have a relative depth."""

    @property
    def log_scale(self) -> Float[Tensor, "h w"]:
        """ℓ, their sum."""
        first, *others = self.parts.values()
        for part in others:
            first = first + part
        return first

    @property
    def shares(self) -> dict[str, float]:
        """Each part's share of the variance of ℓ over the valid pixels: cov(part, ℓ) / var(ℓ).

        They sum to one; a part that works against the others has a negative one. The global scale
        does not vary and has none. Where ℓ does not vary at all, nor has any other.
        """
        whole = self.log_scale[self.valid].double()
        whole = whole - whole.mean()
        variance = float(whole @ whole)
        if variance <= FLAT * len(whole):
            return dict.fromkeys(self.parts, 0.0)
        return {
            name: float(whole @ part[self.valid].double()) / variance
            for name, part in self.parts.items()
        }
