"""Any estimator's output as affine-invariant disparity, to measure methods on such maps."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import UInt8

from scalefield.errors import InputError
from scalefield.mde import MDE
from scalefield.mde.output import MDEOutput

PREFIXES: dict[str, int | None] = {"affine": None, "affine8": 8}
"""Bits of the map by the prefix in `PREFIX:NAME`; None keeps floats."""


@dataclass(frozen=True)
class Normalisation:
    """Disparity between 0 at the farthest and 1 at the nearest pixel, as MiDaS and Depth Anything
    are usually stored: its scale and its shift are lost."""

    bits: int | None = None
    """Bits to which the map is quantised, with values 0 … 2ᵇ − 1; None for floats of 0 … 1."""

    @classmethod
    def split(cls, name: str) -> tuple[Normalisation | None, str]:
        """The normalisation that the prefix of `affine:NAME` or `affine8:NAME` stands for, and
        NAME; None and the name itself if it has no such prefix."""
        prefix, found, rest = name.partition(":")
        if not found or prefix not in PREFIXES:
            return None, name
        if not rest:
            raise InputError(f"{name!r} lacks the estimator's name; wanted {prefix}:NAME")
        return cls(PREFIXES[prefix]), rest

    @property
    def prefix(self) -> str:
        """The prefix in the estimator's name."""
        return next(prefix for prefix, bits in PREFIXES.items() if bits == self.bits)

    def __call__(self, output: MDEOutput) -> MDEOutput:
        """The output as affine-invariant disparity; its holes stay holes."""
        if output.affine and output.kind == "depth":
            raise InputError(
                f"{output.model} gives affine-invariant depth, whose inverse is not "
                "affine-invariant disparity; wanted depth or disparity with a known zero, or "
                "affine-invariant disparity"
            )
        disparity = torch.where(output.valid, output.disparity, torch.nan)
        known = disparity[output.valid]
        if not len(known):
            return dataclasses.replace(output, prediction=disparity, kind="disparity", affine=True)
        low, high = known.min(), known.max()
        values = (disparity - low) / (high - low).clamp(min=torch.finfo(known.dtype).tiny)
        if self.bits is not None:
            values = (values * (2**self.bits - 1)).round()
        return dataclasses.replace(
            output,
            prediction=values,
            kind="disparity",
            affine=True,
            model=f"{self.prefix}:{output.model}",
        )


@dataclass(frozen=True, eq=False)
class AffineMDE:
    """An estimator whose output is normalised to affine-invariant disparity."""

    mde: MDE
    normalisation: Normalisation = Normalisation()

    @property
    def name(self) -> str:
        """The estimator's name with the prefix of the normalisation."""
        return f"{self.normalisation.prefix}:{self.mde.name}"

    @property
    def revision(self) -> str:
        """The revision of the estimator."""
        return getattr(self.mde, "revision", "")

    @property
    def options(self) -> dict[str, object]:
        """The preprocessing of the estimator."""
        return getattr(self.mde, "options", {})

    def __call__(self, image: UInt8[np.ndarray, "h w 3"]) -> MDEOutput:
        """Affine-invariant disparity of one image."""
        return self.normalisation(self.mde(image))
