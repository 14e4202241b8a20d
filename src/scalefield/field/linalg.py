"""Many small symmetric positive definite systems, factorised in one batch.

On a processor by LAPACK's Cholesky factorisation. On a GPU by one Triton kernel that inverts each
matrix in registers, because batched factorisations of matrices this small are bound by launches
and wait for the host; without Triton by torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

MAX_INVERTED = 128
"""Largest matrix that fits the registers of the Triton kernel."""


@dataclass(frozen=True, eq=False)
class Factorisation:
    """Factorised matrices: exactly one of the two is there."""

    factor: Float[Tensor, "*b n n"] | None
    """Lower Cholesky factors."""
    inverse: Float[Tensor, "*b n n"] | None
    half_log_det: Float[Tensor, "*b"]
    """½ log det."""

    def solve(self, right: Float[Tensor, "*b n k"]) -> Float[Tensor, "*b n k"]:
        """A⁻¹ applied to columns."""
        if self.inverse is not None:
            return self.inverse @ right
        assert self.factor is not None
        if not right.is_cuda:
            return torch.cholesky_solve(right, self.factor)
        half = torch.linalg.solve_triangular(self.factor, right, upper=False)
        return torch.linalg.solve_triangular(self.factor.mT, half, upper=True)

    def inverse_diagonal(self) -> Float[Tensor, "*b n"]:
        """Diagonal of A⁻¹."""
        if self.inverse is not None:
            return self.inverse.diagonal(dim1=-2, dim2=-1)
        assert self.factor is not None
        if not self.factor.is_cuda:
            return torch.cholesky_inverse(self.factor).diagonal(dim1=-2, dim2=-1)
        eye = torch.eye(self.factor.shape[-1], dtype=self.factor.dtype, device=self.factor.device)
        half = torch.linalg.solve_triangular(self.factor, eye.expand_as(self.factor), upper=False)
        return half.square().sum(dim=-2)


def factorise(matrix: Float[Tensor, "*b n n"]) -> Factorisation:
    """Factorise symmetric positive definite matrices; there is no check that they are."""
    if matrix.is_cuda and matrix.ndim == 3 and matrix.shape[-1] <= MAX_INVERTED:
        try:
            from scalefield.field.triton_kernels import spd_inverse
        except ImportError:
            pass
        else:
            return Factorisation(None, *spd_inverse(matrix))
    factor = torch.linalg.cholesky_ex(matrix).L
    return Factorisation(factor, None, factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1))
