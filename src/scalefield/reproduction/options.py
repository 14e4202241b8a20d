"""Options of a reproduction, which are also flags of `scalefield reproduce`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DepthUnit = Literal["raw", "median"]


@dataclass(frozen=True, kw_only=True)
class ReproductionOptions:
    """Options that the command and `stages.Reproduction` have in common."""

    out: Path
    """Folder for everything: splits, prepared, generators, results, report."""
    generators: str | None = None
    """Use existing generators instead of training them: a folder with DIR/MDE/k8-low and so on, or
    "shipped" for the universal F = 0 generators of the package, which are labelled so."""
    k: tuple[int, ...] = (8, 30, 50)
    """Numbers of basis maps."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of the training; several seeds give several rows and their spread. The anchors of the
    evaluation have the seed 0."""
    ablation: bool = True
    """Train and evaluate the F = 0 variants as well."""
    aligners: bool = True
    """Evaluate the aligners that the paper compares with."""
    disparity: bool = True
    """Also evaluate the aligners in disparity, which is what MiDaS predicts."""
    drop: bool = True
    """Run the drop-anchor sequence 9, 7, 5, 3, 1."""
    split: Literal["test", "val", "all"] = "test"
    """Frames that are evaluated."""
    limit: int | None = None
    """Take at most this many frames of each split of each dataset, for a trial run."""
    in_sample: bool = False
    """Allow frames that an estimator was trained on."""
    gallery: bool = True
    """Keep pictures of each method's worst, median and best image for the report."""
    overwrite: bool = False
    """Discard evaluation results of other rows, such as those of fewer seeds."""
    cache: Path | None = None
    """Keep the MDE's outputs of evaluated frames in this folder."""
    workers: int = os.cpu_count() or 1
    """Processes that read frames and evaluate."""
    jobs: int = 1
    """Generators that are trained at the same time on the device."""
    frames_on_device: bool = False
    """Hold all prepared frames in the device's memory, once for each of the jobs: for about a
    thousand frames rather than for ten thousand."""
    mde_batch: int = 8
    """Images of one size that the MDE predicts at once."""
    device: str = "auto"
    """Device, for example cpu, cuda or cuda:1; auto is the GPU where there is one."""
    title: str = "Learning Image-Adaptive Scale Fields: the paper's tables"
    """Heading of the report."""
