"""Gaussian smoothing of the anchors' log-ratios (Nadaraya–Watson regression)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist
from torch import Tensor

from scalefield.alignment.affine import Samples
from scalefield.alignment.gaussian_sums import assembled_sums, gaussian_sums
from scalefield.alignment.uncertainty import (
    coarse_positions,
    fit_variance,
    left_out_indices,
    to_image,
    total_std,
)
from scalefield.anchors import Anchors
from scalefield.errors import counted
from scalefield.mde.output import MDEOutput
from scalefield.recovery import Method, Recovery
from scalefield.report import Fallback
from scalefield.validation import require

SMALLEST_SUM = 1e-290
"""Total weights below this have lost precision to float64's underflow."""


@dataclass(frozen=True)
class LogKernel(Method):
    """The anchors' log-ratios smoothed over the image with a Gaussian as wide as their spacing.

    At a pixel q, ℓ = Σ w_i y_i / Σ w_i with w_i = exp(−‖q − a_i‖² / (2b²)), which minimises Σ w_i
    (ℓ − y_i)²; y_i are the log-ratios of Eq. 10. Far from all anchors ℓ tends to the
    nearest anchor's y. Where every weight underflows (37 bandwidths away) it is set to that value.
    """

    bandwidth_px: float | None = None
    """b; None takes the median distance between neighbouring anchors."""

    def __post_init__(self) -> None:
        if self.bandwidth_px is not None:
            require(self.bandwidth_px > 0, "bandwidth_px", "above zero", self.bandwidth_px)

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery[Tensor]:
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
        pixels_far = counted(len(far), "pixel")
        text = f"nearest anchor's ratio at {pixels_far}: all others are out of the kernel"
        return Recovery.from_log_scale(
            mde_output,
            anchors,
            log_scale,
            std_log=kernel_std(samples, log_scale, bandwidth),
            fallbacks=(Fallback("nearest_anchor", text),) if len(far) else (),
        )


def kernel_std(
    samples: Samples, log_scale: Float64[Tensor, "h w"], bandwidth: float
) -> Float[Tensor, "h w"]:
    """std_log of the weighted mean; S_i = w_i / Σ w, so an anchor's leverage is its own share."""
    out, tau = left_out_indices(len(samples)), samples.tau
    square = cdist(samples.pixels[out], samples.pixels, "sqeuclidean")
    weights = np.exp(-square / (2 * bandwidth**2)) * samples.weight
    shares = weights / weights.sum(axis=1, keepdims=True)
    fitted = log_scale[samples.rows[out], samples.columns[out]].cpu().numpy()
    residuals = (samples.y - samples.x)[out] - fitted
    own = shares[np.arange(len(out)), out]
    variance = fit_variance(residuals, own, (shares**2).sum(axis=1), tau[out])
    # The square of a Gaussian is one of bandwidth b/√2.
    shape, device = (log_scale.shape[0], log_scale.shape[1]), log_scale.device
    v, u = (torch.from_numpy(coarse_positions(n)).double().to(device) for n in shape)
    pixels, weight = (torch.from_numpy(a).to(device) for a in (samples.pixels, samples.weight))
    noise = weight**2 * torch.from_numpy(variance + tau**2).to(device)
    (total,) = assembled_sums(pixels, weight[None], bandwidth, (v, u))
    (noises,) = assembled_sums(pixels, noise[None], bandwidth / math.sqrt(2), (v, u))
    # Where every weight underflows, one anchor determines the value.
    alone = float((variance + tau**2).max())
    propagated = torch.where(total > SMALLEST_SUM, noises / total**2, alone)
    propagated = torch.nan_to_num(propagated, nan=alone, posinf=alone).clamp(max=alone)
    return to_image(total_std(variance, propagated.cpu().numpy().reshape(-1)), shape, device)
