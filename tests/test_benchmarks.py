"""The arithmetic of the benchmarks, and the records that they write."""

import re

import numpy as np
import pytest
import torch
from benchmarks import field, labelling, record, reliability, rivals, timing

from scalefield.io import read_json, write_json
from scalefield.io.weights import WEIGHTS, sha256
from scalefield.mde import load_mde


def test_timing_ratios_are_taken_within_a_round():
    """A machine that is ten times slower in one round changes no ratio."""
    slow = np.array([1.0, 10.0, 1.0])
    times = timing.Times({"ours": 3 * slow, "theirs": 2 * slow})
    assert times.ratio("ours", "theirs") == [1.5, 1.5, 1.5]


def test_timing_records_a_case_that_fails_and_runs_the_others():
    order = []

    def broken():
        raise ImportError("no such package")

    cases = {"a": lambda: order.append("a"), "broken": broken, "b": lambda: order.append("b")}
    times = timing.turn_by_turn(cases, repeats=3)
    assert times.missing == {"broken": "ImportError: no such package"}
    assert set(times.seconds) == {"a", "b"}
    assert all(len(s) == 3 and (s > 0).all() for s in times.seconds.values())
    assert re.fullmatch(r"a+b+(a+b+){3}", "".join(order))  # turn by turn


def test_rivals_give_depth():
    """Other implementations are compared only if they recover an affine scene."""
    from scalefield import Anchors, MDEOutput
    from scalefield.methods.lwlr import LWLR

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


def small_frame():
    from scalefield.datasets import Frame

    depth_m = np.linspace(1, 4, 60 * 80).reshape(60, 80).astype(np.float32)
    depth_m[20:40, 30:50] = 0.5
    image = np.zeros((60, 80, 3), np.uint8)
    return Frame("a/b/c", "b", "b", image, depth_m, depth_range_m=(0.1, 10.0))


def test_field_benchmark_spoils_a_share_of_the_anchors_only():
    from scalefield.anchor_sampling import sample_anchors

    frame = small_frame()
    anchors = sample_anchors(frame.depth_m, frame.mask, "medium", seed=0, name=frame.name)
    given, wrong = field.spoil(anchors, frame, 0.3)
    changed = np.flatnonzero(given.depth_m != anchors.depth_m)
    assert len(wrong) == round(0.3 * len(anchors))
    assert set(changed) <= set(wrong.tolist())
    assert len(changed) > 0.8 * len(wrong)
    assert np.abs(np.log(given.depth_m / anchors.depth_m)).max() <= np.log(8)
    again, _ = field.spoil(anchors, frame, 0.3)
    assert np.array_equal(again.depth_m, given.depth_m)


def test_field_benchmark_wrong_anchors_in_every_regime():
    found = field.wrong_anchors([small_frame()], load_mde("lite"))
    assert set(found) == {"low", "medium", "high"}
    assert found["high"]["clean, robust"] < found["high"]["30% wrong, not robust"]


def test_field_benchmark_farthest_pixels_extend_each_other():
    mask = np.zeros((40, 50), bool)
    mask[5:35, 5:45] = True
    few, many = (np.stack(field.farthest(mask, n)) for n in (3, 8))
    assert (many[:, :3] == few).all()
    assert mask[tuple(many)].all()


def test_reliability_is_drawn():
    rows = {"all": [52.0, 79.0, 91.0, 96.0], "x": [40.0, 70, 85, 90], "y": [64.0, 88, 97, 99]}
    (axis,) = reliability.plot({"lite": {"1": rows, "medium": rows}}).axes
    drawn = {line.get_label(): line.get_ydata() for line in axis.lines}
    assert list(drawn["1 anchor"]) == rows["all"]
    assert list(drawn["100–120 anchors"]) == rows["all"]


def test_reliability_scores_of_normal_errors():
    rng = np.random.default_rng(0)
    std = rng.uniform(0.05, 0.2, 100_000)
    score = reliability.FrameScore.of(std * rng.normal(size=len(std)), std)
    assert score.factor_90 == pytest.approx(1, abs=0.01)
    assert score.log_score == pytest.approx(
        0.5 * np.log(2 * np.pi * np.e) + np.log(std).mean(), abs=0.01
    )
    assert score.crps == pytest.approx(std.mean() / np.sqrt(np.pi), rel=0.01)
    wide, narrow = (reliability.FrameScore.of(std, factor * std) for factor in (10, 0.1))
    frames = [{8: score, 12: wide}, {8: score, 12: narrow}, {8: score}]
    found = reliability.summary(frames)
    assert found["anchors"]["8"]["share_right"] == 1
    assert found["anchors"]["12"]["covered"][reliability.LEVELS.index(90)] == 0.5
    assert found["steps"]["over_1.5"] == 0.5
    assert found["steps"]["largest"] == pytest.approx(10, rel=0.01)


def test_labelling_benchmark_rate_leaves_the_start_out():
    clock = labelling.Clock()
    clock.done = [50.0, 60.0, 61.0, 62.0, 63.0, 64.0]  # the second worker started late
    assert clock.figures(workers=2) == {"first_s": 50.0, "images_per_s": 1.0}


@pytest.mark.slow
def test_labelling_benchmark_measures_a_run(tmp_path):
    labelling.write_images(tmp_path / "source", images=3, anchors=20)
    jobs = labelling.find_jobs(tmp_path / "source")[0]
    config = labelling.LabelConfig("lite", "median")
    found = labelling.measure(jobs, config, 1, "local")
    assert found["images_per_s"] > 0
    assert 0.05 < found["mb_per_label"] < 5


def test_record_names_origin_weights_and_configuration(tmp_path):
    made = record.new_record({"seed": 3})
    assert list(made) == ["command", "provenance", "weights", "config"]
    assert made["weights"]["lite"] == sha256(WEIGHTS / "lite" / "model.safetensors")
    record.write_record(tmp_path, made)
    assert read_json(tmp_path / "results.json") == made


def test_record_of_an_evaluation_keeps_what_tables_need(tmp_path):
    values = {"abs_rel": [0.1, 0.09, 0.11], "delta1": [0.9, 0.8, 1.0], "rmse": [1.0, 0.9, 1.1]}
    cell = {"condition": "low", "method": "Field", "images": 2, "clamped": values, "raw": values}
    cell["coverage"] = {"coverage_50": [0.5, 0.4, 0.6], "coverage_90": [0.9, 0.8, 1.0]}
    spectrum = {"condition": "low", "method": "Basis"}
    results = {
        "provenance": {"commit": "0123"},
        "cells": [{"group": "all", **cell}, {"group": "a", **cell}],
        "spectral": [{"group": "all", **spectrum}, {"group": "a", **spectrum}],
        "paired": [{"a": "Field", "b": "lwlr"}],
    }
    write_json(tmp_path / "run" / "results.json", results)
    record.keep(tmp_path / "run", tmp_path / "kept", "make results-run")
    kept = read_json(tmp_path / "kept" / "results.json")
    assert kept["command"] == "make results-run"
    whole, place = kept["cells"]
    assert whole == results["cells"][0]
    assert set(place["clamped"]) == {"abs_rel", "delta1"}
    assert set(place["coverage"]) == {"coverage_90"}
    assert "raw" not in place
    assert kept["spectral"] == results["spectral"][:1]
    assert kept["paired"] == results["paired"]
    assert kept["weights"] == record.shipped_weights()
