"""Spectral structure of the anchors' embeddings, as the paper analyses it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class SpectralStatistics:
    """The numbers of the paper's spectral analysis, for one image."""

    eigenvalues: tuple[float, ...]
    """s₁ ≥ s₂ ≥ … of the Gram matrix C = MMᵀ, the min(N, K) that can be non-zero."""
    eta1: float
    """η₁ = s₁ / Σ s, the share of the leading mode."""
    similarity: float
    """|v₁ᵀg|, the part of the global channel E₀ in the leading eigenvector of MᵀM."""
    energy: tuple[float, ...] | None
    """|α_ℓ|² = (u_ℓᵀy)², the targets' energy along each eigenvector of C; None without targets."""
    alpha1_share: float | None
    """α₁² / Σ α², the share of the targets' energy ‖y‖² along the leading eigenvector of C."""
    alpha1_dominance: float | None
    """|α₁| / max |α_ℓ| over ℓ > 1: above 1 where the leading component is the largest. The
    directions are those of the eigenvalues above, and infinity stands where all others are 0."""
    g0_mean: float
    """Mean of G₀ over the image."""
    g0_var: float
    """Variance of G₀ over the image."""


def spectral_statistics(
    M: Float[Tensor, "n k"], gating: Float[Tensor, "k h w"], y: Float[Tensor, " n"] | None = None
) -> SpectralStatistics:
    """Spectrum of C = MMᵀ by the singular values of M, where M_im = E_m(a_i).

    M = U S Vᵀ gives C = U S² Uᵀ and MᵀM = V S² Vᵀ, so one decomposition holds every number.
    """
    U, S, Vt = torch.linalg.svd(M.double(), full_matrices=False)
    eigenvalues = S.square()
    energy = share = dominance = None
    if y is not None:
        energy = tuple((U.mT @ y.double()).square().tolist())
        whole, others = float(y.double().square().sum()), max(energy[1:], default=0.0)
        share = energy[0] / whole if whole > 0 else 0.0
        dominance = math.sqrt(energy[0] / others) if others > 0 else math.inf
    total = float(eigenvalues.sum())
    return SpectralStatistics(
        eigenvalues=tuple(eigenvalues.tolist()),
        eta1=float(eigenvalues[0]) / total if total > 0 else 0.0,
        similarity=abs(float(Vt[0, 0])),
        energy=energy,
        alpha1_share=share,
        alpha1_dominance=dominance,
        g0_mean=float(gating[0].double().mean()),
        g0_var=float(gating[0].double().var(correction=0)),
    )
