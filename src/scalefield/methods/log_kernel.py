"""Gaussian smoothing of the anchors' log-ratios: in no paper, and hard to beat with many."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.spatial import cKDTree

from scalefield.anchors import Anchors
from scalefield.mde.output import MDEOutput
from scalefield.methods.affine import Samples, require
from scalefield.methods.gaussian import gaussian_sums
from scalefield.result import Recovery

SMALLEST_SUM = 1e-290
"""Total weights below this have lost digits to float64's underflow."""


@dataclass(frozen=True)
class LogKernel:
    """The anchors' log-ratios smoothed over the image with a Gaussian as wide as their spacing.

    At a pixel q, ℓ = Σ w_i y_i / Σ w_i with w_i = exp(−‖q − a_i‖² / (2b²)), which minimises
    Σ w_i (ℓ − y_i)²; y_i are the log-ratios of Eq. anchor_targets. Far from all anchors this
    tends to the nearest one's y, and where every weight underflows (37 bandwidths away) it is
    set to just that.
    """

    bandwidth_px: float | None = None
    """b; None takes the median distance between neighbouring anchors."""

    def __post_init__(self) -> None:
        if self.bandwidth_px is not None:
            require(self.bandwidth_px > 0, "bandwidth_px", "above zero", self.bandwidth_px)

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery:
        """Recover from one anchor or more."""
        samples = Samples.at(mde_output, anchors, "log").merged()
        device = mde_output.prediction.device
        pixels, weight, ratios = (
            torch.from_numpy(a).to(device)
            for a in (samples.pixels, samples.weight, samples.y - samples.x)
        )
        v, u = (torch.arange(n, dtype=torch.float64, device=device) for n in mde_output.shape)
        log_scale = torch.empty(mde_output.shape, dtype=torch.float64, device=device)
        moments = torch.stack([weight, weight * ratios])
        bandwidth = self.bandwidth_px or samples.spacing_px
        for down, across, (w, wy) in gaussian_sums(pixels, moments, bandwidth, (v, u)):
            log_scale[down, across] = torch.where(w > SMALLEST_SUM, wy / w, torch.nan)
        far = torch.isnan(log_scale).nonzero()
        if len(far):
            _, nearest = cKDTree(samples.pixels).query(far.cpu())
            log_scale[tuple(far.T)] = ratios[torch.as_tensor(nearest, device=device)]
        why = f"nearest anchor's ratio at {len(far)} pixels: all others are out of the kernel"
        return Recovery.from_log_scale(
            mde_output, anchors, log_scale, fallbacks=(why,) if len(far) else ()
        )
