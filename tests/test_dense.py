import dataclasses

import numpy as np
import pytest
import torch

from scalefield.anchors import Anchors
from scalefield.cusps import Cusps
from scalefield.dense import dense_mean, dense_parts
from scalefield.lattice import lattice_for
from scalefield.methods.field import Field, load_field
from test_scene import SHAPE, posterior_of, room


@pytest.fixture
def interpolated(monkeypatch):
    """Even a small image has nodes."""
    monkeypatch.setattr("scalefield.lattice.PIXELS_A_CELL", 0)


@pytest.mark.parametrize("n", [9, 300])
def test_the_parts_sum_to_the_mean(interpolated, n):
    posterior, scene = posterior_of(room(), n)
    total = sum(dense_parts(posterior, scene).values())
    torch.testing.assert_close(dense_mean(posterior, scene), total, atol=1e-4, rtol=0)


def test_bands_of_pixels_are_the_whole_image(monkeypatch):
    posterior, scene = posterior_of(room(), 20)
    whole = dense_mean(posterior, scene)
    assert scene.kept == {}
    v, u = np.divmod(np.arange(SHAPE[0] * SHAPE[1]), SHAPE[1])
    slow = posterior.mean(scene.pixels(v, u)).float().reshape(SHAPE)
    # float32 blunts a cusp: the square root of its rounding.
    torch.testing.assert_close(whole, slow, atol=2e-3, rtol=0)
    monkeypatch.setattr("scalefield.dense.pairs_at_once", lambda _: 28)
    torch.testing.assert_close(dense_mean(posterior, scene), whole, atol=2e-3, rtol=0)


LARGE = (480, 640)


def honest(n, shape=LARGE):
    """Anchors of a room whose relative depth errs smoothly, and each by a few per cent."""
    rng = np.random.default_rng(n)
    output = room(shape=shape)
    v, u = (rng.integers(0, side, n) for side in shape)
    bend = 0.3 * np.sin(5 * u / shape[1]) + 0.2 * v / shape[0] + rng.normal(0, 0.03, n)
    anchors = Anchors(u, v, 2.5 * output.mde_depth[v, u].double().numpy() * np.exp(bend))
    model = load_field("field")
    return Field(robust=False).solve(model.scene(output), anchors, model).posterior, output, anchors


def off(dense, posterior, scene, v, u):
    """|Δℓ| from the slow and obvious mean, in float64, at some pixels."""
    return (dense[v, u] - posterior.mean(scene.pixels(v, u)).float()).abs()


@pytest.mark.parametrize("n", [12, 110, 300, 700])
def test_the_dense_field_is_the_posterior_s_mean(n):
    """With nodes for all terms or for smooth ones alone, |Δℓ| is less than 5·10⁻⁴ in the mean and
    0.015 anywhere; and 0.01 at anchors and beside them, where interpolation would be worst."""
    posterior, output, anchors = honest(n)
    scene = load_field("field").scene(output)
    dense = dense_mean(posterior, scene)
    assert (lattice_for(scene, n) is None) == (n == 700)
    rng = np.random.default_rng(0)
    anywhere = off(dense, posterior, scene, *(rng.integers(0, side, 5000) for side in LARGE))
    assert float(anywhere.mean()) < 5e-4
    assert float(anywhere.max()) < 0.015
    rows, columns = anchors.pixels(LARGE)
    for step in (0, 2):
        columns = np.clip(columns + step, 0, LARGE[1] - 1)
        assert float(off(dense, posterior, scene, rows, columns).max()) < 0.01


@pytest.mark.parametrize("n", [12, 300])
def test_without_its_cusps_it_would_be_several_times_as_far_at_anchors(n, monkeypatch):
    posterior, output, anchors = honest(n)
    scene, pixels = load_field("field").scene(output), anchors.pixels(LARGE)
    restored = off(dense_mean(posterior, scene), posterior, scene, *pixels)
    monkeypatch.setattr(Cusps, "restore", lambda *_: None)
    blunt = off(dense_mean(posterior, scene), posterior, scene, *pixels)
    assert float(blunt.mean()) > 4 * float(restored.mean())


@pytest.mark.parametrize("kind", ["gaussian", "exponential"])
@pytest.mark.parametrize("n", [20, 700])
def test_terms_may_be_of_one_kind(kind, n):
    """All smooth or all rough, few anchors or many."""
    model, output = load_field("field"), room(shape=(300, 400))
    terms = tuple(dataclasses.replace(term, shape=kind) for term in model.kernel.terms)
    kernel = dataclasses.replace(model.kernel, terms=terms)
    posterior, scene = posterior_of(output, n, dataclasses.replace(model, kernel=kernel))
    dense = dense_mean(posterior, scene)
    rng = np.random.default_rng(0)
    v, u = (rng.integers(0, side, 500) for side in output.shape)
    scale = float(posterior.alpha.abs().max()) * 1e-4  # random depths bend it wildly
    assert float(off(dense, posterior, scene, v, u).mean()) < max(1e-3, scale)
    total = sum(dense_parts(posterior, scene).values())
    torch.testing.assert_close(dense, total, atol=1e-3, rtol=0)
