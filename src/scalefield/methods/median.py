"""Scale only, by the median log-ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from scalefield.alignment.uncertainty import fit_variance, total_std
from scalefield.anchors import Anchors
from scalefield.basis.ridge import targets
from scalefield.mde.output import MDEOutput
from scalefield.recovery import Method, Recovery


@dataclass(frozen=True)
class Median(Method):
    """One scale for the image, from the median of the anchors' log-ratios.

    D̂ = D · e^ℓ, where the constant ℓ minimises Σ |ℓ − y_i|.
    """

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery[Tensor]:
        """Recover from one anchor or more."""
        y, n = targets(mde_output, anchors), len(anchors)
        log_scale = float(np.median(y))
        # As for a mean, but for the π/2 that a median's variance is larger by.
        tau = anchors.sigma_log(0.0)
        share = np.full(n, 1 / n)
        variance = fit_variance(y - log_scale, share, share, tau)
        std_log = total_std(variance, min(1.0, math.pi / 2 / n) * (variance + (tau**2).mean()))
        device = mde_output.prediction.device
        return Recovery.from_log_scale(
            mde_output,
            anchors,
            torch.tensor(log_scale, device=device),
            std_log=torch.tensor(std_log, device=device),
        )
