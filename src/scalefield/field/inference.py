"""From anchors to a fitted field: shift, outliers, scale of the errors, posterior, calibration."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.basis.grids import grid_shape, upsample
from scalefield.basis.ridge import masked_median
from scalefield.field.blocks import Blocks
from scalefield.field.config import InferenceConfig
from scalefield.field.editor import FieldEditor
from scalefield.field.error_scale import kernel_of_image
from scalefield.field.image_inputs import ImageInputs
from scalefield.field.model import FieldModel
from scalefield.field.outliers import detect_outliers
from scalefield.field.posterior import TINY, Calibration, FieldFit, fit
from scalefield.field.shift import Shift, shift_posterior
from scalefield.mde.output import MDEOutput
from scalefield.recovery import Recovery
from scalefield.report import Rejection, Warning

ScalePrior = Literal["none", "learned"]

UNDETERMINED_SHARE = 0.8
"""Share of the prior's standard deviation above which the shift counts as not determined."""
PRIOR_STD_CELLS = 80
"""Cells along the longer side at which the prior standard deviation is computed."""


@dataclass(frozen=True, eq=False)
class FieldResult:
    """A fitted field, and what the search for outliers reports."""

    fit: FieldFit
    order: Int64[np.ndarray, " n"]
    """Index in the given anchors of each observation."""
    noise: Float[Tensor, " n"]
    """Standard deviations of the observations, without what the outlier search added."""
    rejected: tuple[Rejection, ...] = ()
    warnings: tuple[Warning, ...] = ()
    in_conflict: Bool[np.ndarray, " n"] | None = None
    """Observations that were rejected or given less weight; None if nothing was looked for."""
    shift: Shift | None = None
    """Posterior of the shift of an affine-invariant map."""

    def leave_one_out(self) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
        """Residual of each anchor's log-depth from what the others predict, and its calibrated
        standard deviation, in the order of the given anchors; rejected anchors included."""
        inputs, y, noise, mask = self.fit.observations
        residual, std = self.fit.linear.loo_residual.clone(), self.fit.linear.loo_std.clone()
        if not bool(mask.all()):
            uv = self.fit.image.pixel_uv(inputs.position[~mask]).round().long()
            mean, variance = self.fit.predict(uv[:, 1], uv[:, 0])
            residual[~mask] = y[~mask] - mean
            std[~mask] = (variance + noise[~mask] ** 2).sqrt()
        # The distance of an outlier is measured by its own noise, not by the increased one.
        std = (std**2 - noise**2 + self.noise**2).clamp(min=1e-12).sqrt()
        std = std * self.fit.calibration.at_anchors
        ordered = np.empty((2, len(y)))
        ordered[:, self.order] = torch.stack([residual, std]).cpu().numpy()
        return ordered[0], ordered[1]

    def leave_one_out_log(self) -> tuple[float, ...]:
        """log D̂ − log depth at each used anchor, D̂ predicted by the others; empty for one."""
        mask, residual = self.fit.observations.mask, self.fit.linear.loo_residual
        ordered = np.full(len(mask), np.nan)
        ordered[self.order] = residual.where(mask, torch.nan).cpu().numpy()
        used = ordered[np.isfinite(ordered)]
        return tuple((-used).tolist()) if len(used) > 1 else ()


def infer(
    model: FieldModel,
    image: ImageInputs,
    anchors: Anchors,
    *,
    robust: bool = True,
    scale_prior: ScalePrior = "none",
    config: InferenceConfig | None = None,
    editor: FieldEditor | None = None,
) -> FieldResult:
    """Fit the field to anchors; `editor` keeps what an edit of them does not change."""
    config = config or InferenceConfig()
    shift = None
    if image.affine is not None:
        shift = estimate_shift(model, image, anchors, robust=robust, config=config)
        image = image.with_shift(shift)
    order = canonical_order(anchors)
    observed = image.observe(anchors, model.kernel, order)
    rejected: tuple[Rejection, ...] = ()
    warnings: tuple[Warning, ...] = ()
    in_conflict = None
    noise = observed.noise
    blocks = editor.split(observed, config) if editor else Blocks.split(observed, config)
    if robust:
        memo = editor.outliers if editor else None
        outliers = detect_outliers(model.kernel, observed, blocks, config.outliers, memo=memo)
        rejected, warnings = outliers.report(anchors, order)
        in_conflict = (outliers.rejected | outliers.downweighted).cpu().numpy()
        observed = outliers.apply(observed)
    observed = observed.with_spread_of_repeated_pixels()
    kernel = kernel_of_image(model.kernel, observed, model.error_scales, config.exact_block)
    offset = None
    if scale_prior == "learned":
        kernel = dataclasses.replace(kernel, constant_std=model.scale_prior_std)
        offset = image.maps.expected_log_depth[0].double() - image.log_depth_median
    memo = editor.solutions if editor else None
    fitted = fit(kernel, image, observed, config, blocks=blocks, offset=offset, memo=memo)
    fitted = calibrated(model, fitted, scale_known=scale_prior == "learned")
    if shift is not None:
        warnings += shift_warnings(shift, model.shift_prior)
    return FieldResult(fitted, order, noise, rejected, warnings, in_conflict, shift)


def canonical_order(anchors: Anchors) -> Int64[np.ndarray, " n"]:
    """An order of the anchors that does not depend on the user's, so that neither does the result,
    not even by rounding."""
    return np.lexsort((anchors.depth_m, anchors.u, anchors.v))


def calibrated(model: FieldModel, fitted: FieldFit, *, scale_known: bool = False) -> FieldFit:
    """The fitted field with the calibration of its standard deviation."""
    linear, (_, _, noise, mask) = fitted.linear, fitted.observations
    n = mask.sum()
    loo_std = torch.where(mask, linear.loo_std, 1.0)
    total = sum_abs_z(linear.loo_residual, loo_std)
    # A scale that is known beforehand counts as one more observation.
    factor = empirical_bayes_scale(total, n + scale_known, model.prior_count)
    factor = factor * n.clamp(min=1).double() ** -model.std_decay
    prior = fitted.features.amplitude.square().sum(dim=-1).clamp(min=TINY)
    remaining = masked_median((loo_std**2 - noise**2).clamp(min=0) / prior, mask)
    calibration = Calibration(
        model.std_scale, torch.where(n > 0, factor, 1.0), remaining.clamp(min=TINY)
    )
    return dataclasses.replace(fitted, calibration=calibration)


def estimate_shift(
    model: FieldModel,
    image: ImageInputs,
    anchors: Anchors,
    *,
    robust: bool = True,
    prior: Shift | None = None,
    config: InferenceConfig | None = None,
) -> Shift:
    """Posterior of the shift of an affine-invariant map, from at most `exact_block` anchors.

    Outliers are looked for with the prior of the shift as a part of the kernel, so that an unknown
    shift does not make outliers of good anchors.
    """
    affine = image.affine
    assert affine is not None
    config, prior = config or InferenceConfig(), prior or model.shift_prior
    if len(anchors) == 0:
        return prior
    order = canonical_order(anchors)
    spread = np.linspace(0, len(order) - 1, min(len(order), config.exact_block)).astype(np.int64)
    anchors, image = anchors[order[spread]], image.with_shift(prior)
    observed = image.observe(anchors, model.kernel)
    if robust:
        blocks = Blocks.split(observed, config)
        observed = detect_outliers(model.kernel, observed, blocks, config.outliers).apply(observed)
    rows, columns = map(image.tensor, anchors.pixels(image.shape))
    shift = shift_posterior(
        model.kernel, affine, observed, (rows, columns), prior=prior, scales=model.error_scales
    )
    return Shift(float(shift.mean), float(shift.std))


def shift_warnings(shift: Shift, prior: Shift) -> tuple[Warning, ...]:
    """A warning if the anchors hardly determine the shift."""
    if shift.std < UNDETERMINED_SHARE * prior.std:
        return ()
    text = (
        "the anchors do not determine the shift of this affine-invariant map, because their "
        "relative depths are too similar; depth unlike theirs rests on the shift of usual scenes: "
        "measure a near and a far point"
    )
    return (Warning("shift_undetermined", text),)


def sum_abs_z(residual: Float[Tensor, " n"], std: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """Σ |z| √(π/2) of leave-one-out residuals: each is 1 in the mean where z is unit normal."""
    return (residual / std).abs().sum() * math.sqrt(math.pi / 2)


def empirical_bayes_scale(sum_abs_z: Tensor, n: Tensor | int, prior_count: float) -> Tensor:
    """Mean of |z| √(π/2) over n − 1 residuals and `prior_count` prior ones of 1."""
    return (prior_count + sum_abs_z) / (prior_count + n - 1)


def expected_recovery(
    model: FieldModel, mde_output: MDEOutput, image: ImageInputs
) -> Recovery[Tensor]:
    """Depth without any anchor: the learned scale and mean function, with their uncertainty."""
    maps, shape = image.maps, image.shape
    mean = upsample(maps.mean, shape)[0, 0]
    log_scale = mean + (maps.expected_log_depth[0] - image.log_depth_median)
    cells = grid_shape(*shape, PRIOR_STD_CELLS)
    inputs, _ = image.cells(cells)
    variance = model.kernel.variance(inputs) - model.kernel.constant_std**2
    variance = model.scale_prior_std**2 + model.std_scale**2 * variance
    std_log = upsample(variance.sqrt().float().reshape(1, 1, *cells), shape)[0, 0]
    factor = math.exp(float(std_log.median()))
    warning = Warning(
        "no_anchors",
        "no anchors: this is the depth to be expected of such an image, at a typical pixel wrong "
        f"by a factor of {factor:.2g} or more in one case of three; measure a point to do better",
    )
    recovery = Recovery.from_log_scale(
        image.as_output(mde_output),
        Anchors([], [], []),
        log_scale,
        kind=mde_output.kind,
        warnings=(warning,),
        std_log=std_log,
        shift=image.shift_interval(model.shift_prior),
    )
    return dataclasses.replace(recovery, basis_maps=maps.modes[0])
