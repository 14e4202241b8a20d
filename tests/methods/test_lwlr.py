import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scalefield import Anchors, InputError, MDEOutput
from scalefield.alignment.affine import Samples, fit_affine
from scalefield.methods.global_affine import Global
from scalefield.methods.lwlr import LWLR, Local


def slow_parameters(method, aligned, rows, columns, y, weight, b, v, u):
    """(s, t) at one pixel: the published normal equations, word for word, and the blend."""
    kernel = weight * np.exp(-((rows - v) ** 2 + (columns - u) ** 2) / (2 * b**2))
    X = np.stack([aligned[rows, columns], np.ones(len(y))], axis=1)
    W = np.diag(kernel)
    ridge = np.diag([0.0, method.shift_penalty])
    beta = np.linalg.solve(X.T @ W @ X + ridge, X.T @ W @ y)
    share = method.blend / (method.blend + kernel.sum())
    return (1 - share) * beta + share * np.array([1.0, 0.0])


def slow_lwlr(method, mde_output, anchors, b):
    space = method.space or "depth"
    x = mde_output.in_space(space).double().numpy()
    rows, columns = anchors.pixels(mde_output.shape)
    y = anchors.depth_m if space == "depth" else 1 / anchors.depth_m
    weight = np.ones(len(y))
    if anchors.sigma_m is not None:
        sigma = anchors.sigma_m if space == "depth" else anchors.sigma_m * y**2
        weight = sigma**-2 / np.mean(sigma**-2)
    root = np.sqrt(weight)
    design = np.stack([x[rows, columns], np.ones(len(y))], axis=1)
    (s, t), *_ = np.linalg.lstsq(root[:, None] * design, root * y)
    if s <= 0:
        return None  # the fallbacks of Global have their own tests
    aligned = s * x + t
    height, width = mde_output.shape
    first = method.stride // 2
    queries_v, queries_u = range(first, height, method.stride), range(first, width, method.stride)
    beta = np.array(
        [
            [slow_parameters(method, aligned, rows, columns, y, weight, b, v, u) for u in queries_u]
            for v in queries_v
        ]
    )
    # Bilinear: first along each row of queries, then down; np.interp holds the ends.
    wide = np.array(
        [[np.interp(range(width), queries_u, line[:, p]) for line in beta] for p in (0, 1)]
    )
    scale, shift = (
        np.array([np.interp(range(height), queries_v, column) for column in m.T]).T for m in wide
    )
    return scale * aligned + shift


def world(relative, measure, kind, seed, n, sigma=False, shape=(20, 27)):
    mde_output = relative(shape, kind, seed % 5)
    rng = np.random.default_rng(seed)
    v, u = np.indices(shape)
    field = np.exp(0.3 * np.sin(u / 6) + 0.02 * v + 0.05 * rng.standard_normal(shape))
    return mde_output, measure(4 * mde_output.mde_depth.numpy() * field + 0.5, n, seed, sigma)


@pytest.mark.parametrize("space", ["depth", "disparity"])
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(8, 30),
    b=st.floats(3, 50),
    stride=st.sampled_from([1, 4, 8, 9]),
    sigma=st.booleans(),
)
@settings(max_examples=15)
def test_lwlr_equals_the_slow_reference(relative, measure, space, seed, n, b, stride, sigma):
    """Exact at every pixel, and the published sparse queries with bilinear upsampling."""
    mde_output, anchors = world(relative, measure, space, seed, n, sigma)
    method = LWLR(bandwidth=b, stride=stride, space=space)
    recovery = method(mde_output, anchors)
    wanted = slow_lwlr(method, mde_output, anchors, b)
    assume(wanted is not None)
    metric = recovery.depth_m.double().numpy()
    metric = metric if space == "depth" else 1 / metric
    low, high = 1e-3 * anchors.depth_m.min(), 1e3 * anchors.depth_m.max()
    free = wanted > 1.01 * (low if space == "depth" else 1 / high)  # of the limits on depth
    np.testing.assert_allclose(metric[free], wanted[free], rtol=1e-6)
    assert free.mean() > 0.5


@pytest.mark.parametrize("stride", [1, 8])
def test_fit_affine_equals_the_slow_reference_in_float64(relative, measure, stride):
    """Without float32's rounding the two agree to 1e-9, far from all anchors too."""
    mde_output, anchors = world(relative, measure, "depth", 3, 6)
    method = LWLR(bandwidth=2.0, stride=stride)
    samples = Samples.at(mde_output, anchors, "depth")
    aligned = fit_affine(samples)(mde_output.mde_depth.double())
    scale, shift = method.fields(mde_output.shape, Local.of(aligned, samples, 2.0))
    wanted = slow_lwlr(method, mde_output, anchors, 2.0)
    np.testing.assert_allclose(scale * aligned + shift, wanted, rtol=1e-9)


def test_fit_affine_equals_the_slow_reference_where_sums_are_interpolated(relative, measure):
    """Many anchors and a wide kernel, crowded into one part of the image."""
    shape = (60, 130)
    mde_output = relative(shape)
    v, u = np.indices(shape)
    truth = (4 + np.sin(u / 9) + v / 30) * mde_output.mde_depth.numpy()
    anchors = measure(truth[:, :40], 90)
    method = LWLR(bandwidth=25.0, stride=1)
    samples = Samples.at(mde_output, anchors, "depth")
    aligned = fit_affine(samples)(mde_output.mde_depth.double())
    scale, shift = method.fields(shape, Local.of(aligned, samples, 25.0))
    wanted = slow_lwlr(method, mde_output, anchors, 25.0)
    np.testing.assert_allclose(scale * aligned + shift, wanted, rtol=1e-8, atol=1e-8)


def test_lwlr_affine_world_is_recovered_exactly(relative, measure):
    mde_output = relative()
    depth_m = 3 * mde_output.prediction + 0.5
    anchors = measure(depth_m.numpy(), 12)
    for method in (LWLR(), LWLR(stride=1, bandwidth="adaptive"), LWLR(stride=1, bandwidth=1.0)):
        recovery = method(mde_output, anchors)
        torch.testing.assert_close(recovery.depth_m, depth_m.float(), rtol=1e-5, atol=0)


def test_lwlr_far_from_every_anchor_is_global(relative, measure):
    mde_output = relative((30, 200))
    corner = measure(np.full((30, 10), 2.0), 9)
    anchors = Anchors(corner.u, corner.v, 3 + np.arange(9) % 4)
    recovery = LWLR(bandwidth=2.0, stride=1)(mde_output, anchors)
    alone = Global()(mde_output, anchors)
    torch.testing.assert_close(recovery.depth_m[:, 40:], alone.depth_m[:, 40:])
    assert not torch.allclose(recovery.depth_m[:, :10], alone.depth_m[:, :10], rtol=0.01)


@pytest.mark.parametrize(
    ("options", "width", "wanted"),
    [
        ({}, 640, 50.0),
        ({}, 320, 25.0),
        ({"reference_bandwidth_px": 25.0, "reference_width_px": 1242.0}, 1242, 25.0),
        ({"bandwidth": "adaptive"}, 640, 60.0),
        ({"bandwidth": 7.5}, 640, 7.5),
    ],
)
def test_lwlr_bandwidths(options, width, wanted):
    mde_output = MDEOutput(torch.ones(100, width), "depth")
    anchors = Anchors([0, 40, 80, 300], [0, 0, 0, 99], [1.0, 2, 3, 4])  # spacing 40
    samples = Samples.at(mde_output, anchors, "depth")
    assert LWLR(**options).bandwidth_px(width, samples) == pytest.approx(wanted)


def test_lwlr_adaptive_bandwidth_has_a_floor(relative, measure):
    mde_output, anchors = world(relative, measure, "depth", 0, 100)
    samples = Samples.at(mde_output, anchors, "depth")
    assert samples.spacing_px < 10
    assert LWLR(bandwidth="adaptive").bandwidth_px(640, samples) == 25


def test_lwlr_outliers_are_left_out_by_request(relative, measure):
    mde_output = relative()
    depth_m = 3 * mde_output.prediction + 0.5
    anchors = measure(depth_m.numpy(), 25)
    spoiled = Anchors(anchors.u, anchors.v, anchors.depth_m * np.where(np.arange(25) == 6, 1.6, 1))
    dropped = LWLR(stride=1, drop_outliers=True)(mde_output, spoiled)
    assert [r.anchor for r in dropped.report.rejected] == [6]
    assert dropped.report.anchors_used == 24
    kept = LWLR(stride=1)(mde_output, spoiled)
    assert kept.report.rejected == ()

    def error(recovery):
        return float((recovery.depth_m / depth_m - 1).abs().mean())

    assert error(dropped) < 0.5 * error(kept)


def test_lwlr_keeps_all_anchors_where_all_are_outliers(relative):
    mde_output = relative()
    anchors = Anchors([3, 3], [4, 4], [1.0, 9.0])
    report = LWLR(drop_outliers=True)(mde_output, anchors).report
    assert report.rejected == ()
    assert "all_outliers" in {fallback.code for fallback in report.fallbacks}


def test_lwlr_is_finite_at_every_pixel_of_a_large_image():
    rng = np.random.default_rng(0)
    mde_output = MDEOutput(torch.from_numpy(rng.uniform(1, 2, (480, 640))), "depth")
    anchors = Anchors(rng.integers(0, 640, 500), rng.integers(0, 480, 500), rng.uniform(2, 4, 500))
    recovery = LWLR(stride=1)(mde_output, anchors)
    assert torch.isfinite(recovery.depth_m).all()


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"bandwidth": "narrow"}, "bandwidth"),
        ({"bandwidth": 0.0}, "bandwidth"),
        ({"bandwidth": float("nan")}, "bandwidth"),
        ({"stride": 0}, "stride"),
        ({"stride": 1.5}, "stride"),
        ({"shift_penalty": 0.0}, "shift_penalty"),
        ({"blend": -1.0}, "blend"),
        ({"reference_width_px": 0.0}, "reference_width_px"),
        ({"space": "log"}, "space"),
    ],
)
def test_lwlr_wrong_options(options, option):
    with pytest.raises(InputError, match=f"^{option} must be"):
        LWLR(**options)
