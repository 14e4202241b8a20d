"""`Estimator`: a network with its preprocessing, as an MDE."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from scalefield.errors import InputError
from scalefield.mde.output import Kind, MDEOutput

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Fit = Literal["inside", "least", "area", "native", "stretch"]


@dataclass(frozen=True)
class Preprocess:
    """Resizing of the whole image to sides that the network can divide, and normalisation.

    Nothing is padded or cropped, so that every grid of the network covers the whole image and the
    half-pixel convention of `MDEOutput` holds for its features. The aspect ratio changes only by
    rounding the sides to the multiple, except with `fit="stretch"`.
    """

    size: tuple[int, int]
    """Height and width that the image is fitted to."""
    fit: Fit
    """inside: the largest that fits; least: height or width, whichever changes the scale less;
    area: about as many pixels as `size` has, never enlarged; native: as it is; stretch: exactly
    `size`, for networks that take nothing else."""
    multiple: int = 1
    """Both sides become multiples of this."""
    mean: tuple[float, float, float] = IMAGENET_MEAN
    """Subtracted from RGB in 0 … 1."""
    std: tuple[float, float, float] = IMAGENET_STD
    """Divided by after that."""
    resample: Literal["bicubic", "bilinear", "area"] = "bicubic"
    """area averages where it shrinks, and is bicubic where it enlarges."""

    def target(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the network's input for an image of this shape."""
        if self.fit == "stretch":
            return self.size
        scales = self.size[0] / shape[0], self.size[1] / shape[1]
        match self.fit:
            case "inside":
                scale = min(scales)
            case "least":
                scale = min(scales, key=lambda s: abs(1 - s))
            case "area":
                scale = min(1.0, math.sqrt(scales[0] * scales[1]))
            case _:
                scale = 1.0
        sides = (round(scale * side) / self.multiple for side in shape)
        height, width = (max(1, math.floor(side + 0.5)) * self.multiple for side in sides)
        return height, width

    def __call__(self, images: Sequence[UInt8[np.ndarray, "h w 3"]]) -> Float[Tensor, "b 3 hn wn"]:
        """The network's input for images of one size."""
        batch = np.stack([self._resize(image) for image in images])
        pixels = torch.from_numpy(batch).permute(0, 3, 1, 2).float() / 255
        mean, std = (torch.tensor(c).view(3, 1, 1) for c in (self.mean, self.std))
        return (pixels - mean) / std

    def as_dict(self) -> dict[str, object]:
        """Plain JSON values, for records and cache keys."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    def _resize(self, image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "hn wn 3"]:
        shape = image.shape[0], image.shape[1]
        height, width = self.target(shape)
        if (height, width) == shape:
            return image
        filters = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
        shrinks = height <= shape[0] and width <= shape[1]
        area = Image.Resampling.BOX if shrinks else Image.Resampling.BICUBIC
        resized = Image.fromarray(image).resize((width, height), filters.get(self.resample, area))
        return np.asarray(resized)


def to_shape(maps: Float[Tensor, "b hn wn"], shape: tuple[int, int]) -> Float[Tensor, "b h w"]:
    """Maps of the network resized to the image's size, bilinearly, within the maps' range."""
    if maps.shape[1:] == shape:
        return maps
    # Antialiasing acts where the image is smaller than the network's map, and only there.
    return F.interpolate(maps[None], size=shape, mode="bilinear", antialias=True)[0]


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
