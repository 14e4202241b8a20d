"""`Estimator`: a network with its preprocessing, as an MDE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from scalefield.errors import InputError
from scalefield.mde.output import Kind, MDEOutput
from scalefield.mde.preprocess import Preprocess, to_shape


@dataclass(frozen=True, eq=False)
class Raw:
    """Outputs of a network for a batch, at its own resolutions; see `MDEOutput` for the fields."""

    prediction: Float[Tensor, "b hn wn"]
    features: Float[Tensor, "b c hf wf"] | None = None
    confidence: Float[Tensor, "b hn wn"] | None = None


Network = Callable[[Tensor], Raw]


@dataclass(frozen=True, eq=False)
class Estimator:
    """A frozen network with the preprocessing it was trained with."""

    name: str
    revision: str
    """Commit on the hub, or hash of the weights file."""
    kind: Kind
    preprocess: Preprocess
    network: Network
    device: str = "cpu"
    affine: bool = False
    """Whether the shift of the prediction is unknown too, as in `MDEOutput`."""

    @property
    def options(self) -> dict[str, object]:
        """Everything except the weights that influences the output."""
        return self.preprocess.as_dict()

    def __call__(self, image: UInt8[np.ndarray, "h w 3"]) -> MDEOutput:
        """Relative depth and features of one image."""
        return self.batch([image])[0]

    # no_grad, and not inference_mode: what is trained on the features must save them.
    @torch.no_grad()
    def batch(self, images: Sequence[UInt8[np.ndarray, "h w 3"]]) -> list[MDEOutput]:
        """Relative depth and features of several images of one size, in one pass."""
        shapes = {(image.shape[0], image.shape[1]) for image in images}
        if len(shapes) != 1:
            raise InputError(f"a batch must have images of one size, found {sorted(shapes)}")
        (shape,) = shapes
        raw = self.network(self.preprocess(images).to(self.device))
        prediction = to_shape(raw.prediction, shape)
        confidence = None if raw.confidence is None else to_shape(raw.confidence, shape)
        return [
            MDEOutput(
                prediction=prediction[i],
                kind=self.kind,
                affine=self.affine,
                features=None if raw.features is None else raw.features[i],
                confidence=None if confidence is None else confidence[i],
                image=torch.tensor(image, device=prediction.device),
                model=self.name,
                revision=self.revision,
                options=self.options,
            )
            for i, image in enumerate(images)
        ]
