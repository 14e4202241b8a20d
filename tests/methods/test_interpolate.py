import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import LinearNDInterpolator

from scalefield import Anchors, InputError
from scalefield.methods.interpolate import Interpolate, interpolate

FORMS = {"log_depth": np.exp, "depth": lambda q: q, "disparity": lambda q: 1 / q}


@pytest.mark.parametrize("linear_in", FORMS)
def test_interpolate_plane_in_its_own_quantity_is_exact_inside_the_hull(relative, linear_in):
    mde_output = relative((20, 30))
    v, u = np.indices((20, 30))
    depth_m = FORMS[linear_in](1 + 0.03 * u + 0.05 * v)
    rng = np.random.default_rng(0)
    columns = np.array([0, 29, 0, 29, *rng.integers(0, 30, 8)])
    rows = np.array([0, 0, 19, 19, *rng.integers(0, 20, 8)])
    anchors = Anchors(columns, rows, depth_m[rows, columns])
    recovery = Interpolate(linear_in=linear_in)(mde_output, anchors)
    np.testing.assert_allclose(recovery.depth_m, depth_m, rtol=1e-5)
    assert recovery.report.fallbacks == ()


@given(seed=st.integers(0, 10**6), n=st.integers(4, 120), lattice=st.sampled_from([1, 2, 5]))
@settings(max_examples=30)
def test_interpolate_equals_a_search_for_the_triangle_of_every_pixel(seed, n, lattice):
    """Row by row it is what SciPy finds pixel by pixel; on a lattice many edges are level."""
    shape, rng = (41, 53), np.random.default_rng(seed)
    pixels = np.unique(rng.integers(0, [-(-s // lattice) for s in shape], (n, 2)), axis=0) * lattice
    pixels = np.vstack([pixels, [[0, 0], [0, 7], [5, 0]]])  # never collinear
    pixels, first = np.unique(pixels, axis=0, return_index=True)
    values = rng.standard_normal(n + 3)[first]
    field, fallbacks = interpolate(pixels.astype(float), values, shape)
    wanted = LinearNDInterpolator(pixels, values)(np.indices(shape).reshape(2, -1).T)
    inside = ~np.isnan(wanted)
    np.testing.assert_allclose(field.reshape(-1)[inside], wanted[inside], atol=1e-6)
    assert fallbacks == ()
    assert np.isfinite(field).all()


def test_interpolate_nearest_anchor_outside_the_hull(relative):
    mde_output = relative((20, 30))
    anchors = Anchors([10, 20, 10, 20], [5, 5, 15, 15], [1.0, 2.0, 3.0, 4.0])
    depth_m = Interpolate()(mde_output, anchors).depth_m
    corners = [float(depth_m[v, u]) for v in (0, 19) for u in (0, 29)]
    assert corners == pytest.approx([1, 2, 3, 4])


@pytest.mark.parametrize("other", [1, 2])
def test_interpolate_ignores_the_relative_depth(relative, other):
    anchors = Anchors([1, 20, 10], [5, 5, 15], [1.0, 2.0, 3.0])
    first, second = (Interpolate()(relative(seed=s), anchors).depth_m for s in (0, other))
    torch.testing.assert_close(first, second)


def test_interpolate_fallbacks(relative):
    mde_output = relative((7, 9))
    one = Interpolate()(mde_output, Anchors([4], [2], [3.0]))
    np.testing.assert_allclose(one.depth_m, 3, rtol=1e-6)
    assert [f.code for f in one.report.fallbacks] == ["constant_depth"]

    two = Interpolate(linear_in="depth")(mde_output, Anchors([2, 6], [3, 3], [1.0, 5.0]))
    np.testing.assert_allclose(two.depth_m[0], [1, 1, 1, 2, 3, 4, 5, 5, 5], rtol=1e-6)
    torch.testing.assert_close(two.depth_m, two.depth_m[:1].expand(7, 9))
    assert [f.code for f in two.report.fallbacks] == ["collinear"]

    diagonal = Anchors([1, 3, 5], [1, 3, 5], [1.0, 3.0, 2.0])
    along = Interpolate(linear_in="depth")(mde_output, diagonal)
    np.testing.assert_allclose(along.depth_m.diagonal(), [1, 1, 2, 3, 2.5, 2, 2], rtol=1e-6)
    assert along.report.fallbacks == two.report.fallbacks


def test_interpolate_averages_repeated_pixels(relative):
    anchors = Anchors([4, 4], [2, 2], [2.0, 8.0])
    depth_m = Interpolate()(relative((7, 9)), anchors).depth_m
    np.testing.assert_allclose(depth_m, 4, rtol=1e-6)  # the mean of the logarithms


@pytest.mark.usefixtures("as_users_run_it")
def test_interpolate_wrong_option():
    with pytest.raises(InputError, match=r"^linear_in must be one of log_depth, depth, disparity"):
        Interpolate(linear_in="space")
