import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from scalefield import Anchors
from scalefield.alignment.affine import Samples, fit_affine, fit_ransac


def samples_of(x, y, weight=None) -> Samples:
    x, y = np.array(x, dtype=float), np.array(y, dtype=float)
    index = np.arange(len(x))
    weight = np.ones(len(x)) if weight is None else np.array(weight, dtype=float)
    return Samples(x, y, weight, index, index, index, np.zeros(len(x)))


@given(
    arrays(float, st.integers(3, 30), elements=st.floats(0.1, 100)),
    st.integers(0, 2**32 - 1),
    st.floats(0.01, 100),
)
def test_fit_affine_weighted_fit_is_numpys_least_squares(x, seed, scale):
    rng = np.random.default_rng(seed)
    y = scale * x + 0.01 * rng.standard_normal(len(x)) + 5
    weight = rng.uniform(0.1, 2, len(x))
    fit = fit_affine(samples_of(x, y, weight))
    if fit.fallback:
        ratio = np.median(y / x)
        assert (fit.scale, fit.shift) == (pytest.approx(ratio), 0)
        return
    root = np.sqrt(weight)
    wanted, *_ = np.linalg.lstsq(root[:, None] * np.stack([x, np.ones_like(x)], 1), root * y)
    np.testing.assert_allclose(fit(x), wanted[0] * x + wanted[1], rtol=1e-6)


@pytest.mark.parametrize(
    ("x", "y", "words", "scale", "shift"),
    [
        ([2.0], [6.0], "scale only: one anchor", 3, 0),
        ([2, 2 + 1e-6, 2], [6, 4, 8], "scale only: the relative depth is the same", 3, 0),
        ([1, 2, 3], [9, 6, 3], "scale only: the least-squares scale was not positive", 3, 0),
        ([0, -1, -2], [3, 6, 9], "constant depth: no anchor has a relative disparity above", 0, 6),
        ([-2, -1, 0], [3, 6, 9], "", 3, 9),
    ],
)
def test_fit_affine_fallbacks(x, y, words, scale, shift):
    fit = fit_affine(samples_of(x, y))
    assert (fit.fallback is None) == (not words)
    assert str(fit.fallback or "").startswith(words)
    assert (fit.scale, fit.shift) == (pytest.approx(scale, rel=1e-5), pytest.approx(shift))


@pytest.mark.parametrize("unit", [1e-150, 1.0, 1e150])
def test_fit_affine_extreme_units_lose_nothing(unit):
    x = np.array([1.0, 2, 3, 5])
    fit = fit_affine(samples_of(unit * x, 4 * x + 1))
    assert fit.scale * unit == pytest.approx(4)
    assert fit.shift == pytest.approx(1)


@given(st.integers(10, 120), st.integers(0, 2**32 - 1))
def test_fit_ransac_with_thirty_percent_outliers(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(1, 10, n)
    y = 2 * x + 3
    outlier = rng.permutation(n) < 0.3 * n - 1
    y = np.where(outlier, y * rng.uniform(3, 8, n), y)
    fit, inliers = fit_ransac(samples_of(x, y), seed=0)
    np.testing.assert_allclose(fit(x), 2 * x + 3, rtol=1e-9)
    assert inliers.sum() > n / 2
    assert not (inliers & outlier).any()


def test_fit_ransac_averages_over_noisy_inliers():
    rng = np.random.default_rng(0)
    x = rng.uniform(1, 10, 100)
    y = np.where(np.arange(100) < 30, 90.0, 2 * x + 3 + 0.1 * rng.standard_normal(100))
    fit, _ = fit_ransac(samples_of(x, y), seed=0)
    np.testing.assert_allclose(fit(x), 2 * x + 3, atol=0.1)


def test_fit_ransac_is_repeatable():
    rng = np.random.default_rng(0)
    x = rng.uniform(1, 10, 500)
    y = x + rng.standard_normal(500)
    first, second, other = (fit_ransac(samples_of(x, y), seed)[0] for seed in (1, 1, 2))
    assert first == second
    assert first != other


@pytest.mark.parametrize(
    ("space", "sigma"),
    [
        ("depth", lambda depth: np.full_like(depth, 0.1)),
        ("disparity", lambda depth: 0.1 * depth**2),
        ("log", lambda depth: 0.1 * depth),
    ],
)
def test_samples_at_propagates_sigma_to_the_space(relative, measure, space, sigma):
    """A σ that is constant in the space gives equal weights there."""
    mde_output = relative()
    plain = measure(5 * mde_output.mde_depth.numpy() ** 2, 12)
    anchors = Anchors(plain.u, plain.v, plain.depth_m, sigma(plain.depth_m))
    np.testing.assert_allclose(Samples.at(mde_output, anchors, space).weight, 1)


def test_samples_merged_is_the_weighted_mean_of_each_pixel(relative):
    anchors = Anchors([3, 9, 3], [4, 4, 4], [2, 5, 8], [1, 1, 0.5])
    merged = Samples.at(relative(), anchors, "depth").merged()
    np.testing.assert_allclose(merged.y, [(2 + 4 * 8) / 5, 5])
    np.testing.assert_array_equal(merged.columns, [3, 9])
    np.testing.assert_allclose(merged.weight, [2.5, 0.5])


def test_samples_spacing_px_is_the_median_distance_to_the_nearest_neighbour(relative):
    mde_output = relative()
    spacing = {
        tuple(u): Samples.at(mde_output, Anchors(u, [0] * len(u), [1.0] * len(u)), "depth")
        for u in ([5], [5, 5], [0, 3, 3, 10, 30])
    }
    assert [s.spacing_px for s in spacing.values()] == [np.inf, np.inf, pytest.approx(5)]
