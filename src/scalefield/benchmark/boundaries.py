"""Sharpness of a depth map: boundary precision, recall and F1 as Depth Pro defines them.

A boundary lies between two neighbouring pixels whose depths have a ratio above a threshold t. Each
of the four directions (the right, left, lower or upper neighbour is farther) counts separately. A
predicted boundary is right if the true map has one at the same two pixels in the same direction.
The scores are weighted means over ten thresholds from 1.05 to 1.25, in proportion to t. They do not
depend on the scale of either map.

Bochkovskii et al., "Depth Pro: Sharp Monocular Metric Depth in Less Than a Second", ICLR 2025.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float


class BoundaryScores(NamedTuple):
    """Weighted means over thresholds, in 0 … 1."""

    precision: float
    recall: float
    f1: float


def boundary_scores(
    predicted: Float[np.ndarray, "h w"],
    true: Float[np.ndarray, "h w"],
    known: Bool[np.ndarray, "h w"] | None = None,
    *,
    thresholds: Float[np.ndarray, " t"] | None = None,
) -> BoundaryScores:
    """Scores of a predicted depth map against a dense true one.

    Pairs with a pixel outside of `known` are left out. A direction without any boundary in the map
    that is divided by counts as zero, as in Depth Pro.
    """
    thresholds = np.linspace(1.05, 1.25, 10) if thresholds is None else thresholds
    known = np.ones(true.shape, bool) if known is None else known
    usable = known & (predicted > 0) & (true > 0)
    pairs = [
        (axis, usable[1:] & usable[:-1] if axis == 0 else usable[:, 1:] & usable[:, :-1])
        for axis in (0, 1)
    ]
    steps = [
        (np.diff(np.log(np.where(usable, predicted, 1)), axis=axis)[both],
         np.diff(np.log(np.where(usable, true, 1)), axis=axis)[both])
        for axis, both in pairs
    ]  # fmt: skip
    scores = []
    for threshold in np.log(thresholds):
        precision, recall = 0.0, 0.0
        for predicted_steps, true_steps in steps:
            for sign in (1, -1):
                predicted_edges, true_edges = (
                    sign * predicted_steps > threshold,
                    sign * true_steps > threshold,
                )
                hits = int(np.count_nonzero(predicted_edges & true_edges))
                precision += 0.25 * hits / max(int(np.count_nonzero(predicted_edges)), 1)
                recall += 0.25 * hits / max(int(np.count_nonzero(true_edges)), 1)
        both = precision + recall
        scores.append((precision, recall, 2 * precision * recall / both if both else 0.0))
    weights = thresholds / thresholds.sum()
    return BoundaryScores(*(float(x) for x in weights @ np.array(scores)))
