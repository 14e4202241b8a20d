"""The nearest anchors of every pixel, computed tile by tile."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Bool, Int64
from scipy.spatial import cKDTree
from torch import Tensor

LARGEST_TILE, SMALLEST_TILE = 32, 8
MANY_CANDIDATES = 24
"""Tiles with more candidates than this are divided into four."""
PIXELS_AT_ONCE = 1 << 15
"""Pixels at a time, so that temporary arrays stay in the processor's cache."""


def nearest_points(
    points: Int64[np.ndarray, "n 2"],
    shape: tuple[int, int],
    k: int,
    device: torch.device,
    wanted: Bool[np.ndarray, "h w"] | None = None,
) -> Iterator[tuple[Int64[Tensor, " p"], Int64[Tensor, "k p"], Int64[Tensor, "k p"]]]:
    """Yield flat pixel indices, the k points nearest to each (row, column), and their d².

    Pixels come tile by tile, in no order, and some of them twice; of equally near points the first
    is taken. `wanted` selects the pixels that are needed; by default all are. n ≥ k must hold.
    """
    tree = cKDTree(points)
    size = 1 << int(math.log2(min(LARGEST_TILE, *shape)))
    # The last tile of a row or column ends with the image, so it may overlap the one before.
    down, across = (np.minimum(np.arange(0, n, size), n - size) for n in shape)
    corners = np.stack(np.meshgrid(down, across, indexing="ij"), axis=-1)
    useful = np.full(corners.shape[:2], wanted is None)
    if wanted is not None:
        v, u = np.nonzero(wanted)
        useful[v // size, u // size] = True
    corners = corners[useful]
    while len(corners):
        candidates = _candidates(tree, corners, size, k)
        counts = np.array([len(c) for c in candidates])
        last = size <= SMALLEST_TILE
        done = np.flatnonzero(last | (counts <= MANY_CANDIDATES))
        done = done[np.argsort(counts[done], kind="stable")]  # similar counts need little padding
        step = max(1, PIXELS_AT_ONCE // size**2)
        for first in range(0, len(done), step):
            chunk = done[first : first + step]
            table = np.full((len(chunk), counts[chunk[-1]]), len(points))
            table[np.arange(table.shape[1]) < counts[chunk, None]] = [
                *itertools.chain.from_iterable(candidates[chunk])
            ]
            yield _in_tiles(
                points, corners[chunk], table, size=size, shape=shape, k=k, device=device
            )
        if last:
            return
        size //= 2
        quarters = np.indices((2, 2)).reshape(2, 4).T * size
        corners = (corners[counts > MANY_CANDIDATES][:, None] + quarters).reshape(-1, 2)


def _candidates(tree: cKDTree, corners: np.ndarray, size: int, k: int) -> np.ndarray:
    """For each tile, the sorted indices of the points that may be among the k nearest of a pixel.

    At the centre of the tile the k-th nearest point has distance d. Pixels are at most r from the
    centre, so their k-th nearest is within d + r of them and within d + 2r of the centre.
    """
    centres = corners + (size - 1) / 2
    distance, _ = tree.query(centres, k=[k])
    radius = distance[:, 0] + math.sqrt(2) * (size - 1) + 1e-6
    return tree.query_ball_point(centres, radius, return_sorted=True)


def _in_tiles(
    points: np.ndarray,
    corners: np.ndarray,
    table: np.ndarray,
    *,
    size: int,
    shape: tuple[int, int],
    k: int,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor]:
    """The values that `nearest_points` yields, for tiles and their candidates, padded with n.

    d²·2^bits + candidate is a key that holds distance and index: minima and maxima of keys sort the
    candidates. The parts of d² along rows and columns are computed once each.
    """
    tiles, most = table.shape
    bits = most.bit_length()
    padded = table == len(points)
    places = points[np.where(padded, 0, table)]  # t c 2
    pixels = corners[:, None, :] + np.arange(size)[:, None]  # t size 2
    squares = (pixels[:, None] - places[:, :, None]) ** 2 << bits  # t c size 2
    squares[padded] = shape[0] ** 2 + shape[1] ** 2 << bits  # farther than any pixel is
    squares[..., 0] += np.arange(most)[:, None]
    # Half as many bytes are twice as fast, where they suffice.
    small = 2 * int(squares.max()) < 2**31
    parts = torch.from_numpy(squares.astype(np.int32 if small else np.int64)).to(device)
    rows, columns = parts.permute(3, 1, 0, 2).contiguous()  # c t size
    best = parts.new_full((k, tiles, size, size), torch.iinfo(parts.dtype).max)
    spare = torch.empty_like(best[0])
    for c in range(most):
        key = rows[c, :, :, None] + columns[c, :, None, :]
        for level in best[: c + 1]:
            torch.maximum(level, key, out=spare)
            torch.minimum(level, key, out=level)
            key, spare = spare, key
    flat = pixels[:, :, None, 0] * shape[1] + pixels[:, None, :, 1]
    in_table = torch.from_numpy(np.arange(tiles) * most).to(device)[:, None, None]
    flat_index = (best & ((1 << bits) - 1)) + in_table  # k t size size
    index = torch.from_numpy(table).to(device).view(-1)[flat_index.view(-1)].view(k, -1)
    squared = (best >> bits).view(k, -1).long()
    return torch.from_numpy(flat.reshape(-1)).to(device), index, squared
