"""Scale only, by the median log-ratio: the least that one anchor gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from scalefield.anchors import Anchors
from scalefield.mde.output import MDEOutput
from scalefield.result import Recovery
from scalefield.targets import targets


@dataclass(frozen=True)
class Median:
    """One scale for the image, from the median of the anchors' log-ratios.

    D̂ = D · e^ℓ, where the constant ℓ minimises Σ |ℓ − y_i|.
    """

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery:
        """Recover from one anchor or more."""
        log_scale = float(np.median(targets(mde_output, anchors)))
        return Recovery.from_log_scale(mde_output, anchors, torch.tensor(log_scale))
