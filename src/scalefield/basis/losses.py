"""The paper's four losses. Each is a mean over the images of a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as nnf
from jaxtyping import Float
from torch import Tensor

from scalefield.errors import InputError


@dataclass(frozen=True)
class LossWeights:
    """L = dense + λ_anchor·anchor + λ_decor·decor + λ_gate·gate; defaults are the paper's."""

    anchor: float = 0.1
    decor: float = 1e-4
    gate: float = 1e-4
    literal_gate_sum: bool = False
    """Sum the gate loss over pixels as the paper writes it, not the mean (which does not depend
    on resolution)."""

    def __post_init__(self) -> None:
        for name in ("anchor", "decor", "gate"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(
                    f"the weight of the {name} loss must be 0 or more, found {getattr(self, name)}"
                )


def dense_loss(
    log_depth: Float[Tensor, "b p"],
    true_log_depth: Float[Tensor, "b p"],
    pixel_weights: Float[Tensor, "b p"],
    beta: float = 1.0,
) -> Float[Tensor, ""]:
    """SmoothL1 of log D̂ − log D_gt over each image's known pixels (weight 1; padding 0)."""
    error = nnf.smooth_l1_loss(log_depth, true_log_depth, reduction="none", beta=beta)
    return weighted_mean(error, pixel_weights)


def anchor_loss(
    predicted: Float[Tensor, "b n"], y: Float[Tensor, "b n"], anchor_weights: Float[Tensor, "b n"]
) -> Float[Tensor, ""]:
    """(1/N) Σ ((Mw*)ᵢ − yᵢ)² over each image's anchors."""
    return weighted_mean((predicted - y) ** 2, anchor_weights)


def decorrelation_loss(basis_maps: Float[Tensor, "b k h w"]) -> Float[Tensor, ""]:
    """Mean of (ẽᵢᵀẽⱼ)² over pairs i ≠ j, with ẽ of unit ℓ2 norm over the image's cells."""
    unit = nnf.normalize(basis_maps.flatten(2), dim=2)
    k = unit.shape[1]
    gram = unit @ unit.mT
    off_diagonal = gram.square().sum(dim=(1, 2)) - gram.diagonal(dim1=1, dim2=2).square().sum(1)
    return off_diagonal.mean() / (k * (k - 1))


def gate_loss(gating: Float[Tensor, "b k h w"], literal_sum: bool = False) -> Float[Tensor, ""]:
    """Negative entropy Σ_m G_m log G_m, over cells by mean (or by the paper's literal sum)."""
    negative_entropy = torch.xlogy(gating, gating).sum(dim=1)
    if literal_sum:
        return negative_entropy.sum(dim=(1, 2)).mean()
    return negative_entropy.mean()


def weighted_mean(values: Float[Tensor, "b n"], weights: Float[Tensor, "b n"]) -> Float[Tensor, ""]:
    """Mean over each row's weights, then over rows; padding has weight zero."""
    weights = weights.to(values.dtype)
    return ((values * weights).sum(1) / weights.sum(1).clamp(min=1e-12)).mean()
