"""A small dataset for the benchmark: textured boxes with known depth, and a wrong estimator."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from scalefield.benchmark.method_spec import parse_methods
from scalefield.benchmark.run import Evaluation
from scalefield.datasets import Folder
from scalefield.mde import MDEOutput
from worlds import write_place

RANGES_M = {"*": (0.1, 20.0)}


class RedIsDepth:
    """Reads depth from the red channel, a third too small and bent; green gives features."""

    name = "red"

    def __call__(self, image: np.ndarray) -> MDEOutput:
        red = torch.tensor(image[..., 0], dtype=torch.float32)
        features = torch.tensor(image[::4, ::4].transpose(2, 0, 1), dtype=torch.float32)
        return MDEOutput((red + 20) ** 1.2 / 300, "depth", features, model="red", revision="1")


def write_world(root: Path, frames: int = 6, size: tuple[int, int] = (40, 56)) -> None:
    """Two places, `room` and `hall`; the room's first two frames have labels."""
    rng = np.random.default_rng(0)
    names = {"home/room": range(frames - frames // 3), "home/hall": range(frames // 3)}
    y, x = np.mgrid[: size[0], : size[1]]
    for source, indices in names.items():
        frames_of_place = {}
        for i in indices:
            depth_m = 2 + 0.05 * y + np.where((x - 20 - 3 * i) ** 2 + (y - 20) ** 2 < 120, -1, 1)
            if source == "home/hall":
                depth_m = depth_m * 2.5
            red = np.clip(depth_m * 18 + rng.normal(0, 1, size), 0, 255)
            image = np.stack([red, red[::-1], np.full(size, 40.0)], axis=2).astype(np.uint8)
            depth_m[:3, :5] = 0
            frames_of_place[f"f{i}"] = image, depth_m
        about = [{"name": name, "scene": source, "K": None} for name in frames_of_place]
        write_place(root / source, frames_of_place, frames=about)
        (root / source / "label").mkdir()
        for name in list(frames_of_place)[:2] if source == "home/room" else ():
            labels = (x > 30).astype(np.uint8)
            Image.fromarray(labels).save(root / source / "label" / f"{name}.png")
    listed = [f"{source}/f{i}" for source, indices in names.items() for i in indices]
    (root / "test.txt").write_text("".join(f"{name}\n" for name in listed))


@pytest.fixture(scope="session")
def world_at():
    """Write a folder dataset of six frames to a path and open it."""

    def write(root: Path) -> Folder:
        write_world(root)
        return Folder(root, RANGES_M)

    return write


@pytest.fixture
def world(world_at, tmp_path):
    """A folder dataset of six frames."""
    return world_at(tmp_path / "world")


@pytest.fixture
def evaluation():
    """Three methods, one of which needs labels, under the low regime and the drop sequence."""
    return make_evaluation("median", "Affine: global", "region")


def make_evaluation(*methods: str, **changed) -> Evaluation:
    options = {
        "name": "world",
        "dataset": "folder",
        "split": "test",
        "mde": "red",
        "methods": parse_methods(methods),
        "regimes": ("low",),
        "drop": True,
        "seed": 0,
        "ranges_m": RANGES_M,
    }
    return Evaluation(**options | changed)


@pytest.fixture(scope="session")
def red():
    """The estimator."""
    return RedIsDepth()


@pytest.fixture(scope="session")
def evaluation_of():
    """Make an evaluation of these methods."""
    return make_evaluation
