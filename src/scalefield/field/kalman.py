"""Video: a Kalman filter over the linear weights of `field`; few anchors a frame suffice."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.errors import InputError
from scalefield.field.blocks import LinearPrior
from scalefield.field.condition import FieldPosterior, FieldPrior, condition, expected_recovery
from scalefield.field.config import InferenceConfig
from scalefield.field.image_inputs import ImageInputs
from scalefield.field.kernel import LINEAR_TERMS, Kernel, linear_columns
from scalefield.field.model import FieldModel, load_field
from scalefield.field.observations import Readings
from scalefield.field.shift import Shift
from scalefield.mde.output import MDEOutput
from scalefield.recovery import Recovery
from scalefield.report import Rejection, Warning
from scalefield.runtime.threads import one_thread
from scalefield.validation import require

SHIFT_DRIFT = 0.3
"""Standard deviation of the change of the shift t from one frame to the next."""
STILL_LOG_DEPTH = 0.01
"""Median change of log D_MDE between two frames below which the camera stands still."""
CHANGED_LOG_DEPTH = 0.05
"""Change of log D_MDE at a pixel beyond which its measurement is no longer used."""
MOST_KEPT = 1000
"""Measurements of earlier frames that are kept."""
STATE_TERMS = ("global", "mean", "modes")
"""Linear terms whose coefficients do not depend on the single image."""
MIN_VARIANCE = 1e-12
"""Added to the variances of a state, so that they can be inverted."""


@dataclass(frozen=True, eq=False)
class LinearState:
    """Normal distribution of the coefficients of `STATE_TERMS`, in the order of these terms in
    `LINEAR_TERMS`."""

    mean: Float64[Tensor, " s"]
    covariance: Float64[Tensor, "s s"]

    @classmethod
    def of(cls, posterior: FieldPosterior) -> LinearState:
        """That of a frame."""
        linear, coefficients = posterior.fit.linear, posterior.fit.coefficients()
        columns, stds = cls.columns(len(linear.weights)), cls.prior_std(posterior)
        covariance = linear.covariance.cpu()[columns[:, None], columns] * stds[:, None] * stds
        mean = torch.cat([coefficients[name].reshape(-1) for name in STATE_TERMS])
        return cls(mean.double().cpu(), covariance.double())

    @staticmethod
    def columns(width: int) -> Int64[Tensor, " s"]:
        """The columns of H that belong to these terms, of `width` in all."""
        every = torch.arange(width)
        return torch.cat([every[linear_columns(width)[name]] for name in STATE_TERMS])

    @classmethod
    def prior_std(cls, posterior: FieldPosterior) -> Float64[Tensor, " s"]:
        """Prior deviations of the coefficients in a frame."""
        width = len(posterior.fit.linear.weights)
        return posterior.fit.kernel.linear_stds(width)[cls.columns(width)]

    @property
    def expected(self) -> Float64[Tensor, " s"]:
        """Prior mean of the coefficients."""
        mean = torch.zeros_like(self.mean)
        mean[1] = 1.0  # the weight of the mean function
        return mean

    def as_prior(self, kernel: Kernel) -> LinearPrior:
        """The prior of θ under a kernel, around the expected global log-scale."""
        width = len(self.mean) + sum(t.width for t in LINEAR_TERMS if t.name not in STATE_TERMS)
        columns, stds = self.columns(width), kernel.linear_stds(width)
        unit, prior = (
            torch.where(stds > 0, stds, 1.0)[columns],
            LinearPrior.unit(self.mean[0], width),
        )
        around = (self.mean - self.expected) / unit
        around[0] = 0
        prior.mean[columns] = around
        covariance = self.covariance / (unit[:, None] * unit)
        covariance = covariance + MIN_VARIANCE * torch.eye(len(unit)).double()
        prior.precision[columns[:, None], columns] = covariance.inverse()
        return prior


@dataclass(frozen=True, eq=False)
class StreamState:
    """What a stream knows after a frame."""

    shift: Shift | None
    """Posterior of the shift of an affine-invariant map, given all frames."""
    linear: LinearState
    """That of the coefficients."""
    prior: FieldPrior
    """Both before the measurements that are kept."""
    kept: Readings
    """The measurements since the camera came to stand still, with the noise that they have now."""
    kept_log_depth: Float[Tensor, " n"]
    """log D_MDE at their pixels when they were made."""
    log_depth: Float[Tensor, "h w"]
    """log D_MDE of the last frame, before its shift was estimated."""
    prior_std: Float[Tensor, " s"]
    """Prior deviations of the coefficients in the last frame."""
    contradicted: int = 0
    """Number of the last frames whose measurements contradict the state as a whole."""


@dataclass
class FieldFilter:
    """`field` over the successive frames of one camera.

    The global scale, the weights of the modes and that of the mean function are the state of a
    Kalman filter. Before the next frame the scale may drift, and the weights decay towards their
    prior. The stationary part of the field belongs to a view: while the camera stands still, which
    shows in a relative depth that hardly changes, the measurements of earlier frames are used
    again. The unit of the estimator must be steady, as that of `lite` and of metric models is.

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
    patience: int = 3
    """Frames in a row whose anchors contradict those before by more than a factor of 8, as in a
    wrong unit, until the stream begins anew; before that, such anchors are rejected."""
    inference: InferenceConfig = dataclasses.field(default_factory=InferenceConfig)
    """Settings of the inference."""
    state: StreamState | None = None
    """The state after the last frame; None before the first anchors."""

    def __post_init__(self) -> None:
        require(0 <= self.drift < math.inf, "drift", "0 or more", self.drift)
        require(0 <= self.decay <= 1, "decay", "0 … 1", self.decay)
        require(self.patience >= 1, "patience", "1 or more", self.patience)

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
        readings = Readings.of(given, image.shape, float(model.kernel.noise_std), image.device)
        valid = mde_output.valid.to(image.device)[readings.rows, readings.columns] & readings.mask
        rejected = rejections(given, ~valid, "no_relative_depth", "no relative depth here")
        readings = readings._replace(mask=valid)
        warnings: tuple[Warning, ...] = ()
        if self.state is not None and (factor := self.contradiction(model, image, readings)):
            contradicted = self.state.contradicted + 1
            if contradicted >= self.patience:
                self.state = None
                text = f"{contradicted} frames contradict those before; the stream begins anew"
                warnings += (Warning("stream_restarted", text),)
            else:
                self.state = dataclasses.replace(self.state, contradicted=contradicted)
                reason = f"{factor:.3g} times as far as the frames before say"
                rejected += rejections(given, valid, "contradicts_stream", reason)
                readings = readings._replace(mask=torch.zeros_like(valid))
        elif self.state is not None and bool(readings.mask.any()):
            self.state = dataclasses.replace(self.state, contradicted=0)
        if self.state is None and not bool(readings.mask.any()):
            empty = expected_recovery(model, mde_output, image)
            return dataclasses.replace(
                empty, report=dataclasses.replace(empty.report, rejected=rejected)
            )
        prior, kept, kept_log_depth = self.predict(model, image, readings)
        posterior = condition(
            model,
            image,
            Readings(*map(torch.cat, zip(readings, kept, strict=True))),
            prior=prior,
            robust=self.robust,
            config=self.inference,
        )
        own = image.mde_depth.log()[readings.rows, readings.columns]
        self.state = self.next_state(posterior, prior, torch.cat([own, kept_log_depth]), image)
        return posterior.recovery(mde_output, given, rejected=rejected, warnings=warnings)

    def contradiction(
        self, model: FieldModel, image: ImageInputs, readings: Readings
    ) -> float | None:
        """The factor by which the measurements of a frame as a whole contradict the state, if it is
        beyond what the outlier search takes as a wrong unit."""
        assert self.state is not None
        if not bool(readings.mask.any()):
            return None
        shift = self.state.shift
        image = image if shift is None or image.affine is None else image.with_shift(shift)
        inputs, y, _, mask = image.observe(readings)
        features = model.kernel.linear_features(inputs)
        expected = self.state.linear.as_prior(model.kernel)
        log_scale = expected.offset + inputs.mean + features @ expected.mean.to(features)
        apart = float((y - log_scale)[mask].quantile(0.5))
        return math.exp(apart) if abs(apart) > self.inference.outliers.gross_log_error else None

    def predict(
        self, model: FieldModel, image: ImageInputs, readings: Readings
    ) -> tuple[FieldPrior, Readings, Float[Tensor, " n"]]:
        """What is known of the next frame before its own measurements: the prior, and measurements
        of earlier frames with the log D_MDE at their pixels."""
        state = self.state
        nothing = Readings(*(x[:0] for x in readings)), image.mde_depth.log()[:0, 0]
        if state is None:
            return FieldPrior(), *nothing
        log_depth = image.mde_depth.log()
        change = math.inf
        if log_depth.shape == state.log_depth.shape:
            change = float((log_depth - state.log_depth).abs().median())
        if change >= STILL_LOG_DEPTH:
            shift, linear = self.drifted(state, model)
            return FieldPrior(shift, linear.as_prior), *nothing
        kept = state.kept
        now = log_depth[kept.rows, kept.columns]
        measured_again = torch.isin(pixel_index(kept, image), pixel_index(readings, image))
        same = ((now - state.kept_log_depth).abs() < CHANGED_LOG_DEPTH) & ~measured_again
        noise = kept.noise.hypot(torch.full_like(kept.noise, self.drift * change / STILL_LOG_DEPTH))
        kept = Readings(*(x[same] for x in kept._replace(noise=noise)))
        return state.prior, kept, state.kept_log_depth[same]

    def drifted(self, state: StreamState, model: FieldModel) -> tuple[Shift | None, LinearState]:
        """The state one frame later: the scale drifts, the weights decay towards their prior."""
        shift, linear, expected = state.shift, state.linear, state.linear.expected
        if shift is not None:
            widest = model.shift_prior.std
            shift = Shift(shift.mean, min(math.hypot(shift.std, SHIFT_DRIFT), widest))
        keep = torch.full_like(linear.mean, 1 - self.decay)
        keep[0] = 1.0
        added = (1 - keep**2) * state.prior_std**2
        added[0] = self.drift**2
        covariance = keep[:, None] * linear.covariance * keep + torch.diag(added)
        return shift, LinearState(expected + keep * (linear.mean - expected), covariance)

    def next_state(
        self,
        posterior: FieldPosterior,
        prior: FieldPrior,
        log_depth: Float[Tensor, " n"],
        image: ImageInputs,
    ) -> StreamState:
        """The state after a frame; `log_depth` is log D_MDE at the pixels of its measurements."""
        used = torch.from_numpy(posterior.marked(posterior.fit.observations.mask)).to(image.device)
        used = used[thin_index(len(used), MOST_KEPT)]
        return StreamState(
            shift=posterior.shift,
            linear=LinearState.of(posterior),
            prior=prior,
            kept=Readings(*(x[used] for x in posterior.readings)),
            kept_log_depth=log_depth[used],
            log_depth=image.mde_depth.log(),
            prior_std=LinearState.prior_std(posterior),
            contradicted=0 if self.state is None else self.state.contradicted,
        )

    def load(self) -> FieldModel:
        """The model itself."""
        return self.model if isinstance(self.model, FieldModel) else load_field(self.model)


def rejections(anchors: Anchors, mask: Tensor, code: str, reason: str) -> tuple[Rejection, ...]:
    """A rejection of each anchor that a mask selects."""
    chosen = np.flatnonzero(mask.cpu().numpy()[: len(anchors)])
    return tuple(Rejection(int(i), code, reason) for i in chosen)


def pixel_index(readings: Readings, image: ImageInputs) -> Int64[Tensor, " n"]:
    """Number of each reading's pixel; −1 for padding."""
    index = readings.rows * image.shape[1] + readings.columns
    return index.where(readings.mask, -1)


def thin_index(count: int, most: int) -> Int64[np.ndarray, " m"]:
    """Evenly spaced index of at most `most` of `count` rows."""
    return np.linspace(0, max(count - 1, 0), min(count, most)).astype(np.int64)
