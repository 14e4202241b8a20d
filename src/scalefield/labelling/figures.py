"""Figures of a label: its error at held-out anchors, and what the anchors cover."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Bool, Float64

from scalefield.anchor_sampling import block_folds
from scalefield.anchors import Anchors
from scalefield.api import recover_from
from scalefield.export.result_folder import median_error
from scalefield.labelling.rules import Figures
from scalefield.mde.output import MDEOutput
from scalefield.recovery import Method, Recovery, Solver
from scalefield.seeding import seeded_rng

ENOUGH = 40
"""Held-out anchors after which no further fold is fitted; each fold costs as much as the label."""


def figures(
    recovery: Recovery[np.ndarray],
    anchors: Anchors,
    held_out: Float64[np.ndarray, " n"] | None,
    labelled: Bool[np.ndarray, "h w"],
) -> Figures:
    """The figures that `Rules` are applied to, of the pixels that the label has."""
    report, std_log = recovery.report, recovery.std_log
    labelled = labelled & np.isfinite(recovery.depth_m)
    depth_m, empty = recovery.depth_m[labelled], not labelled.any()
    near, far = anchors.depth_m.min() / 2, anchors.depth_m.max() * 2
    height, width = recovery.depth_m.shape
    box = (np.ptp(anchors.u) + 1) * (np.ptp(anchors.v) + 1) / (height * width)
    return Figures(
        anchors=report.anchors_used,
        unused=len(report.rejected) / len(anchors),
        held_out_error=None if held_out is None else median_error(held_out),
        in_range=0.0 if empty else float(np.mean((depth_m >= near) & (depth_m <= far))),
        labelled=float(labelled.mean()),
        coverage=min(1.0, float(box)),
        std_log=None if std_log is None or empty else float(np.nanmedian(std_log[labelled])),
        hole_pixels=report.hole_pixels,
        limited_pixels=report.limited_pixels,
        fallbacks=report.fallbacks,
        warnings=report.warnings,
    )


def held_out_errors(
    mde_output: MDEOutput,
    anchors: Anchors,
    method: Method,
    folds: int,
    name: str,
    *,
    solver: Solver | None = None,
) -> Float64[np.ndarray, " n"] | None:
    """log D̂ − log depth at held-out anchors, from fits without them; None for one anchor.

    Residuals of the fit itself are not used: a flexible method passes through its anchors, correct
    or not. The folds are those of `block_folds`: a neighbour on the same ring of a LiDAR predicts
    an anchor and no other pixel. Where that makes none, they are random and depend on the image's
    name only. They are held out one after the other until `ENOUGH` anchors have been.
    """
    n = len(anchors)
    if n < 2:
        return None
    folds = min(folds, n)
    part = block_folds(anchors.u, anchors.v, folds)
    if part is None:
        part = seeded_rng(0, name, "folds").permutation(n) * folds // n
    rows, columns = anchors.pixels(mde_output.shape)
    errors = np.full(n, math.nan)
    for fold in range(folds):
        if np.count_nonzero(part < fold) >= ENOUGH:
            break
        out = part == fold
        if not out.any():
            continue
        depth_m = recover_from(mde_output, anchors[~out], method, solver=solver).numpy().depth_m
        errors[out] = np.log(depth_m[rows[out], columns[out]]) - np.log(anchors.depth_m[out])
    held_out = errors[np.isfinite(errors)]  # NaN: never held out, or on a hole of the map
    return held_out if len(held_out) else None
