"""Regions of an image: superpixels, connected components of labels, merging of small regions."""

from __future__ import annotations

import heapq
import math
from collections import Counter

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from scalefield.errors import import_extra
from scalefield.mde.output import MDEOutput


def superpixel_labels(
    mde_output: MDEOutput, superpixels: int, compactness: float, max_pixels: int = 1_000_000
) -> Int64[np.ndarray, "h w"]:
    """SLIC superpixels of (RGB, log D_MDE); of log D_MDE alone without an image.

    Of an image with more than `max_pixels` pixels, every second, third … row and column is used,
    and the pixels between them take the labels of their neighbours.
    """
    segmentation = import_extra(
        "skimage.segmentation", "region", "superpixels", package="scikit-image"
    )
    height, width = mde_output.shape
    step = math.ceil(math.sqrt(height * width / max_pixels))
    labels = segmentation.slic(
        _Channels(mde_output, step),
        n_segments=min(superpixels, mde_output.prediction.numel()),
        compactness=compactness,
        convert2lab=False,
        start_label=0,
        channel_axis=-1,
    )
    labels = labels.astype(np.int64, copy=False)
    if step == 1:
        return labels
    return labels.repeat(step, axis=0).repeat(step, axis=1)[:height, :width]


class _Channels:
    """Features of the superpixels, as an array-like that is evaluated when `slic` asks for it.

    `slic` copies its input twice; an array held by the caller would stay in memory beside both
    copies.
    """

    ndim = 3

    def __init__(self, mde_output: MDEOutput, step: int = 1) -> None:
        self.mde_output, self.step = mde_output, step

    def __array__(self, dtype: object = None, copy: object = None) -> Float64[np.ndarray, "h w c"]:
        image, step = self.mde_output.image, self.step
        mde_depth = self.mde_output.mde_depth[::step, ::step]
        channels = np.empty((*mde_depth.shape, 1 if image is None else 4))
        log_depth = mde_depth.double().log().cpu().numpy()
        low, high = np.quantile(log_depth, (0.05, 0.95))
        np.subtract(log_depth, low, out=log_depth)
        np.divide(log_depth, max(high - low, 1e-6), out=log_depth)
        np.clip(log_depth, -1, 2, out=channels[..., 0])
        if image is not None:
            np.divide(image[::step, ::step].cpu().numpy(), 255, out=channels[..., 1:])
        return channels


def components(labels: Int64[np.ndarray, "h w"]) -> Int64[np.ndarray, "h w"]:
    """The image with the connected parts (4 neighbours) of equal labels numbered from 0."""
    # Nodes are runs of a row, of which there are far fewer than pixels; two runs that touch are
    # joined once, where the later of the two begins.
    begins = np.ones(labels.shape, dtype=bool)
    begins[:, 1:] = labels[:, 1:] != labels[:, :-1]
    run = np.cumsum(begins).reshape(labels.shape) - 1
    joined = (labels[1:] == labels[:-1]) & (begins[1:] | begins[:-1])
    above, below = run[:-1][joined], run[1:][joined]
    runs = int(run[-1, -1]) + 1
    graph = coo_array((np.ones(len(above), bool), (above, below)), shape=(runs, runs))
    _, parts = connected_components(graph, directed=False)
    return parts.astype(np.int64)[run]


def merge_small(regions: Int64[np.ndarray, "h w"], min_share: float) -> Int64[np.ndarray, "h w"]:
    """Join regions below the share of the image, smallest first, across their longest border."""
    sizes = np.bincount(regions.reshape(-1)).tolist()
    smallest = min_share * regions.size
    small = [(size, region) for region, size in enumerate(sizes) if size < smallest]
    if not small:
        return regions
    borders = _border_lengths(regions, len(sizes))
    parent = list(range(len(sizes)))
    heapq.heapify(small)
    while small:
        size, region = heapq.heappop(small)
        if parent[region] != region or sizes[region] != size or not borders[region]:
            continue  # joined another or grown since; or the whole image
        into = max(borders[region], key=lambda other: (borders[region][other], -other))
        parent[region] = into
        sizes[into] += size
        for other, length in borders.pop(region).items():
            del borders[other][region]
            if other != into:
                borders[into][other] += length
                borders[other][into] += length
        if sizes[into] < smallest:
            heapq.heappush(small, (sizes[into], into))
    for region in range(len(parent)):
        root = region
        while parent[root] != root:
            root = parent[root]
        parent[region] = root
    _, merged = np.unique(parent, return_inverse=True)
    return merged.astype(np.int64)[regions]


def _border_lengths(regions: np.ndarray, count: int) -> dict[int, Counter[int]]:
    """Neighbours of every region, with the number of shared pixel edges."""
    down, across = regions[1:] != regions[:-1], regions[:, 1:] != regions[:, :-1]
    first = np.concatenate([regions[:-1][down], regions[:, :-1][across]])
    second = np.concatenate([regions[1:][down], regions[:, 1:][across]])
    pairs = np.sort(np.stack([first, second], axis=1), axis=1)
    edges, lengths = np.unique(pairs, axis=0, return_counts=True)
    borders: dict[int, Counter[int]] = {region: Counter() for region in range(count)}
    for (a, b), length in zip(edges.tolist(), lengths.tolist(), strict=True):
        borders[a][b] = borders[b][a] = length
    return borders


def on_border(regions: np.ndarray) -> Bool[np.ndarray, "h w"]:
    """Pixels with a 4-neighbour in another region."""
    border = np.zeros(regions.shape, dtype=bool)
    down, across = regions[1:] != regions[:-1], regions[:, 1:] != regions[:, :-1]
    border[1:] |= down
    border[:-1] |= down
    border[:, 1:] |= across
    border[:, :-1] |= across
    return border


def members_of(regions: Int64[np.ndarray, "h w"]) -> list[np.ndarray]:
    """Flat pixel indices of each region, in the order of the regions' numbers."""
    flat = regions.reshape(-1)
    # The stable sort of small types is linear in the number of pixels.
    order = np.argsort(flat.astype(np.min_scalar_type(flat.max())), kind="stable")
    return np.split(order, np.cumsum(np.bincount(flat))[:-1])
