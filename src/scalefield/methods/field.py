"""`field`: the log-scale field as a Gaussian process with a learned, image-adaptive kernel."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import field as option
from pathlib import Path
from typing import ClassVar, get_args

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.field.config import InferenceConfig
from scalefield.field.decomposition import Decomposition
from scalefield.field.editor import FieldEditor
from scalefield.field.image_inputs import ImageInputs
from scalefield.field.inference import FieldResult, ScalePrior, expected_recovery, infer
from scalefield.field.model import FieldModel, load_field
from scalefield.mde.output import MDEOutput
from scalefield.recovery import Method, Recovery, Solver
from scalefield.runtime.threads import one_thread
from scalefield.validation import require_choice

ONE_THREAD_PIXELS = 1 << 20
"""Images with more pixels use torch's own threads beside those of `runtime.threads`."""


@dataclass(frozen=True)
class Field(Method):
    """Gaussian process over position, depth and learned embeddings, with calibrated uncertainty.

    ℓ minimises Σ (ℓ(aᵢ) − yᵢ)²/σᵢ² + ‖ℓ − μ‖²_k; `basis` is the case of a kernel with linear modes
    only. It serves any MDE and any number of anchors, none included; the image is optional.
    """

    model: str | Path | FieldModel = "field"
    """The shipped model "field", a folder that `FieldModel.save` wrote, or a model."""
    robust: bool = True
    """Give anchors that the others contradict less weight, and reject those with hardly any, where
    outliers explain them better than a rough field or a missed object does. The report lists both.
    Among fewer than five anchors none is called an outlier."""
    scale_prior: ScalePrior = "none"
    """none: the anchors alone determine the scale, in whatever unit they are. learned: the anchors
    are in metres, and the depth that is expected of such an image counts as one more measurement,
    which helps with one or a few anchors."""
    inference: InferenceConfig = option(default_factory=InferenceConfig)
    """Settings of the inference."""

    least_anchors: ClassVar[int] = 0

    def __post_init__(self) -> None:
        require_choice("scale_prior", self.scale_prior, get_args(ScalePrior))

    def __call__(self, mde_output: MDEOutput, anchors: Anchors) -> Recovery[Tensor]:
        """Recover metric depth; without anchors, the depth that is expected of such an image."""
        return self.solver(mde_output)(anchors)

    def solver(self, mde_output: MDEOutput) -> Solver:
        """The method for one image; the network runs once."""
        image = self.load().image_inputs(mde_output)

        def solve(anchors: Anchors) -> Recovery[Tensor]:
            if len(anchors) == 0:
                return expected_recovery(self.load(), mde_output, image)
            return self.recovery(self.fit(image, anchors), mde_output, anchors)

        return solve

    def prepare(self) -> None:
        """Load the model, so that errors come before long work."""
        self.load()

    def load(self) -> FieldModel:
        """The model itself."""
        return self.model if isinstance(self.model, FieldModel) else load_field(self.model)

    def fit(
        self, image: ImageInputs, anchors: Anchors, editor: FieldEditor | None = None
    ) -> FieldResult:
        """The posterior over an image; `editor` keeps what an edit does not change."""
        with one_thread():  # small matrices
            return infer(
                self.load(),
                image,
                anchors,
                robust=self.robust,
                scale_prior=self.scale_prior,
                config=self.inference,
                editor=editor,
            )

    def recovery(
        self, result: FieldResult, mde_output: MDEOutput, anchors: Anchors
    ) -> Recovery[Tensor]:
        """Maps of the image's size from a fitted field."""
        few = mde_output.prediction.numel() <= ONE_THREAD_PIXELS
        with one_thread() if few else nullcontext():
            image, field = result.fit.image, result.fit.render()
            weights, modes = result.fit.coefficients().modes.float(), image.maps.modes[0]
            recovery = Recovery.from_log_scale(
                image.as_output(mde_output),
                anchors,
                field.mean,
                kind=mde_output.kind,
                shift=image.shift_interval(result.shift),
                rejected=result.rejected,
                warnings=result.warnings,
                leave_one_out_log=result.leave_one_out_log(),
                std_log=field.std,
                support=field.support,
            )
        return dataclasses.replace(recovery, weights=weights, basis_maps=modes)

    def decompose(self, mde_output: MDEOutput, anchors: Anchors) -> Decomposition:
        """Maps that sum to log_scale, and the share of each: the global scale, the mean function,
        the slope over log-depth, each linear mode, each stationary term."""
        fitted = self.fit(self.load().image_inputs(mde_output), anchors).fit
        return Decomposition(fitted.parts(), mde_output.valid)

    def influence(
        self, mde_output: MDEOutput, anchors: Anchors, u: int, v: int
    ) -> Float64[np.ndarray, " n"]:
        """Smoother weights ∂ℓ/∂yᵢ at the pixel (u, v): how much each anchor determines it."""
        result = self.fit(self.load().image_inputs(mde_output), anchors)
        weights = np.zeros(len(anchors))
        weights[result.order] = result.fit.smoother_weights(v, u).cpu().numpy()
        return weights
