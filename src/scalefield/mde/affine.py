"""Any estimator's output without its unit, or as affine-invariant disparity."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from scalefield.errors import InputError
from scalefield.mde import MDE, estimate_batch
from scalefield.mde.output import MDEOutput

PREFIXES: dict[str, int | None] = {"affine": None, "affine8": 8, "median": None}
"""Bits of the map by the prefix in `PREFIX:NAME`; None keeps floats."""


@dataclass(frozen=True)
class Normalisation:
    """What a prefix does to an estimator's output.

    median: D is divided by its median over the image, and its unit is lost. affine: the map becomes
    disparity between 0 at the farthest and 1 at the nearest pixel, as MiDaS and Depth Anything are
    usually stored, and its scale and its shift are lost. affine8: the same in whole numbers from 0
    to 255.
    """

    prefix: str = "affine"

    @classmethod
    def split(cls, name: str) -> tuple[Normalisation | None, str]:
        """The normalisation that the prefix of `affine:NAME`, `affine8:NAME` or `median:NAME`
        stands for, and NAME; None and the name itself if it has no such prefix."""
        prefix, found, rest = name.partition(":")
        if not found or prefix not in PREFIXES:
            return None, name
        if not rest:
            raise InputError(f"{name!r} lacks the estimator's name; wanted {prefix}:NAME")
        return cls(prefix), rest

    def __call__(self, output: MDEOutput) -> MDEOutput:
        """The normalised output; its holes stay holes."""
        model = f"{self.prefix}:{output.model}"
        if self.prefix == "median":
            known = output.mde_depth[output.valid]
            unit = known.median() if len(known) else 1.0
            scale = 1 / unit if output.kind == "depth" else unit
            return dataclasses.replace(output, prediction=output.prediction * scale, model=model)
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
        bits = PREFIXES[self.prefix]
        if bits is not None:
            values = (values * (2**bits - 1)).round()
        return dataclasses.replace(
            output, prediction=values, kind="disparity", affine=True, model=model
        )


def public_name(source: str) -> str:
    """What an estimator was opened from, for tables. Of a file or a folder it is the stem: where it
    lies may be private."""
    inner = Normalisation.split(source)[1]
    path = Path(inner)
    if path.suffix not in (".onnx", ".json", ".pt", ".pth") and not path.is_dir():
        return source
    return source.removesuffix(inner) + path.stem


@dataclass(frozen=True, eq=False)
class AffineMDE:
    """An estimator whose output is normalised."""

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
        """The normalised output of one image."""
        return self.normalisation(self.mde(image))

    def batch(self, images: Sequence[UInt8[np.ndarray, "h w 3"]]) -> list[MDEOutput]:
        """The normalised outputs for images of one size."""
        return [self.normalisation(output) for output in estimate_batch(self.mde, images)]
