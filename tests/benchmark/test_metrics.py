import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from scalefield.benchmark.metrics import (
    COVERAGE,
    LEVELS,
    METRICS,
    Truth,
    coverage,
    coverage_sums,
    metrics,
    score,
    sums,
)
from scalefield.errors import InputError
from scalefield.recovery import NORMAL_90

DEPTHS = arrays(np.float64, st.integers(1, 40), elements=st.floats(0.05, 100))


def reference(p: list[float], t: list[float]) -> dict[str, float]:
    """The definitions, pixel by pixel, without numpy."""
    n = len(p)
    pairs = list(zip(p, t, strict=True))
    logs = [math.log(a) - math.log(b) for a, b in pairs]
    mean_log = sum(logs) / n
    return {
        "abs_rel": sum(abs(a - b) / b for a, b in pairs) / n,
        **{f"delta{k}": sum(max(a / b, b / a) < 1.25**k for a, b in pairs) / n for k in (1, 2, 3)},
        "rmse": math.sqrt(sum((a - b) ** 2 for a, b in pairs) / n),
        "mae": sum(abs(a - b) for a, b in pairs) / n,
        "log10": sum(abs(math.log10(a) - math.log10(b)) for a, b in pairs) / n,
        "silog": 100 * math.sqrt(sum((g - mean_log) ** 2 for g in logs) / n),
        "irmse": 1000 * math.sqrt(sum((1 / a - 1 / b) ** 2 for a, b in pairs) / n),
    }


@given(DEPTHS, st.integers(0, 2**32))
def test_metrics_equal_their_definitions(true_m, seed) -> None:
    predicted = true_m * np.exp(np.random.default_rng(seed).normal(0, 0.4, len(true_m)))
    found = metrics(sums(predicted, Truth.of(true_m)))
    assert list(found) == list(METRICS)
    expected = reference(predicted.tolist(), true_m.tolist())
    for name, value in expected.items():
        # SILog takes the root of a difference of nearly equal numbers.
        assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-4 if name == "silog" else 1e-12)


@given(DEPTHS)
def test_metrics_of_a_perfect_prediction_are_zero(true_m) -> None:
    found = metrics(sums(true_m, Truth.of(true_m)))
    assert [found[f"delta{k}"] for k in (1, 2, 3)] == [1, 1, 1]
    assert all(found[m] == 0 for m in METRICS if not m.startswith("delta"))


@given(DEPTHS, st.floats(0.5, 2))
def test_metrics_silog_ignores_scale(true_m, scale) -> None:
    assert metrics(sums(scale * true_m, Truth.of(true_m)))["silog"] < 1e-4


def test_sums_add_up_over_parts() -> None:
    rng = np.random.default_rng(0)
    true_m, predicted = rng.uniform(1, 9, (2, 50))
    whole = sums(predicted, Truth.of(true_m))
    parts = [sums(predicted[s], Truth.of(true_m[s])) for s in (slice(0, 20), slice(20, 50))]
    assert {k: pytest.approx(parts[0][k] + parts[1][k]) for k in whole} == whole


def test_coverage_of_student_errors_is_nominal() -> None:
    rng = np.random.default_rng(0)
    true_m = rng.uniform(1, 9, 200_000)
    std_log = rng.uniform(0.01, 0.5, len(true_m))
    unit = NORMAL_90 / scipy.stats.t(2).ppf(0.95)
    predicted = true_m * np.exp(std_log * unit * rng.standard_t(2, len(true_m)))
    found = coverage(coverage_sums(predicted, std_log, Truth.of(true_m)))
    assert tuple(found) == COVERAGE
    for level in LEVELS:
        assert found[f"coverage_{level}"] == pytest.approx(level / 100, abs=0.005)
    assert found["std_log"] == pytest.approx(0.255, abs=0.005)


@given(DEPTHS, st.floats(0.01, 3))
def test_coverage_intervals_are_in_log_depth_and_nested(true_m, factor) -> None:
    truth, spread = Truth.of(true_m), np.full(len(true_m), abs(math.log(factor)))
    wide = coverage(coverage_sums(factor * true_m, spread / 0.459, truth))
    assert all(wide[f"coverage_{level}"] == 1 for level in LEVELS)
    partial = coverage(coverage_sums(factor * true_m, spread / 1.5, truth))  # between 80 and 90 %
    assert [partial[f"coverage_{level}"] for level in LEVELS] == [factor == 1, factor == 1, 1, 1]


def test_coverage_sums_refuse_a_std_log_that_is_not_finite() -> None:
    with pytest.raises(InputError, match="std_log must be finite and not below zero, found nan at"):
        coverage_sums(np.ones(2), np.array([0.1, np.nan]), Truth.of(np.ones(2)))


def test_score_takes_the_masks_pixels_and_clamps_to_the_range() -> None:
    true_m = np.array([[1.0, 2.0], [4.0, np.nan]])
    mask = np.isfinite(true_m)
    predicted = np.array([[1.0, 0.001], [8.0, np.nan]])
    assert score(predicted, true_m, mask)["mae"] == pytest.approx((1.999 + 4) / 3)
    assert score(predicted, true_m, mask, (1.0, 5.0))["mae"] == pytest.approx((1 + 1) / 3)


def test_score_zero_pixels_and_impossible_depths_are_errors() -> None:
    depth = np.ones((2, 2))
    with pytest.raises(InputError, match="zero pixels"):
        score(depth, depth, np.zeros((2, 2), bool))
    with pytest.raises(InputError, match="zero pixels"):
        metrics({"pixels": 0})
    bad = np.array([[1.0, -2.0], [np.nan, 1.0]])
    with pytest.raises(InputError, match=r"predicted depth must be .* found -2 at 2 of 4 pixels"):
        score(bad, depth, np.ones((2, 2), bool))
    with pytest.raises(InputError, match="true depth must be"):
        score(depth, bad, np.ones((2, 2), bool))


def test_sums_in_chunks_equal_plain_sums() -> None:
    rng = np.random.default_rng(0)
    true_m = rng.uniform(1, 9, 20_001)
    predicted = true_m * np.exp(rng.normal(0, 0.2, len(true_m)))
    found = metrics(sums(predicted, Truth.of(true_m)))
    assert found == pytest.approx(reference(predicted.tolist(), true_m.tolist()), rel=1e-9)
