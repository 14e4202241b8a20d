"""Labels: samples, files, rules, and runs that are interrupted or continued."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from scalefield import Anchors, InputError, MDEOutput
from scalefield.api import recover_from
from scalefield.cli import main
from scalefield.io import read_image
from scalefield.labelling.figures import figures, held_out_errors
from scalefield.labelling.labeller import LabelConfig
from scalefield.labelling.ray_runner import LOCAL_CONFIG, run_ray
from scalefield.labelling.rules import Figures, Reason, Rules
from scalefield.labelling.run import label
from scalefield.labelling.runners import DEAD, run_pool
from scalefield.labelling.samples import find_jobs
from scalefield.mde import load_mde
from scalefield.methods import make_method
from scalefield.recovery import Recovery
from scalefield.report import Fallback, Report, Warning

KEYS = ["more/p5", "p0", "p1", "p2", "p3", "p4"]
GENEROUS = ("--max-error", "10", "--min-in-range", "0", "--max-std-log", "10")


def run(source: Path, out: Path, *more: str) -> int:
    words = ["label", str(source), "--out", str(out), "--method", "global", "--workers", "1"]
    return main([*words, *more])


def manifest(out: Path) -> dict[str, dict]:
    lines = (out / "labels.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert len({r["key"] for r in records}) == len(records)
    return {r["key"]: r for r in records}


def content(out: Path) -> dict[str, bytes]:
    """Every file of a run without the provenance."""
    paths = (p for p in out.rglob("*") if p.is_file() and p.name != "label.json")
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in paths}


def pack(folder: Path, shard: Path) -> None:
    with tarfile.open(shard, "w") as tar:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            tar.add(path, path.relative_to(folder).as_posix())


def test_label_of_a_folder_gives_a_label_and_a_decision_for_each_image(folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(folder, out, *GENEROUS) == 0
    assert "6 kept, 0 rejected, 0 failed, 0 without anchors; 0 were done before" in (
        capsys.readouterr().out
    )
    records = manifest(out)
    assert list(records) == KEYS
    for key in KEYS:
        depth_m = np.load(out / f"{key}.npz")["depth_m"]
        assert depth_m.shape == (48, 64)
        assert depth_m.dtype == np.float32
        assert json.loads((out / f"{key}.json").read_text()) == records[key]
        assert records[key]["keep"] is True
        assert records[key]["figures"]["anchors"] == 24
    # One label is what `recover` says.
    from scalefield import recover

    direct = recover(
        folder / "p3.png", Anchors.read(folder / "p3.anchors.npz"), mde="lite", method="global"
    )
    np.testing.assert_array_equal(np.load(out / "p3.npz")["depth_m"], direct.depth_m)


def test_label_with_own_maps_is_label_with_an_estimator_that_gives_them(folder, tmp_path, capsys):
    mde = load_mde("lite")
    for key in KEYS:
        path = tmp_path / "maps" / f"{key}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, mde(read_image(folder / f"{key}.png")).prediction.numpy())
    maps = ["--depth", str(tmp_path / "maps"), "--kind", "depth"]
    run(folder, tmp_path / "mde", *GENEROUS)
    run(folder, tmp_path / "own", *GENEROUS, *maps, "--workers", "2")
    assert content(tmp_path / "own") == content(tmp_path / "mde")
    assert run(folder, tmp_path / "own", *GENEROUS, *maps, "--affine", "yes") == 2
    assert "another configuration (mde differ)" in capsys.readouterr().err
    assert run(folder, tmp_path / "none", *maps[:2]) == 2
    assert "--depth needs --kind" in capsys.readouterr().err


def test_label_lists_shards_and_batches_give_the_same_labels(folder, tmp_path):
    assert run(folder, tmp_path / "plain", *GENEROUS) == 0
    expected = {key: np.load(tmp_path / "plain" / f"{key}.npz")["depth_m"] for key in KEYS}

    rows = "".join(f"source/{key}.png,source/{key}.anchors.npz\n" for key in KEYS)
    (tmp_path / "list.csv").write_text("image,anchors\n" + rows)
    assert run(tmp_path / "list.csv", tmp_path / "listed", *GENEROUS, "--batch", "4") == 0
    for key in KEYS:
        listed = np.load(tmp_path / "listed" / "source" / f"{key}.npz")["depth_m"]
        np.testing.assert_allclose(listed, expected[key], rtol=1e-4)

    shards = tmp_path / "shards"
    shards.mkdir()
    pack(folder / "more", shards / "b.tar")
    for name in ("p0", "p1"):
        (tmp_path / "few").mkdir(exist_ok=True)
        for suffix in (".png", ".anchors.npz"):
            os.link(folder / f"{name}{suffix}", tmp_path / "few" / f"{name}{suffix}")
    pack(tmp_path / "few", shards / "a.tar")
    out = tmp_path / "sharded"
    assert run(shards, out, *GENEROUS, "--batch", "2") == 0
    assert [(r["shard"], k) for k, r in manifest(out).items()] == [
        ("a", "p0"), ("a", "p1"), ("b", "p5")
    ]  # fmt: skip
    with tarfile.open(out / "a.tar") as tar:
        assert tar.getnames() == ["p0.npz", "p0.json", "p1.npz", "p1.json"]
        tar.extract("p1.npz", tmp_path, filter="data")
    np.testing.assert_allclose(np.load(tmp_path / "p1.npz")["depth_m"], expected["p1"], rtol=1e-4)


def test_label_names_bad_images_and_continues(folder, tmp_path, capsys):
    (folder / "p0.png").write_bytes(b"nothing")
    (folder / "p1.anchors.npz").unlink()
    (folder / "p2.anchors.npz").unlink()
    (folder / "p2.anchors.csv").write_text("u,v,depth_m\n900,1,2\n")
    out = tmp_path / "out"
    assert run(folder, out, *GENEROUS) == 1
    printed = capsys.readouterr()
    assert "3 kept, 0 rejected, 2 failed, 1 without anchors" in printed.out
    assert "p0 failed: " in printed.err
    assert "p0.png: not a readable image" in printed.err
    assert "p2 failed: 1 of 1 anchors lie outside the image" in printed.err
    assert "p1 has no anchors beside it" in printed.err
    assert "failed" in manifest(out)["p0"]
    assert not (out / "p0.npz").exists()

    shard = tmp_path / "s.tar"
    pack(folder, shard)
    assert run(shard, tmp_path / "out2", *GENEROUS) == 1
    assert f"{shard}:p0.png: not a readable image" in capsys.readouterr().err
    with tarfile.open(tmp_path / "out2" / "s.tar") as tar:
        assert "p0.json" in tar.getnames()
        assert "p0.npz" not in tar.getnames()


def test_label_takes_names_that_are_not_utf_8(folder, tmp_path, capsys):
    old, new = (folder / "p0").as_posix(), os.fsdecode(bytes(folder / "caf") + b"\xe9")
    for suffix in (".png", ".anchors.npz"):
        try:
            os.rename(old + suffix, new + suffix)
        except OSError:
            pytest.skip("this file system takes UTF-8 only")
    assert run(folder, tmp_path / "out") == 0, capsys.readouterr().err
    assert len(manifest(tmp_path / "out")) == 6
    assert (tmp_path / "out" / f"{Path(new).name}.npz").exists()


def test_label_continues_a_run_and_refuses_other_settings(folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(folder, out, *GENEROUS) == 0
    whole = content(out)
    for key in ("p1", "p4"):
        (out / f"{key}.json").unlink()
    (out / "p4.npz").unlink()
    capsys.readouterr()
    assert run(folder, out, *GENEROUS) == 0
    assert "6 kept" in (message := capsys.readouterr().out)
    assert "4 were done before" in message
    assert content(out) == whole
    assert run(folder, out, *GENEROUS, "--min-anchors", "3") == 2
    assert "labels of another configuration (rules differ)" in capsys.readouterr().err
    assert content(out) == whole


KILLED_AT_FIFTH_RECORD = """
import os, signal, sys
from scalefield.cli import main
from scalefield.labelling import labeller

write_json, written = labeller.write_json, []

def write(path, record):
    written.append(path)
    if len(written) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    write_json(path, record)

labeller.write_json = write
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_label_that_was_killed_and_resumed_gives_the_same_bytes(folder, tmp_path):
    for i in range(6, 14):
        os.link(folder / "p0.png", folder / f"p{i}.png")
        os.link(folder / "p0.anchors.npz", folder / f"p{i}.anchors.npz")
    expected = tmp_path / "expected"
    assert run(folder, expected, *GENEROUS) == 0
    out = tmp_path / "out"
    words = ["label", str(folder), "--out", str(out), "--method", "global", "--workers", "1"]
    command = [sys.executable, "-c", KILLED_AT_FIFTH_RECORD, *words, *GENEROUS]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert len(list(out.rglob("p*.json"))) == 4
    assert len(list(out.rglob("p*.npz"))) == 5
    assert not (out / "labels.jsonl").exists()
    assert run(folder, out, *GENEROUS) == 0
    assert {k: v for k, v in content(out).items() if not k.startswith(".")} == content(expected)


HELPER = """
import os

def make_mortal(config, out, mark, lives):
    from scalefield.labelling.labeller import make_labeller
    labeller = make_labeller(config, out)

    def label(job):
        deaths = len(list(mark.parent.glob(f"{mark.name}.death*")))
        if job.name == "p3" and deaths < lives:
            (mark.parent / f"{mark.name}.death{deaths}").touch()
            os._exit(9)
        with open(mark, "a") as file:
            file.write(f"{os.getpid()} ")
        return labeller(job)

    return label
"""


@pytest.fixture
def helper(tmp_path, monkeypatch):
    """A labeller that kills its process; importable here and in the workers."""
    (tmp_path / "label_helper.py").write_text(HELPER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    import label_helper

    return label_helper


RULES = Rules(max_error=10.0, min_in_range=0.0, max_std_log=10.0)
CONFIG = LabelConfig("lite", "global", rules=RULES)


@pytest.mark.slow
def test_label_records_an_image_that_kills_its_worker_and_keeps_the_others(
    folder, tmp_path, helper
):
    work = find_jobs(folder)[0]
    label(work, CONFIG, tmp_path / "expected")
    out, mark = tmp_path / "out", tmp_path / "mark"
    label([], CONFIG, out)  # the folder is theirs
    make = partial(helper.make_mortal, CONFIG, out, mark, 99)
    results = {job.name: records for job, records in run_pool(work, make, 2)}
    assert sorted(results) == KEYS  # each once, none lost
    assert results["p3"] == [{"key": "p3", "failed": DEAD}]
    assert len(list(tmp_path.glob("mark.death*"))) == 2  # among others, then alone
    summary = label(work, CONFIG, out)  # what died is tried again
    assert (summary.found_done, summary.kept) == (5, 6)
    assert content(out) == content(tmp_path / "expected")


def start_ray(ray) -> None:
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    ray.init(num_cpus=2, _system_config=LOCAL_CONFIG, **quiet)


@pytest.mark.slow
def test_label_ray_labels_all_though_a_worker_is_killed(folder, tmp_path, helper):
    ray = pytest.importorskip("ray")
    work = find_jobs(folder)[0]
    label(work, CONFIG, tmp_path / "expected")
    out, mark = tmp_path / "out", tmp_path / "mark"
    label([], CONFIG, out)  # the folder is theirs
    start_ray(ray)
    try:
        make = partial(helper.make_mortal, CONFIG, out, mark, 1)
        found = [job.name for job, _ in run_ray(work, make, 2)]
    finally:
        ray.shutdown()
    assert (tmp_path / "mark.death0").exists()
    assert sorted(found) == KEYS
    assert label(work, CONFIG, out).found_done == 6  # nothing is left to do but the manifest
    assert content(out) == content(tmp_path / "expected")


@pytest.mark.slow
def test_label_ray_finishes_500_images_though_a_worker_is_killed(many, tmp_path, helper):
    """On a local cluster that the run starts itself; a thousand files, and no label twice."""
    pytest.importorskip("ray")
    out, mark = tmp_path / "out", tmp_path / "mark"
    work = find_jobs(many)[0]
    label([], CONFIG, out)
    make, sentences = partial(helper.make_mortal, CONFIG, out, mark, 1), []
    results = list(run_ray(work, make, 2, log=sentences.append))
    assert (tmp_path / "mark.death0").exists()
    assert sorted(job.name for job, _ in results) == sorted(f"p{i}" for i in range(500))
    assert all("failed" not in records[0] for _, records in results)
    assert sentences[0] == "no Ray cluster is running here; starting one on this machine"
    assert "waiting for the first of 2 Ray actors to load the estimator" in sentences
    assert any("died while it worked on p3; trying it again" in s for s in sentences)
    summary = label(work, CONFIG, out)
    assert (summary.found_done, summary.kept) == (500, 500)


@pytest.mark.slow
def test_label_cluster_ray_writes_the_files_of_a_local_run_and_says_what_it_does(
    folder, tmp_path, capsys, monkeypatch
):
    pytest.importorskip("ray")
    assert run(folder, tmp_path / "local", *GENEROUS) == 0
    capsys.readouterr()
    assert run(folder, tmp_path / "ray", *GENEROUS, "--cluster", "ray") == 0
    printed = capsys.readouterr()
    assert "scalefield: waiting for the first of 1 Ray actors" in printed.err
    assert "6 kept, 0 rejected, 0 failed" in printed.out
    assert content(tmp_path / "ray") == content(tmp_path / "local")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    monkeypatch.setattr("scalefield.labelling.ray_runner.import_ray", lambda: Unreachable)
    assert run(folder, tmp_path / "none", "--cluster", "ray") == 2
    assert "no Ray cluster answers at RAY_ADDRESS=127.0.0.1:9" in capsys.readouterr().err


class Unreachable:
    """A stand-in for Ray without a cluster; the real one waits half a minute before it says so."""

    @staticmethod
    def is_initialized() -> bool:
        return False

    @staticmethod
    def init(address: str, **options) -> None:
        raise ConnectionError(address)


@pytest.mark.slow
def test_label_ray_records_an_image_that_kills_every_worker_and_says_why_actors_do_not_start(
    folder, tmp_path, helper
):
    ray = pytest.importorskip("ray")
    work, out, mark = find_jobs(folder)[0], tmp_path / "out", tmp_path / "mark"
    label([], CONFIG, out)
    start_ray(ray)
    try:
        make = partial(helper.make_mortal, CONFIG, out, mark, 99)
        results = {job.name: records for job, records in run_ray(work, make, 2)}
        assert sorted(results) == KEYS
        assert results["p3"] == [{"key": "p3", "failed": DEAD}]
        assert len(list(tmp_path.glob("mark.death*"))) == 3  # the first time and two retries
        assert ray.is_initialized()  # a connection of the caller is left open
        broken = partial(helper.make_mortal, CONFIG, out)  # lacks two arguments
        with pytest.raises(InputError, match=r"the Ray actors do not start: .*make_mortal"):
            list(run_ray(work, broken, 1))
    finally:
        ray.shutdown()


def test_held_out_errors_are_those_of_fits_without_the_anchor():
    rng = np.random.default_rng(0)
    relative = np.linspace(1, 3, 600).reshape(20, 30)
    output = MDEOutput(torch.from_numpy(relative).float(), "depth")
    rows, columns = rng.integers(0, 20, 9), rng.integers(0, 30, 9)
    anchors = Anchors(columns, rows, 2 * relative[rows, columns] * np.exp(rng.normal(0, 0.1, 9)))
    method = make_method("median")
    found = held_out_errors(output, anchors, method, 100, "name")  # as many folds as anchors
    expected = []
    for i in range(9):
        others = anchors[np.arange(9) != i]
        depth_m = recover_from(output, others, method).numpy().depth_m
        expected.append(np.log(depth_m[rows[i], columns[i]] / anchors.depth_m[i]))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert held_out_errors(output, anchors[:1], method, 4, "name") is None
    # Of many, as many folds are held out as are enough.
    many = Anchors.from_map(relative)
    assert len(held_out_errors(output, many, method, 4, "name")) == 150
    # A method that passes through every anchor is not thereby right.
    through = recover_from(output, anchors, make_method("interpolate")).report.residuals_log
    unseen = held_out_errors(output, anchors, make_method("interpolate"), 4, "name")
    assert np.median(np.abs(unseen)) > 10 * np.median(np.abs(through))


GOOD = Figures(
    anchors=30,
    unused=0.0,
    held_out_error=0.05,
    in_range=0.9,
    labelled=0.8,
    coverage=0.5,
    std_log=None,
    hole_pixels=0,
    limited_pixels=0,
    fallbacks=(),
    warnings=(),
)
FALLBACK = Fallback("scale_only", "one scale for all")
WARNING = Warning("kind_mismatch", "is it disparity?")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"std_log": 0.1}, None),
        ({"anchors": 3}, Reason("min_anchors", 3, 10)),
        ({"held_out_error": 0.23}, Reason("max_error", 0.23, 0.1)),
        ({"held_out_error": None}, Reason("max_error", None, 0.1)),
        ({"unused": 0.5}, Reason("max_unused", 0.5, 0.3)),
        ({"in_range": 0.2}, Reason("min_in_range", 0.2, 0.7)),
        ({"coverage": 0.01}, Reason("min_coverage", 0.01, 0.1)),
        ({"std_log": 0.5}, Reason("max_std_log", 0.5, 0.2)),
        ({"fallbacks": (FALLBACK,)}, None),
        ({"warnings": (WARNING,)}, None),
    ],
)
def test_rules_judge_names_each_broken_rule(change, reason):
    reasons = Rules().judge(dataclasses.replace(GOOD, **change))
    assert reasons == ([] if reason is None else [reason])


def test_rules_judge_refuses_fallbacks_and_warnings_if_asked():
    doubtful = dataclasses.replace(GOOD, fallbacks=(FALLBACK,), warnings=(WARNING,))
    assert Rules(refuse_fallbacks=True).judge(doubtful) == [
        Reason("refuse_fallbacks", "scale_only")
    ]
    assert Rules(refuse_warnings=True).judge(doubtful) == [
        Reason("refuse_warnings", "kind_mismatch")
    ]


def test_reason_prints_rule_value_and_limit():
    assert str(Reason("max_error", 0.2345, 0.1)) == "max_error: 0.234, limit 0.1"
    assert str(Reason("max_error", None, 0.1)) == "max_error: unknown, limit 0.1"
    assert str(Reason("refuse_warnings", "kind_mismatch")) == "refuse_warnings: kind_mismatch"


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--max-error", "nan", "--max-error must be 0 … 1e+09, found nan"),
        ("--max-std-log", "inf", "--max-std-log must be 0 … 1e+09, found inf"),
        ("--min-coverage", "7", "--min-coverage must be 0 … 1, found 7"),
        ("--max-unused", "-1", "--max-unused must be 0 … 1, found -1"),
        ("--min-anchors", "0", "--min-anchors must be 1 or more, found 0"),
        ("--folds", "1", "--folds must be 2 or more, found 1"),
        ("--option", "space=depth", "--option space is given twice"),
    ],
)
def test_label_refuses_rules_and_options_out_of_range(
    folder, tmp_path, capsys, flag, value, message
):
    assert run(folder, tmp_path / "out", "--option", "space=depth", flag, value) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_label_without_ray_writes_nothing(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run(folder, tmp_path / "out", "--cluster", "ray") == 2
    assert "pip install 'scalefield[ray]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_label_without_anchors_fails_though_field_needs_none(folder, tmp_path, capsys):
    (folder / "p0.anchors.csv").write_text("u,v,depth_m\n")
    assert run(folder, tmp_path / "out", "--method", "field", *GENEROUS) == 1
    assert "p0 failed: no anchors: at least one pixel" in capsys.readouterr().err


def test_label_counts_rejected_anchors(folder, tmp_path, capsys):
    good = Anchors.read(folder / "p0.anchors.npz")
    rng = np.random.default_rng(0)
    wrong = Anchors(good.u, good.v, good.depth_m * np.exp(rng.normal(0, 1, len(good))))
    wrong.write(folder / "p0.anchors.npz")
    out = tmp_path / "out"
    limits = ("--max-error", "0.4", "--min-in-range", "0", "--max-std-log", "10")
    assert run(folder, out, *limits) == 0
    assert manifest(out)["p0"]["keep"] is False
    assert manifest(out)["p0"]["reasons"][0]["rule"] == "max_error"
    message = capsys.readouterr().out
    assert "5 kept, 1 rejected (" in message
    assert "max_error 1" in message
    assert (out / "p0.npz").is_file()  # rejected is not lost


def test_find_jobs_refuses_other_sources(folder, tmp_path):
    with pytest.raises(InputError, match=r"wanted a folder, a \.csv list or a \.tar shard"):
        find_jobs(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no image with anchors beside it"):
        find_jobs(tmp_path / "empty")
    (tmp_path / "l.csv").write_text("picture,anchors\n")
    with pytest.raises(InputError, match="columns image and anchors"):
        find_jobs(tmp_path / "l.csv")
    (tmp_path / "l.csv").write_text("image,anchors\na/../../b.png,b.csv\n")
    with pytest.raises(InputError, match=r"line 2: a/\.\./\.\./b would leave the labels"):
        find_jobs(tmp_path / "l.csv")
    (tmp_path / "s.tar").write_bytes(b"no tar")
    with pytest.raises(InputError, match="not a readable tar file"):
        find_jobs(tmp_path / "s.tar")
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        for name in ("../p0.png", "../p0.anchors.npz"):
            tar.add(folder / Path(name).name, name)
    with pytest.raises(InputError, match=r"\.\./p0\.png would leave the folder of labels"):
        find_jobs(tmp_path / "s.tar")
    with tarfile.open(tmp_path / "s.tar", "w:gz") as tar:
        tar.add(folder / "p0.png", "p0.png")
    with pytest.raises(InputError, match="not a readable tar file"):
        find_jobs(tmp_path / "s.tar")
    Image.new("RGB", (2, 2)).save(folder / "p0.jpg")
    with pytest.raises(InputError, match=r"p0\.jpg and .*p0\.\w+ have the same key p0"):
        find_jobs(folder)


def test_label_stores_std_log_and_applies_its_rule(folder, tmp_path):
    out = tmp_path / "out"
    words = ["label", str(folder), "--out", str(out), "--method", "field", "--workers", "1"]
    assert main([*words, *GENEROUS, "--max-std-log", "1e-6"]) == 0
    for key, record in manifest(out).items():
        with np.load(out / f"{key}.npz") as label:
            std_log = label["std_log"]
            assert std_log.shape == label["depth_m"].shape
        labelled = np.isfinite(std_log)  # the others have no support
        assert labelled.any()
        assert (std_log[labelled] > 0).all()
        assert record["keep"] is False
        assert record["figures"]["std_log"] == pytest.approx(np.median(std_log[labelled]), rel=0.01)
        assert "max_std_log" in {reason["rule"] for reason in record["reasons"]}


@pytest.mark.parametrize("own", ["p0.json", "p0.npz", "more/p5.json"])
def test_label_keeps_files_that_are_not_labels(folder, capsys, own):
    """Annotations of other tools lie beside the images, under the names that labels have."""
    (folder / own).write_text('{"mine": 1}')
    before = content(folder)
    assert run(folder, folder) == 2
    assert f"{folder / own} exists and is not a label; give another" in capsys.readouterr().err
    assert content(folder) == before
    assert not (folder / "label.json").exists()


def test_label_never_overwrites_a_shard(folder, tmp_path, capsys):
    pack(folder, tmp_path / "s.tar")
    before = (tmp_path / "s.tar").read_bytes()
    assert run(tmp_path / "s.tar", tmp_path) == 2
    assert "s.tar exists and is not a label" in capsys.readouterr().err
    assert (tmp_path / "s.tar").read_bytes() == before


def test_label_refuses_keys_that_are_files_of_the_run(folder, tmp_path, capsys):
    for suffix in (".png", ".anchors.npz"):
        shutil.copy(folder / f"p0{suffix}", folder / f"label{suffix}")
    assert run(folder, tmp_path / "out") == 2
    assert "label.json is a file of the run; an image or shard" in capsys.readouterr().err
    pack(folder, tmp_path / "labels.tar")
    assert run(tmp_path / "labels.tar", tmp_path / "out") == 2
    assert "labels.jsonl is a file of the run; an image or shard" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_label_names_a_record_that_is_not_its_own(folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(folder, out, *GENEROUS) == 0
    for record in ('{"mine": 1}', "[]", "3"):
        (out / "p0.json").write_text(record)
        assert run(folder, out, *GENEROUS) == 2
        assert "the record of p0 is not that of a label" in capsys.readouterr().err


def test_label_refuses_an_image_that_is_listed_twice(folder, capsys):
    lines = ["image,anchors", "p0.png,p0.anchors.npz", "p0.png,p1.anchors.npz"]
    (folder / "l.csv").write_text("\n".join(lines))
    with pytest.raises(InputError, match="line 3: p0 is in the list already"):
        find_jobs(folder / "l.csv")


def test_rules_refuse_fallbacks_keeps_field_with_thousands_of_anchors():
    """Local solves are the normal way of `field` with many anchors, not a fallback."""
    v, u = np.mgrid[0:60, 0:80]
    relative = (1 + u / 40 + v / 90).astype(np.float32)
    rows = np.random.default_rng(0).permutation(60 * 80)[:2300]
    anchors = Anchors(rows % 80, rows // 80, 2.5 * relative.reshape(-1)[rows])
    mde_output = MDEOutput(torch.from_numpy(relative), "depth")
    recovery = recover_from(mde_output, anchors, make_method("field")).numpy()
    found = figures(recovery, anchors, np.zeros(10), np.ones(recovery.depth_m.shape, dtype=bool))
    assert found.anchors > 2000
    assert Rules(refuse_fallbacks=True).judge(found) == []


def test_label_masks_what_has_no_support_and_judges_the_rest():
    """The sky of a street, which no anchor supports, decides about no label."""
    depth_m = np.full((20, 30), 5.0, np.float32)
    depth_m[:10] = 80.0
    support = np.where(depth_m > 50, 0.05, 0.9).astype(np.float32)
    std_log = np.where(depth_m > 50, 0.9, 0.03).astype(np.float32)
    anchors = Anchors(np.arange(0, 30, 3), np.full(10, 15), np.full(10, 5.0))
    recovery = Recovery(
        depth_m=depth_m, log_scale=np.zeros_like(depth_m), std_log=std_log, support=support,
        report=Report(anchors_used=10, anchors_given=10), anchors=anchors,
    )  # fmt: skip
    rules, held_out = Rules(min_coverage=0.0), np.full(10, 0.02)
    label = figures(recovery, anchors, held_out, support >= rules.min_support)
    assert (label.labelled, label.in_range) == (0.5, 1.0)
    assert label.std_log == pytest.approx(0.03)
    assert rules.judge(label) == []
    everything = figures(recovery, anchors, held_out, np.ones_like(support, dtype=bool))
    assert {r.rule for r in rules.judge(everything)} == {"min_in_range", "max_std_log"}
    nothing = figures(recovery, anchors, held_out, np.zeros_like(support, dtype=bool))
    assert (nothing.labelled, nothing.std_log) == (0.0, None)
    assert [r.rule for r in rules.judge(nothing)] == ["min_in_range"]
