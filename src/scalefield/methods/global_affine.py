"""Global affine alignment: one scale and one shift for the whole image (Eq. 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from torch import Tensor

from scalefield.alignment.affine import (
    MIN_RELATIVE_RANGE,
    Affine,
    Samples,
    curve_std,
    fit_affine,
    fit_ransac,
    fit_scale,
    relative_range,
)
from scalefield.anchors import Anchors
from scalefield.mde.output import MDEOutput, Space
from scalefield.recovery import Method, Recovery
from scalefield.report import Rejection
from scalefield.validation import require_choice

Fit = Literal["least_squares", "ransac", "median_mad"]


@dataclass(frozen=True)
class Global(Method):
    """One scale and one shift for the image, fitted to the anchors.

    Minimises Σ w (y − s·x − t)² with w = 1/σ² if σ is known (Eq. 2). Fallbacks: scale
    only (the median of y/x) for one anchor, anchors of equal relative depth or s ≤ 0; a constant if
    no anchor has a relative disparity above zero.
    """

    fit: Fit = "least_squares"
    """least_squares; ransac, whose threshold is the mean absolute deviation from the residuals'
    median; median_mad, which matches medians and mean absolute deviations and ignores sigma_m."""
    space: Space | None = None
    """Space of the fit. None: disparity for affine-invariant disparity; for other maps the
    published one, which is disparity for median_mad and else depth."""
    seed: int = 0
    """Seed of RANSAC's pairs of anchors, if there are too many to try all."""

    def __post_init__(self) -> None:
        require_choice("fit", self.fit, get_args(Fit))
        if self.space is not None:
            require_choice("space", self.space, get_args(Space))

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery[Tensor]:
        """Recover from one anchor or more."""
        published: Space = "disparity" if self.fit == "median_mad" else "depth"
        space = mde_output.space_of_fit(self.space, published)
        samples = Samples.at(mde_output, anchors, space)
        rejected: tuple[Rejection, ...] = ()
        if self.fit == "ransac":
            affine, inliers = fit_ransac(samples, self.seed)
            outliers = np.sort(samples.index[~inliers])
            rejected = tuple(
                Rejection(int(i), "ransac_outlier", "outside RANSAC's consensus") for i in outliers
            )
            samples = samples[inliers]
        elif self.fit == "median_mad":
            affine = match_median_mad(samples)
        else:
            affine = fit_affine(samples)
        return Recovery.from_space(
            mde_output,
            anchors,
            affine(mde_output.in_space(space).double()),
            space,
            rejected=rejected,
            std_log=curve_std(mde_output, samples, space, curve=affine, design=affine.design),
            fallbacks=(affine.fallback,) if affine.fallback else (),
        )


def match_median_mad(samples: Samples) -> Affine:
    """s = MAD(y) / MAD(x), t = med(y) − s·med(x), MAD the mean absolute deviation from med."""
    x, y = samples.x, samples.y
    x_median, y_median = np.median(x), np.median(y)
    x_mad, y_mad = np.abs(x - x_median).mean(), np.abs(y - y_median).mean()
    if len(samples) == 1 or relative_range(x) < MIN_RELATIVE_RANGE:
        return fit_scale(samples, "the relative depth has no spread over the anchors")
    if y_mad == 0:
        return fit_scale(samples, "every anchor has the same depth")
    scale = y_mad / x_mad
    return Affine(float(scale), float(y_median - scale * x_median))
