import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from scalefield.benchmark import metrics as metrics_module
from scalefield.benchmark.metrics import (
    COVERAGE,
    LEVELS,
    METRICS,
    Structure,
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


PIXEL = (np.array([20]), np.array([25]))


def test_structure_angle_between_a_slanted_plane_and_a_level_one() -> None:
    """z = 2 + tan(30°) x has the normal at 30° from the axis, at every distance."""
    u = (np.arange(50) - 24.5) / 50
    depth_m = np.tile(2 / (1 - np.tan(np.radians(30)) * u), (40, 1))
    structure = Structure.of(depth_m, np.ones(depth_m.shape, bool))
    assert structure.measure(3 * depth_m, PIXEL)["normal_deg"] == pytest.approx(0, abs=1e-5)
    level = structure.measure(np.full(depth_m.shape, 2.0), PIXEL)
    assert level["normal_deg"] == pytest.approx(30, abs=1e-6)


def test_structure_normals_of_large_images_are_compared_on_fewer_pixels(monkeypatch) -> None:
    v, u = np.indices((60, 90))
    depth_m, wrong = 2 + u / 90, 2 + u / 90 + v / 60
    every = Structure.of(depth_m, u >= 0).measure(wrong, PIXEL)["normal_deg"]
    monkeypatch.setattr(metrics_module, "NORMAL_PIXELS", 1000)
    structure = Structure.of(depth_m, u >= 0)
    assert structure.normals.shape == (20, 30, 3)
    assert structure.measure(wrong, PIXEL)["normal_deg"] == pytest.approx(every, rel=0.02)


def test_structure_edge_error_is_of_the_pixels_beside_a_step() -> None:
    depth_m = np.where(np.arange(50) < 25, 1.0, 2.0)[None].repeat(40, axis=0)
    predicted = depth_m.copy()
    predicted[:, 23:27] *= 1.3
    found = Structure.of(depth_m, depth_m > 0).measure(predicted, PIXEL)
    assert 0.15 < found["edge_rel"] <= 0.3 + 1e-9
    assert found["median_rel"] == 0
    far = depth_m.copy()
    far[:, :15] *= 1.3
    assert Structure.of(depth_m, depth_m > 0).measure(far, PIXEL)["edge_rel"] == 0


def test_structure_imprint_is_one_where_anchors_correct_their_own_pixel_only() -> None:
    depth_m = np.full((40, 50), 2.0)
    structure = Structure.of(depth_m, depth_m > 0)
    spike, smooth = np.full((2, 40, 50), 2.2)
    spike[PIXEL] = 2.0
    assert structure.measure(spike, PIXEL)["imprint"] == pytest.approx(1)
    smooth[15:26, 20:31] = 2.1
    assert structure.measure(smooth, PIXEL)["imprint"] == pytest.approx(0.5, rel=0.03)


def test_structure_leaves_out_what_sparse_truth_does_not_determine() -> None:
    depth_m = np.full((40, 50), 2.0)
    scored = np.zeros(depth_m.shape, bool)
    scored[::10, ::10] = True
    found = Structure.of(depth_m, scored).measure(1.1 * depth_m, PIXEL)
    assert set(found) == {"median_rel"}
    assert found["median_rel"] == pytest.approx(0.1)
