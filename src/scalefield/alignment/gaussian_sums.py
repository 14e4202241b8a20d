"""Sums of Gaussians over a whole image, fast because a Gaussian of a distance is separable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float64
from torch import Tensor

LOSSLESS_REACH = 38.6
"""Number of bandwidths beyond which exp(−d²/2) is below the smallest float64."""

TILE_NUMBERS = 1 << 22
"""Numbers in the largest temporary array: 32 MiB."""

TILE_ROWS = 64

PATCH_EXPONENT = 8.0
PATCH_NODES = 26
"""Over a square patch of 2·8/reach bandwidths a Gaussian in reach is e^(±8·x − …) along an axis,
which 26 Chebyshev nodes give to 1e-13 of its largest value there."""

SOLVED_PATCH = 2.4
"""Size of a patch, in bandwidths, over which a ratio of sums is tried with the same nodes."""
RESOLVED = 3e-10
"""Largest share that the last two coefficients of such a ratio may have."""


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
    and C likewise over columns: matrix products instead of one exponential per pixel and point.
    All terms of a sum with c ≥ 0 are positive, so even tiny sums keep their relative accuracy.
    Points more than `reach` bandwidths beyond a tile's rows or columns are left out.
    """
    order = torch.argsort(points[:, 0])
    points, coefficients = points[order], coefficients[:, order]
    query_rows, query_columns = queries
    k, n = coefficients.shape
    far = reach * bandwidth
    width = max(1, TILE_NUMBERS // n)
    height = max(1, min(TILE_ROWS, TILE_NUMBERS // (n * k)))
    for left in range(0, len(query_columns), width):
        across = slice(left, min(left + width, len(query_columns)))
        u = query_columns[across]
        near = (points[:, 1] >= u.min() - far) & (points[:, 1] <= u.max() + far)
        rows, columns = points[near].T.contiguous()
        c = coefficients[:, near]
        in_columns = _kernel(columns[:, None] - u, bandwidth)  # n w
        for top in range(0, len(query_rows), height):
            down = slice(top, min(top + height, len(query_rows)))
            v = query_rows[down]
            ends = torch.stack([v.min() - far, v.max() + far])
            low, high = torch.searchsorted(rows, ends).tolist()
            in_rows = _kernel(v[:, None] - rows[low:high], bandwidth)  # h n
            yield down, across, (c[:, None, low:high] * in_rows) @ in_columns[low:high]


def assembled_sums(
    points: Float64[Tensor, "n 2"],
    coefficients: Float64[Tensor, "k n"],
    bandwidth: float,
    queries: tuple[Float64[Tensor, " h"], Float64[Tensor, " w"]],
    reach: float = LOSSLESS_REACH,
) -> Float64[Tensor, "k h w"]:
    """The tiles of `gaussian_sums` in one piece."""
    whole = points.new_empty(len(coefficients), len(queries[0]), len(queries[1]))
    for down, across, sums in gaussian_sums(points, coefficients, bandwidth, queries, reach):
        whole[:, down, across] = sums
    return whole


def gaussian_sums_on_image(
    points: Float64[Tensor, "n 2"],
    coefficients: Float64[Tensor, "k n"],
    bandwidth: float,
    shape: tuple[int, int],
    reach: float,
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield the sums at every pixel of an image, several times faster for many points.

    The sums are smooth: they are computed at Chebyshev nodes of patches and interpolated to the
    pixels. Patches are small enough for the sums of a patch far from all points to be accurate. If
    this saves nothing, the sums are computed at the pixels.
    """
    height, width = shape
    device = points.device
    patch = min(int(2 * PATCH_EXPONENT / reach * min(bandwidth, 1e6)), 128)
    if 2 * patch < 3 * PATCH_NODES or len(points) < 2 * PATCH_NODES:
        v, u = (torch.arange(n, dtype=torch.float64, device=device) for n in shape)
        yield from gaussian_sums(points, coefficients, bandwidth, (v, u), reach)
        return
    positions, _, to_pixels = (m.to(device) for m in _chebyshev(patch))
    nodes = [
        (torch.arange(0, n, patch, device=device)[:, None] + positions).reshape(-1) for n in shape
    ]
    at_nodes = assembled_sums(points, coefficients, bandwidth, (nodes[0], nodes[1]), reach)
    for i, top in enumerate(range(0, height, patch)):
        band = at_nodes[:, i * PATCH_NODES : (i + 1) * PATCH_NODES]
        band = _to_pixels(band, to_pixels[: height - top], to_pixels)[..., :width]
        yield slice(top, top + band.shape[1]), slice(0, width), band


def solved_on_image(
    points: Float64[Tensor, "n 2"],
    coefficients: Float64[Tensor, "k n"],
    bandwidth: float,
    shape: tuple[int, int],
    *,
    reach: float,
    solve: Callable[[Float64[Tensor, "k h w"]], Float64[Tensor, "m h w"]],
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield `solve` of the sums at each pixel.

    `solve` is called at the Chebyshev nodes of patches, larger ones than the sums themselves need,
    and interpolated if the last coefficients of its series are small. Elsewhere, for example at the
    rim of a cluster of points, it is called at every pixel.
    """
    height, width = shape
    patch = max(1, min(int(SOLVED_PATCH * min(bandwidth, 1e6)), max(shape)))
    few = 2 * patch < 3 * PATCH_NODES or len(points) < 2 * PATCH_NODES
    positions, to_series, to_pixels = (m.to(points.device) for m in _chebyshev(patch))
    across = torch.arange(0, width, patch, device=points.device)[:, None] + positions
    band = height if few else patch
    for top in range(0, height, band):
        rows = min(band, height - top)
        if not few:
            nodes = positions + top, across.reshape(-1)
            solved = solve(assembled_sums(points, coefficients, bandwidth, nodes, reach))
            if _resolved(solved, to_series):
                solved = _to_pixels(solved, to_pixels[:rows], to_pixels)[..., :width]
                yield slice(top, top + rows), slice(0, width), solved
                continue
        moved = points - points.new_tensor([top, 0])
        for down, columns, sums in gaussian_sums_on_image(
            moved, coefficients, bandwidth, (rows, width), reach
        ):
            yield slice(top + down.start, top + down.stop), columns, solve(sums)


def _to_pixels(
    maps: Float64[Tensor, "k nodes across"], down: Tensor, across: Tensor
) -> Float64[Tensor, "k h w"]:
    """A band of patches, from its nodes to its pixels."""
    return ((down @ maps).unflatten(-1, (-1, PATCH_NODES)) @ across.T).flatten(-2)


def _resolved(maps: Float64[Tensor, "m nodes across"], to_series: Tensor) -> bool:
    """Whether the last Chebyshev coefficients of every patch are negligible."""
    last = to_series[-2:]
    down = (last @ maps).abs().amax()
    across = (maps.unflatten(-1, (-1, PATCH_NODES)) @ last.T).abs().amax()
    return bool(torch.maximum(down, across) <= RESOLVED * maps.abs().amax())


def _chebyshev(
    patch: int,
) -> tuple[
    Float64[Tensor, " nodes"], Float64[Tensor, "nodes nodes"], Float64[Tensor, "patch nodes"]
]:
    """The nodes in 0 … patch − 1, and matrices from values there to the series and to pixels."""
    degree = torch.arange(PATCH_NODES, dtype=torch.float64)
    angle = (degree + 0.5) * math.pi / PATCH_NODES
    to_series = torch.cos(degree[:, None] * angle) * (2 / PATCH_NODES)
    to_series[0] /= 2
    pixels = torch.linspace(-1, 1, patch, dtype=torch.float64)
    to_pixels = torch.cos(torch.acos(pixels)[:, None] * degree) @ to_series
    return (torch.cos(angle) + 1) / 2 * (patch - 1), to_series, to_pixels


def _kernel(difference: Tensor, bandwidth: float) -> Tensor:
    return torch.exp(-0.5 * (difference / bandwidth) ** 2)
