"""The whole reproduction on tiny data: raw layouts to the paper's tables."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from reproduction.native_layouts import MDES, write_kitti, write_sunrgbd, write_urbansyn
from scalefield.cli import main
from scalefield.datasets import SunRgbd
from scalefield.errors import InputError
from scalefield.io.weights import WEIGHTS
from scalefield.reproduction.matrix import (
    GeneratorJob,
    aligner_rows,
    basis_rows,
    find_generators,
    paper_jobs,
    universal_rows,
)
from scalefield.reproduction.plan import plan, step_seconds
from scalefield.reproduction.stages import EstimatorSpec, Reproduction
from scalefield.training.basis_config import paper_preset

pytest.importorskip("matplotlib", reason="the extra plot is not installed")
pytest.importorskip("transformers", reason="the extra mde is not installed")
pytest.importorskip("OpenEXR", reason="the extra exr is not installed")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Tiny datasets in three layouts, and the module of the estimators."""
    folder = tmp_path_factory.mktemp("reproduction")
    write_kitti(folder / "kitti")
    write_urbansyn(folder / "urbansyn")
    write_sunrgbd(folder / "sunrgbd")
    (folder / "tiny_mdes.py").write_text(MDES)
    return folder


def command(home, *flags, data=("kitti", "urbansyn", "sunrgbd"), out="out"):
    given = [f"{name}={home / name}" for name in data]
    small = ["--epochs", "1", "--fine-tune-epochs", "1", "--batch", "6", "--width", "16"]
    small += ["--kept-pixels", "256", "--k", "8", "30", "--device", "cpu", "--workers", "1"]
    mdes = ["--mde", "da3-base=tiny_mdes:da3", "midas-dpt-hybrid=tiny_mdes:dpt"]
    return ["reproduce", "--data", *given, *mdes, *small, "--out", str(home / out), *flags]


@pytest.fixture
def there(home, monkeypatch):
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(str(home))
    return home


@pytest.fixture(scope="module")
def reproduced(home):
    """A run of everything; one training frame cannot be read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.syspath_prepend(str(home))
        (home / "urbansyn" / "depth" / "depth_0003.exr").unlink()
        assert main(command(home, "--no-gallery", "--limit", "6")) == 0
    return home / "out"


def test_all_generators_of_the_paper_are_trained_on_all_datasets(reproduced):
    names = sorted(p.name for p in (reproduced / "generators" / "da3-base").iterdir())
    assert names == [
        "k30-high", "k30-medium", "k30-medium-f0",
        "k8-high", "k8-low", "k8-low-f0", "k8-medium", "k8-medium-f0",
    ]  # fmt: skip
    assert (reproduced / "generators" / "midas-hybrid" / "k8-low" / "model").is_dir()
    card = (reproduced / "generators/da3-base/k8-low/model/README.md").read_text()
    assert "for the MDE da3-base" in card
    # 8 frames of KITTI, of which the limit leaves 6, and 6 of each other dataset, one unreadable.
    frames = 17 if left_out(reproduced) else 18
    assert f"Trained on {frames} frames" in card
    record = json.loads((reproduced / "generators/da3-base/k8-high/run.json").read_text())
    assert record["config"]["anchors"] == [500, 530]
    assert record["config"]["losses"]["gate_reduction"] == "sum"


def left_out(out):
    return json.loads((out / "prepared" / "da3-base" / "left_out.json").read_text())


def test_the_frame_that_cannot_be_read_is_named(reproduced):
    found = left_out(reproduced)
    everywhere = {name for frames in found.values() for name in frames}
    lists = [(reproduced / "splits/urbansyn" / f"{s}.txt").read_text() for s in ("train", "val")]
    taken = any("0003" in text.split() for text in lists)
    assert everywhere <= {"0003"}
    assert taken or not everywhere


def test_every_dataset_is_evaluated_with_every_estimator(reproduced):
    folders = sorted(p.name for p in (reproduced / "results").iterdir())
    assert folders == [
        "kitti-da3-base", "kitti-midas-hybrid", "sunrgbd-da3-base", "sunrgbd-midas-hybrid",
        "urbansyn-da3-base", "urbansyn-midas-hybrid",
    ]  # fmt: skip
    results = json.loads((reproduced / "results/sunrgbd-da3-base/results.json").read_text())
    rows = {(c["method"], c["condition"]) for c in results["cells"]}
    assert {("Basis K=8", "low"), ("Basis K=8", "drop-1"), ("Basis K=30", "high")} <= rows
    assert ("Basis K=8, F = 0", "medium") in rows
    assert ("Basis K=30", "low") not in rows
    assert {("Region, strict", "low"), ("Global, disparity", "high")} <= rows
    spectral = [s for s in results["spectral"] if s["method"] == "Basis K=8"]
    assert all(0 <= s["alpha1_share"] <= 1 for s in spectral)


def test_the_report_has_the_papers_tables_and_names_the_models(reproduced):
    text = (reproduced / "report" / "report.md").read_text()
    title, deviations = text.splitlines()[0], text.splitlines()[2]
    assert title == "# Learning Image-Adaptive Scale Fields: the paper's tables"
    assert deviations == (
        "Not as in the paper: at most 6 frames of each split, MDE da3-base=tiny_mdes:da3 and "
        "midas-hybrid=tiny_mdes:dpt, K = 8 and 30, 256 pixels and uint8 features kept, "
        "1 and 1 epochs, batch, width."
    )
    headings = [line for line in text.splitlines() if line.startswith("#")][1:6]
    assert headings == [
        "### Table 1. KITTI",
        "### Table 2. UrbanSyn + SUN RGB-D",
        "### Table 3. Drop-anchor test of Basis, kitti + urbansyn + sunrgbd",
        "### Spectral structure, low anchors",
        "## Appendix",
    ]
    first = text.split(headings[0])[1].split(headings[1])[0]
    rows = [line.split(" | ")[0].strip("| ") for line in first.splitlines() if "|" in line]
    assert rows[2:] == ["Global", "Grid", "LWLR", "Piecewise", "Basis", "Basis*", "Basis**"]
    # Random networks are no estimator of the paper, whatever their label is.
    columns = first.splitlines()[2].split(" | ")
    assert columns[1] == "da3-base = tiny_mdes:da3 [random] · Low · AbsRel"
    assert columns[13] == "the paper: DA3 · Low · AbsRel"
    assert "[" not in first.splitlines()[4]
    models = text.split("kitti, da3-base: models of the rows")[1].split("###")[0]
    assert "da3-base/k8-low (K = 8, with F)" in models
    assert "da3-base/k8-medium-f0 (K = 8, F = 0)" in models
    assert "a bandwidth of 25 px at an image width of 1242 px" in text
    assert "160 px at 2048 px" in text
    assert "LWLR and LWLR, disparity on urbansyn: a bandwidth of 50 px" in text
    assert "da3-base = tiny_mdes:da3 [random]: 2 images of urbansyn + sunrgbd" in text
    assert "The column after it is the share of images in which |α₁| is the largest" in text
    assert (reproduced / "report" / "figures" / "ablation.svg").is_file()
    assert "α₁² / ‖y‖²" in text


def test_a_second_run_makes_nothing_again(reproduced, there, monkeypatch):
    monkeypatch.setattr("scalefield.benchmark.report.write_report", lambda *_: reproduced)
    watched = [
        *(reproduced / "prepared").rglob("*.safetensors"),
        *(reproduced / "generators").rglob("checkpoint.safetensors"),
        *(reproduced / "results").rglob("frames/**/*.json"),
    ]
    before = {path: path.stat().st_mtime_ns for path in watched}
    assert len(before) > 60
    killed = [path.with_name(f".{path.name}.k1ll_ed0") for path in watched[:: len(watched) - 1]]
    for leftover in killed:
        leftover.touch()
    assert main(command(there, "--no-gallery", "--limit", "6")) == 0
    changed = [path for path, stamp in before.items() if path.stat().st_mtime_ns != stamp]
    assert not changed
    assert not any(leftover.exists() for leftover in killed)


def test_training_record_has_the_chosen_step_of_every_generator(reproduced):
    found = json.loads((reproduced / "training.json").read_text())
    assert sorted(found) == ["da3-base", "midas-hybrid"]
    for estimator, generators in found.items():
        assert len(generators) == len(paper_jobs((0,), (8, 30)))
        for name, record in generators.items():
            folder = reproduced / "generators" / estimator / name
            lines = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
            assert record["finished"]
            assert record["chosen"] in lines
            assert record["chosen"]["val_loss"] == min(line["val_loss"] for line in lines)
            assert record["last"]["step"] == lines[-1]["step"]


def test_aligners_are_left_out_on_request(there, tmp_path):
    made = Reproduction(
        out=tmp_path,
        datasets={"sunrgbd": SunRgbd(there / "sunrgbd")},
        estimators=(EstimatorSpec.parse("da3-base=tiny_mdes:da3"),),
        generators="shipped",
        aligners=False,
    )
    labels = [row.label for row in made.rows(made.estimators[0], "sunrgbd")]
    assert labels == [f"Basis K={k} (universal, F = 0)" for k in (8, 30, 50)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--limit", "5"], "holds a reproduction with another limit"),
        (["--limit", "6", "--datasets", "kitti"], "another datasets"),
        (["--limit", "6", "--rate", "0.1"], "holds a run with another rate"),
    ],
)
def test_another_configuration_is_not_mixed_in(reproduced, there, capsys, flags, message):
    assert main(command(there, "--no-gallery", *flags)) == 2
    assert message in capsys.readouterr().err


def test_ready_generators_are_taken_and_missing_ones_named(reproduced, there, monkeypatch, capsys):
    ready = there / "ready"
    shutil.copytree(reproduced / "generators", ready, dirs_exist_ok=True)
    flags = ["--generators", str(ready), "--datasets", "kitti", "--no-gallery", "--no-drop"]
    monkeypatch.setattr("scalefield.benchmark.report.write_report", lambda *_: there)
    assert main(command(there, *flags, out="with_ready")) == 0
    out = there / "with_ready"
    assert not (out / "prepared").exists()
    assert not (out / "generators").exists()
    (ready / "da3-base" / "k30-high" / "model" / "model.safetensors").write_bytes(b"x")
    assert main(command(there, *flags, out="refused")) == 2
    assert "k30-high/model: not the weights of such a generator" in capsys.readouterr().err
    shutil.rmtree(ready / "da3-base" / "k30-high")
    for planned in ([], ["--plan"]):
        assert main(command(there, *flags, *planned, out="refused")) == 2
        message = "no generator (config.json and model.safetensors) in k30-high; wanted are k8-low,"
        assert message in capsys.readouterr().err
    shutil.copytree(ready / "midas-hybrid" / "k30-high", ready / "da3-base" / "k30-high")
    assert main(command(there, *flags, out="refused")) == 2
    message = "wanted a generator for F of 16 channels, found one for 8; it belongs to another MDE"
    assert message in capsys.readouterr().err
    assert not (there / "refused").exists()


def test_results_of_other_weights_are_not_reported(reproduced, there, capsys):
    file = reproduced / "generators" / "da3-base" / "k8-medium-f0" / "model" / "model.safetensors"
    before = file.read_bytes()
    file.write_bytes(before[:-4] + bytes(4))
    try:
        assert main(command(there, "--no-gallery", "--limit", "6", "--no-report")) == 2
    finally:
        file.write_bytes(before)
    message = capsys.readouterr().err
    assert "holds results that were not made with the present weights in" in message
    assert "k8-medium-f0/model; discard them with --overwrite" in message


def test_the_first_seed_stands_beside_the_paper_whatever_its_number(reproduced, there):
    ready = there / "seed 1"
    for job in paper_jobs((1,), (8,)):
        source = reproduced / "generators" / "da3-base" / job.name.removesuffix("-s1") / "model"
        shutil.copytree(source, ready / "da3-base" / job.name)
    flags = ["--generators", str(ready), "--seeds", "1", "--k", "8", "--no-gallery"]
    flags += ["--mde", "da3-base=tiny_mdes:da3", "--no-disparity"]
    assert main(command(there, *flags, data=("kitti",), out="seeded")) == 0
    text = (there / "seeded" / "report" / "report.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| Basis |"))
    assert re.match(r"\| Basis \| [*<>u]*0\.\d{3}", row)
    assert re.search(r"\| 1 \| \d\.\d{3}", text.split("### Table 3. Drop-anchor test of Basis")[1])


def test_ready_generators_need_no_lists_for_training(there):
    from commands.test_train import write_folder

    data = write_folder(there / "plain")
    (data / "val.txt").rename(data / "test.txt")
    (data / "train.txt").unlink()
    flags = ["--generators", "shipped", "--mde", "da3-base=tiny_mdes:da3", "--no-disparity"]
    flags += ["--no-gallery", "--no-drop", "--no-report"]
    assert main(command(there, *flags, data=("plain",), out="listed")) == 0
    assert [p.name for p in (there / "listed/splits/plain").iterdir()] == ["test.txt"]


def test_shipped_generators_are_labelled_universal(there, capsys):
    flags = ["--generators", "shipped", "--datasets", "kitti", "--no-gallery", "--no-drop"]
    flags += ["--mde", "da3-base=tiny_mdes:da3", "--no-disparity"]
    assert main(command(there, *flags, out="universal")) == 0
    text = (there / "universal" / "report" / "report.md").read_text()
    assert "| Basis K=8 (universal, F = 0) |" in text
    row = next(line for line in text.splitlines() if line.startswith("| Basis |"))
    assert row.startswith("| Basis | – | – | – |")  # a universal generator is not the paper's


def test_each_unit_of_depth_is_an_estimator_of_its_own(there, capsys):
    units = ["--depth-unit", "raw", "median", "--mde", "da3-base=tiny_mdes:da3", "--plan"]
    assert main(command(there, *units, data=("sunrgbd",), out="no")) == 0
    message = capsys.readouterr().out
    assert "train da3-base " in message
    assert "train median-da3-base " in message
    spec = EstimatorSpec.parse("midas-dpt-hybrid", unit="median")
    assert (spec.label, spec.source) == ("median-midas-hybrid", "median:midas-hybrid")
    assert spec.card == EstimatorSpec.parse("midas-hybrid").card
    assert spec.card is not None


@pytest.mark.slow
def test_reproduce_goes_on_after_a_kill_at_every_stage(reproduced, there):
    """Killed when the first file of each stage is there, it makes what an undisturbed run makes."""
    out = there / "killed"
    words = command(there, "--no-gallery", "--limit", "6", "--no-report", out="killed")
    stages = (
        "prepared/**/frames/**/*.safetensors",
        "prepared/midas-hybrid/*-val/frames/**/*.safetensors",
        "generators/da3-base/k8-low/checkpoint.safetensors",
        "generators/midas-hybrid/k8-medium/run.json",
        "results/kitti-da3-base/frames/**/*.json",
        "results/sunrgbd-midas-hybrid/frames/**/*.json",
    )
    # Sums of convolutions depend on the number of threads: one, as in the undisturbed run.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(there), *sys.path])}
    environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    killed = 0
    for pattern in (*stages, None):
        call = [sys.executable, "-m", "scalefield.cli", *words]
        process = subprocess.Popen(call, env=environment, stderr=subprocess.PIPE)
        while process.poll() is None and not (pattern and any(out.glob(pattern))):
            time.sleep(0.05)
        if process.poll() is None:
            process.kill()
            killed += 1
        _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors.decode()
    assert killed >= 4
    wanted = sorted((reproduced / "generators").glob("*/*/model/model.safetensors"))
    assert len(wanted) > 10
    for file in wanted:
        assert (out / file.relative_to(reproduced)).read_bytes() == file.read_bytes(), file
    assert not list(out.rglob(".*"))
    for file in (reproduced / "results").glob("*/images.csv"):
        assert (out / file.relative_to(reproduced)).read_bytes() == file.read_bytes(), file


def test_the_plan_names_stages_with_time_and_disk_and_writes_nothing(there, capsys):
    assert main(command(there, "--plan", out="planned")) == 0
    message = capsys.readouterr().out
    lines = message.splitlines()
    assert lines[0].split() == ["stage", "work", "time", "disk"]
    assert [line.split("  ")[0] for line in lines[1:-3]] == [
        "prepare da3-base", "train da3-base", "evaluate da3-base",
        "prepare midas-hybrid", "train midas-hybrid", "evaluate midas-hybrid", "report", "all",
    ]  # fmt: skip
    assert "on cpu, F of 16 channels as uint8" in message
    kitti, urbansyn, sunrgbd = message.splitlines()[-3:]
    assert kitti.startswith(
        "kitti: 6 drives found, 71 expected (2011_09_26_drive_0014_sync 0 of 1,"
    )
    assert urbansyn == "urbansyn: 10 images found, 7,539 expected (rgb 10 of 7,539)"
    assert "kv2 0 of 3,784" in sunrgbd
    assert not (there / "planned").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--datasets", "nyu"], "--datasets nyu: not among --data"),
        (["--k", "9"], "--k: the paper's K are 8, 30, 50, found 9"),
        (["--limit", "0"], "--limit must be 1 or more"),
        (["--cross-fit", "lite=a,b"], "--cross-fit lite: no such --mde"),
        (["--cross-fit", "lite"], "--cross-fit wants LABEL=FOLDER"),
        (["--mde", "="], "--mde wants NAME or LABEL=SOURCE"),
        (["--mde", "a=tiny_mdes:da3", "a=tiny_mdes:dpt"], "two estimators have one label"),
        (["--mde", "nosuch"], "no MDE 'nosuch'"),
        (["--batch", "0"], "batch must be 1 or more, found 0"),
        (["--width", "1"], "width must be 2 or more, found 1"),
        (["--rate", "nan"], "rate must be 0 or more, found nan"),
        (["--pixels", "-5"], "pixels must be 0 or more, found -5"),
        (["--beta", "-1"], "beta must be 0 or more, found -1"),
        (["--clip", "-1"], "clip must be 0 or more, found -1"),
        (["--ema", "1"], "ema must be below 1"),
        (["--weight-decay", "-1"], "weight_decay must be 0 or more, found -1"),
        (["--anchor-loss", "nan"], "the weight of the anchor loss must be 0 or more, found nan"),
        (["--seeds", "-1"], "seed must be 0 or more, found -1"),
        (["--device", "nosuch"], "device 'nosuch'"),
        (["--rows", "nosuch"], "no method 'nosuch'"),
        (["--rows", "Global: global"], "two methods are called 'Global' under low"),
        (["--generators", "shiped"], "shiped/da3-base: no generator"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_written(there, capsys, flags, message):
    for planned in ([], ["--plan"]):
        assert main(command(there, *flags, *planned, out="no")) == 2
        assert message in capsys.readouterr().err
    assert not (there / "no").exists()


def test_a_misspelt_dataset_is_not_read_as_a_plain_folder(there, capsys):
    given = command(there, out="no")
    given[given.index(f"kitti={there / 'kitti'}")] = f"kiti={there / 'kitti'}"
    assert main(given) == 2
    message = capsys.readouterr().err
    assert "--data kiti: neither a layout (kitti, urbansyn, sunrgbd, predictions" in message
    assert "did you mean kitti?" in message


def test_folds_that_are_not_there_are_refused_before_anything_is_written(there, capsys):
    assert main(command(there, "--cross-fit", "da3-base=nosuch,nosuch2", out="no")) == 2
    assert "no MDE 'nosuch'" in capsys.readouterr().err
    assert not (there / "no").exists()


def test_an_estimator_without_features_is_refused_before_training(there, capsys):
    (there / "plain_mde.py").write_text(PLAIN_MDE)
    flags = ["--mde", "plain=plain_mde:mde", "--limit", "2"]
    assert main(command(there, *flags, data=("sunrgbd",), out="plain")) == 2
    assert "the MDE plain gives no features F" in capsys.readouterr().err
    assert not (there / "plain" / "generators").exists()


PLAIN_MDE = """
import torch
from scalefield.mde import MDEOutput


class Plain:
    name, revision = "plain", "1"

    def __call__(self, image):
        return MDEOutput(torch.from_numpy(image[..., 0] / 255.0 + 1.0).float(), "depth")


mde = Plain()
"""


def test_the_plan_tells_absent_weights_from_unknown_names(there, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("SCALEFIELD_WEIGHTS", str(there / "no weights"))
    monkeypatch.setattr("scalefield.reproduction.plan.step_seconds", lambda *_: 0.1)
    assert main(command(there, "--mde", "da3-base", "--plan", "--limit", "2")) == 0
    message = " ".join(capsys.readouterr().out.split())
    assert "F of 128 channels as uint8 not known: no weights" in message
    assert "frames, MDE not counted" in message


def test_the_plan_divides_training_by_the_jobs(there, monkeypatch):
    monkeypatch.setattr("scalefield.reproduction.plan.step_seconds", lambda *_: 1.0)
    alone = Reproduction(
        out=there / "planned",
        datasets={"sunrgbd": SunRgbd(there / "sunrgbd")},
        estimators=(EstimatorSpec.parse("da3-base=tiny_mdes:da3"),),
        device="cpu",
    )
    seconds = [plan(replace(alone, jobs=jobs))[1].seconds for jobs in (1, 3, 1000)]
    # A step trains on all frames, and a third of one validates: for six generators 25 epochs, and
    # for five more another 5.
    assert seconds[0] == pytest.approx((6 * 25 + 5 * 5) * (1 + 1 / 3))
    assert seconds[1] == pytest.approx(seconds[0] / 3)
    # However many are trained at once, one has to be trained before it is fine-tuned.
    assert seconds[2] == pytest.approx((25 + 5) * (1 + 1 / 3))


@pytest.mark.parametrize("longest_s", [0.0, 1e9])
def test_step_seconds_times_small_batches_on_slow_machines(monkeypatch, longest_s):
    monkeypatch.setattr("scalefield.reproduction.plan.LONGEST_STEP_S", longest_s)
    monkeypatch.setattr(
        "scalefield.reproduction.plan.time.perf_counter", itertools.count(0.0).__next__
    )
    sizes = []

    def step(generator, optimiser, batch, *_, **options):
        sizes.append(len(batch.anchors.y))

    monkeypatch.setattr("scalefield.reproduction.plan.training_step", step)
    config = replace(paper_preset(8, "low"), width=8, pixels=4)
    found = step_seconds(config, 2, (32, 48), "cpu")
    assert sizes == ([1, 1] if longest_s == 0 else [1, 1, 4, 4, 16, 16, 24, 24])
    assert found == (config.batch if longest_s == 0 else 1)


def test_the_plan_counts_the_cache_of_the_estimator(there):
    without = Reproduction(
        out=there / "planned",
        datasets={"sunrgbd": SunRgbd(there / "sunrgbd")},
        estimators=(EstimatorSpec.parse("da3-base=tiny_mdes:da3"),),
        generators="shipped",
        device="cpu",
    )
    sizes = [plan(r)[0].gigabytes for r in (without, replace(without, cache=there / "cache"))]
    # Depth and confidence in float32, and 16 channels of F in float16 on a grid of 32 × 32 or less.
    assert 8 * 48 * 64 < (sizes[1] - sizes[0]) * 1e9 < 8 * 48 * 64 + 2 * 16 * 32 * 32


def test_an_empty_split_is_refused_before_anything_is_written(there, tmp_path, capsys):
    few = write_kitti(tmp_path / "kitti")
    for drive in sorted((few / "2011_09_26").glob("*_drive_*"))[1:]:
        shutil.rmtree(drive)
    (tmp_path / "tiny_mdes.py").write_text(MDES)
    assert main(command(tmp_path, data=("kitti",))) == 2
    assert "of kitti has no frame" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_reproduce_under_torchrun_is_refused(there, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(command(there, out="no")) == 2
    assert "torchrun is for train" in capsys.readouterr().err
    assert not (there / "no").exists()


def test_reproduce_does_not_mix_limits_of_sunrgbd(there, capsys, monkeypatch):
    flags = ["--generators", "shipped", "--mde", "da3-base=tiny_mdes:da3", "--no-disparity"]
    flags += ["--no-gallery", "--no-drop", "--limit", "1", "--no-report"]
    given = command(there, *flags, data=("sunrgbd",), out="limits")
    assert main(given) == 0
    assert main([*given, "--sunrgbd-max-m", "8"]) == 2
    assert "results of another configuration (ranges_m differ)" in capsys.readouterr().err
    assert main([*given, "--sunrgbd-max-m", "0"]) == 2
    assert "--sunrgbd-max-m must be more than 0.1 m, found 0" in capsys.readouterr().err


def test_missing_extras_are_noticed_at_the_start(there, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(command(there, out="no")) == 2
    assert "pip install 'scalefield[plot]'" in capsys.readouterr().err
    assert not (there / "no").exists()


def test_the_matrix_of_generators_is_the_papers():
    jobs = paper_jobs()
    assert len(jobs) == 12 - 1
    by_name = {job.name: job for job in jobs}
    assert by_name["k8-high"].start == GeneratorJob(8, "low")
    assert by_name["k50-high"].start == GeneratorJob(50, "medium")
    assert by_name["k8-medium-f0"].start == GeneratorJob(8, "low", True)
    assert by_name["k30-medium"].start is None
    order = [job.name for job in jobs]
    assert all(
        job.start is None or order.index(job.start.name) < order.index(job.name) for job in jobs
    )
    assert paper_jobs((2,))[0].name.endswith("-s2")


def test_paper_jobs_complete_a_seed_before_the_next():
    jobs = paper_jobs((1, 0, 2))
    each = len(paper_jobs())
    assert [job.seed for job in jobs] == [1] * each + [0] * each + [2] * each


def test_paper_jobs_without_the_ablation_have_no_twins():
    jobs = paper_jobs((0, 1), ablation=False)
    assert not any(job.zero_features for job in jobs)
    assert {job.name for job in jobs} == {
        job.name for job in paper_jobs((0, 1)) if not job.zero_features
    }


def test_rows_have_one_generator_for_each_regime(tmp_path):
    rows = basis_rows({job: tmp_path / job.name for job in paper_jobs((0, 1))})
    assert list(dict.fromkeys(row.label for row in rows))[:7] == [
        *(f"Basis K={k}" for k in (8, 30, 50)), *(f"Basis K={k}, F = 0" for k in (8, 30, 50)),
        "Basis K=8, seed 1",
    ]  # fmt: skip
    used = {(r.label, c): r.options["generator"] for r in rows for c in r.conditions}
    assert used["Basis K=8", "drop"].endswith("k8-low")
    assert used["Basis K=8", "high"].endswith("k8-high")
    assert used["Basis K=50, F = 0", "medium"].endswith("k50-medium-f0")
    assert used["Basis K=30, seed 1", "high"].endswith("k30-high-s1")
    assert ("Basis K=8, seed 1", "drop") not in used
    assert ("Basis K=8, F = 0", "low") not in used
    assert "Region" not in {row.label for row in aligner_rows("kitti")}
    assert {row.label for row in universal_rows()} == {
        f"Basis K={k} (universal, F = 0)" for k in (8, 30, 50)
    }


def test_a_generator_of_another_kind_is_refused(tmp_path):
    shutil.copytree(WEIGHTS / "basis-depth-k8", tmp_path / "m" / "k8-low")
    with pytest.raises(InputError, match=r"wanted K = 8 with F, found K = 8 without F"):
        find_generators(tmp_path, "m", [GeneratorJob(8, "low")])
