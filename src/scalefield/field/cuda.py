"""What a CUDA graph needs in place of the faster code of a processor: shapes that do not depend on
values, without a copy from or to the host."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int64
from torch import Tensor

TILE_NODES = 4
"""Successive nodes of a row that share their candidates."""
TILE_CANDIDATES = 64
"""Anchors that the nodes of a tile choose their neighbours from."""
CHUNK_DISTANCES = 1 << 24
"""Distances between tiles and anchors that are held at once."""


def nearest_in_tiles(
    nodes: Float[Tensor, "m 2"],
    anchors: Float[Tensor, "n 2"],
    mask: Bool[Tensor, " n"],
    k: int,
    row_length: int = 1,
    *,
    at_once: bool = False,
) -> tuple[Int64[Tensor, "m k"], Bool[Tensor, "m k"]]:
    """`lattice.nearest` by brute force in two steps: the candidates of each tile of up to
    `TILE_NODES` successive nodes of a row of `row_length`, then each node's own among them.

    `at_once` holds all distances to the candidates: more memory, fewer kernels.
    """
    anchors = anchors.float().masked_fill(~mask[:, None], torch.inf)
    side = min(TILE_NODES, row_length)
    rows = nodes.float().reshape(-1, row_length, 2)
    beyond = rows[:, -1:].expand(-1, -row_length % side, 2)
    tiles = torch.cat([rows, beyond], dim=1).reshape(-1, side, 2)
    middle = (tiles.amin(dim=1) + tiles.amax(dim=1)) / 2
    count = min(max(TILE_CANDIDATES, k), len(anchors))
    found = []
    step = len(middle) if at_once else max(1, CHUNK_DISTANCES // len(anchors))
    for part in middle.split(step):
        du, dv = part[:, :1] - anchors[:, 0], part[:, 1:] - anchors[:, 1]
        distance = du.square_().addcmul_(dv, dv)
        found.append(distance.topk(count, largest=False, sorted=False).indices)
    candidates = torch.cat(found)
    apart = (tiles[:, :, None] - anchors[candidates][:, None]).square().sum(dim=-1)
    closest = apart.topk(k, largest=False)
    index = candidates[:, None].expand(-1, side, -1).gather(2, closest.indices)
    there = closest.values.isfinite()
    index, there = (
        values.reshape(len(rows), -1, k)[:, :row_length].reshape(len(nodes), k)
        for values in (index, there)
    )
    return index, there


def blocks_in_strips(
    position: Float[Tensor, "n 2"], mask: Bool[Tensor, " n"], most: int
) -> tuple[Int64[Tensor, "b s"], Bool[Tensor, "b s"]]:
    """Index of the observations of blocks of at most `most`, and whether there is one.

    Sort-tile-recursive packing (Leutenegger, Lopez and Edgington, 1997): vertical strips of
    observations sorted by u, each cut into blocks of observations sorted by v. Those outside the
    mask come last.
    """
    n = len(mask)
    blocks = -(-n // most)
    strips = max(1, round(math.sqrt(blocks)))
    per_strip = -(-blocks // strips)
    size = -(-n // (strips * per_strip))
    mask = nnf.pad(mask, (0, 1))  # row n is padding
    u, v = nnf.pad(position.mT, (0, 1)).masked_fill(~mask, torch.inf)
    index = torch.arange(strips * per_strip * size, device=position.device).clamp(max=n)
    index = index[u[index].sort(stable=True).indices].reshape(strips, -1)
    index = index.gather(1, v[index].sort(dim=1, stable=True).indices).reshape(-1, size)
    known = mask[index]
    return index.masked_fill(~known, 0), known
