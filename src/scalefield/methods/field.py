"""`field`: the log-scale field as a Gaussian process with a learned, image-adaptive kernel."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as option
from pathlib import Path
from typing import ClassVar, get_args

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.field.condition import FieldPosterior, ScalePrior, condition, expected_recovery
from scalefield.field.config import InferenceConfig
from scalefield.field.decomposition import Decomposition
from scalefield.field.editor import FieldEditor
from scalefield.field.image_inputs import ImageInputs
from scalefield.field.model import FieldModel, load_field
from scalefield.field.observations import Readings
from scalefield.mde.output import MDEOutput
from scalefield.recovery import Method, Recovery, Solver
from scalefield.validation import require_choice


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

    def solver(self, mde_output: MDEOutput) -> Solver:
        """The method for one image; the network runs once."""
        image = self.load().image_inputs(mde_output)

        def solve(anchors: Anchors) -> Recovery[Tensor]:
            if len(anchors) == 0:
                return expected_recovery(self.load(), mde_output, image)
            return self.condition(image, anchors).recovery(mde_output, anchors)

        return solve

    def prepare(self) -> None:
        """Load the model, so that errors come before long work."""
        self.load()

    def load(self) -> FieldModel:
        """The model itself."""
        return self.model if isinstance(self.model, FieldModel) else load_field(self.model)

    def condition(
        self, image: ImageInputs, anchors: Anchors, editor: FieldEditor | None = None
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
