"""The paper's four losses. Each is a mean over the images of a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as nnf
from jaxtyping import Float
from torch import Tensor

from scalefield.errors import InputError
from scalefield.validation import require_choice

GateReduction = Literal["sum", "patches", "mean"]
PATCH_CELLS = 64
"""Cells of the generator's grid in a patch of 8 × 8."""


@dataclass(frozen=True)
class LossWeights:
    """L = dense + λ_anchor·anchor + λ_decor·decor + λ_gate·gate; defaults are the paper's."""

    anchor: float = 0.1
    decor: float = 1e-4
    gate: float = 1e-4
    gate_reduction: GateReduction = "mean"
    """Reduction of the gate loss over an image; see `gate_loss`."""

    def __post_init__(self) -> None:
        require_choice("gate_reduction", self.gate_reduction, get_args(GateReduction))
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


def gate_loss(
    gating: Float[Tensor, "b k h w"], reduction: GateReduction = "mean"
) -> Float[Tensor, ""]:
    """Negative entropy Σ_m G_m log G_m over an image.

    sum: over the cells, as the paper writes it. patches: the mean times the number of 8 × 8
    patches, as if G had the grid of an estimator's patches. mean: over the cells, which does not
    depend on the resolution.
    """
    mean = torch.xlogy(gating, gating).sum(dim=1).mean()
    cells = gating.shape[2] * gating.shape[3]
    return mean * {"sum": cells, "patches": cells / PATCH_CELLS, "mean": 1}[reduction]


def weighted_mean(values: Float[Tensor, "b n"], weights: Float[Tensor, "b n"]) -> Float[Tensor, ""]:
    """Mean over each row's weights, then over rows; padding has weight zero."""
    weights = weights.to(values.dtype)
    return ((values * weights).sum(1) / weights.sum(1).clamp(min=1e-12)).mean()
