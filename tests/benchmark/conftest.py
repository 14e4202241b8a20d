"""A small dataset for the benchmark: textured boxes with known depth, and a wrong estimator."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from scalefield.benchmark.method_spec import parse_methods
from scalefield.benchmark.run import Evaluation
from scalefield.datasets import Folder
from scalefield.mde import MDEOutput

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
    for source, numbers in names.items():
        folder = root / source
        for sub in ("rgb", "depth", "label"):
            (folder / sub).mkdir(parents=True)
        for i in numbers:
            y, x = np.mgrid[: size[0], : size[1]]
            depth_m = 2 + 0.05 * y + np.where((x - 20 - 3 * i) ** 2 + (y - 20) ** 2 < 120, -1, 1)
            if source == "home/hall":
                depth_m = depth_m * 2.5
            red = np.clip(depth_m * 18 + rng.normal(0, 1, size), 0, 255)
            image = np.stack([red, red[::-1], np.full(size, 40.0)], axis=2).astype(np.uint8)
            Image.fromarray(image).save(folder / "rgb" / f"f{i}.png")
            stored = np.round(depth_m * 1000).astype(np.uint16)
            stored[:3, :5] = 0
            Image.fromarray(stored).save(folder / "depth" / f"f{i}.png")
            if source == "home/room" and i < 2:
                labels = (x > 30).astype(np.uint8)
                Image.fromarray(labels).save(folder / "label" / f"f{i}.png")
        about = [{"name": f"f{i}", "scene": source, "K": None} for i in numbers]
        meta = {"depth_scale_per_metre": 1000, "frames": about}
        (folder / "meta.json").write_text(json.dumps(meta))
    listed = [f"{source}/f{i}" for source, numbers in names.items() for i in numbers]
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
