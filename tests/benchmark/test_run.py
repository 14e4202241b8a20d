import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from scalefield.anchor_sampling import DROP_SEQUENCE, sample_anchors
from scalefield.api import recover_from
from scalefield.basis.generator import Generator, GeneratorConfig
from scalefield.benchmark.metrics import metrics, score
from scalefield.benchmark.run import Evaluator, frame_file, run
from scalefield.benchmark.score import score_files
from scalefield.datasets.source import FrameSource
from scalefield.errors import InputError
from scalefield.methods import make_method
from scalefield.recovery import interval_factor
from scalefield.runtime import progress
from worlds import RED_MODULE


def records(out: Path, names: list[str]) -> dict[str, dict]:
    return {name: json.loads(frame_file(out, name).read_text()) for name in names}


def test_run_sums_are_those_of_the_methods_own_recovery(world, evaluation, red, tmp_path) -> None:
    out = tmp_path / "out"
    names = run(Evaluator(FrameSource(world, red), evaluation, out))
    assert names == world.names("test")
    for name, record in records(out, names).items():
        frame = world.load(name)
        anchors = sample_anchors(frame.depth_m, frame.mask, "low", seed=0, name=name)
        for cell in record["cells"]:
            if cell["condition"] != "low" or cell["method"] == "region":
                continue
            method = make_method({"Affine": "global"}.get(cell["method"], cell["method"]))
            depth_m = recover_from(red(frame.image), anchors, method).numpy().depth_m
            for clamping, limits in (("raw", None), ("clamped", frame.depth_range_m)):
                expected = score(depth_m, frame.depth_m, frame.mask, limits)
                sums = cell.get(clamping, cell["clamped"])  # raw is left out where it is the same
                assert metrics(sums) == pytest.approx(expected, rel=1e-9, abs=1e-6)
            assert cell["anchors"] == len(anchors)
            by_distance = cell["by_distance"]
            assert sum(by_distance["pixels"]) == record["pixels"] == frame.mask.sum()
            assert sum(by_distance["relative"]) == pytest.approx(cell["clamped"]["relative"])
        conditions = {cell["condition"] for cell in record["cells"]}
        assert conditions == {"low", *(f"drop-{n}" for n in DROP_SEQUENCE)}


def test_run_clamping_matters_where_predictions_leave_the_range(
    world, evaluation_of, red, tmp_path
):
    far = evaluation_of("test_far:far", drop=False)
    module = tmp_path / "test_far.py"
    module.write_text(
        "import torch\n"
        "from scalefield import Recovery\n"
        "def far(mde_output, anchors):\n"
        "    return Recovery.from_depth(mde_output, anchors, torch.full(mde_output.shape, 50.0))\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        names = run(Evaluator(FrameSource(world, red), far, tmp_path / "out"))
    finally:
        sys.path.remove(str(tmp_path))
    for record in records(tmp_path / "out", names).values():
        (cell,) = record["cells"]
        raw, clamped = metrics(cell["raw"]), metrics(cell["clamped"])
        assert raw["mae"] - clamped["mae"] == pytest.approx(30, rel=1e-6)  # 50 m against 20 m


def test_run_counts_the_coverage_of_intervals(world, evaluation_of, red, tmp_path, monkeypatch):
    (tmp_path / "test_sure.py").write_text(
        "import dataclasses, torch\n"
        "from scalefield.methods import make_method\n"
        "def sure(mde_output, anchors):\n"
        "    recovery = make_method('global')(mde_output, anchors)\n"
        "    std_log = torch.full(mde_output.shape, 0.05)\n"
        "    return dataclasses.replace(recovery, std_log=std_log)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sure = evaluation_of("Sure: test_sure:sure", "interpolate", drop=False)
    names = run(Evaluator(FrameSource(world, red), sure, tmp_path / "out"))
    found, (name, *_) = records(tmp_path / "out", names), names
    frame = world.load(name)
    anchors = sample_anchors(frame.depth_m, frame.mask, "low", seed=0, name=name)
    depth_m = recover_from(red(frame.image), anchors, make_method("global")).numpy().depth_m
    error = np.abs(np.log(depth_m) - np.log(frame.depth_m))[frame.mask]
    cell = found[name]["cells"][0]
    assert cell["coverage"]["within95"] == np.count_nonzero(error <= interval_factor(0.95) * 0.05)
    assert "coverage" not in found[name]["cells"][1]
    results = score_files(tmp_path / "out", names)
    by_method = {c["method"]: c for c in results["cells"] if c["group"] == "all"}
    mean, low, high = by_method["Sure"]["coverage"]["coverage_95"]
    every = [c["coverage"] for r in found.values() for c in r["cells"] if "coverage" in c]
    assert mean == pytest.approx(np.mean([c["within95"] / c["pixels"] for c in every]), rel=1e-5)
    assert low <= mean <= high
    assert "coverage" not in by_method["interpolate"]


def test_run_region_needs_labels_and_says_so(world, evaluation, red, tmp_path) -> None:
    names = run(Evaluator(FrameSource(world, red), evaluation, tmp_path / "out"))
    found = {
        name: {("skipped" in c) for c in record["cells"] if c["method"] == "region"}
        for name, record in records(tmp_path / "out", names).items()
    }
    expected = {name: {name not in ("home/room/f0", "home/room/f1")} for name in names}
    assert found == expected
    results = score_files(tmp_path / "out", names)
    low = next(c for c in results["cells"] if c["method"] == "region" and c["condition"] == "low")
    assert low["images"] == 2
    skipped = {f["images"] for f in results["failures"] if f["method"] == "region"}
    assert skipped == {4}


def test_run_counts_methods_that_fail_and_keeps_the_others(
    world, evaluation_of, red, tmp_path, monkeypatch
) -> None:
    (tmp_path / "bad_methods.py").write_text(
        textwrap.dedent("""
        import dataclasses, torch
        from scalefield import InputError, Recovery
        from scalefield.methods.median import Median
        def refuses(mde_output, anchors):
            raise InputError("not today")
        def small(mde_output, anchors):
            found = Median()(mde_output, anchors)
            return dataclasses.replace(found, depth_m=found.depth_m[1:])
        def holes(mde_output, anchors):
            found = Median()(mde_output, anchors)
            return dataclasses.replace(found, depth_m=found.depth_m.clone().fill_(torch.nan))
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    texts = ["median", *(f"bad_methods:{name}" for name in ("refuses", "small", "holes"))]
    evaluation = evaluation_of(*texts, drop=False)
    names = run(Evaluator(FrameSource(world, red), evaluation, tmp_path / "out"))
    results = score_files(tmp_path / "out", names)
    assert {c["method"] for c in results["cells"]} == {"median"}
    reasons = {f["method"].partition(":")[2]: f["first"] for f in results["failures"]}
    assert reasons["refuses"] == "home/room/f0: not today"
    assert "a map of shape (40, 56) is wanted, found (39, 56)" in reasons["small"]
    assert "predicted depth must be finite" in reasons["holes"]
    assert all(f["images"] == 6 and f["kind"] == "error" for f in results["failures"])


def test_run_names_a_damaged_frame_and_tries_it_again(world, evaluation, red, tmp_path) -> None:
    depth = world.root / "home" / "room" / "depth" / "f1.png"
    whole = depth.read_bytes()
    depth.write_bytes(whole[:50])
    out = tmp_path / "out"
    results = score_files(out, run(Evaluator(FrameSource(world, red), evaluation, out)))
    data = results["data"]
    assert (data["frames"], data["evaluated"]) == (6, 5)
    assert [m["name"] for m in data["missing"]] == ["home/room/f1"]
    assert "f1.png: not a readable PNG" in data["missing"][0]["error"]
    depth.write_bytes(whole)
    results = score_files(out, run(Evaluator(FrameSource(world, red), evaluation, out)))
    assert results["data"]["evaluated"] == 6
    assert results["data"]["missing"] == []


def test_run_of_a_frame_without_known_depth_is_an_error(world, evaluation, red, tmp_path) -> None:
    path = world.root / "home" / "room" / "depth" / "f0.png"
    Image.fromarray(np.zeros((40, 56), np.uint16)).save(path)
    results = score_files(
        tmp_path / "out", run(Evaluator(FrameSource(world, red), evaluation, tmp_path / "out"))
    )
    assert "no pixel has a true depth of" in results["data"]["missing"][0]["error"]


def test_run_pixels_without_mde_are_counted(world, evaluation_of, red, tmp_path) -> None:
    class Holes:
        name = "holes"

        def __call__(self, image):
            found = red(image)
            found.prediction[10:20, :7] = torch.nan
            return found

    names = run(Evaluator(FrameSource(world, Holes()), evaluation_of("median"), tmp_path / "out"))
    assert {r["holes"] for r in records(tmp_path / "out", names).values()} == {70}


def test_run_refuses_another_configuration_unless_overwrite(
    world, evaluation_of, red, tmp_path
) -> None:
    out = tmp_path / "out"
    names = run(Evaluator(FrameSource(world, red), evaluation_of("median", drop=False), out))
    first = frame_file(out, names[0]).read_bytes()
    other = evaluation_of("median", "global", drop=False, seed=1)
    with pytest.raises(InputError, match=r"another configuration \(methods, seed differ\)"):
        run(Evaluator(FrameSource(world, red), other, out))
    assert frame_file(out, names[0]).read_bytes() == first
    run(Evaluator(FrameSource(world, red), other, out), overwrite=True)
    assert len(json.loads(frame_file(out, names[0]).read_text())["cells"]) == 2
    run(Evaluator(FrameSource(world, red), other, out))  # the same again: nothing to refuse


def test_run_does_not_compute_existing_results_again(world, evaluation_of, red, tmp_path) -> None:
    calls = []

    class Counting:
        name = "red"

        def __call__(self, image):
            calls.append(1)
            return red(image)

    evaluation = evaluation_of("median", drop=False)
    run(Evaluator(FrameSource(world, Counting()), evaluation, tmp_path / "out"), limit=2)
    assert len(calls) == 2
    run(Evaluator(FrameSource(world, Counting()), evaluation, tmp_path / "out"))
    assert len(calls) == 6


def test_run_writes_progress_lines_without_a_terminal(
    world, evaluation_of, red, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(progress, "LINES_EVERY_S", 0.0)
    evaluator = Evaluator(FrameSource(world, red), evaluation_of("median"), tmp_path / "out")
    names = run(evaluator, limit=2, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines] == [
        f"scalefield: {n} of 2 frames" for n in range(1, len(names) + 1)
    ]
    run(Evaluator(evaluator.source, evaluator.evaluation, tmp_path / "quiet"), limit=2)
    assert capsys.readouterr().err == ""


def test_run_shards_share_the_work_and_order_does_not_matter(
    world, evaluation, red, tmp_path, monkeypatch
) -> None:
    names = run(Evaluator(FrameSource(world, red), evaluation, tmp_path / "whole"))
    for i in (1, 0):
        run(Evaluator(FrameSource(world, red), evaluation, tmp_path / "parts"), shard=(i, 2))
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    with pytest.raises(InputError, match="shard 2/2"):
        run(Evaluator(FrameSource(world, red), evaluation, tmp_path / "parts"), shard=(2, 2))
    monkeypatch.setattr(type(world), "names", lambda self, split: names[::-1])
    run(Evaluator(FrameSource(world, red), evaluation, tmp_path / "back"))
    for name in names:
        found, expected = (frame_file(tmp_path / x, name).read_bytes() for x in ("back", "whole"))
        assert found == expected


def test_run_records_the_spectrum_of_basis_maps(world, evaluation_of, red, tmp_path) -> None:
    torch.manual_seed(0)
    Generator(GeneratorConfig(k=4, feature_channels=3, cells=16)).save(tmp_path / "generator")
    evaluation = evaluation_of(f"Ours K=4: basis(generator='{tmp_path}/generator')", drop=False)
    names = run(Evaluator(FrameSource(world, red), evaluation, tmp_path / "out"))
    results = score_files(tmp_path / "out", names)
    row = next(s for s in results["spectral"] if s["group"] == "all")
    assert (row["k"], row["images"], row["condition"]) == (4, 6, "low")
    assert 0.25 < row["eta1"] <= 1
    assert 0 <= row["similarity"] <= 1
    assert 0 < row["g0_mean"] < 1
    assert row["g0_var"] >= 0


def test_run_rows_of_one_label_use_the_model_of_their_condition(
    world, evaluation_of, red, tmp_path
) -> None:
    for seed, regime in enumerate(("low", "medium")):
        torch.manual_seed(seed)
        generator = Generator(GeneratorConfig(k=4, feature_channels=3, cells=16))
        generator.save(tmp_path / regime)
    rows = [f"Ours @{r}: basis(generator='{tmp_path}/{r}')" for r in ("low", "medium")]
    evaluation = evaluation_of(*rows, regimes=("low", "medium"), drop=False)
    name = run(Evaluator(FrameSource(world, red), evaluation, tmp_path / "out"), limit=1)[0]
    frame = world.load(name)
    for cell in records(tmp_path / "out", [name])[name]["cells"]:
        regime = cell["condition"]
        anchors = sample_anchors(frame.depth_m, frame.mask, regime, seed=0, name=name)
        method = make_method("basis", generator=str(tmp_path / regime))
        depth_m = recover_from(red(frame.image), anchors, method).numpy().depth_m
        expected = score(depth_m, frame.depth_m, frame.mask, frame.depth_range_m)
        assert metrics(cell["clamped"]) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def contents(out: Path) -> dict[str, bytes]:
    """Everything that is scored: frame files and results, not timings."""
    files = [p for p in (out / "frames").rglob("*.json") if not p.name.startswith(".")]
    files += [p for p in (out / "images.csv", out / "results.json") if p.exists()]
    return {str(p.relative_to(out)): p.read_bytes() for p in files}


HELD_WORLD = f"""
import time
from pathlib import Path
from scalefield import Recovery
{RED_MODULE}
def held(mde_output, anchors):
    while Path("hold").exists() and list(Path("a/frames").rglob("f*.json")):
        time.sleep(0.02)
    log_scale = torch.tensor(0.5)
    return Recovery.from_log_scale(mde_output, anchors, log_scale)
"""


def children(pid: int) -> list[int]:
    """Processes that this one started, where the system lists them."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def running(pid: int) -> bool:
    """Whether a process is running; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_run_killed_and_started_again_gives_the_same_bytes(world, tmp_path) -> None:
    """One run is killed without warning; two more with other numbers of workers finish it."""
    (tmp_path / "held_world.py").write_text(HELD_WORLD)

    def command(out: str, *more: str) -> list[str]:
        flags = f"--root {world.root} --range *=0.1,20 --mde held_world:red --no-drop --no-gallery"
        methods = ["--methods", "held_world:held", "global", "lwlr", "--regimes", "low"]
        start = [sys.executable, "-m", "scalefield.cli", "evaluate", "--out", out]
        return [*start, *flags.split(), *methods, *more]

    (tmp_path / "hold").touch()  # with this file, frames after the first ones wait
    # No git: the source tree may well be edited while the tests run.
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "GIT_DIR": str(tmp_path / "none")}
    options = {"cwd": tmp_path, "env": environment, "stderr": subprocess.DEVNULL}
    killed = subprocess.Popen(command("a", "--workers", "2"), stdout=subprocess.DEVNULL, **options)
    while not list((tmp_path / "a" / "frames").rglob("f*.json")) and killed.poll() is None:
        time.sleep(0.02)
    workers = children(killed.pid)
    assert len(workers) >= 2 or not Path("/proc").exists()
    killed.kill()
    killed.wait()
    while any(map(running, workers)):  # no worker is left behind
        time.sleep(0.02)
    (tmp_path / "hold").unlink()
    done = len(list((tmp_path / "a" / "frames").rglob("f*.json")))
    assert 1 <= done < 6
    assert not (tmp_path / "a" / "results.json").exists()
    for out, workers in (("a", "2"), ("b", "1")):
        finished = subprocess.run(
            command(out, "--workers", workers), stdout=subprocess.PIPE, check=True, **options
        )
        assert "6 of 6 frames evaluated" in finished.stdout.decode()
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert len(contents(tmp_path / "a")) == 8
