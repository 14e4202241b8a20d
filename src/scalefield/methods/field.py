"""`field`: the log-scale field as a Gaussian process with a learned, image-adaptive kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from dataclasses import field as option
from functools import partial
from pathlib import Path
from typing import ClassVar, get_args

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from scalefield.anchor_sampling import block_folds
from scalefield.anchors import Anchors
from scalefield.explanation import Explanation, lattice
from scalefield.field.condition import FieldPosterior, ScalePrior, condition, expected_recovery
from scalefield.field.config import InferenceConfig
from scalefield.field.decomposition import Decomposition
from scalefield.field.editor import FieldEditor
from scalefield.field.image_inputs import ImageInputs
from scalefield.field.model import FieldModel, load_field
from scalefield.field.observations import Readings
from scalefield.geometry.survey import Survey
from scalefield.mde.output import MDEOutput
from scalefield.recovery import Method, Recovery, Solver
from scalefield.validation import require_choice

HELD_OUT_FOLDS = 8
"""Folds of `report.held_out_log`."""


@dataclass(frozen=True)
class Field(Method):
    """Gaussian process over position, depth and learned embeddings, with calibrated uncertainty.

    ℓ minimises Σ (ℓ(aᵢ) − yᵢ)²/σᵢ² + ‖ℓ − μ‖²_k; `basis` is the case of a kernel with linear modes
    only. It serves any MDE and any number of anchors, none included; the image is optional.
    """

    model: str | Path | FieldModel = "field"
    """The shipped model "field", a folder that `FieldModel.save` wrote, a hub id owner/name, or a
    model."""
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

    def solver(self, mde_output: MDEOutput, survey: Survey | None = None) -> Solver:
        """The method for one image, with measurements of other kinds; the network runs once."""
        image = self.load().image_inputs(mde_output)

        def solve(anchors: Anchors) -> Recovery[Tensor]:
            if len(anchors) == 0 and survey is None:
                expected = expected_recovery(self.load(), mde_output, image)
                learned = replace(self, scale_prior="learned")
                return replace(expected, posterior=learned.condition(image, anchors))
            posterior = self.condition(image, anchors, survey=survey)
            recovery = posterior.recovery(mde_output, anchors)
            if survey is not None:
                return recovery
            explainer = partial(explain, posterior, mde_output, anchors)
            recovery = replace(recovery, explainer=explainer)
            fold = block_folds(anchors.u, anchors.v, HELD_OUT_FOLDS)
            if fold is None or not recovery.report.leave_one_out_log:
                return recovery
            errors = tuple(posterior.held_out_log(fold).tolist())
            return replace(recovery, report=replace(recovery.report, held_out_log=errors))

        return solve

    def prepare(self) -> None:
        """Load the model, so that errors come before long work."""
        self.load()

    def load(self) -> FieldModel:
        """The model itself."""
        return self.model if isinstance(self.model, FieldModel) else load_field(self.model)

    def condition(
        self,
        image: ImageInputs,
        anchors: Anchors,
        editor: FieldEditor | None = None,
        survey: Survey | None = None,
    ) -> FieldPosterior:
        """The posterior over an image; `editor` keeps what an edit does not change."""
        model = self.load()
        return condition(
            model,
            image,
            Readings.of(anchors, image.shape, float(model.kernel.noise_std), image.device),
            robust=self.robust,
            scale_prior=self.scale_prior,
            config=self.inference,
            editor=editor,
            survey=survey,
        )

    def decompose(self, mde_output: MDEOutput, anchors: Anchors) -> Decomposition:
        """Maps that sum to log_scale, and the share of each: the global scale, the mean function,
        the slope over log-depth, each linear mode, each stationary term."""
        posterior = self.condition(self.load().image_inputs(mde_output), anchors)
        return Decomposition(posterior.parts(), mde_output.valid)

    def influence(
        self, mde_output: MDEOutput, anchors: Anchors, u: int, v: int
    ) -> Float64[np.ndarray, " n"]:
        """Smoother weights ∂ℓ/∂yᵢ at the pixel (u, v): how much each anchor determines it."""
        return self.condition(self.load().image_inputs(mde_output), anchors).influence(v, u)


def explain(
    posterior: FieldPosterior,
    mde_output: MDEOutput,
    anchors: Anchors,
    recovery: Recovery[np.ndarray],
) -> Explanation:
    """The parts of `Field.decompose`, and the smoother weights of each anchor over the image."""
    whole = Decomposition(posterior.parts(), mde_output.valid)
    pixels = zip(*lattice(mde_output.shape), strict=True)
    influence = [np.abs(posterior.influence(int(v), int(u))) for v, u in pixels]
    parts = {name: part.detach().cpu().numpy() for name, part in whole.parts.items()}
    return Explanation(recovery, parts, whole.shares, anchors, np.mean(influence, axis=0))
