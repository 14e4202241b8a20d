"""`Frame` and `Dataset`: the common interface of all dataset readers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float32, Int, UInt8

from scalefield.anchor_sampling import depth_mask
from scalefield.errors import InputError, one_line, size_text
from scalefield.io import IMAGE_ERRORS, open_image, read_bytes
from scalefield.io.images import NUMBERS_WORK
from scalefield.mde.output import MDEOutput


@dataclass(frozen=True, eq=False)
class Frame:
    """One image with its true depth, scored where `mask` holds."""

    name: str
    """Unique within the dataset; it also seeds the frame's anchors."""
    group: str
    """The place or kind of place under which results are reported."""
    scene: str
    """The sequence or place of the frame; frames of one scene are near-duplicates."""
    image: UInt8[np.ndarray, "h w 3"]
    # Sizes are checked below, with a sentence, because files disagree with each other.
    depth_m: Float32[np.ndarray, "_ _"]
    """z along the optical axis; NaN where unknown."""
    depth_range_m: tuple[float, float]
    """Nearest and farthest depth that is scored, as declared for the dataset."""
    labels: Int[np.ndarray, "_ _"] | None = None
    """Semantic ids, where the dataset has them."""
    sky: Bool[np.ndarray, "_ _"] | None = None
    intrinsics: tuple[float, float, float, float] | None = None
    """fx, fy, cx, cy in pixels."""
    sparse_m: Float32[np.ndarray, "_ _"] | None = None
    """Measured depth that comes with the image, for example of a LiDAR; NaN where there is none."""
    mde_output: MDEOutput | None = None
    """The prediction of an estimator, where the dataset has one for each image."""

    def __post_init__(self) -> None:
        sizes = {
            "depth map": self.depth_m,
            "label image": self.labels,
            "sky mask": self.sky,
            "sparse depth": self.sparse_m,
        }
        for name, array in sizes.items():
            if array is not None and array.shape != self.image.shape[:2]:
                found, wanted = map(size_text, (array.shape, self.image.shape))
                raise InputError(f"{self.name}: the {name} is {found} and the image {wanted}")

    @cached_property
    def mask(self) -> Bool[np.ndarray, "h w"]:
        """Pixels with a known depth within the range, sky excluded."""
        return depth_mask(self.depth_m, self.depth_range_m, self.sky)

    def sha256(self) -> str:
        """A fingerprint of everything that influences a score."""
        digest = hashlib.sha256(f"{self.name} {self.depth_range_m}".encode())
        for array in (self.image, self.depth_m, self.labels, self.sky, self.sparse_m):
            if array is not None:
                digest.update(f"{array.dtype} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).data)
        if self.mde_output is not None:
            prediction = self.mde_output.prediction
            about = (self.mde_output.kind, self.mde_output.affine, prediction.dtype)
            digest.update(f"{about} {tuple(prediction.shape)}".encode())
            digest.update(prediction.cpu().contiguous().numpy().data)
        return digest.hexdigest()


@runtime_checkable
class Dataset(Protocol):
    """A folder of frames, read one at a time by name."""

    @property
    def name(self) -> str:
        """Name of the dataset on the command line and in tables."""
        ...

    def names(self, split: str) -> list[str]:
        """Frames of `train`, `val`, `test` or `all`, in a fixed order."""
        ...

    def load(self, name: str) -> Frame:
        """One frame; a missing or damaged file is an `InputError` that names it."""
        ...


def read_label_image(path: Path) -> Int[np.ndarray, "h w *channels"]:
    """The ids of a label image, with all its channels."""
    try:
        with open_image(read_bytes(path), NUMBERS_WORK) as image:
            return np.asarray(image).astype(np.int32)
    except IMAGE_ERRORS as e:
        raise InputError(f"{path}: not a readable label image ({one_line(e)})") from None
