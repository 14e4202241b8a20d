"""Inputs of the benchmarks: one smooth image at any size, its estimates, anchors, and DA3-BASE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from scalefield.anchors import Anchors
from scalefield.basis.generator import Generator
from scalefield.basis.realtime import Inputs, metric_depth
from scalefield.mde.da3 import BASE, DA3, PREPROCESS
from scalefield.mde.lite import load_lite
from scalefield.mde.output import MDEOutput

Shape = tuple[int, int]


def picture(shape: Shape) -> np.ndarray:
    """A smooth coloured image."""
    v, u = np.mgrid[0 : shape[0], 0 : shape[1]] / max(shape)
    waves = [np.sin(9 * u + 3 * v), np.cos(7 * v - 2 * u), np.sin(5 * u * v)]
    return (127 + 120 * np.stack(waves, axis=-1)).astype(np.uint8)


@lru_cache(maxsize=1)
def da3_base(device: str) -> DA3:
    """DA3-BASE with random weights: its time does not depend on them."""
    torch.manual_seed(0)
    return DA3(BASE).eval().requires_grad_(False).to(device)


def da3_input(shape: Shape, device: str, batch: int = 1) -> Tensor:
    """The image as DA3-BASE sees it."""
    return PREPROCESS([picture(shape)] * batch).to(device)


@dataclass(frozen=True)
class World:
    """One image of a size, what `lite` says about it, and as many anchors as are asked for."""

    image: np.ndarray
    output: MDEOutput

    @classmethod
    def make(cls, shape: Shape, device: str) -> World:
        """The image and its estimate."""
        image = picture(shape)
        return cls(image, load_lite(device=device)(image))

    def anchors(self, n: int) -> Anchors:
        """Twice the relative depth, give or take a tenth, at n pixels."""
        rng = np.random.default_rng(n)
        height, width = self.output.shape
        u, v = rng.integers(0, width, n), rng.integers(0, height, n)
        mde_depth = self.output.mde_depth[v, u].double().cpu().numpy()
        return Anchors(u, v, 2 * mde_depth * rng.uniform(0.9, 1.1, n))


@dataclass(frozen=True)
class Batch:
    """Several images' inputs, and the way to run them: what a robot or a server does."""

    generator: Generator
    inputs: Inputs
    run: Callable[[Generator, Inputs], Tensor] = metric_depth

    @classmethod
    def make(
        cls,
        generator: Generator,
        shape: Shape,
        *,
        size: int,
        n: int,
        device: str,
        stride: float = 4,
    ) -> Batch:
        """Random depth, features at a stride, and anchors."""
        g = torch.Generator().manual_seed(0)
        channels = generator.config.feature_channels
        grid = [round(s / stride) for s in shape]
        features = torch.rand(size, channels, *grid, generator=g) if channels else None
        inputs = Inputs(
            1 + torch.rand(size, *shape, generator=g),
            torch.rand(size, n, 2, generator=g) * (torch.tensor([shape[1], shape[0]]) - 1),
            1 + torch.rand(size, n, generator=g),
            features,
        )
        on_device = Inputs(*(None if x is None else x.to(device) for x in inputs))
        return cls(generator.to(device), on_device)

    @torch.no_grad()
    def __call__(self) -> Tensor:
        """Metric depth of every image."""
        return self.run(self.generator, self.inputs)
