"""The closed-form solve for the weights of the basis maps, with its targets and anchor weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.errors import InputError
from scalefield.mde.output import MDEOutput


@dataclass(frozen=True)
class Ridge:
    """Settings of the solve. `LITERAL` has the paper's values; the defaults were chosen on val."""

    ridge: float = 1e-3
    """λ, relative to a unit weight per anchor (Eq. 14)."""
    ridge_global: float = 1e-3
    """λ of the global channel E₀, which the paper penalises like the others."""
    centre: Literal["none", "median"] = "median"
    """Subtract the median target before the solve and add it back to ℓ, so that the ridge does
    not shrink the unit of the MDE's depth."""

    def __post_init__(self) -> None:
        if not (self.ridge > 0 and self.ridge_global > 0):
            raise InputError(
                f"ridge and ridge_global must be above zero, found {self.ridge}, "
                f"{self.ridge_global}"
            )
        if self.centre not in ("none", "median"):
            raise InputError(f'centre must be "none" or "median", found {self.centre!r}')


LITERAL = Ridge(centre="none")


@dataclass(frozen=True, eq=False)
class Solution:
    """ℓ(x) = offset + E(x)ᵀ weights, for a batch of images."""

    weights: Float[Tensor, "b k"]
    offset: Float[Tensor, " b"]

    def log_scale(self, basis_maps: Float[Tensor, "b k h w"]) -> Float[Tensor, "b h w"]:
        """ℓ on the maps' own grid (Eq. 8)."""
        combined = torch.einsum("bkhw,bk->bhw", basis_maps, self.weights.to(basis_maps.dtype))
        return combined + self.offset.to(basis_maps.dtype)[:, None, None]


def targets(mde_output: MDEOutput, anchors: Anchors) -> Float64[np.ndarray, " n"]:
    """y_i = log D_gt(a_i) − log D_MDE(a_i) (Eq. 10)."""
    rows, columns = anchors.pixels(mde_output.shape)
    mde_depth = mde_output.mde_depth[rows, columns].double().cpu().numpy()
    return np.log(anchors.depth_m) - np.log(mde_depth)


def anchor_weights(anchors: Anchors) -> Float64[np.ndarray, " n"]:
    """ω: ones, or inverse variances of log-depth scaled to a mean of one.

    Anchors without a deviation get the one of `Anchors.complete_sigma_m`.
    """
    sigma_m = anchors.complete_sigma_m()
    if sigma_m is None:
        return np.ones(len(anchors))
    precision = (sigma_m / anchors.depth_m) ** -2
    return precision / precision.mean()


def masked_median(values: Float[Tensor, "*b n"], mask: Bool[Tensor, "*b n"]) -> Float[Tensor, "*b"]:
    """Median over the mask, the mean of the two middle values of an even number; 0 over none."""
    ordered = values.masked_fill(~mask, torch.inf).sort(dim=-1).values
    count = mask.sum(dim=-1, keepdim=True)
    around = (count - torch.arange(2, device=values.device)).clamp(min=0) // 2
    middle = ordered.gather(-1, around.clamp(max=values.shape[-1] - 1)).mean(dim=-1)
    return middle.nan_to_num(posinf=0.0)


def solve(
    M: Float[Tensor, "b n k"],
    y: Float[Tensor, "b n"],
    anchor_weights: Float[Tensor, "b n"],
    config: Ridge | None = None,
    offset_noise: Float[Tensor, " b"] | None = None,
) -> Solution:
    """w* = argmin Σ ωᵢ (Mw − y)ᵢ² + λ‖w‖², by Cholesky in float64 (Eq. 15).

    Anchor sets of different sizes are padded: a row with ω = 0 does not change the solution.
    Differentiable in M, y and ω. `offset_noise` is for training: it perturbs the offset, and the
    basis maps must correct it, which keeps the global channel E₀ in use.
    """
    config = config or Ridge()
    M, y, anchor_weights = M.double(), y.double(), anchor_weights.double()
    known = anchor_weights > 0
    # Not `where`: a GPU would fetch its zero from the host, which no CUDA graph can.
    M, y = M.masked_fill(~known[..., None], 0), y.masked_fill(~known, 0)
    if config.centre == "median":
        # The offset is data, not a parameter: no gradient is wanted through it.
        offset = masked_median(y.detach(), known)
    else:
        offset = torch.zeros_like(y[:, 0])
    if offset_noise is not None:
        offset = offset + offset_noise.double()
    ridge = torch.full((M.shape[2],), config.ridge, dtype=M.dtype, device=M.device)
    ridge[:1] = config.ridge_global  # by slice: a lone element would be a copy from the host
    weighted = M * anchor_weights[..., None]
    normal = weighted.mT @ M + torch.diag(ridge)
    moment = weighted.mT @ (y - offset[:, None])[..., None]
    # On a GPU the check would wait for the device, and no CUDA graph could hold the solve; nor
    # could it hold cholesky_solve, which allocates for a batch.
    factor, _ = torch.linalg.cholesky_ex(normal, check_errors=not normal.is_cuda)
    white = torch.linalg.solve_triangular(factor, moment, upper=False)
    weights = torch.linalg.solve_triangular(factor.mT, white, upper=True)[..., 0]
    return Solution(weights, offset)
