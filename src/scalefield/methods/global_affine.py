"""Global affine alignment: one scale and one shift for the whole image (Eq. global_scale)."""

from __future__ import annotations

from dataclasses import dataclass

from scalefield.anchors import Anchors
from scalefield.mde.output import MDEOutput, Space
from scalefield.result import Recovery


@dataclass(frozen=True)
class Global:
    """One scale and one shift for the image."""

    space: Space = "depth"

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery:
        """Recover from one anchor or more."""
        raise NotImplementedError
