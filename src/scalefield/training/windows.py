"""Windows: parts of photographs as frames of their own, so that one place is seen in many ways.

An MDE errs differently on a part of an image, on its mirror image and in another light. A
generator or a field that meets all of these learns less of the few places by heart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import UInt8

from scalefield.datasets import Dataset, Frame
from scalefield.errors import InputError
from scalefield.sampling import generator

ASPECTS = (4 / 3, 16 / 9, 1.0, 3 / 4)
"""Width over height: few, because frames of one shape make a batch."""
OWN_ASPECT = 0.4
"""Share of windows that keep the frame's own."""
SMALLEST = 0.5
"""Side of the smallest window, in sides of the largest that fits."""
TRIES = 10


@dataclass(frozen=True)
class Windows:
    """So many random windows of every frame of a dataset, in place of the frames."""

    dataset: Dataset
    count: int
    seed: int = 0

    @property
    def name(self) -> str:
        """The dataset's own, and that this is made from it."""
        return f"{self.dataset.name} windows"

    def names(self, split: str) -> list[str]:
        """Each frame's name, with a number behind it."""
        return [f"{name}@{i}" for name in self.dataset.names(split) for i in range(self.count)]

    def load(self, name: str) -> Frame:
        """One window, in colours of its own, mirrored or not: the name decides all."""
        whole, found, _ = name.rpartition("@")
        if not found:
            raise InputError(f"{name!r} is no window; their names end in @ and a number")
        rng = generator(self.seed, name)
        frame = self.dataset.load(whole)
        window = replace(cut(frame, rng), name=name)
        window = replace(window, image=recoloured(window.image, rng))
        return mirrored(window) if rng.random() < 0.5 else window


def cut(frame: Frame, rng: np.random.Generator) -> Frame:
    """A window of random place, size and aspect that has at least half the frame's share of known
    depth; the whole frame where ten draws find none."""
    height, width = frame.mask.shape
    for _ in range(TRIES):
        own = rng.random() < OWN_ASPECT
        aspect = width / height if own else rng.choice(ASPECTS)
        largest = min(width, height * aspect)
        wide = largest * rng.uniform(SMALLEST, 1)
        w, h = max(1, round(wide)), max(1, min(height, round(wide / aspect)))
        left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
        part = np.s_[top : top + h, left : left + w]
        if 2 * frame.mask[part].mean() >= frame.mask.mean():
            return clipped(frame, part)
    return frame


def clipped(frame: Frame, part: tuple[slice, slice]) -> Frame:
    """The part of a frame within rows and columns."""
    intrinsics = frame.intrinsics
    if intrinsics is not None:
        fx, fy, cx, cy = intrinsics
        intrinsics = (fx, fy, cx - part[1].start, cy - part[0].start)
    return replace(
        frame,
        image=frame.image[part],
        depth_m=frame.depth_m[part],
        labels=None if frame.labels is None else frame.labels[part],
        sky=None if frame.sky is None else frame.sky[part],
        intrinsics=intrinsics,
    )


def mirrored(frame: Frame) -> Frame:
    """Left is right."""
    intrinsics = frame.intrinsics
    if intrinsics is not None:
        fx, fy, cx, cy = intrinsics
        intrinsics = (fx, fy, frame.mask.shape[1] - 1 - cx, cy)

    def turned(map_: np.ndarray) -> np.ndarray:
        return map_[:, ::-1].copy()  # torch takes no view that runs backwards

    return replace(
        frame,
        image=turned(frame.image),
        depth_m=turned(frame.depth_m),
        labels=None if frame.labels is None else turned(frame.labels),
        sky=None if frame.sky is None else turned(frame.sky),
        intrinsics=intrinsics,
    )


def recoloured(
    image: UInt8[np.ndarray, "h w 3"], rng: np.random.Generator
) -> UInt8[np.ndarray, "h w 3"]:
    """Random gamma, exposure, white balance and saturation."""
    x = (image.astype(np.float32) / 255) ** np.float32(2 ** rng.uniform(-0.6, 0.6))
    x *= (rng.uniform(0.75, 1.2) * rng.uniform(0.9, 1.1, 3)).astype(np.float32)
    grey = x.mean(axis=2, keepdims=True)
    x = grey + (x - grey) * np.float32(rng.uniform(0.3, 1.5))
    return (x.clip(0, 1) * 255).round().astype(np.uint8)
