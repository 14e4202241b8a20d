"""Monocular depth estimators (MDEs) behind one small protocol, by name."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from scalefield.errors import InputError
from scalefield.mde.output import Kind, MDEOutput

__all__ = ["MDE", "Kind", "MDEOutput", "load_mde"]


@runtime_checkable
class MDE(Protocol):
    """A frozen depth estimator: an RGB image of any size in, `MDEOutput` of that size out."""

    name: str

    def __call__(self, image: UInt8[np.ndarray, "h w 3"]) -> MDEOutput:
        """Relative depth and features of one image."""
        ...


def load_mde(name: str) -> MDE:
    """The estimator of that name."""
    raise InputError(f"no MDE {name!r}")
