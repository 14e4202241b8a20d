"""Targets y of the log-scale field at the anchors, and their weights."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from scalefield.anchors import Anchors
from scalefield.mde.output import MDEOutput


def targets(mde_output: MDEOutput, anchors: Anchors) -> Float64[np.ndarray, " n"]:
    """y_i = log D_gt(a_i) − log D_MDE(a_i) (Eq. anchor_targets)."""
    rows, columns = anchors.pixels(mde_output.shape)
    mde_depth = mde_output.mde_depth[rows, columns].double().cpu().numpy()
    return np.log(anchors.depth_m) - np.log(mde_depth)


def anchor_weights(anchors: Anchors) -> Float64[np.ndarray, " n"]:
    """ω: ones, or inverse variances of log-depth scaled to a mean of one.

    Anchors without a deviation get the one of `Anchors.complete_sigma_m`.
    """
    sigma_m = anchors.complete_sigma_m()
    if sigma_m is None:
        return np.ones(len(anchors))
    precision = (sigma_m / anchors.depth_m) ** -2
    return precision / precision.mean()
