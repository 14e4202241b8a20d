"""The arithmetic of the benchmarks, and the page made from their results."""

import json
import re

import numpy as np
import pytest
import torch

from program_modules import ROOT, load_module

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def timing():
    return load_module(BENCHMARKS / "timing.py")


def test_timing_exponent_is_the_growth(timing):
    sizes = [100.0, 1000.0, 5000.0]
    rounds = [3e-6 * size**1.5 * np.array([1.0, 2.0, 0.7]) for size in sizes]
    assert timing.exponent(sizes, rounds) == pytest.approx([1.5, 1.5, 1.5])


def test_timing_ratios_are_taken_within_a_round(timing):
    """A machine that is ten times slower in one round changes no ratio."""
    slow = np.array([1.0, 10.0, 1.0])
    times = timing.Times({"ours": 3 * slow, "theirs": 2 * slow})
    assert times.ratio("ours", "theirs") == [1.5, 1.5, 1.5]


def test_timing_records_a_case_that_fails_and_runs_the_others(timing):
    order = []

    def broken():
        raise ImportError("no such package")

    cases = {"a": lambda: order.append("a"), "broken": broken, "b": lambda: order.append("b")}
    times = timing.turn_by_turn(cases, repeats=3)
    assert times.missing == {"broken": "ImportError: no such package"}
    assert set(times.seconds) == {"a", "b"}
    assert all(len(s) == 3 and (s > 0).all() for s in times.seconds.values())
    assert re.fullmatch(r"a+b+(a+b+){3}", "".join(order))  # turn by turn


def test_rivals_give_depth(monkeypatch):
    """Other implementations are compared only if they recover an affine scene."""
    from scalefield import Anchors, MDEOutput
    from scalefield.methods.lwlr import LWLR

    rivals = load_module(BENCHMARKS / "rivals.py")
    rng = np.random.default_rng(0)
    relative = torch.from_numpy(rng.uniform(1, 3, (96, 128))).float()
    output = MDEOutput(relative, "depth")
    u, v = rng.integers(0, 128, 40), rng.integers(0, 96, 40)
    metric = 2 * relative + 0.5
    anchors = Anchors(u, v, metric[v, u].double().numpy())
    torch.testing.assert_close(
        rivals.PublishedLWLR(output, anchors)().float(), metric, rtol=1e-4, atol=0
    )
    bent = Anchors(u, v, anchors.depth_m * (1 + u / 256))
    ours = LWLR()(output, bent).depth_m
    theirs = rivals.PublishedLWLR(output, bent)().float()
    assert float((ours / theirs - 1).abs().max()) < 0.01  # but for the ends, and the blend
    constant = torch.ones(1, 2, 12, 16)
    flat = Anchors([5], [7], [float(relative[7, 5]) * 3])
    scaled = rivals.FormulaAtFullResolution(output, flat, constant)()
    torch.testing.assert_close(scaled, 3 * relative, rtol=2e-3, atol=0)


def test_speed_tables_page_has_what_was_measured():
    script = load_module(ROOT / "scripts" / "speed_tables.py")
    text = script.DOCS.read_text()
    assert script.filled(text) == text
    record = json.loads((ROOT / "results" / script.RECORDS["cpu"] / "bench.json").read_text())
    names = {entry["name"] for entry in record["ratios"]}
    assert all(f"| {name} |" in text for name in names)
    for aim, _, reached in script.load_table().target_rows(record):
        assert re.search(rf"\| {re.escape(aim)} \|.*{'yes' if reached else 'no'}", text)


def small_frame():
    from scalefield.datasets import Frame

    depth_m = np.linspace(1, 4, 60 * 80).reshape(60, 80).astype(np.float32)
    depth_m[20:40, 30:50] = 0.5
    image = np.zeros((60, 80, 3), np.uint8)
    return Frame("a/b/c", "b", "b", image, depth_m, depth_range_m=(0.1, 10.0))


def test_field_benchmark_spoils_a_share_of_the_anchors_only():
    from scalefield.anchor_sampling import sample_anchors

    bench, frame = load_module(BENCHMARKS / "field.py"), small_frame()
    anchors = sample_anchors(frame.depth_m, frame.mask, "medium", seed=0, name=frame.name)
    given, wrong = bench.spoil(anchors, frame, 0.3)
    changed = np.flatnonzero(given.depth_m != anchors.depth_m)
    assert len(wrong) == round(0.3 * len(anchors))
    assert set(changed) <= set(wrong.tolist())
    assert len(changed) > 0.8 * len(wrong)
    assert np.abs(np.log(given.depth_m / anchors.depth_m)).max() <= np.log(8)
    again, _ = bench.spoil(anchors, frame, 0.3)
    assert np.array_equal(again.depth_m, given.depth_m)


def test_field_benchmark_error_of_local_solves_is_near_the_exact_one():
    """Of the exact Gaussian process and of `field`, on a frame with a box that the map misses."""
    from scalefield import MDEOutput
    from scalefield.anchor_sampling import sample_anchors
    from scalefield.methods.field import Field

    bench, frame = load_module(BENCHMARKS / "field.py"), small_frame()
    relative = torch.linspace(1, 2, 60 * 80).reshape(60, 80)
    output = MDEOutput(relative, "depth")
    anchors = sample_anchors(frame.depth_m, frame.mask, 200, seed=0, name=frame.name)
    exact = bench.exact_absrel(output, anchors, frame, every=1)
    ours = bench.absrel(Field(robust=False), output, anchors, frame)
    assert 0 < exact < 0.2
    assert ours == pytest.approx(exact, rel=0.15)


def test_reliability_is_tabled_and_drawn():
    bench = load_module(BENCHMARKS / "reliability.py")
    rows = {"all": [52.0, 79.0, 91.0, 96.0], "x": [40.0, 70, 85, 90], "y": [64.0, 88, 97, 99]}
    estimators = {"lite": {"1": rows, "medium": rows}}
    results = {"config": {"frames": 7, "every": 5}, "estimators": estimators}
    text = bench.markdown(results)
    assert "| lite | 1 | 52 (40–64) | 79 (70–88) | 91 (85–97) | 96 (90–99) |" in text
    assert "| lite | 100–120 |" in text
    (axis,) = bench.plot(estimators).axes
    drawn = {line.get_label(): line.get_ydata() for line in axis.lines}
    assert list(drawn["1 anchor"]) == rows["all"]
    assert list(drawn["100–120 anchors"]) == rows["all"]
