import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalefield import Anchors, InputError
from scalefield.methods.global_affine import Global
from scalefield.report import Fallback


@pytest.mark.parametrize("kind", ["depth", "disparity"])
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 40), sigma=st.booleans())
def test_global_least_squares_is_numpys(relative, measure, kind, seed, n, sigma):
    mde_output = relative(kind=kind, seed=seed % 7)
    rng = np.random.default_rng(seed)
    mde_depth = mde_output.mde_depth.numpy()
    truth = (4 * mde_depth + 1) * np.exp(0.05 * rng.standard_normal(mde_depth.shape))
    anchors = measure(truth, n, seed, sigma)
    recovery = Global()(mde_output, anchors)
    if recovery.report.fallbacks:  # two anchors may well ask for a negative scale
        assert n < 6
        return
    x = mde_depth[anchors.pixels(mde_output.shape)]
    root = 1 / anchors.sigma_m if sigma else np.ones(n)
    design = np.stack([x, np.ones(n)], axis=1)
    (s, t), *_ = np.linalg.lstsq(root[:, None] * design, root * anchors.depth_m)
    wanted = s * mde_depth + t
    np.testing.assert_allclose(
        recovery.depth_m, np.maximum(wanted, 1e-3 * anchors.depth_m.min()), rtol=1e-5
    )


@pytest.mark.parametrize("fit", ["least_squares", "ransac", "median_mad"])
@pytest.mark.parametrize("space", ["depth", "disparity"])
def test_global_affine_world_is_recovered_exactly(relative, measure, fit, space):
    mde_output = relative(kind=space)
    world = 3 * mde_output.prediction + 0.5
    depth_m = world if space == "depth" else 1 / world
    anchors = measure(depth_m.numpy(), 20)
    recovery = Global(fit=fit, space=space)(mde_output, anchors)
    torch.testing.assert_close(recovery.depth_m, depth_m.float(), rtol=1e-5, atol=0)
    assert recovery.report.fallbacks == ()


def test_global_median_mad_matches_in_inverse_depth(relative, measure):
    mde_output = relative(kind="disparity")
    rng = np.random.default_rng(0)
    anchors = measure(rng.uniform(1, 9, mde_output.shape), 15)
    method = Global(fit="median_mad")
    recovery = method(mde_output, anchors)
    x = mde_output.prediction.numpy()
    x_at, y = x[anchors.pixels(mde_output.shape)], 1 / anchors.depth_m

    def mad(values):
        return np.mean(np.abs(values - np.median(values)))

    s = mad(y) / mad(x_at)
    wanted = s * (x - np.median(x_at)) + np.median(y)
    positive = wanted > 1e-3
    np.testing.assert_allclose(recovery.depth_m[positive], 1 / wanted[positive], rtol=1e-5)


def test_global_ransac_rejects_the_anchors_outside_its_consensus(relative, measure):
    mde_output = relative()
    depth_m = 3 * mde_output.prediction + 0.5
    anchors = measure(depth_m.numpy(), 30)
    wrong = np.arange(30) % 4 == 0
    spoiled = Anchors(anchors.u, anchors.v, np.where(wrong, 50 + anchors.u, anchors.depth_m))
    recovery = Global(fit="ransac")(mde_output, spoiled)
    torch.testing.assert_close(recovery.depth_m, depth_m.float(), rtol=1e-4, atol=0)
    assert {r.anchor for r in recovery.report.rejected} >= set(np.flatnonzero(wrong))
    assert recovery.report.anchors_used == 30 - len(recovery.report.rejected)
    assert max(np.abs(recovery.report.residuals_log)) < 1e-4


def test_global_reports_its_fallbacks(relative):
    mde_output = relative()
    report = Global()(mde_output, Anchors([3], [4], [2.0])).report
    assert report.fallbacks == (Fallback("scale_only", "scale only: one anchor"),)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"fit": "l1"}, "fit must be one of least_squares, ransac, median_mad, found 'l1'"),
        ({"space": "log"}, "space must be one of depth, disparity, found 'log'"),
    ],
)
@pytest.mark.usefixtures("as_users_run_it")
def test_global_wrong_options(options, sentence):
    with pytest.raises(InputError, match=sentence):
        Global(**options)
