import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from scalefield.benchmark.metrics import (
    BLOCK_FRAMES,
    COVERAGE,
    LEVELS,
    METRICS,
    Resampling,
    Truth,
    blocks,
    coverage,
    coverage_sums,
    metrics,
    paired_test,
    score,
    sums,
)
from scalefield.errors import InputError

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
def test_a_perfect_prediction_has_no_error(true_m) -> None:
    found = metrics(sums(true_m, Truth.of(true_m)))
    assert [found[f"delta{k}"] for k in (1, 2, 3)] == [1, 1, 1]
    assert all(found[m] == 0 for m in METRICS if not m.startswith("delta"))


@given(DEPTHS, st.floats(0.5, 2))
def test_silog_ignores_scale(true_m, scale) -> None:
    assert metrics(sums(scale * true_m, Truth.of(true_m)))["silog"] < 1e-4


def test_sums_add_up_over_parts() -> None:
    rng = np.random.default_rng(0)
    true_m, predicted = rng.uniform(1, 9, (2, 50))
    whole = sums(predicted, Truth.of(true_m))
    parts = [sums(predicted[s], Truth.of(true_m[s])) for s in (slice(0, 20), slice(20, 50))]
    assert {k: pytest.approx(parts[0][k] + parts[1][k]) for k in whole} == whole


def test_normal_errors_are_covered_as_promised() -> None:
    rng = np.random.default_rng(0)
    true_m = rng.uniform(1, 9, 200_000)
    std_log = rng.uniform(0.01, 0.5, len(true_m))
    predicted = true_m * np.exp(std_log * rng.standard_normal(len(true_m)))
    found = coverage(coverage_sums(predicted, std_log, Truth.of(true_m)))
    assert tuple(found) == COVERAGE
    for level in LEVELS:
        assert found[f"coverage_{level}"] == pytest.approx(level / 100, abs=0.005)
    assert found["std_log"] == pytest.approx(0.255, abs=0.005)


@given(DEPTHS, st.floats(0.01, 3))
def test_intervals_are_in_log_depth_and_nested(true_m, factor) -> None:
    truth, spread = Truth.of(true_m), np.full(len(true_m), abs(math.log(factor)))
    wide = coverage(coverage_sums(factor * true_m, spread / 0.674, truth))
    assert all(wide[f"coverage_{level}"] == 1 for level in LEVELS)
    some = coverage(coverage_sums(factor * true_m, spread / 1.5, truth))  # between 80 and 90 %
    assert [some[f"coverage_{level}"] for level in LEVELS] == [factor == 1, factor == 1, 1, 1]


def test_a_width_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="std_log must be finite and not below zero, found nan at"):
        coverage_sums(np.ones(2), np.array([0.1, np.nan]), Truth.of(np.ones(2)))


def test_score_takes_the_masks_pixels_and_clamps_to_the_range() -> None:
    true_m = np.array([[1.0, 2.0], [4.0, np.nan]])
    mask = np.isfinite(true_m)
    predicted = np.array([[1.0, 0.001], [8.0, np.nan]])
    assert score(predicted, true_m, mask)["mae"] == pytest.approx((1.999 + 4) / 3)
    assert score(predicted, true_m, mask, (1.0, 5.0))["mae"] == pytest.approx((1 + 1) / 3)


def test_zero_pixels_and_impossible_depths_are_errors() -> None:
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


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=60))
def test_blocks_are_short_runs_within_a_scene(scenes) -> None:
    named = blocks(scenes)
    sizes = {name: named.count(name) for name in named}
    assert max(sizes.values()) <= BLOCK_FRAMES
    for scene in set(scenes):
        own = [name for s, name in zip(scenes, named, strict=True) if s == scene]
        assert own == sorted(own, key=lambda name: int(name.split("#")[1]))  # runs, in order
        assert len(set(own)) == -(-len(own) // BLOCK_FRAMES)
        lengths = [own.count(name) for name in set(own)]
        assert max(lengths) - min(lengths) <= 1


def test_interval_equals_a_slow_bootstrap() -> None:
    rng = np.random.default_rng(1)
    names = [f"b{i % 7}" for i in range(40)]
    strata = ["x" if n < "b3" else "y" for n in names]
    values = rng.normal(size=40)
    values[3] = np.nan
    resampling = Resampling.make(names, strata, draws=50)
    order = sorted(set(names))
    means = []
    for times in resampling.times:
        drawn = [
            v
            for block, k in zip(order, times, strict=True)
            for _ in range(k)
            for name, v in zip(names, values, strict=True)
            if name == block and np.isfinite(v)
        ]
        means.append(np.mean(drawn))
    assert resampling.interval(values) == pytest.approx(np.quantile(means, [0.025, 0.975]))
    # Strata keep their number of blocks in every draw.
    assert (resampling.times[:, :3].sum(1) == 3).all()
    assert (resampling.times[:, 3:].sum(1) == 4).all()


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """Frames of a block share an error, so an interval that ignored blocks would be too narrow."""
    rng = np.random.default_rng(0)
    names = [f"b{i // 8:02d}" for i in range(240)]
    resampling = Resampling.make(names, ["s"] * 240, draws=400)
    single = Resampling.make([str(i) for i in range(240)], ["s"] * 240, draws=400)
    hits = {"blocks": 0, "images": 0}
    for _ in range(200):
        values = np.repeat(rng.normal(size=30), 8) + 0.1 * rng.normal(size=240)
        for how, chosen in (("blocks", resampling), ("images", single)):
            low, high = chosen.interval(values)
            hits[how] += low <= 0 <= high
    assert 0.88 <= hits["blocks"] / 200 <= 0.99
    assert hits["images"] / 200 < 0.7


def test_paired_test_is_exact_for_few_blocks() -> None:
    a, b = np.array([3.0, 4.0, 2.0, 6.0]), np.array([2.0, 2.0, 1.0, 2.0])
    result = paired_test(a, b, ["p", "q", "r", "s"], ["g"] * 4)
    assert (result.images, result.difference) == (4, 2.0)
    assert result.p_value == 2 / 16  # only all plus and all minus reach the sum of 8
    assert result.interval[0] > 0
    same_block = paired_test(a, b, ["p"] * 4, ["g"] * 4)
    assert same_block.p_value == 1.0  # one block is no evidence, however many frames it has


def test_paired_test_skips_images_that_one_method_lacks() -> None:
    a, b = np.array([1.0, np.nan, 3.0]), np.array([1.0, 5.0, np.nan])
    assert paired_test(a, b, list("pqr"), ["g"] * 3).images == 1
    with pytest.raises(InputError, match="both methods"):
        paired_test(np.array([np.nan]), np.array([1.0]), ["p"], ["g"])


def test_paired_test_rejects_at_its_level_under_the_null() -> None:
    rng = np.random.default_rng(0)
    names = [f"b{i // 3}" for i in range(60)]
    rejections = sum(
        paired_test(rng.normal(size=60), rng.normal(size=60), names, ["g"] * 60).p_value < 0.1
        for _ in range(100)
    )
    assert 2 <= rejections <= 20


def test_many_pixels_are_summed_in_chunks_as_few_are() -> None:
    rng = np.random.default_rng(0)
    true_m = rng.uniform(1, 9, 20_001)
    predicted = true_m * np.exp(rng.normal(0, 0.2, len(true_m)))
    found = metrics(sums(predicted, Truth.of(true_m)))
    assert found == pytest.approx(reference(predicted.tolist(), true_m.tolist()), rel=1e-9)
