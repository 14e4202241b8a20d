import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalefield.anchors import Anchors
from scalefield.bends import Bends, rough_terms
from scalefield.cusps import Cusps, cusps_for
from scalefield.lattice import Lattice
from scalefield.methods.field import Field, load_field
from test_scene import room

MODEL = load_field("field")


def cusps_of(shape, cells=20):
    return Cusps(Lattice.of(MODEL.scene(room(shape=shape)), cells))


@settings(max_examples=20)
@given(
    shape=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    place=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
    cells=st.integers(1, 30),
)
def test_a_window_lies_in_the_image_and_has_its_anchor_in_it(shape, place, cells):
    cusps = cusps_of(shape, cells)
    row, column = (int(share * size) for share, size in zip(place, shape, strict=True))
    anchor = cusps.lattice.scene.pixels(np.array([row]), np.array([column]))
    for side, size, at in zip(cusps.windows(anchor), shape, (row, column), strict=True):
        pixels = side.flatten().tolist()
        assert pixels == list(range(pixels[0], pixels[-1] + 1))
        assert 0 <= pixels[0] <= at <= pixels[-1] < size


@pytest.mark.parametrize("shape", [(90, 120), (1, 200)])
def test_what_is_interpolated_and_what_is_missing_is_the_kernel_s(shape):
    """At every pixel of a window, for anchors in the middle and in a corner."""
    cusps, kernel = cusps_of(shape), MODEL.kernel
    scene, lattice, terms = cusps.lattice.scene, cusps.lattice, rough_terms(kernel)
    anchors = scene.pixels(np.array([shape[0] // 2, 0]), np.array([50, shape[1] - 1]))
    missing = cusps.missing(kernel, anchors, terms)
    bends = Bends(kernel, anchors, scene.middle, torch.float32, terms)
    everywhere = lattice.spread(bends.rows(lattice.sights.only(terms)).mT)
    rows, columns = torch.broadcast_tensors(*cusps.windows(anchors))
    for i in range(2):
        v, u = rows[i].flatten(), columns[i].flatten()
        exact = sum(kernel.bend(j, scene.pixels(v.numpy(), u.numpy()), anchors) for j in terms)
        found = everywhere[v * shape[1] + u, i] + missing[i]
        torch.testing.assert_close(found, exact[:, i].float(), atol=1e-4, rtol=0)
    assert float(missing.abs().max()) > 1e-4


def test_what_is_kept_is_what_is_computed_anew_and_windows_overlap(monkeypatch):
    """Anchors of one pixel, too, each have their own; what was there stays."""
    output = room(shape=(90, 120))
    scene = MODEL.scene(output)
    anchors = Anchors([5, 60, 63, 63, 119], [5, 40, 42, 42, 89], [2.0, 3.0, 2.5, 3.5, 3.0])
    posterior = Field(robust=False).solve(scene, anchors, MODEL).posterior
    cusps, terms = cusps_for(scene, Lattice.of(scene, 20)), rough_terms(MODEL.kernel)
    kept, anew, slow = torch.ones(3, 90 * 120)
    cusps.restore(posterior, kept, terms)
    monkeypatch.setattr("scalefield.cusps.FEW", 0)
    cusps.restore(posterior, anew, terms)
    torch.testing.assert_close(kept, anew, atol=1e-5, rtol=0)
    missing = cusps.missing(MODEL.kernel, posterior.anchors, terms)
    windows = torch.broadcast_tensors(*cusps.windows(posterior.anchors))
    for i, (rows, columns) in enumerate(zip(*windows, strict=True)):
        for v, u, value in zip(rows.flatten(), columns.flatten(), missing[i], strict=True):
            slow[v * 120 + u] += float(posterior.alpha[i] * value)
    torch.testing.assert_close(anew, slow, atol=1e-5, rtol=0)
    assert float((slow - 1).abs().max()) > 1e-3


def test_they_go_with_their_lattice():
    """A lattice that was made again has its own, so that the old one is not held."""
    scene = MODEL.scene(room(shape=(90, 120)))
    first, second = Lattice.of(scene, 20), Lattice.of(scene, 20)
    assert cusps_for(scene, first) is cusps_for(scene, first)
    assert cusps_for(scene, second).lattice is second
