"""From anchors to a fitted field: observations, outliers, posterior, calibration of its std."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.basis.grids import grid_shape, upsample
from scalefield.basis.ridge import masked_median
from scalefield.field.blocks import Blocks, BlockSolutions, Observations
from scalefield.field.config import InferenceConfig
from scalefield.field.editor import BlockMemory
from scalefield.field.error_scale import factors_of_image
from scalefield.field.image_inputs import ImageInputs
from scalefield.field.kernel import Kernel
from scalefield.field.local import Lattice
from scalefield.field.model import FieldModel
from scalefield.field.outliers import OutlierResult, detect_outliers
from scalefield.field.posterior import TINY, FieldFit, fit
from scalefield.field.shift import Shift, shift_posterior
from scalefield.mde.output import MDEOutput
from scalefield.recovery import Recovery
from scalefield.report import Rejection, Warning

ScalePrior = Literal["none", "learned"]

MIN_NOISE_STD = 1e-3
"""Least standard deviation of an anchor's log-depth: the pixel that it falls in and the relative
depth there agree no better, however precise the measurement."""
UNDETERMINED_SHARE = 0.8
"""Share of the prior's standard deviation above which the shift counts as not determined."""
PRIOR_STD_CELLS = 80
"""Cells along the longer side at which the prior standard deviation is computed."""


class Calibration(NamedTuple):
    """Factors that turn the posterior's standard deviation into that of the errors.

    An estimator that errs half as much as in training has leave-one-out residuals half as large,
    and then the standard deviation is halved too: but only at pixels that the anchors determine
    about as well as they determine each other. Where more of the prior variance is left, the
    learned factor holds, because no residual tells about such pixels.
    """

    learned: float
    """The model's factor for all images."""
    factor: Float[Tensor, ""]
    """This image's factor, from leave-one-out residuals; near 1 with few anchors."""
    remaining: Float[Tensor, ""]
    """Median share of the prior variance that is left at an anchor given the others."""

    @classmethod
    def of(cls, model: FieldModel, fitted: FieldFit, *, scale_known: bool = False) -> Calibration:
        """The factors for a fitted field."""
        linear, (_, _, noise, mask) = fitted.linear, fitted.observations
        n = mask.sum()
        loo_std = torch.where(mask, linear.loo_std, 1.0)
        total = sum_abs_z(linear.loo_residual, loo_std)
        # A scale that is known beforehand counts as one more observation.
        factor = empirical_bayes_scale(total, n + scale_known, model.prior_count)
        factor = factor * n.clamp(min=1).double() ** -model.std_decay
        prior = fitted.features.amplitude.square().sum(dim=0).clamp(min=TINY)
        remaining = masked_median((loo_std**2 - noise**2).clamp(min=0) / prior, mask)
        return cls(model.std_scale, torch.where(n > 0, factor, 1.0), remaining.clamp(min=TINY))

    @property
    def at_anchors(self) -> Float[Tensor, ""]:
        """The factor at pixels that are determined as well as the anchors are by each other."""
        return self.learned * self.factor

    def std(
        self, lattice: Lattice, variance: Float[Tensor, " m"], prior: Float[Tensor, " m"]
    ) -> Float[Tensor, "h w"]:
        """Calibrated standard deviation at every pixel, from the posterior variance and the prior
        variance of the stationary part at the nodes of a lattice."""
        remaining = (variance / prior.clamp(min=TINY)).clamp(min=TINY)
        weight = (self.remaining / remaining).clamp(max=1).square()
        log_factor = self.factor.log()
        log_factor = torch.where(log_factor < 0, weight * log_factor, log_factor)
        return lattice.interpolate(self.learned * variance.sqrt() * log_factor.exp())


@dataclass(frozen=True, eq=False)
class FieldResult:
    """A fitted field, and what the search for outliers reports."""

    fit: FieldFit
    calibration: Calibration
    """Factors on the posterior's standard deviation."""
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

    def std(self) -> Float[Tensor, "h w"]:
        """Calibrated standard deviation of ℓ at every pixel."""
        local = self.fit.local
        return self.calibration.std(self.fit.lattice, local.variance, local.prior)

    def leave_one_out(self) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
        """Residual of each anchor's log-depth from what the others predict, and its calibrated
        standard deviation, in the order of the given anchors; rejected anchors included."""
        inputs, y, noise, mask = self.fit.observations
        residual, std = self.fit.linear.loo_residual.clone(), self.fit.linear.loo_std.clone()
        if not bool(mask.all()):
            uv = self.fit.image.pixel_uv(inputs.position[~mask]).round().long()
            predicted = self.fit.predict(uv[:, 1], uv[:, 0])
            residual[~mask] = y[~mask] - predicted.mean
            std[~mask] = (predicted.variance + noise[~mask] ** 2).sqrt()
        # The distance of an outlier is measured by its own noise, not by the increased one.
        std = (std**2 - noise**2 + self.noise**2).clamp(min=1e-12).sqrt()
        ordered = np.empty((2, len(y)))
        ordered[:, self.order] = (
            torch.stack([residual, std * self.calibration.at_anchors.to(std)]).cpu().numpy()
        )
        return ordered[0], ordered[1]

    def leave_one_out_log(self) -> tuple[float, ...]:
        """log D̂ − log depth at each used anchor, D̂ predicted by the others; empty for one."""
        residual, _ = self.leave_one_out()
        used = np.delete(residual, [r.anchor for r in self.rejected])
        return tuple((-used).tolist()) if len(used) > 1 else ()


def infer(
    model: FieldModel,
    image: ImageInputs,
    anchors: Anchors,
    *,
    robust: bool = True,
    scale_prior: ScalePrior = "none",
    config: InferenceConfig | None = None,
    memory: BlockMemory | None = None,
) -> FieldResult:
    """Fit the field to anchors; `memory` keeps blocks and outliers from edit to edit."""
    config = config or InferenceConfig()
    shift = None
    if image.affine is not None:
        shift = estimate_shift(model, image, anchors, robust=robust, config=config)
        image = image.with_shift(shift)
    # A canonical order: the result does not depend on that of the user, not even by rounding.
    order = np.lexsort((anchors.depth_m, anchors.u, anchors.v))
    observed = observe(model, image, anchors[order])
    rejected: tuple[Rejection, ...] = ()
    warnings: tuple[Warning, ...] = ()
    in_conflict = None
    blocks, noise = None, observed.noise
    if robust:
        if memory is None:
            blocks = Blocks.split(observed, config)
            outliers = detect_outliers(model.kernel, observed, blocks, config.outliers)
        else:
            blocks, outliers = memory.search(model.kernel, observed, config)
        rejected, warnings = outlier_report(outliers, anchors, order)
        in_conflict = (outliers.rejected | outliers.downweighted).cpu().numpy()
        observed = outliers.apply(observed)
    observed = with_spread_of_repeated_pixels(observed, image)
    kernel, offset = kernel_of_image(model, observed, config), None
    if scale_prior == "learned":
        kernel = dataclasses.replace(kernel, constant_std=model.scale_prior_std)
        offset = image.maps.expected_log_depth[0].double() - image.log_depth_median
    solve = BlockSolutions.of if memory is None else memory.solve
    fitted = fit(kernel, image, observed, config, blocks=blocks, offset=offset, solve=solve)
    calibration = Calibration.of(model, fitted, scale_known=scale_prior == "learned")
    if shift is not None:
        warnings += shift_warnings(shift, model.shift_prior)
    return FieldResult(fitted, calibration, order, noise, rejected, warnings, in_conflict, shift)


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
    order = np.lexsort((anchors.depth_m, anchors.u, anchors.v))
    spread = np.linspace(0, len(order) - 1, min(len(order), config.exact_block)).astype(np.int64)
    anchors, image = anchors[order[spread]], image.with_shift(prior)
    observed = observe(model, image, anchors)
    if robust:
        blocks = Blocks.split(observed, config)
        observed = detect_outliers(model.kernel, observed, blocks, config.outliers).apply(observed)
    rows, columns = (image.index(x) for x in anchors.pixels(image.shape))
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


def observe(model: FieldModel, image: ImageInputs, anchors: Anchors) -> Observations:
    """The anchors as observations of the Gaussian process; without any, one masked row."""
    if len(anchors) == 0:
        pixel = torch.zeros(1, dtype=torch.int64, device=image.device)
        inputs = image.pixels(pixel, pixel)
        nothing = torch.zeros_like(inputs.log_depth)
        return Observations(inputs, nothing, nothing + 1, nothing > 0)
    inputs = image.anchors(anchors)
    # The kernel's log-depth is that of D_MDE minus its median.
    measured = torch.from_numpy(np.log(anchors.depth_m)).to(image.device)
    y = measured - inputs.log_depth - image.log_depth_median
    noise = anchors.sigma_log(float(model.kernel.noise_std), floor=MIN_NOISE_STD)
    mask = torch.ones(len(anchors), dtype=torch.bool, device=image.device)
    return Observations(inputs, y, torch.from_numpy(noise).to(image.device), mask)


def with_spread_of_repeated_pixels(observed: Observations, image: ImageInputs) -> Observations:
    """Observations of one pixel with a noise of at least their deviation from their mean: readings
    that contradict each other by more than their noise are not that precise."""
    inputs, y, noise, mask = observed
    uv = image.pixel_uv(inputs.position).round()
    pixel, order = (uv[:, 1] * (1 << 20) + uv[:, 0]).sort()
    # `unique` would do, but a CUDA graph knows no result of variable size.
    changes = torch.cat([pixel.new_zeros(1), (pixel[1:] != pixel[:-1]).to(pixel)])
    group = torch.empty_like(order).index_copy(0, order, changes.cumsum(dim=0).long())
    counts, sums = (y.new_zeros(len(y)).index_add(0, group, x) for x in (mask.to(y), y * mask))
    deviation = (y - (sums / counts.clamp(min=1))[group]).abs() * mask
    return observed._replace(noise=torch.maximum(noise, deviation))


def kernel_of_image(model: FieldModel, observed: Observations, config: InferenceConfig) -> Kernel:
    """The model's kernel with the prior deviations that the observations of an image suggest."""
    factors = factors_of_image(model.kernel, observed, model.error_scales, config.exact_block)
    return model.kernel.scaled(factors)


def outlier_report(
    outliers: OutlierResult, anchors: Anchors, order: Int64[np.ndarray, " n"]
) -> tuple[tuple[Rejection, ...], tuple[Warning, ...]]:
    """Rejections and warnings; `order` has the index of each observation in the anchors."""
    marks = (outliers.rejected, outliers.downweighted, outliers.corroborated)
    rejected, downweighted, corroborated = (np.sort(order[m.cpu().numpy()]) for m in marks)
    warnings: tuple[Warning, ...] = ()
    if len(downweighted):
        listed = anchors.describe(downweighted)
        text = f"used with less weight, because the others contradict them: {listed}"
        warnings += (Warning("outliers_downweighted", text),)
    if len(corroborated):
        text = (
            "used, because neighbours confirm them; the relative depth seems to be wrong there: "
            + anchors.describe(corroborated)
        )
        warnings += (Warning("outliers_corroborated", text),)
    reason = "contradicted by the others"
    return tuple(Rejection(int(i), "outlier", reason) for i in rejected), warnings


def calibrated_std(model: FieldModel, fitted: FieldFit) -> Float[Tensor, "h w"]:
    """Calibrated standard deviation of ℓ at every pixel."""
    calibration, local = Calibration.of(model, fitted), fitted.local
    return calibration.std(fitted.lattice, local.variance, local.prior)


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
