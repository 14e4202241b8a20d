"""The field given the measurements of an image: shift, outliers, scale of the errors, linear part,
calibration.

`condition` is the one assembly of these steps. `recover`, `Stream`, `LiveField`, `suggest`, the web
page and the shift of `basis` differ in the prior that they give it and in what they read from the
posterior.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.basis.grids import grid_shape, upsample
from scalefield.basis.ridge import masked_median
from scalefield.field import explain
from scalefield.field.blocks import Blocks, LinearPrior, Memo
from scalefield.field.config import InferenceConfig
from scalefield.field.editor import FieldEditor
from scalefield.field.error_scale import kernel_of_image
from scalefield.field.explain import JointPosterior
from scalefield.field.image_inputs import ImageInputs
from scalefield.field.kernel import Kernel
from scalefield.field.lattice import Lattice
from scalefield.field.linearise import SurveyReadings
from scalefield.field.model import FieldModel
from scalefield.field.observations import Observations, Readings
from scalefield.field.outliers import OutlierResult, detect_outliers
from scalefield.field.posterior import (
    TINY,
    Calibration,
    FieldFit,
    RenderedField,
    fit,
)
from scalefield.field.shift import Shift, shift_posterior
from scalefield.geometry.survey import Survey
from scalefield.mde.output import MDEOutput
from scalefield.recovery import Recovery
from scalefield.report import MeasurementReport, Rejection, Warning
from scalefield.runtime.threads import one_thread

ScalePrior = Literal["none", "learned"]

UNDETERMINED_SHARE = 0.8
"""Share of the prior's standard deviation above which the shift counts as not determined."""
NOT_CONVERGED = (
    "the measurements contradict each other so much that the depth that fits them best was not "
    "found; check their values and pixels"
)
MOST_WITH_SURVEY = 256
"""Readings up to which a survey is conditioned on exactly, together with them."""
LEAST_SITE = 0.1
"""Precision of a survey's site, relative to that of its pixel without it, below which it is left
out."""
MOST_LOG = 30.0
"""Largest logarithm of a length that is reported."""
SURVEY_GROSS_LOG_ERROR = 1.6
"""`OutlierConfig.gross_log_error` of a survey: a factor of 5, because the relative depth errs more
along a length than at a pixel."""
SURVEY_ROUNDS = 2
"""Times that the rows of a survey are linearised at the mode without the outliers found before."""
PRIOR_STD_CELLS = 80
"""Cells along the longer side at which the prior standard deviation is computed."""
ONE_THREAD_PIXELS = 1 << 20
"""Images with more pixels use torch's own threads beside those of `runtime.threads`."""
MAX_FACTOR = 3.0
"""Largest calibration factor of an image: one anchor that nothing explains is no reason to doubt
the measured pixels."""


@dataclass(frozen=True)
class FieldPrior:
    """What is known of the field of an image before its measurements, besides the kernel."""

    shift: Shift | None = None
    """Prior of the shift of an affine-invariant map; None for that of the model."""
    linear: Callable[[Kernel], LinearPrior] | None = None
    """Prior of the linear part under a kernel; None for the kernel's own."""


@dataclass(frozen=True, eq=False)
class FieldPosterior:
    """The field given the measurements of an image."""

    fit: FieldFit
    readings: Readings
    """The measurements as they were given."""
    group: Int64[Tensor, " n"]
    """The observation that each of them is a part of: those of one pixel are merged."""
    noise: Float[Tensor, " m"]
    """Standard deviations of the observations, without what the outlier search added."""
    outliers: OutlierResult | None = None
    """What the search found among the observations; None if nothing was looked for."""
    shift: Shift | None = None
    """Posterior of the shift of an affine-invariant map."""
    survey: Survey | None = None
    """Measurements of other kinds than readings; their rows come after those of the readings."""
    surveyed: FieldPosterior | None = None
    """The posterior of a part of many readings from which the survey became readings."""
    converged: bool = True
    """Whether the depths that fit the survey best were found."""

    @property
    def image(self) -> ImageInputs:
        """The kernel's inputs over the image, at the mean of the shift."""
        return self.fit.image

    def render(self, image: ImageInputs | None = None) -> RenderedField:
        """Mean, standard deviation and support at every pixel, of the image itself or of another
        size of it."""
        fitted = self.fit if image is None else self.over(image)
        few = math.prod(fitted.image.shape) <= ONE_THREAD_PIXELS
        with one_thread() if few else nullcontext():
            return fitted.render()

    def over(self, image: ImageInputs) -> FieldFit:
        """The fit over another size of the image, whose shift is taken from here."""
        return self.fit.over(image if self.shift is None else image.with_shift(self.shift))

    def at(
        self, rows: Int64[Tensor, " m"], columns: Int64[Tensor, " m"]
    ) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """Mean and calibrated standard deviation of ℓ at single pixels."""
        if self.survey is not None:
            joint = self.joint(rows, columns)
            return joint.mean, joint.covariance.diagonal().sqrt()
        mean, variance = self.fit.predict(rows, columns)
        at, kernel = self.image.pixels(rows, columns), self.fit.kernel
        prior = kernel.prior_variance(kernel.features(at))
        return mean, self.fit.calibration.std(variance, prior, self.fit.lost(at))

    def joint(self, rows: Int64[Tensor, " m"], columns: Int64[Tensor, " m"]) -> JointPosterior:
        """Mean and calibrated covariance of ℓ at a list of pixels."""
        with one_thread():
            return explain.joint(self.fit, rows, columns)

    def draws(
        self, rows: Int64[Tensor, " m"], columns: Int64[Tensor, " m"], count: int
    ) -> tuple[Float64[Tensor, "d m"], Float64[Tensor, "d 3"]]:
        """Log-depth minus its mean at pixels, and ψ of `geometry.survey`: the mean, then draws."""
        device = self.image.device
        with one_thread():
            joint = explain.joint(self.fit, rows.to(device), columns.to(device), with_camera=True)
        values, vectors = torch.linalg.eigh(joint.covariance.cpu())
        normal = np.random.default_rng(0).standard_normal((count + 1, len(values)))
        normal[0] = 0
        drawn = torch.from_numpy(normal) @ (vectors * values.clamp(min=0).sqrt()).mT
        m = len(rows)
        return drawn[:, :m], drawn[:, m:] + joint.mean[m:].cpu()

    def parts(self) -> dict[str, Float[Tensor, "h w"]]:
        """Maps that sum to the mean, by name."""
        return explain.parts(self.fit)

    def influence(self, row: int, column: int) -> Float64[np.ndarray, " n"]:
        """∂E[ℓ]/∂yᵢ at a pixel, for each given measurement."""
        mask = self.readings.mask
        weights = explain.smoother_weights(self.fit, row, column)
        precision = torch.where(mask, self.readings.noise**-2, 0.0)
        total = torch.zeros_like(weights).index_add(0, self.group, precision)
        share = precision / total[self.group].clamp(min=TINY)
        return (weights[self.group] * share).cpu().numpy()

    def marked(self, mask: Bool[Tensor, " m"]) -> Int64[np.ndarray, " a"]:
        """Index of the given measurements whose observation a mask selects."""
        return (mask[self.group] & self.readings.mask).nonzero()[:, 0].cpu().numpy()

    def report(self, anchors: Anchors) -> tuple[tuple[Rejection, ...], tuple[Warning, ...]]:
        """Rejections and warnings; `anchors` are those that the first readings were made of."""
        rejected: tuple[Rejection, ...] = ()
        warnings: tuple[Warning, ...] = ()
        if self.outliers is not None:

            def marked(mask: Bool[Tensor, " m"]) -> Int64[np.ndarray, " a"]:
                index = self.marked(mask)
                return index[index < len(anchors)]

            reason, found = "contradicted by the others", marked(self.outliers.rejected)
            rejected = tuple(Rejection(int(i), "outlier", reason) for i in found)
            warnings = self.outliers.warnings(anchors, marked)
        warnings += survey_warnings(self.surveyed or self)
        if self.shift is not None and self.image.shift_prior is not None:
            warnings += shift_warnings(self.shift, self.image.shift_prior)
        return rejected, warnings

    @property
    def in_conflict(self) -> Int64[np.ndarray, " a"]:
        """Index of the measurements that were rejected or given less weight."""
        if self.outliers is None:
            return np.zeros(0, dtype=np.int64)
        return self.marked(self.outliers.rejected | self.outliers.downweighted)

    def leave_one_out(self) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
        """Residual of each measured log-depth from what those of other pixels predict, and its
        calibrated standard deviation; rejected ones included."""
        y, (predicted, variance) = self.fit.observations.y, self.predicted_by_others()
        # The distance of an outlier is measured by its own noise, not by the increased one.
        own = self.readings.noise**2
        std = (variance.clamp(min=0)[self.group] + own).clamp(min=TINY).sqrt()
        own_y = y[self.group] + self.readings.log_depth - self.merged_log_depth[self.group]
        residual = own_y - predicted[self.group]
        std = std * self.fit.calibration.at_anchors
        return residual.cpu().numpy(), std.cpu().numpy()

    def predicted_by_others(self) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """Mean and variance of the target of each observation given the others; rejected ones
        included."""
        linear, (inputs, y, noise, mask) = self.fit.linear, self.fit.observations
        predicted, variance = y - linear.loo_residual, linear.loo_std**2 - noise**2
        if bool(mask.all()):
            return predicted, variance
        if self.survey is not None:
            index = mask.nonzero()[:, 0]
            joint = explain.conditional(self.fit, inputs[~mask], index)
            predicted[~mask], variance[~mask] = joint.mean, joint.covariance.diagonal()
        else:
            uv = self.image.pixel_uv(inputs.position[~mask]).round().long()
            predicted[~mask], variance[~mask] = self.fit.predict(uv[:, 1], uv[:, 0])
        return predicted, variance

    def survey_report(self) -> tuple[MeasurementReport, ...]:
        """What the others say of each measurement of the survey."""
        if self.surveyed is not None:
            return self.surveyed.survey_report()
        if self.survey is None:
            return ()
        n = len(self.fit.observations.y) - len(self.survey.owner)
        predicted, variance = (x[n:].cpu() for x in self.predicted_by_others())
        error = predicted - self.fit.observations.y[n:].cpu()
        std = variance.clamp(min=0).sqrt() * self.fit.calibration.at_anchors
        none = torch.zeros(len(error), dtype=torch.bool)
        rejected = downweighted = none
        if self.outliers is not None:
            rejected, downweighted = self.outliers.rejected[n:], self.outliers.downweighted[n:]
        found = []
        for i, measured in enumerate(self.survey.measured):
            rows = (self.survey.owner == i).nonzero()[:, 0]
            code = "outlier" if rejected[rows].any() else ""
            code = code or ("downweighted" if downweighted[rows].any() else "")
            value: tuple[float, ...] = ()
            if measured.degree > 0 and not measured.bound:
                row = int(rows[0])
                log_value = float(self.survey.targets.value[row] + error[row])
                value = math.exp(min(log_value, MOST_LOG)), float(std[row])
            found.append(MeasurementReport(str(measured), code, *value))
        return tuple(found)

    @property
    def merged_log_depth(self) -> Float[Tensor, " m"]:
        """Logarithm of the measured depth of each observation."""
        inputs, y, _, _ = self.fit.observations
        return y + inputs.log_depth + self.image.log_depth_median

    def leave_one_out_log(self, count: int) -> tuple[float, ...]:
        """log D̂ − log depth at the used ones of the first `count` measurements, D̂ predicted by
        those of other pixels; empty if all are of one pixel."""
        mask = self.fit.observations.mask
        if int(mask.sum()) < 2:
            return ()
        (residual, _), used = self.leave_one_out(), self.marked(mask)
        return tuple((-residual[used[used < count]]).tolist())

    def held_out_log(
        self, fold: Int64[np.ndarray, " n"], most: int = 128
    ) -> Float64[np.ndarray, " h"]:
        """log D̂ − log depth at up to `most` of the used measurements, D̂ predicted by those of other
        folds. With more measurements than a block holds, the linear part stays that of all."""
        observed, config = self.fit.observations, self.fit.config
        folds = torch.zeros_like(observed.mask, dtype=torch.long)
        folds[self.group] = torch.from_numpy(fold).to(folds.device)
        used = observed.mask.nonzero()[:, 0]
        tested = used[:: 1 + (len(used) - 1) // most]
        uv = self.image.pixel_uv(observed.inputs.position).round().long()
        few, predicted = len(used) <= config.block_size, torch.zeros_like(observed.y)
        for k in folds[tested].unique():
            rest = observed._replace(mask=observed.mask & (folds != k))
            out = tested[folds[tested] == k]
            fitted = dataclasses.replace(self.fit, observations=rest)
            if few:
                fitted = fit(self.fit.kernel, self.image, rest, config)
            predicted[out] = fitted.predict(uv[out, 1], uv[out, 0])[0].to(predicted.dtype)
        return (predicted - observed.y)[tested].cpu().numpy()

    def recovery(
        self,
        mde_output: MDEOutput,
        anchors: Anchors,
        *,
        rejected: tuple[Rejection, ...] = (),
        warnings: tuple[Warning, ...] = (),
    ) -> Recovery[Tensor]:
        """The recovery of the image; `rejected` and `warnings` come before those found here."""
        field = self.render()
        found = self.report(anchors)
        return Recovery.from_log_scale(
            self.image.as_output(mde_output),
            anchors,
            field.mean,
            kind=mde_output.kind,
            shift=self.image.shift_interval(self.shift),
            rejected=rejected + found[0],
            warnings=warnings + found[1],
            leave_one_out_log=self.leave_one_out_log(len(anchors)),
            measurements=self.survey_report(),
            std_log=field.std,
            support=field.support,
            weights=self.fit.coefficients()["modes"].float(),
            basis_maps=self.image.maps.modes[0],
            posterior=self,
        )


def condition(
    model: FieldModel,
    image: ImageInputs,
    readings: Readings,
    *,
    prior: FieldPrior | None = None,
    robust: bool = True,
    survey: Survey | None = None,
    scale_prior: ScalePrior = "none",
    config: InferenceConfig | None = None,
    editor: FieldEditor | None = None,
    lattice: Lattice | None = None,
) -> FieldPosterior:
    """The field given measurements: readings of depth, and a survey of those of other kinds.

    `robust`: whether outliers are looked for. `editor` keeps what an edit of the measurements does
    not change. With a `lattice` no shape depends on the measurements and nothing waits for a GPU.
    """
    if survey is not None and len(readings.rows) > MOST_WITH_SURVEY:
        options: dict[str, Any] = {"prior": prior, "robust": robust, "scale_prior": scale_prior}
        return condition_on_sites(model, image, readings, survey, config=config, **options)
    config, prior, static = config or InferenceConfig(), prior or FieldPrior(), lattice is not None
    merged, group = readings.merged(static=static)
    given, converged = None if survey is None else SurveyReadings(merged, survey), True
    if given is not None:  # every pixel sees all of them
        size = max(config.block_size, given.count)
        search = dataclasses.replace(config.outliers, gross_log_error=SURVEY_GROSS_LOG_ERROR)
        config = dataclasses.replace(config, block_size=size, neighbours=size, outliers=search)
        if not given.fixes_scale:
            scale_prior = "learned"

    def split(observed: Observations) -> Blocks:
        height, width = image.shape
        return Blocks.split(observed, config, aspect=width / height, static=static)

    def outliers_of(
        observed: Observations, blocks: Blocks, memo: Memo | None = None
    ) -> OutlierResult | None:
        if not robust:
            return None
        copies = None if static or image.device.type != "cpu" else observed.copies(image.unit_px)
        return detect_outliers(
            model.kernel, observed, blocks, config.outliers, copies=copies, static=static, memo=memo
        )

    def observe(image: ImageInputs, most: int | None = None) -> Observations:
        """What the Gaussian process sees of the measurements, or of at most `most` of them."""
        nonlocal converged
        if given is None:
            return image.observe(merged if most is None else merged.thinned(most))
        observed, _ = given.observe(image)
        for _ in range(SURVEY_ROUNDS):
            found = outliers_of(observed, split(observed))
            used = observed if found is None else found.apply(observed)
            kernel = kernel_of_image(model.kernel, used, model.error_scales, config.block_size)
            observed, converged = given.observe(image, kernel, used)
        return observed

    with one_thread():  # small matrices
        shift = None
        if image.affine is not None:
            # Outliers are looked for with the prior of the shift as a part of the kernel, so that
            # an unknown shift does not make outliers of good measurements.
            expected, few = prior.shift or image.shift_prior, merged.thinned(config.block_size)
            assert expected is not None
            observed = observe(image.with_shift(expected), config.block_size)
            found = outliers_of(observed, split(observed))
            observed = observed if found is None else found.apply(observed)
            pixels = (few.rows, few.columns) if given is None else given.pixels
            shift = expected if not static and not observed.mask.any() else shift_posterior(
                model.kernel, image.affine, observed, pixels,
                prior=expected, scales=model.error_scales,
            )  # fmt: skip
            shift = shift if static else Shift(float(shift.mean), float(shift.std))
            image = image.with_shift(shift)
        observed = observe(image)
        noise, blocks = observed.noise, split(observed)
        found = outliers_of(observed, blocks, None if editor is None else editor.outliers)
        observed = observed if found is None else found.apply(observed)
        kernel = kernel_of_image(model.kernel, observed, model.error_scales, config.block_size)
        linear = None if prior.linear is None else prior.linear(kernel)
        if scale_prior == "learned":
            kernel = dataclasses.replace(kernel, constant_std=model.scale_prior_std)
            level = image.maps.expected_log_depth[0].double() - image.log_depth_median
            linear = LinearPrior.unit(level, kernel.linear_width(observed.inputs))
        fitted = fit(
            kernel, image, observed, config,
            blocks=blocks, prior=linear, lattice=lattice, static=static,
            memo=None if editor is None else editor.solutions,
        )  # fmt: skip
        fitted = calibrated(model, fitted, scale_known=scale_prior == "learned")
    return FieldPosterior(fitted, readings, group, noise, found, shift, survey, converged=converged)


def condition_on_sites(
    model: FieldModel, image: ImageInputs, readings: Readings, survey: Survey, **options: Any
) -> FieldPosterior:
    """The field given many readings and a survey, which becomes readings at its pixels.

    Given some of the readings, each has the target and the noise that change the mean and the
    variance of its pixel as the survey does (a site of expectation propagation, Minka, 2001).
    """
    few = readings.thinned(MOST_WITH_SURVEY)
    rows, columns = (torch.from_numpy(x).to(image.device) for x in survey.pixels)
    moments, source = [], None
    for each in (None, survey):
        source = condition(model, image, few, survey=each, **options)
        index = source.fit.observations.mask.nonzero()[:, 0]
        mean, covariance = explain.conditional(
            source.fit, source.image.pixels(rows, columns), index
        )
        log_depth = mean + source.image.mde_depth[rows, columns].double().log()
        moments.append((log_depth, covariance.diagonal().clamp(min=TINY)))
    (before, variance_before), (after, variance) = moments
    precision = 1 / variance - 1 / variance_before
    known = precision > LEAST_SITE / variance_before
    target = (after / variance - before / variance_before) / precision
    known_sites = (x[known] for x in (rows, columns, target, precision.rsqrt(), known))
    both = Readings(*(torch.cat(pair) for pair in zip(readings, known_sites, strict=True)))
    return dataclasses.replace(condition(model, image, both, **options), surveyed=source)


def calibrated(model: FieldModel, fitted: FieldFit, *, scale_known: bool = False) -> FieldFit:
    """The fitted field with the calibration of its standard deviation."""
    linear, (_, _, noise, mask) = fitted.linear, fitted.observations
    n = mask.sum()
    loo_std = torch.where(mask, linear.loo_std, 1.0)
    total = sum_abs_z(linear.loo_residual, loo_std)
    # A scale that is known beforehand counts as one more observation.
    factor = empirical_bayes_scale(total, n + scale_known, model.prior_count)
    factor = factor.clamp(max=MAX_FACTOR) * n.clamp(min=1).double() ** -model.std_decay
    prior = fitted.kernel.prior_variance(fitted.features).clamp(min=TINY)
    remaining = masked_median((loo_std**2 - noise**2).clamp(min=0) / prior, mask)
    calibration = Calibration(
        model.std_scale, torch.where(n > 0, factor, 1.0), remaining.clamp(min=TINY)
    )
    return dataclasses.replace(fitted, calibration=calibration)


def survey_warnings(posterior: FieldPosterior) -> tuple[Warning, ...]:
    """Warnings about an assumed camera and measurements that the others contradict."""
    if posterior.survey is None:
        return ()
    texts = {
        "outlier": "not used, because the others contradict them",
        "downweighted": "used with less weight, because the others contradict them",
    }
    warnings, reports = [], posterior.survey_report()
    if assumed := posterior.survey.assumption:
        warnings.append(Warning("camera_unknown", assumed))
    if not posterior.converged:
        warnings.append(Warning("measurements_not_converged", NOT_CONVERGED))
    for code, text in texts.items():
        if listed := [r for r in reports if r.code == code]:
            named = "; ".join(
                r.measurement + ("" if r.predicted is None else f", predicted {r.predicted:.3g}")
                for r in listed
            )
            warnings.append(Warning(f"measurements_{code}", f"{text}: {named}"))
    return tuple(warnings)


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
    variance = model.prior_kernel.variance(inputs) - model.kernel.constant_std**2
    variance = model.scale_prior_std**2 + model.std_scale**2 * variance
    std_log = upsample(variance.sqrt().float().reshape(1, 1, *cells), shape)[0, 0]
    factor = math.exp(float(std_log.median()))
    warning = Warning(
        "no_anchors",
        "no anchors: this is the depth to be expected of such an image, at a typical pixel wrong "
        f"by a factor of {factor:.2g} or more in one case of three; measure a point to do better",
    )
    return Recovery.from_log_scale(
        image.as_output(mde_output),
        Anchors([], [], []),
        log_scale,
        kind=mde_output.kind,
        warnings=(warning,),
        std_log=std_log,
        shift=image.shift_interval(image.shift_prior),
        basis_maps=maps.modes[0],
    )
