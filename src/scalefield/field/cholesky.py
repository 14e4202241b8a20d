"""Cholesky factors of many small matrices at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Cholesky:
    """Lower Cholesky factors L of many small matrices A = LLᵀ, factorised in one batch.

    Nothing here waits for the host, so that it can be captured in a CUDA graph: there is no check
    that a factorisation succeeded.
    """

    factor: Float[Tensor, "*b n n"]

    @classmethod
    def of(cls, matrix: Float[Tensor, "*b n n"]) -> Cholesky:
        """Factorise symmetric positive definite matrices."""
        return cls(torch.linalg.cholesky_ex(matrix).L)

    def solve(self, right: Float[Tensor, "*b n k"]) -> Float[Tensor, "*b n k"]:
        """A⁻¹ applied to columns."""
        if not self.factor.is_cuda:
            return torch.cholesky_solve(right, self.factor)
        # On a GPU `cholesky_solve` allocates, which a graph cannot capture.
        half = torch.linalg.solve_triangular(self.factor, right, upper=False)
        return torch.linalg.solve_triangular(self.factor.mT, half, upper=True)

    def inverse(self) -> Float[Tensor, "*b n n"]:
        """A⁻¹."""
        if not self.factor.is_cuda:
            return torch.cholesky_inverse(self.factor)
        half = self.inverse_factor()
        return half.mT @ half

    def inverse_diagonal(self) -> Float[Tensor, "*b n"]:
        """Diagonal of A⁻¹."""
        if not self.factor.is_cuda:
            return self.inverse().diagonal(dim1=-2, dim2=-1)
        return self.inverse_factor().square().sum(dim=-2)

    def inverse_factor(self) -> Float[Tensor, "*b n n"]:
        """L⁻¹. On a GPU `cholesky_inverse` solves twice; this solves once."""
        eye = torch.eye(self.factor.shape[-1], dtype=self.factor.dtype, device=self.factor.device)
        return torch.linalg.solve_triangular(self.factor, eye.expand_as(self.factor), upper=False)

    def half_log_det(self) -> Float[Tensor, "*b"]:
        """½ log det A."""
        return self.factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
