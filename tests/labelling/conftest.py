"""Small photographs with anchors, and the truth that the anchors were taken from."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scalefield import Anchors

SHAPE = (48, 64)


def write_sample(folder: Path, key: str, seed: int, n: int = 24) -> None:
    """A noisy photograph, and anchors on a smooth depth."""
    rng = np.random.default_rng(seed)
    v, u = np.indices(SHAPE)
    depth_m = 2 + u / 32 + np.sin(v / 20)
    path = folder / f"{key}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (*SHAPE, 3), dtype=np.uint8)).save(path)
    rows, columns = rng.integers(0, SHAPE[0], n), rng.integers(0, SHAPE[1], n)
    anchors = Anchors(columns, rows, depth_m[rows, columns])
    anchors.write(folder / f"{key}.anchors.npz")


@pytest.fixture
def folder(tmp_path) -> Path:
    """Six samples, one of them below another folder."""
    source = tmp_path / "source"
    for i in range(5):
        write_sample(source, f"p{i}", i)
    write_sample(source, "more/p5", 5)
    return source


@pytest.fixture
def many(tmp_path) -> Path:
    """500 samples p0 … p499."""
    for i in range(500):
        write_sample(tmp_path / "many", f"p{i}", i)
    return tmp_path / "many"
