import dataclasses
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scalefield.cli import main
from scalefield.io import write_depth_png
from scalefield.mde.lite import LITE_WEIGHTS
from scalefield.training.cross_fit import trained_on
from training.world import World


def write_folder(root, source="made/up", scene="room"):
    """The made-up world on disk, in the plain folder layout."""
    world, frames = World(), []
    root.mkdir()
    for split, count in (("train", 4), ("val", 2)):
        names = world.names(split)[:count]
        (root / f"{split}.txt").write_text("".join(f"{source}/{n[-2:]}\n" for n in names))
        for name in names:
            frame = world.load(name)
            for part in ("rgb", "depth"):
                (root / source / part).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.repeat(np.repeat(frame.image, 2, 0), 2, 1)).save(
                root / source / "rgb" / f"{name[-2:]}.png"
            )
            depth_m = np.repeat(np.repeat(frame.depth_m, 2, 0), 2, 1)
            write_depth_png(root / source / "depth" / f"{name[-2:]}.png", depth_m, 1000.0)
            frames.append({"name": name[-2:], "scene": scene, "K": None})
    meta = {"depth_scale_per_metre": 1000, "depth_range_m": [0.1, 10], "frames": frames}
    (root / source / "meta.json").write_text(json.dumps(meta))
    return root


def test_a_generator_is_trained_and_used(tmp_path, capsys):
    data = write_folder(tmp_path / "data")
    out = tmp_path / "run"
    command = ["train", "--root", str(data), "--mde", "lite", "--out", str(out), "--k", "4"]
    options = ["--epochs", "1", "--preset", "paper", "--device", "cpu"]
    assert main([*command, *options, "--cache", str(tmp_path / "cache")]) == 0
    config = json.loads((out / "run.json").read_text())["config"]
    assert (config["k"], config["anchors"], config["epochs"]) == (4, [10, 15], 1)
    assert any((tmp_path / "cache").rglob("*.safetensors"))
    photo = data / "made/up/rgb/00.png"
    (tmp_path / "a.csv").write_text("u,v,depth_m\n3,4,2.5\n40,30,3.0\n")
    recover = ["recover", str(photo), "--anchors", str(tmp_path / "a.csv"), "--method", "basis"]
    model = ["--option", f"generator={out / 'model'}", "--out", str(tmp_path / "result")]
    capsys.readouterr()
    assert main([*recover, *model]) == 0
    with np.load(tmp_path / "result" / "depth.npz") as file:
        assert file["weights"].shape == (4,)


@pytest.mark.parametrize(
    ("command", "flags", "message"),
    [
        ("train", ["--epochs", "0"], "--epochs must be 1 or more, found 0"),
        ("train", ["--k", "-1"], "--k must be 1 or more, found -1"),
        ("train", ["--seed", str(2**63)], f"--seed must be 0 … 2⁶³ − 1, found {2**63}"),
        ("train-mde", ["--seed", "-1"], "--seed must be 0 … 2⁶³ − 1, found -1"),
        ("train-mde", ["--steps", "0"], "--steps must be 1 or more, found 0"),
        ("train-mde", ["--batch", "0"], "--batch must be 1 or more, found 0"),
        ("train-mde", ["--rooms", "-1"], "--folds and --rooms must be 0 or more"),
        (
            "train-mde",
            ["--folds", "3", "--fold", "3"],
            "--fold must be 0 … folds − 1, found 3 of 3",
        ),
    ],
)
def test_counts_that_cannot_be_meant_are_refused(tmp_path, capsys, command, flags, message):
    mde = ["--mde", "lite"] if command == "train" else []
    words = [command, "--root", str(tmp_path), "--out", str(tmp_path / "out"), *mde, *flags]
    assert main([*words, "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_frames_that_the_estimator_was_trained_on_are_refused(tmp_path, capsys):
    source, _, scene = min(trained_on(LITE_WEIGHTS)).rpartition("/")
    data = write_folder(tmp_path / "data", source, scene)
    command = ["train", "--root", str(data), "--mde", "lite", "--out", str(tmp_path / "run")]
    assert main([*command, "--device", "cpu"]) == 2
    assert "was trained on the scene" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_lite_is_trained_from_a_folder(tmp_path, capsys):
    data = write_folder(tmp_path / "data")
    out = tmp_path / "lite"
    command = ["train-mde", "--root", str(data), "--out", str(out), "--device", "cpu"]
    assert main([*command, "--steps", "1", "--batch", "1"]) == 0
    assert trained_on(out / "model") == {"made/up/room"}
    assert "use it with --cross-fit" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["train", "train-mde"])
def test_a_missing_folder_is_named(tmp_path, capsys, command):
    mde = ["--mde", "lite"] if command == "train" else []
    wanted = ["--root", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]
    assert main([command, *wanted, *mde]) == 2
    assert "nowhere: no such folder" in capsys.readouterr().err


def test_several_datasets_are_trained_on_together(tmp_path, capsys):
    one = write_folder(tmp_path / "one", "made/here")
    two = write_folder(tmp_path / "two", "made/there")
    (two / "made/there/rgb/01.png").unlink()
    command = ["train", "--data", f"one={one}", f"two={two}", "--mde", "lite", "--k", "4"]
    out = tmp_path / "runs" / "k4"
    flags = ["--out", str(out), "--epochs", "1", "--device", "cpu", "--workers", "0"]
    recipe = ["--rate", "2e-4", "--batch", "3", "--width", "32", "--gate-loss", "0.5"]
    logs = ["--tensorboard"] if find_spec("tensorboard") else []
    assert main([*command, *flags, *recipe, "--gate-reduction", "sum", *logs]) == 0
    message = capsys.readouterr().err
    assert "1 of 4 frames could not be prepared and are left out: made/there/01" in message
    config = json.loads((out / "run.json").read_text())["config"]
    assert (config["rate"], config["batch"], config["width"]) == (2e-4, 3, 32)
    losses = {"anchor": 0.1, "decor": 1e-4, "gate": 0.5, "gate_reduction": "sum"}
    assert config["losses"] == losses
    card = (out / "model" / "README.md").read_text()
    assert "Trained on 7 frames, chosen on 4 others" in card
    assert "for the MDE lite" in card
    assert not logs or any((out / "tensorboard").iterdir())
    folders = sorted(p.name for p in (tmp_path / "runs" / "prepared").glob("lite-*/*"))
    assert folders == ["one-train", "one-val", "two-train", "two-val"]


def test_the_papers_preset_is_literal_and_every_deviation_is_a_flag():
    from scalefield.commands.train import RecipeOptions, TrainCommand

    command = TrainCommand(mde="lite", out=Path("x"), preset="paper", k=30, regime="medium")
    config = command.config()
    literal = {
        "epochs": 25, "anchors": (100, 120), "anchor_draw": "protocol", "mirror": False,
        "ema": 0.0, "clip": 0.0, "pixels": 0, "beta": 1.0, "stretch": 0.0, "offset_noise": 0.0,
        "feature_dropout": 0.0, "precision": "float32",
    }  # fmt: skip
    assert {name: getattr(config, name) for name in literal} == literal
    assert config.losses.gate_reduction == "sum"
    assert config.ridge.centre == "none"
    ours = RecipeOptions(
        mirror=True, ema=0.9, clip=1.0, pixels=100, anchor_draw="fresh", gate_reduction="mean"
    )
    changed = dataclasses.replace(command, recipe=ours).config()
    assert (changed.mirror, changed.ema, changed.clip, changed.pixels) == (True, 0.9, 1.0, 100)
    assert (changed.anchor_draw, changed.losses.gate_reduction) == ("fresh", "mean")
    assert changed.losses.anchor == 0.1


def test_field_is_trained_from_the_command_line(tmp_path, capsys):
    data = write_folder(tmp_path / "data")
    out = tmp_path / "field"
    command = ["train", "--root", str(data), "--mde", "lite", "--method", "field"]
    flags = ["--steps", "2", "--batch", "2", "--device", "cpu", "--workers", "0"]
    assert main([*command, "--out", str(out), *flags]) == 0
    assert f"use it with --method field --option model={out / 'model'}" in capsys.readouterr().out
    assert (out / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "either as --data NAME=FOLDER … or as --root FOLDER"),
        (["--data", "kitti"], "--data must be NAME=FOLDER, found 'kitti'"),
        (["--data", "a={0}", "a={0}"], "--data a is given twice"),
        (["--data", "a={0}", "--workers", "-1"], "--workers must be 0 or more"),
    ],
)
def test_data_that_cannot_be_meant_are_refused(tmp_path, capsys, flags, message):
    given = [flag.format(tmp_path) for flag in flags]
    assert main(["train", "--mde", "lite", "--out", str(tmp_path / "out"), *given]) == 2
    assert message in capsys.readouterr().err


def test_an_empty_validation_split_is_a_sentence_before_anything_is_computed(tmp_path, capsys):
    data = write_folder(tmp_path / "data")
    (data / "val.txt").write_text("")
    command = ["train", "--root", str(data), "--mde", "lite", "--out", str(tmp_path / "out")]
    assert main([*command, "--device", "cpu"]) == 2
    assert "the split val of folder has no frame" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data"]


def test_a_missing_extra_is_noticed_before_frames_are_read(tmp_path, monkeypatch, capsys):
    data = write_folder(tmp_path / "data")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    command = ["train", "--root", str(data), "--mde", "lite", "--out", str(tmp_path / "out")]
    assert main([*command, "--tensorboard", "--device", "cpu"]) == 2
    assert "pip install 'scalefield[tensorboard]'" in capsys.readouterr().err
    assert not (tmp_path / "prepared").exists()


@pytest.mark.slow
def test_train_under_torchrun_shares_preparation_and_trains_one_model(tmp_path):
    data = write_folder(tmp_path / "data")

    def train(out, *launcher):
        words = ["--root", data, "--mde", "lite", "--preset", "paper", "--k", "4", "--epochs", "1"]
        words += ["--batch", "4", "--device", "cpu", "--workers", "0", "--out", out]
        call = [sys.executable, *launcher, "-m", "scalefield.cli", "train", *map(str, words)]
        done = subprocess.run(
            call, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
            timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])

    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    together = train(tmp_path / "two" / "run", *ranks)
    frames = sorted(p.name for p in (tmp_path / "two").rglob("*.safetensors") if "frames" in str(p))
    assert len(frames) == 6
    alone = train(tmp_path / "one" / "run")
    for name in ("val_loss", "val_absrel"):
        assert together[name] == pytest.approx(alone[name], rel=1e-3)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--method", "field", "--preset", "paper", "--k", "30", "--epochs", "2"],
            "--method field does not use --preset, --k, --epochs",
        ),
        (["--steps", "5"], "--method basis does not use --steps"),
        (["--rate", "-1"], "rate must be 0 or more, found -1"),
        (["--width", "1"], "width must be 2 or more, found 1"),
    ],
)
def test_flags_without_effect_or_sense_are_refused(tmp_path, capsys, flags, message):
    data = write_folder(tmp_path / "data")
    words = ["train", "--root", str(data), "--mde", "lite", "--out", str(tmp_path / "out"), *flags]
    assert main(words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "prepared").exists()


def test_field_under_torchrun_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    words = ["train", "--method", "field", "--root", str(tmp_path), "--mde", "lite"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert "--method field trains in one process" in capsys.readouterr().err
