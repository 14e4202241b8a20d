"""A small made-up world: rooms whose relative depth is biased in a way that can be learned."""

import sys
from pathlib import Path

import numpy as np
import torch

from scalefield.datasets import Frame
from scalefield.mde import MDEOutput

SHAPE = (24, 32)


class World:
    """A dataset of 12 training and 4 validation frames, in four scenes."""

    name = "world"

    def names(self, split):
        first, count = {"train": (0, 12), "val": (12, 4)}[split]
        return [f"room/{i:02d}" for i in range(first, first + count)]

    def load(self, name):
        number = int(name[-2:])
        rng = np.random.default_rng(number)
        v, u = np.mgrid[0 : SHAPE[0], 0 : SHAPE[1]]
        depth_m = 2 + u / 32 * rng.uniform(0.5, 3) + v / 24 * rng.uniform(0, 2)
        depth_m[8:18, 10:20] *= 0.6  # a box in front of the wall
        image = np.stack([255 * depth_m / depth_m.max()] * 3, axis=-1).astype(np.uint8)
        return Frame(
            name=name,
            group="room",
            scene=f"scene{number % 4}",
            image=image,
            depth_m=depth_m.astype(np.float32),
            depth_range_m=(0.1, 10.0),
        )


class BiasedMDE:
    """True depth to the power 0.7, a smooth slope over the image, and an unknown unit."""

    name = "biased"

    def __call__(self, image):
        true = torch.from_numpy(image[..., 0] / 255.0).float().clamp(min=0.05)
        slope = torch.linspace(0, 0.3, image.shape[0])[:, None]
        depth = 3 * true**0.7 * slope.exp()
        features = torch.stack([true[::4, ::4], true[::4, ::4] ** 2])
        return MDEOutput(depth, "depth", features, model=self.name)


def main(out: str, epochs: str) -> None:
    """Train, for tests that kill the process or start several."""
    from scalefield.training.basis import train_basis
    from scalefield.training.basis_config import BasisTraining
    from scalefield.training.data import prepare

    torch.set_num_threads(1)
    config = BasisTraining(k=4, epochs=int(epochs), batch=4, anchors=(5, 15), feature_dropout=0.0)
    frames = [prepare(World(), split, BiasedMDE(), ("low",)) for split in ("train", "val")]
    train_basis(config, *frames, Path(out), device="cpu", show_progress=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
