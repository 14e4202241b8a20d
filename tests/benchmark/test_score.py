import json
from dataclasses import replace

import numpy as np
import pytest

from scalefield.benchmark.gallery import RANKS, ranked, read_gallery, reduce, write_gallery
from scalefield.benchmark.metrics import COVERAGE, METRICS, STRUCTURE, metrics
from scalefield.benchmark.run import Evaluator, frame_file, run
from scalefield.benchmark.score import (
    CLAMPING,
    EVERYWHERE,
    ImageScore,
    Scores,
    aggregate,
    compare,
    read_scores,
    score_files,
    write_scores,
)
from scalefield.datasets.source import FrameSource
from scalefield.errors import InputError


def rows(values: dict[str, list[float | None]], groups: list[str]) -> list[ImageScore]:
    """Rows with this AbsRel by method and image; None for no result."""
    return [
        ImageScore(
            name=f"im{i}",
            group=group,
            block=f"{group}#{i // 2}",
            method=method,
            condition="low",
            anchors=10 + i,
            values={("clamped", metric): value for metric in METRICS}
            | {("raw", metric): 2 * value for metric in METRICS}
            | {("coverage", name): value / 10 for name in COVERAGE if method == "a"}
            | {("structure", name): value / 3 for name in STRUCTURE if method == "b"},
        )
        for method, each in values.items()
        for i, (value, group) in enumerate(zip(each, groups, strict=True))
        if value is not None
    ]


def test_aggregate_gives_every_image_the_same_weight() -> None:
    values = {"a": [1.0, 3.0, 5.0, 7.0, 9.0], "b": [2.0, None, 2.0, None, None]}
    scores = Scores.of(rows(values, ["x", "x", "x", "y", "y"]), "ab")
    cells = {
        (c["method"], c["group"]): c for g in (EVERYWHERE, "x", "y") for c in aggregate(scores, g)
    }
    assert cells["a", EVERYWHERE]["clamped"]["abs_rel"][0] == 5
    assert cells["a", EVERYWHERE]["raw"]["rmse"][0] == 10
    assert cells["a", "x"]["clamped"]["abs_rel"][0] == 3
    assert cells["b", EVERYWHERE]["images"] == 2
    assert ("b", "y") not in cells
    assert cells["a", EVERYWHERE]["anchors"] == 12
    mean, low, high = cells["a", "x"]["clamped"]["abs_rel"]
    assert low <= mean <= high
    assert cells["a", "x"]["coverage"]["coverage_90"][0] == pytest.approx(0.3)
    assert "coverage" not in cells["b", "x"]  # it does not say how sure it is
    assert cells["a", "y"]["clamped"]["abs_rel"] == [8, 7, 9]  # blocks x#1 and y#2 differ


def test_aggregate_of_a_single_block_has_no_interval() -> None:
    scores = Scores.of(rows({"a": [1.0, 3.0]}, ["x", "x"]), "a")
    assert aggregate(scores, EVERYWHERE)[0]["clamped"]["abs_rel"] == [2, None, None]


def test_compare_is_over_common_images() -> None:
    values = {"a": [1.0, 2.0, 3.0, 4.0], "b": [2.0, 3.0, 4.0, None], "c": [None, None, None, 1.0]}
    found = compare(Scores.of(rows(values, ["x"] * 4), "abc"), "low")
    by_pair = {(t["a"], t["b"]): t for t in found}
    assert set(by_pair) == {("a", "b"), ("a", "c")}  # b and c share no image
    assert by_pair["a", "b"]["images"] == 3
    assert by_pair["a", "b"]["difference"][0] == -1


def test_write_scores_and_read_scores_round_trip(tmp_path) -> None:
    values = {"a, with (k=1)": [0.123456, 2.0], "a": [0.5, 0.6], "b": [1e-7, 3.0]}
    before = rows(values, ["x", "y/z"])
    write_scores(tmp_path / "images.csv", before)
    assert read_scores(tmp_path / "images.csv") == before
    lines = (tmp_path / "images.csv").read_text().splitlines()
    newer = len(COVERAGE) + len(STRUCTURE)
    older = [",".join(line.split(",")[:-newer]) for line in lines]
    (tmp_path / "images.csv").write_text("\n".join(older))
    without = [
        replace(row, values={k: v for k, v in row.values.items() if k[0] in CLAMPING})
        for row in before
    ]
    assert read_scores(tmp_path / "images.csv") == without
    (tmp_path / "images.csv").write_text("name,group\na,b\n")
    with pytest.raises(InputError, match="not a table that scalefield evaluate wrote"):
        read_scores(tmp_path / "images.csv")


def test_score_files_results_have_provenance(world, evaluation, red, tmp_path) -> None:
    out = tmp_path / "out"
    names = run(Evaluator(FrameSource(world, red), evaluation, out))
    results = score_files(out, names)
    assert json.loads((out / "results.json").read_text()) == results
    assert results["config"] == evaluation.as_dict()
    assert results["provenance"]["versions"]["torch"]
    assert results["data"]["mde"] == ["red 1"]
    assert len(results["data"]["sha256"]) == 64
    record = json.loads(frame_file(out, names[0]).read_text())
    cell = next(c for c in record["cells"] if (c["method"], c["condition"]) == ("median", "low"))
    row = next(
        r
        for r in read_scores(out / "images.csv")
        if (r.name, r.method, r.condition) == (names[0], "median", "low")
    )
    structure = {m: row.values["structure", m] for m in cell["structure"]}
    assert structure == pytest.approx(cell["structure"], rel=1e-5)
    assert "median_rel" in structure
    clamped = {metric: row.values["clamped", metric] for metric in METRICS}
    assert clamped == pytest.approx(metrics(cell["clamped"]), rel=1e-5)
    groups = {c["group"] for c in results["cells"]}
    assert groups == {EVERYWHERE, "home/room", "home/hall"}
    distance = next(d for d in results["distance"] if d["method"] == "median")
    assert distance["images"][0] == 6
    assert json.loads((out / "timings.json").read_text())["median / low"] > 0


def test_score_files_without_a_result_is_an_error(world, evaluation_of, red, tmp_path) -> None:
    out = tmp_path / "out"
    for path in (world.root / "home").rglob("depth/*.png"):
        path.unlink()
    names = run(Evaluator(FrameSource(world, red), evaluation_of("median"), out))
    with pytest.raises(InputError, match=r"no frame could be evaluated; the first: .*f0\.png: no"):
        score_files(out, names)


def test_gallery_reduce_takes_means_of_known_pixels() -> None:
    values = np.array([[1.0, np.nan, 5.0, 9.0], [3.0, np.nan, np.nan, 9.0]])
    np.testing.assert_allclose(reduce(values, 2), [[2.0, 23 / 3]], rtol=1e-6)
    np.testing.assert_array_equal(reduce(np.full((3, 3), np.nan), 2), [[np.nan]])


def test_write_gallery_has_the_worst_median_and_best_image(
    world, evaluation, red, tmp_path
) -> None:
    out = tmp_path / "out"
    score_files(out, run(Evaluator(FrameSource(world, red), evaluation, out)))
    write_gallery(Evaluator(FrameSource(world, red), evaluation, out))
    shown = read_gallery(out)
    scores = Scores.of(read_scores(out / "images.csv"), evaluation.labels)
    assert {(e.method, e.rank) for e, _, _ in shown} == {
        (method, rank) for method in ("median", "Affine", "region") for rank in RANKS
    }
    for entry, picture, depth_m in shown:
        values = scores.abs_rel(entry.method, "low")
        known = np.sort(values[np.isfinite(values)])
        expected = {"worst": known[-1], "best": known[0], "median": known[len(known) // 2]}
        assert entry.abs_rel == expected[entry.rank]
        frame = world.load(entry.name)
        np.testing.assert_array_equal(picture.image, frame.image)
        error = np.abs(depth_m / picture.true_m.astype(np.float32) - 1)
        assert np.nanmean(error) == pytest.approx(entry.abs_rel, abs=0.02)  # half precision
        assert np.isfinite(picture.feature).all()
    assert ranked(scores, "region", "low")[0][0] == "worst"
