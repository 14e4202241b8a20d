"""An estimator for recipes/paper_run.py: the depth of FastDepth, the features of a frozen ViT-S.

The files are named by the environment: PAPER_FASTDEPTH, an ONNX file with its description, and
PAPER_VIT, the encoder that `recipes/train_teacher.py convert` writes. Neither network has seen the
frames of the experiment, and nothing of either is trained. Beside FastDepth with its own features,
the pair isolates F: D, and with it the aligners and the F = 0 generators, are the same.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from scalefield.mde import MDE, MDEOutput, load_mde
from scalefield.mde.estimator import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from scalefield.mde.vit import PATCH, Vit, VitSize
from scalefield.training.teacher import read_backbone

VIT_INPUT = Preprocess((448, 602), "area", PATCH, IMAGENET_MEAN, IMAGENET_STD, "bilinear")
"""About as many pixels as the images that the positions of the ViT were learned on."""

VIT_S = VitSize(drop_path=0.0)


@dataclass(frozen=True, eq=False)
class DepthWithFeatures:
    """D of an ONNX estimator, and as F the normalised patch tokens of a frozen ViT's last block."""

    depth_file: Path
    vit_file: Path
    preprocess: Preprocess = VIT_INPUT
    """Input of the ViT."""
    size: VitSize = VIT_S
    """Sizes of the ViT."""
    name: str = "fastdepth-vit"

    @cached_property
    def device(self) -> str:
        """The GPU where there is one."""
        return "cuda" if torch.cuda.is_available() else "cpu"

    @cached_property
    def depth(self) -> MDE:
        """The estimator of D."""
        return load_mde(str(self.depth_file))

    @cached_property
    def vit(self) -> Vit:
        """The frozen encoder."""
        vit = Vit(self.size)
        vit.load_state_dict(read_backbone(self.vit_file))
        return vit.eval().requires_grad_(False).to(self.device)

    @cached_property
    def revision(self) -> str:
        """The revision of D, and a hash of the ViT's weights."""
        digest = hashlib.sha256(self.vit_file.read_bytes()).hexdigest()[:16]
        return f"{self.depth.revision}+sha256:{digest}"  # type: ignore[attr-defined]

    @property
    def options(self) -> dict[str, object]:
        """Preprocessing of both networks."""
        depth = self.depth.options  # type: ignore[attr-defined]
        return {"depth": depth, "features": self.preprocess.as_dict()}

    def __call__(self, image: UInt8[np.ndarray, "h w 3"]) -> MDEOutput:
        """Relative depth and features of one image."""
        return self.batch([image])[0]

    @torch.no_grad()
    def batch(self, images: Sequence[UInt8[np.ndarray, "h w 3"]]) -> list[MDEOutput]:
        """Relative depth and features of images of one size."""
        features = self.vit(self.preprocess(images).to(self.device))[-1].cpu()
        return [
            replace(
                self.depth(image),
                features=features[i],
                model=self.name,
                revision=self.revision,
                options=self.options,
            )
            for i, image in enumerate(images)
        ]


fastdepth_vit = DepthWithFeatures(
    Path(os.environ.get("PAPER_FASTDEPTH", "fastdepth.onnx")),
    Path(os.environ.get("PAPER_VIT", "backbone.safetensors")),
)
"""Loaded when it is first used."""
