"""Video: a Kalman filter over the linear weights of `field`; few anchors a frame suffice."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.errors import InputError
from scalefield.field.blocks import Blocks, Observations
from scalefield.field.config import InferenceConfig
from scalefield.field.error_scale import kernel_of_image
from scalefield.field.image_inputs import FieldMaps, ImageInputs
from scalefield.field.inference import calibrated, estimate_shift, expected_recovery
from scalefield.field.kernel import Kernel
from scalefield.field.model import FieldModel, load_field
from scalefield.field.outliers import detect_outliers
from scalefield.field.posterior import fit
from scalefield.field.shift import Shift
from scalefield.mde.output import MDEOutput
from scalefield.recovery import Recovery
from scalefield.report import Rejection, Warning
from scalefield.runtime.threads import one_thread
from scalefield.validation import require

SHIFT_DRIFT = 0.3
"""Standard deviation of the change of the shift t from one frame to the next."""


class FilterState(NamedTuple):
    """w ~ N(mean, covariance): constant, weights of the modes, weight of the mean function."""

    mean: Float[Tensor, " w"]
    covariance: Float[Tensor, "w w"]


@dataclass
class FieldFilter:
    """`field` over the successive frames of one camera.

    The global scale and the weights of the linear modes and the mean function are the state of a
    Kalman filter. The anchors of a frame update it in closed form. Before the next frame the scale
    is allowed to drift, and the weights decay towards their prior. The stationary part of the field
    belongs to each frame alone. The unit of the estimator must be steady, as that of `lite` and of
    metric models is.

        recover_next = FieldFilter()
        for image, anchors in frames:
            recovery = recover_next(mde(image), anchors)     # a frame may have no anchors at all
    """

    model: str | FieldModel = "field"
    """The model, as in `Field`."""
    robust: bool = True
    """Reject or down-weight outliers among the anchors of a frame, as in `Field`."""
    drift: float = 0.05
    """Standard deviation of the change of the global log-scale from one frame to the next."""
    decay: float = 0.15
    """Share of the modes' weights that is lost from one frame to the next."""
    inference: InferenceConfig = dataclasses.field(default_factory=InferenceConfig)
    """Settings of the inference."""
    state: FilterState | None = None
    """The state after the last frame; None before the first anchors."""
    shift: Shift | None = None
    """Shift of the last frame's affine-invariant map; None for other maps."""

    def __post_init__(self) -> None:
        require(0 <= self.drift < math.inf, "drift", "0 or more", self.drift)
        require(0 <= self.decay <= 1, "decay", "0 … 1", self.decay)

    @one_thread()
    def __call__(self, mde_output: MDEOutput, anchors: Anchors | None = None) -> Recovery[Tensor]:
        """The recovery of the next frame."""
        if not isinstance(mde_output, MDEOutput):
            raise InputError(
                "a stream takes the output of an estimator, as mde(image) returns it, "
                f"found {type(mde_output).__name__}"
            )
        given = Anchors([], [], []) if anchors is None else anchors
        model = self.load()
        image = model.image_inputs(mde_output)
        rows, columns = given.pixels(mde_output.shape)
        valid = mde_output.valid.cpu().numpy()[rows, columns]
        if image.affine is not None:
            image = image.with_shift(self.estimate_shift(model, image, given[valid]))
        observed = image.observe(given[valid], model.kernel)
        rejected = tuple(
            Rejection(int(i), "no_relative_depth", "no relative depth here")
            for i in np.flatnonzero(~valid)
        )
        warnings: tuple[Warning, ...] = ()
        if self.robust and valid.any():
            blocks = Blocks.split(observed, self.inference)
            outliers = detect_outliers(model.kernel, observed, blocks, self.inference.outliers)
            found, warnings = outliers.report(given, np.flatnonzero(valid))
            observed, rejected = outliers.apply(observed), rejected + found
        if self.state is None and not bool(observed.mask.any()):
            return expected_recovery(model, mde_output, image)
        kernel = kernel_of_image(
            model.kernel, observed, model.error_scales, self.inference.exact_block
        )
        prior = prior_variance(kernel, image)
        self.state = self.state or initial_state(observed, prior)
        mean, covariance = self.predict(prior)
        root = torch.linalg.cholesky(covariance)
        augmented = with_state(image, mean, root)
        # Constant, modes and mean function are the state's now, with unit variance.
        kernel = dataclasses.replace(kernel, constant_std=0.0, mode_std=1.0, mean_weight_std=0.0)
        inputs = augmented.observe(given[valid], model.kernel).inputs
        observed = observed._replace(inputs=inputs)
        fitted = fit(kernel, augmented, observed, self.inference, offset=root.new_zeros(()))
        field = calibrated(model, fitted).render()
        # The modes come last among the linear parts.
        weights = fitted.linear.weights[-len(mean) :]
        left = fitted.linear.covariance[-len(mean) :, -len(mean) :]
        self.state = FilterState(mean + root @ weights, root @ left @ root.mT)
        recovery = Recovery.from_log_scale(
            image.as_output(mde_output),
            given,
            field.mean,
            kind=mde_output.kind,
            shift=image.shift_interval(self.shift),
            rejected=rejected,
            warnings=warnings,
            std_log=field.std,
            support=field.support,
        )
        return dataclasses.replace(recovery, basis_maps=image.maps.modes[0])

    def estimate_shift(self, model: FieldModel, image: ImageInputs, anchors: Anchors) -> Shift:
        """Posterior of the shift of an affine-invariant map; that of the frame before, allowed to
        drift, is its prior."""
        prior = model.shift_prior
        if self.shift is not None:
            prior = Shift(self.shift.mean, min(math.hypot(self.shift.std, SHIFT_DRIFT), prior.std))
        self.shift = estimate_shift(
            model, image, anchors, robust=self.robust, prior=prior, config=self.inference
        )
        return self.shift

    def load(self) -> FieldModel:
        """The model itself."""
        return self.model if isinstance(self.model, FieldModel) else load_field(self.model)

    def predict(self, prior: Float[Tensor, " w"]) -> FilterState:
        """The state one frame later: the scale drifts, the weights decay towards their prior."""
        assert self.state is not None
        mean, covariance = self.state
        keep = torch.full_like(mean, 1 - self.decay)
        keep[0] = 1.0
        added = (1 - keep**2) * prior.to(mean)
        added[0] = self.drift**2
        return FilterState(keep * mean, keep[:, None] * covariance * keep + torch.diag(added))


def prior_variance(kernel: Kernel, image: ImageInputs) -> Float[Tensor, " w"]:
    """Prior variance of the constant, the weights of the modes, and that of the mean function."""
    modes = image.maps.layout.modes
    stds = [kernel.constant_std, *[kernel.mode_std] * modes, kernel.mean_weight_std]
    return torch.tensor([float(std) for std in stds], dtype=torch.float64).square() + 1e-12


def initial_state(observed: Observations, prior: Float[Tensor, " w"]) -> FilterState:
    """The prior around the median of the first anchors' log-scales."""
    log_scale = (observed.y - observed.inputs.mean)[observed.mask]
    mean = log_scale.new_zeros(len(prior))
    mean[0] = log_scale.quantile(0.5)
    return FilterState(mean, torch.diag(prior.to(log_scale)))


def with_state(
    image: ImageInputs, mean: Float[Tensor, " w"], root: Float[Tensor, "w w"]
) -> ImageInputs:
    """The image with the state w = mean + root·θ as its linear part, θ ~ N(0, I).

    With ψ the constant, the modes and the mean function, the new modes are ψᵀroot and the new mean
    function is μ + ψᵀmean.
    """
    maps, layout = image.maps.maps, image.maps.layout
    linear = torch.cat([torch.ones_like(maps[:, :1]), image.maps.modes, image.maps.mean], dim=1)
    modes = torch.einsum("bwij,wv->bvij", linear, root.to(maps.dtype))
    shift = torch.einsum("bwij,w->bij", linear, mean.to(maps.dtype))[:, None]
    rest = maps[:, layout.modes : -1]
    wider = dataclasses.replace(layout, modes=len(mean))
    changed = torch.cat([modes, rest, image.maps.mean + shift], dim=1)
    return dataclasses.replace(image, maps=FieldMaps(changed, image.maps.expected_log_depth, wider))
