import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalefield import Anchors, InputError
from scalefield.methods.log_kernel import LogKernel


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 20),
    bandwidth=st.one_of(st.none(), st.floats(0.05, 50)),
    sigma=st.booleans(),
)
@settings(max_examples=40)
def test_log_kernel_equals_a_slow_mean_in_logarithms(relative, measure, seed, n, bandwidth, sigma):
    """Against log-sum-exp at every pixel, however far from the anchors."""
    shape = (12, 15)
    mde_output = relative(shape, seed=seed % 5)
    rng = np.random.default_rng(seed)
    mde_depth = mde_output.mde_depth.numpy()
    anchors = measure(mde_depth * rng.uniform(1, 4, shape), n, seed, sigma)
    recovery = LogKernel(bandwidth_px=bandwidth)(mde_output, anchors)
    rows, columns = anchors.pixels(shape)
    y = np.log(anchors.depth_m / mde_depth[rows, columns])
    weight = np.ones(n) if not sigma else (anchors.depth_m / anchors.sigma_m) ** 2
    between = np.hypot(rows[:, None] - rows, columns[:, None] - columns)
    np.fill_diagonal(between, np.inf)
    b = bandwidth or np.median(between.min(axis=1))
    v, u = np.indices(shape)
    squared = (v[..., None] - rows) ** 2 + (u[..., None] - columns) ** 2
    exponent = np.log(weight) - squared / (2 * b**2)
    kernel = np.exp(exponent - exponent.max(axis=-1, keepdims=True))
    wanted = (kernel * y).sum(axis=-1) / kernel.sum(axis=-1)
    # Where float64 underflows ties between anchors are no longer averaged.
    seen = exponent.max(axis=-1) > -600
    np.testing.assert_allclose(recovery.log_scale[seen], wanted[seen], rtol=1e-5, atol=1e-5)
    assert recovery.log_scale.min() >= y.min() - 1e-5
    assert recovery.log_scale.max() <= y.max() + 1e-5


def test_log_kernel_beyond_the_kernel_takes_the_nearest_anchor(relative):
    mde_output = relative((5, 200))
    anchors = Anchors([10, 12, 190], [2, 2, 2], [2.0, 2.0, 9.0])
    recovery = LogKernel(bandwidth_px=1.0)(mde_output, anchors)
    mde_depth = mde_output.mde_depth.numpy()
    for u, anchor in ((60, 1), (140, 2)):
        wanted = np.log(anchors.depth_m[anchor] / mde_depth[2, int(anchors.u[anchor])])
        assert float(recovery.log_scale[2, u]) == pytest.approx(wanted, abs=1e-6)
    (fallback,) = recovery.report.fallbacks
    assert fallback.code == "nearest_anchor"
    # No seam where one takes over from the other.
    steps = recovery.log_scale[2].diff().abs()
    assert steps[20:95].max() < 1e-5
    assert steps[105:].max() < 1e-5


def test_log_kernel_constant_scale_is_exact(relative, measure):
    mde_output = relative(kind="disparity")
    depth_m = 7 * mde_output.mde_depth
    recovery = LogKernel()(mde_output, measure(depth_m.numpy(), 9))
    torch.testing.assert_close(recovery.depth_m, depth_m.float(), rtol=1e-5, atol=0)


@pytest.mark.usefixtures("as_users_run_it")
def test_log_kernel_wrong_option():
    with pytest.raises(InputError, match=r"^bandwidth_px must be above zero"):
        LogKernel(bandwidth_px=0.0)
