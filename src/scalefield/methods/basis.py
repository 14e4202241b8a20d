"""The paper's method."""

from __future__ import annotations

from dataclasses import dataclass

from scalefield.anchors import Anchors
from scalefield.mde.output import MDEOutput
from scalefield.result import Recovery


@dataclass(frozen=True)
class Basis:
    """Image-adaptive basis maps weighted by a ridge regression."""

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery:
        """Recover from one anchor or more."""
        raise NotImplementedError
