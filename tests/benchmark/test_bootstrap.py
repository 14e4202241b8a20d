import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalefield.benchmark.bootstrap import BLOCK_FRAMES, Resampling, blocks, paired_test
from scalefield.errors import InputError


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


def test_resampling_intervals_have_nominal_coverage() -> None:
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
