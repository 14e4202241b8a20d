import numpy as np
import pytest
import torch

from scalefield.dense import dense_mean, dense_parts
from test_scene import SHAPE, posterior_of, room


@pytest.fixture
def interpolated(monkeypatch):
    """Even a small image has nodes."""
    monkeypatch.setattr("scalefield.lattice.PIXELS_A_CELL", 0)


@pytest.mark.parametrize("n", [9, 300])
def test_the_parts_sum_to_the_mean(interpolated, n):
    posterior, scene = posterior_of(room(), n)
    total = sum(dense_parts(posterior, scene).values())
    torch.testing.assert_close(dense_mean(posterior, scene), total, atol=2e-5, rtol=0)


def test_bands_of_pixels_are_the_whole_image(monkeypatch):
    posterior, scene = posterior_of(room(), 20)
    whole = dense_mean(posterior, scene)
    assert scene.kept == {}
    v, u = np.divmod(np.arange(SHAPE[0] * SHAPE[1]), SHAPE[1])
    slow = posterior.mean(scene.pixels(v, u)).float().reshape(SHAPE)
    # float32 blunts a cusp: the square root of its rounding.
    torch.testing.assert_close(whole, slow, atol=2e-3, rtol=0)
    monkeypatch.setattr("scalefield.dense.BAND_PIXELS", 7)
    torch.testing.assert_close(dense_mean(posterior, scene), whole, atol=2e-3, rtol=0)
