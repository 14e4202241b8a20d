"""The arithmetic of the comparison with the aligners, and the way from evaluations to a record."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from benchmarks import comparison

from scalefield.benchmark.metrics import METRICS
from scalefield.benchmark.score import ImageScore, write_scores
from scalefield.io import read_json, write_json


def row(name: str, method: str, error: float, median: float | None = None) -> ImageScore:
    values = {(kind, metric): error for kind in ("clamped", "raw") for metric in METRICS}
    if median is not None:
        values["structure", "median_rel"] = median
    return ImageScore(name, "place", "place#0", method, "low", 12, values)


def test_log_ratio_counts_an_image_once_and_pairs_draws():
    ours = {"a": [0.1, 0.2], "b": [0.1, 0.1], "c": [0.1]}
    theirs = {"a": [0.2, 0.4], "b": [0.1, 0.4], "c": [0.2, 0.2]}
    found = comparison.log_ratio(ours, theirs)
    ratios = [-math.log(2), -math.log(4) / 2]
    assert found["images"] == 2  # c lacks a draw of one method
    assert found["log_ratio"] == pytest.approx(np.mean(ratios), rel=1e-3)
    assert found["standard_error"] == pytest.approx(0, abs=1e-4)
    assert found["better"] == 1


def test_log_ratio_standard_error_is_that_of_a_mean():
    ours = {str(i): [x] for i, x in enumerate((0.1, 0.2, 0.4))}
    theirs = {name: [0.1] for name in ours}
    found = comparison.log_ratio(ours, theirs)
    ratios = np.log([1, 2, 4])
    assert found["standard_error"] == pytest.approx(ratios.std(ddof=1) / 3**0.5, rel=1e-3)
    assert found["better"] == 0
    assert comparison.log_ratio({"a": [0.1]}, {"a": [0.1]})["standard_error"] is None


def test_comparison_of_two_draws(tmp_path, monkeypatch):
    rows = [
        row("a", "field", 0.1, 0.01), row("a", "knn", 0.2, 0.04),
        row("b", "field", 0.1, 0.01), row("b", "knn", 0.2, 0.04),
    ]  # fmt: skip
    for seed, factor in ((0, 1), (1, 3)):
        folder = tmp_path / "runs" / "lite" / f"seed-{seed}"
        folder.mkdir(parents=True)
        changed = [replace(r, values={k: factor * v for k, v in r.values.items()}) for r in rows]
        write_scores(folder / "images.csv", changed)
        write_json(folder / "config.json", {"mde": "lite"})
        write_json(folder / "timings.json", {"field / low": 10 * factor, "knn / low": 5})
    out = tmp_path / "record"
    words = ["comparison", str(tmp_path / "runs"), "--out", str(out), "--command", "make it"]
    monkeypatch.setattr(sys, "argv", words)
    comparison.main()
    record = read_json(out / "results.json")
    assert record["command"] == "make it"
    low = record["sets"]["lite"]["conditions"]["low"]
    assert (low["images"], record["sets"]["lite"]["draws"]) == (2, 2)
    assert low["methods"]["field"] == {"abs_rel": 0.2, "median_rel": 0.02, "ms": 20}
    knn = low["methods"]["knn"]
    assert (knn["abs_rel"], knn["ms"]) == (0.4, 5)
    assert knn["abs_rel_ratio"]["log_ratio"] == pytest.approx(-math.log(2), rel=1e-3)
    assert knn["median_rel_ratio"]["log_ratio"] == pytest.approx(-math.log(4), rel=1e-3)


def test_comparison_names_a_folder_without_evaluations(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["comparison", str(tmp_path), "--out", str(tmp_path / "o")])
    with pytest.raises(SystemExit, match=r"has no SET/seed-N/images\.csv"):
        comparison.main()
