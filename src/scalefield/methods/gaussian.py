"""Sums of Gaussians over a whole image, fast because a Gaussian of a distance is separable."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float64
from torch import Tensor

LOSSLESS_REACH = 38.6
"""Bandwidths at which exp(−d²/2) is below the smallest float64: nothing further off counts."""

TILE_NUMBERS = 1 << 22
"""Numbers in the largest array that is made at once: 32 MiB."""

TILE_ROWS = 64


def gaussian_sums(
    points: Float64[Tensor, "n 2"],
    coefficients: Float64[Tensor, "k n"],
    bandwidth: float,
    queries: tuple[Float64[Tensor, " h"], Float64[Tensor, " w"]],
    reach: float = LOSSLESS_REACH,
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield S_k(v, u) tile by tile for every row v and column u of `queries`:

    S_k(v, u) = Σ_i c_ki exp(−((v − v_i)² + (u − u_i)²) / (2·bandwidth²)), points being (v_i, u_i).

    exp of a sum is a product, so S_k = R · diag(c_k) · C with R = exp(−(v − v_i)²/…) over rows
    and C likewise over columns: matrix products instead of one exponential per pixel and anchor.
    All terms of a sum with c ≥ 0 are positive, so even tiny sums keep their relative accuracy.
    Anchors more than `reach` bandwidths above or below a tile are left out.
    """
    order = torch.argsort(points[:, 0])
    rows, columns = points[order].T.contiguous()
    coefficients = coefficients[:, order]
    query_rows, query_columns = queries
    k, n = coefficients.shape
    width = max(1, TILE_NUMBERS // n)
    height = max(1, min(TILE_ROWS, TILE_NUMBERS // (n * k)))
    for left in range(0, len(query_columns), width):
        across = slice(left, min(left + width, len(query_columns)))
        in_columns = _kernel(columns[:, None] - query_columns[None, across], bandwidth)  # n w
        for top in range(0, len(query_rows), height):
            down = slice(top, min(top + height, len(query_rows)))
            v = query_rows[down]
            ends = torch.stack([v.min() - reach * bandwidth, v.max() + reach * bandwidth])
            low, high = torch.searchsorted(rows, ends).tolist()
            in_rows = _kernel(v[:, None] - rows[None, low:high], bandwidth)  # h n
            weighted = coefficients[:, None, low:high] * in_rows[None]  # k h n
            yield down, across, weighted @ in_columns[low:high]


def _kernel(difference: Tensor, bandwidth: float) -> Tensor:
    return torch.exp(-0.5 * (difference / bandwidth) ** 2)
