"""What the tests of several MDEs share."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image

SCALES = [(1.0, 1.0), (2.0, 2.0), (0.7, 1.4), (1.51, 0.75)]
"""Height and width of images, in units of the size that the network works at."""


@pytest.fixture
def photograph():
    """A smooth random RGB image of any shape: the same scene in any size."""

    def make(height, width, seed=0):
        coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))

    return make


@pytest.fixture
def without(monkeypatch):
    """Makes an installed package unimportable."""
    return lambda package: monkeypatch.setitem(sys.modules, package, None)


def scene(shape, place):
    """A textured square on grey; place and size are in twentieths of the image."""
    texture = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    height, width = shape
    image = Image.new("RGB", (width, height), (128, 128, 128))
    if place is not None:
        top, left = place
        size = width // 5, height // 5
        square = Image.fromarray(texture).resize(size, Image.Resampling.NEAREST)
        image.paste(square, (round(left * width / 20), round(top * height / 20)))
    return np.asarray(image)


def displacement(before, after):
    """Rows and columns by which the maps moved: the peak of their cross-correlation."""
    a, b = (torch.fft.fft2(f - f.mean(dim=(1, 2), keepdim=True)) for f in (before, after))
    correlation = torch.fft.ifft2(a.conj() * b).real.sum(0)
    peak = divmod(int(correlation.argmax()), correlation.shape[1])
    return [p - n if p > n / 2 else p for p, n in zip(peak, correlation.shape, strict=True)]


@pytest.fixture
def assert_features_follow_the_image():
    """A square that moves by d pixels moves by d / stride cells in F, and not at all with size.

    Half a cell is allowed at either end of a move: DPT's heads enlarge with align_corners=True,
    which stretches F by a fraction of a cell towards the borders.
    """

    def check(mde, side):
        for scale in SCALES:
            shape = round(side * scale[0]), round(side * scale[1])
            blank, before, after = (mde(scene(shape, p)) for p in (None, (4, 4), (12, 8)))
            found = displacement(before.features - blank.features, after.features - blank.features)
            stride = before.stride
            wanted = [d * n / 20 / s for d, n, s in zip((8, 4), shape, stride, strict=True)]
            error = np.abs(np.subtract(found, wanted)).max()
            assert error <= 1, f"{shape}: moved by {found} cells, wanted {wanted}"

            larger = mde(scene((shape[0] * 2 + 1, shape[1] * 2 + 1), (4, 4)))
            assert larger.features.shape == before.features.shape
            assert displacement(before.features, larger.features) == [0, 0]

    return check
