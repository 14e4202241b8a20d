"""A Triton kernel that inverts many small symmetric positive definite matrices."""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor


@triton.jit
@no_type_check
def sweep(matrices, inverses, half_log_dets, n, SIZE: tl.constexpr):
    """Invert one matrix by the symmetric sweep operator (Goodnight, 1979), held in registers.

    Sweeping row k with pivot d replaces M_ij by M_ij − M_ik M_kj / d, row and column k by M_ik / d,
    and d by −1/d; after all rows the matrix holds −A⁻¹, and the product of the pivots is det A.
    """
    matrix = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, SIZE)
    at = matrix * n * n + i[:, None] * n + i[None, :]
    inside = (i[:, None] < n) & (i[None, :] < n)
    eye = (i[:, None] == i[None, :]).to(tl.float64)
    values = tl.load(matrices + at, mask=inside, other=0.0)
    values = tl.where(inside, values, eye)
    log_det = 0.0
    for k in range(n):
        row = tl.sum(tl.where(i[:, None] == k, values, 0.0), axis=0)
        column = tl.sum(tl.where(i[None, :] == k, values, 0.0), axis=1)
        pivot = tl.sum(tl.where(i == k, row, 0.0), axis=0)
        log_det += tl.log(pivot)
        scaled = row / pivot
        swept = values - column[:, None] * scaled[None, :]
        on_row, on_column = i[:, None] == k, i[None, :] == k
        swept = tl.where(on_row, scaled[None, :], swept)
        swept = tl.where(on_column, (column / pivot)[:, None], swept)
        values = tl.where(on_row & on_column, -1.0 / pivot, swept)
    tl.store(inverses + at, -values, mask=inside)
    tl.store(half_log_dets + matrix, 0.5 * log_det)


def spd_inverse(
    matrix: Float[Tensor, "b n n"],
) -> tuple[Float[Tensor, "b n n"], Float[Tensor, " b"]]:
    """Inverse and ½ log det of each matrix, in float64."""
    matrix = matrix.double().contiguous()
    count, n, _ = matrix.shape
    inverse, half_log_det = torch.empty_like(matrix), matrix.new_empty(count)
    size = max(16, triton.next_power_of_2(n))
    warps = {16: 1, 32: 2, 64: 4}.get(size, 8)
    sweep[(count,)](matrix, inverse, half_log_det, n, SIZE=size, num_warps=warps)
    return inverse, half_log_det
