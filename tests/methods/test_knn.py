import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalefield import Anchors, InputError, MDEOutput
from scalefield.methods.knn import KNN


@pytest.mark.parametrize("space", ["depth", "disparity"])
@given(seed=st.integers(0, 10**6), n=st.integers(2, 20), k=st.integers(1, 7))
@settings(max_examples=20)
def test_knn_equals_a_slow_fit_at_every_pixel(relative, space, seed, n, k):
    shape = (9, 12)
    mde_output = relative(shape, "disparity", seed % 5)
    x_map = mde_output.in_space(space).numpy()
    rng = np.random.default_rng(seed)
    pixels = rng.choice(shape[0] * shape[1], n, replace=False)
    v, u = np.divmod(pixels, shape[1])
    depth_m = rng.uniform(2, 3, n)
    recovery = KNN(k=k, space=space)(mde_output, Anchors(u, v, depth_m))
    x, y = x_map[v, u], depth_m if space == "depth" else 1 / depth_m
    lower = checked = 0
    for row, column in np.ndindex(shape):
        distance = np.hypot(v - row, u - column)
        near = np.argsort(distance)[:k]
        edge = np.sort(distance)
        if k < n and edge[k] == edge[k - 1]:
            continue  # a tie: either neighbour is right
        root = 1 / np.sqrt(np.maximum(distance[near], 1))
        design = np.stack([x[near], np.ones(len(near))], axis=1)
        (s, t), *_ = np.linalg.lstsq(root[:, None] * design, root * y[near])
        wanted, least = s * x_map[row, column] + t, 0.5 * y.min()
        too_far = space == "disparity" and wanted < least
        if len(near) == 1 or s <= 0 or too_far:
            wanted = np.median(y[near] / x[near]) * x_map[row, column]
            wanted = max(wanted, least) if too_far and len(near) > 1 and s > 0 else wanted
            lower += 1
        if wanted > 1e-2:
            metric = float(recovery.depth_m[row, column])
            metric = metric if space == "depth" else 1 / metric
            assert metric == pytest.approx(min(wanted, 2e3), rel=1e-4)
            checked += 1
    assert bool(lower) <= bool(recovery.report.fallbacks)
    assert checked


@pytest.mark.parametrize("n", [1, 3])
def test_knn_of_few_or_equal_anchors_reports_scale_only(n):
    mde_output = MDEOutput(torch.full((5, 6), 0.5).double(), "disparity")
    anchors = Anchors([0, 3, 5][:n], [0, 2, 4][:n], [4.0, 5.0, 8.0][:n])
    recovery = KNN()(mde_output, anchors)
    np.testing.assert_allclose(recovery.depth_m, np.median(anchors.depth_m), rtol=1e-6)
    assert recovery.report.fallbacks[0].text.startswith("scale only at 30 pixels")


def test_knn_does_not_extrapolate_a_line_to_zero_disparity():
    disparity = torch.full((9, 9), 0.5).double()
    disparity[:, 6:] = 0.1
    disparity[4, 2], disparity[4, 4] = 0.4, 0.6
    mde_output = MDEOutput(disparity, "disparity")
    anchors = Anchors([2, 4], [4, 4], [10.0, 4.0])  # y = 0.75 x − 0.2, below zero at x = 0.1
    recovery = KNN(k=2)(mde_output, anchors)
    np.testing.assert_allclose(recovery.depth_m[4, [2, 4]], [10, 4], rtol=1e-6)
    np.testing.assert_allclose(recovery.depth_m[:, :2], 1 / 0.175, rtol=1e-6)
    np.testing.assert_allclose(recovery.depth_m[:, 6:], 20, rtol=1e-6)  # y/x × 0.1 is less
    assert recovery.report.fallbacks[0].text.startswith("scale only at 27 pixels")
    assert recovery.report.limited_pixels == 0
    assert float(recovery.std_log[:, 6:].max()) < 3


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("options", "option"), [({"k": 0}, "k"), ({"k": 2.0}, "k"), ({"space": "log"}, "space")]
)
def test_knn_wrong_options(options, option):
    with pytest.raises(InputError, match=f"^{option} must be"):
        KNN(**options)


@pytest.mark.parametrize(("affine", "most"), [(True, 50.0), (False, 5e3)])
def test_knn_fallback_is_not_far_where_the_maps_zero_is_unknown(affine, most):
    """Depth that grows with disparity gives no line, and the median ratio is infinite at zero."""
    disparity = torch.linspace(0, 1, 200).double().reshape(10, 20)
    anchors = Anchors([4, 19], [6, 9], [2.0, 5.0])
    recovery = KNN()(MDEOutput(disparity, "disparity", affine=affine), anchors)
    assert float(recovery.depth_m.max()) == pytest.approx(most, rel=1e-4)
