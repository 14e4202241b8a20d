"""Locally weighted linear regression (Xu et al., arXiv 2202.01470)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from scalefield.alignment.affine import Affine, Samples, fit_affine
from scalefield.alignment.gaussian_sums import assembled_sums, solved_on_image
from scalefield.alignment.uncertainty import (
    EXACT,
    LARGEST_STD,
    LinearSmoother,
    at_coarse_pixels,
    coarse_positions,
    interpolation_matrix,
    left_out_indices,
    log_residuals,
    noise_variance,
    to_image,
    total_std,
)
from scalefield.anchors import Anchors
from scalefield.mde.output import MDEOutput, Space
from scalefield.recovery import Method, Recovery
from scalefield.report import Fallback, Rejection
from scalefield.validation import require, require_choice

Bandwidth = Literal["paper", "adaptive"]

ADAPTIVE_SPACINGS = 1.5
ADAPTIVE_FLOOR_PX = 25.0
OUTLIER_RELATIVE_ERROR = 0.15
LARGEST_DEPTH = 1e75
"""Largest |D̃| of an anchor in units of a typical depth: products of four stay finite."""


@dataclass(frozen=True)
class LWLR(Method):
    """Scale and shift at every pixel, by least squares with Gaussian weights on near anchors.

    Global gives D̃. At a pixel q, (s, t) minimises Σ w_i (y_i − s·D̃_i − t)² + λ t² with w_i =
    exp(−‖q − a_i‖² / (2b²)). It is blended toward Global's (1, 0) by λ₀ / (λ₀ + Σw), so that pixels
    far from every anchor are defined too.
    """

    bandwidth: Bandwidth | float = "paper"
    """Bandwidth b in pixels. paper: `reference_bandwidth_px` scaled to the image's width. adaptive:
    1.5 × the median distance between neighbouring anchors, at least 25 px."""
    reference_bandwidth_px: float = 50.0
    """The published b at the reference width: KITTI 25, ETH3D 125, DIODE 100, others 50."""
    reference_width_px: float = 640.0
    """Image width of the published b: 1242 for KITTI, 640 indoors."""
    stride: int = 32
    """Distance in pixels between queries, the first at half of it. (s, t) is interpolated
    bilinearly between them and constant beyond the outermost. 32 is published, 1 is exact at every
    pixel."""
    shift_penalty: float = 1.0
    """λ, the ridge on the shift."""
    blend: float = 1e-6
    """λ₀, the total anchor weight at which a pixel is an equal blend of Global and its own fit."""
    drop_outliers: bool = False
    """Leave out anchors whose relative error under Global is 15 % or more (authors' script)."""
    space: Space | None = None
    """Space of the fit. None: disparity for affine-invariant disparity, depth for other maps."""

    def __post_init__(self) -> None:
        if isinstance(self.bandwidth, str):
            require_choice("bandwidth", self.bandwidth, get_args(Bandwidth))
        else:
            require(self.bandwidth > 0, "bandwidth", "above zero", self.bandwidth)
        for option in ("reference_bandwidth_px", "reference_width_px", "shift_penalty", "blend"):
            value = getattr(self, option)
            require(0 < value < math.inf, option, "finite and above zero", value)
        whole = isinstance(self.stride, int) and self.stride >= 1
        require(whole, "stride", "a whole number of pixels, at least 1", self.stride)
        if self.space is not None:
            require_choice("space", self.space, get_args(Space))

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery[Tensor]:
        """Recover from one anchor or more."""
        space = mde_output.space_of_fit(self.space, "depth")
        samples = Samples.at(mde_output, anchors, space)
        affine = fit_affine(samples)
        fallbacks = []
        if affine.fallback:
            text = f"Global before the local fits: {affine.fallback}"
            fallbacks.append(Fallback(f"global_{affine.fallback.code}", text))
        error = np.abs(affine(samples.x) - samples.y) / samples.y
        kept = error < OUTLIER_RELATIVE_ERROR if self.drop_outliers else np.isfinite(error)
        if not kept.any():
            kept = np.ones_like(kept)
            text = "no anchor left out: every one is 15 % off or more under Global"
            fallbacks.append(Fallback("all_outliers", text))
        aligned = affine(mde_output.in_space(space).double())
        used = samples[kept]
        local = Local.of(aligned, used, self.bandwidth_px(mde_output.shape[1], used))
        scale, shift = self.fields(mde_output.shape, local)
        std_log = self._std(aligned, local, affine, used)
        reason = f"relative error under Global at least {OUTLIER_RELATIVE_ERROR}"
        return Recovery.from_space(
            mde_output,
            anchors,
            aligned.mul_(scale).add_(shift),
            space,
            std_log=std_log,
            fallbacks=tuple(fallbacks),
            rejected=tuple(
                Rejection(int(i), "outlier", reason) for i in np.sort(samples.index[~kept])
            ),
        )

    def bandwidth_px(self, width: int, samples: Samples) -> float:
        """b for an image of this width and these anchors."""
        if self.bandwidth == "paper":
            return self.reference_bandwidth_px * width / self.reference_width_px
        if self.bandwidth == "adaptive":
            return max(ADAPTIVE_FLOOR_PX, ADAPTIVE_SPACINGS * samples.spacing_px)
        return float(self.bandwidth)

    def fields(
        self, shape: tuple[int, int], local: Local
    ) -> tuple[Float64[Tensor, "h w"], Float64[Tensor, "h w"]]:
        """The maps s and t over the image."""
        pixels, moments, b = local.pixels, local.moments, local.bandwidth
        # Anchors left out beyond the reach weigh less than 1e-15 of the blend.
        reach = math.sqrt(2 * (math.log(1e15) + max(0.0, -math.log(self.blend))))
        if self.stride == 1:
            lines = pixels.new_empty(2, *shape)
            for down, across, each in solved_on_image(
                pixels, moments, b, shape, reach=reach, solve=self._line
            ):
                lines[:, down, across] = each
            scale, shift = lines
        else:
            nodes = [_query_positions(size, self.stride) for size in shape]
            v, u = (torch.from_numpy(each).to(pixels.device) for each in nodes)
            sums = assembled_sums(pixels, moments, b, (v, u), reach)
            left, right = (
                torch.from_numpy(interpolation_matrix(each, size)).to(pixels.device)
                for each, size in zip(nodes, shape, strict=True)
            )
            scale, shift = (left @ each @ right.T for each in self._solve(*sums))
        return scale, shift.mul_(local.unit)

    def _std(
        self,
        aligned: Float64[Tensor, "h w"],
        local: Local,
        affine: Affine,
        samples: Samples,
    ) -> Float[Tensor, "h w"]:
        """std_log by the weights of the local fits, and by Global's where the blend is Global."""
        global_fit = LinearSmoother.of(affine.design(local.x.cpu().numpy()), samples.weight)
        tau = samples.tau
        variance = self._noise(local, global_fit, tau)
        deviation = samples.y / local.unit * np.sqrt(variance + tau**2)
        x_coarse = at_coarse_pixels(aligned) / local.unit
        global_variance = global_fit.variance(affine.design(x_coarse), deviation, x_coarse)
        shape, device = (aligned.shape[0], aligned.shape[1]), aligned.device
        v, u = (torch.from_numpy(coarse_positions(size)).double().to(device) for size in shape)
        sums = assembled_sums(local.pixels, local.moments, local.bandwidth, (v, u))
        # The square of a Gaussian is one of bandwidth b/√2.
        noise = local.noise * torch.from_numpy(variance + tau**2).to(device)
        noises = assembled_sums(local.pixels, noise, local.bandwidth / math.sqrt(2), (v, u))
        x, far_variance = (
            torch.from_numpy(a).to(device).view_as(sums[0]) for a in (x_coarse, global_variance)
        )
        scale, shift = self._solve(*sums)
        propagated = self._propagated(x, scale * x + shift, sums, noises, far_variance)
        return to_image(total_std(variance, propagated.cpu().numpy().reshape(-1)), shape, device)

    def _noise(
        self, local: Local, global_fit: LinearSmoother, tau: Float64[np.ndarray, " n"]
    ) -> float:
        """v from the local fits at anchors that are left out.

        To first order they are left out of Global too, whose variance is that of pixels far from
        all anchors.
        """
        left = 1 - global_fit.leverage
        indices = left_out_indices(len(tau))
        indices = indices[left[indices] > EXACT]
        out = torch.from_numpy(indices).to(local.x.device)
        square = torch.cdist(local.pixels[out], local.pixels) ** 2
        kernel = torch.exp(-square / (2 * local.bandwidth * local.bandwidth))
        kernel[torch.arange(len(out)), out] = 0
        x, sums, noises = local.x[out], local.moments @ kernel.T, local.noise @ (kernel**2).T
        scale, shift = self._solve(*sums)
        left_out = scale * x + shift
        inflation = 1 + self._propagated(x, left_out, sums, noises, 0 * x)
        residuals = (
            log_residuals(local.y[out].cpu().numpy(), left_out.cpu().numpy()) / left[indices]
        )
        return noise_variance(residuals, inflation.cpu().numpy() / left[indices], tau[indices])

    def _propagated(
        self, x: Tensor, predicted: Tensor, sums: Tensor, noise: Tensor, far: Tensor
    ) -> Tensor:
        """Σ S_i² (y_i/ŷ)² var_i, where `noise` are the sums of w² y² var · (1, x, x²).

        `far` is the value for pixels at which the blend is Global.
        """
        w, wx, wxx = sums[:3]
        w_ridge = w + self.shift_penalty
        factor = w / ((wxx * w_ridge - wx * wx) * (w + self.blend) * predicted)
        a, b = (x * w_ridge - wx) * factor, (wxx - x * wx) * factor
        propagated = noise[2] * a * a + 2 * noise[1] * a * b + noise[0] * b * b
        propagated = torch.where(w > self.blend, propagated, far)
        limit = LARGEST_STD**2
        return propagated.nan_to_num(nan=limit, posinf=limit).clamp(min=0)

    def _line(self, sums: Float64[Tensor, "5 h w"]) -> Float64[Tensor, "2 h w"]:
        """Scale and shift from the moments' sums."""
        return torch.stack(self._solve(*sums))

    def _solve(
        self, w: Tensor, wx: Tensor, wxx: Tensor, wy: Tensor, wxy: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(XᵀWX + diag(0, λ))⁻¹ XᵀWy in closed form, blended; the determinant is ≥ λ·Σwx²."""
        w_ridge = w + self.shift_penalty
        # The blend's factor Σw / (λ₀ + Σw) and the determinant share one division. Where Σw is
        # next to nothing beside λ₀, its ratios are noise, and Global's answer is taken as it is.
        factor = w / ((wxx * w_ridge).sub_(wx * wx).mul_(w + self.blend))
        factor = torch.where(w > 1e-9 * self.blend, factor, 0)
        scale = (wxy * w_ridge).sub_(wx * wy).mul_(factor).add_(self.blend / (w + self.blend))
        shift = (wxx * wy).sub_(wx * wxy).mul_(factor)
        return scale, shift


class Local(NamedTuple):
    """The anchors for local fits: y over D̃, both in units of a typical depth, in which sums
    neither overflow nor underflow; λ t² is scaled accordingly."""

    unit: float
    bandwidth: float
    pixels: Float64[Tensor, "n 2"]
    x: Float64[Tensor, " n"]
    y: Float64[Tensor, " n"]
    weight: Float64[Tensor, " n"]

    @classmethod
    def of(cls, aligned: Float64[Tensor, "h w"], samples: Samples, bandwidth: float) -> Local:
        """The anchors of the samples with Global's prediction of the map."""
        unit = float(np.median(samples.y))
        pixels, y, weight = (
            torch.from_numpy(a).to(aligned.device)
            for a in (samples.pixels, samples.y / unit, samples.weight)
        )
        x = (aligned[samples.rows, samples.columns] / unit).clamp(-LARGEST_DEPTH, LARGEST_DEPTH)
        return cls(unit, bandwidth, pixels, x, y, weight)

    @property
    def moments(self) -> Float64[Tensor, "5 n"]:
        """w · (1, x, x², y, xy)."""
        x, y = self.x, self.y
        return self.weight * torch.stack([torch.ones_like(x), x, x * x, y, x * y])

    @property
    def noise(self) -> Float64[Tensor, "3 n"]:
        """(wy)² · (1, x, x²), the moments of y's noise where its relative variance is one."""
        x = self.x
        return (self.weight * self.y) ** 2 * torch.stack([torch.ones_like(x), x, x * x])


def _query_positions(size: int, stride: int) -> Float64[np.ndarray, " q"]:
    """Positions stride/2 + k·stride; the middle of an image that is too small for one."""
    if size <= stride // 2:
        return np.array([(size - 1) / 2])
    return np.arange(stride // 2, size, stride, dtype=np.float64)
