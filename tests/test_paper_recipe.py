"""The parts of recipes/paper_run.py and paper_estimators.py that need no frames and no GPU."""

import json
import tarfile
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from recipes.paper_estimators import VIT_INPUT, VIT_S, DepthWithFeatures
from recipes.paper_merge import merge
from recipes.paper_run import Shard, Unit, arguments, pack_generators, results, summary
from safetensors.torch import save_file

from scalefield.basis.generator import Generator, GeneratorConfig
from scalefield.benchmark.metrics import Truth, sums
from scalefield.errors import InputError
from scalefield.io import write_json
from scalefield.mde import MDEOutput
from scalefield.mde.vit import Vit
from training.world import World


@dataclass(frozen=True)
class Ramp:
    """Depth that grows from left to right."""

    name: str = "ramp"
    revision: str = "1"

    @property
    def options(self):
        return {}

    def __call__(self, image):
        height, width = image.shape[:2]
        depth = torch.linspace(1, 2, width).expand(height, width)
        return MDEOutput(depth, "depth", model=self.name, revision=self.revision)


@pytest.fixture
def pair(tmp_path):
    """The depth of `Ramp` with the features of a small ViT of random weights."""
    size = replace(VIT_S, width=24, depth=4, heads=2, grid=5)
    torch.manual_seed(0)
    vit = Vit(size).eval()
    save_file(vit.state_dict(), tmp_path / "vit.safetensors")
    made = DepthWithFeatures(tmp_path / "depth.onnx", tmp_path / "vit.safetensors", size=size)
    made.__dict__["depth"] = Ramp()  # in place of the ONNX file
    return made, vit


def test_depth_with_features_takes_d_from_one_network_and_f_from_the_other(pair):
    rng = np.random.default_rng(0)
    mde, vit = pair
    image = rng.integers(0, 256, (70, 112, 3), dtype=np.uint8)
    output = mde(image)
    torch.testing.assert_close(output.prediction, Ramp()(image).prediction)
    with torch.no_grad():
        wanted = vit(VIT_INPUT([image]))[-1][0]
    torch.testing.assert_close(output.features, wanted)
    assert output.features.shape == (24, 5, 8)
    assert output.model == mde.name
    assert output.revision == mde.revision
    assert output.revision.startswith("1+sha256:")


def test_depth_with_features_gives_the_same_alone_and_in_a_batch(pair):
    rng = np.random.default_rng(0)
    mde, _ = pair
    images = [rng.integers(0, 256, (42, 56, 3), dtype=np.uint8) for _ in range(2)]
    for alone, together in zip(map(mde, images), mde.batch(images), strict=True):
        torch.testing.assert_close(alone.features, together.features)


def test_pack_generators_bounds_the_archives_and_leaves_out_unfinished_ones(tmp_path):
    names = ["a/k8-low", "a/k8-high", "b/k8-low", "b/k8-low-s1"]
    write_json(results(tmp_path, Unit("a", 1)), {})
    generator = Generator(GeneratorConfig(k=2, width=8, dilations=(1,)))
    for name in [*names, "a/k8-low-s1", "b/k8-high"]:
        generator.save(tmp_path / "generators" / name / "model")
    for name in [*names, "a/k8-low-s1"]:  # a:1 is evaluated
        write_json(tmp_path / "generators" / name / "finished.json", {"epochs": 1})
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "generators-9.tar").touch()  # of an earlier run
    whole = (tmp_path / "generators/a/k8-low/model/model.safetensors").stat().st_size
    pack_generators(str(tmp_path), str(tmp_path / "small"), most_mb=2.2 * whole / 1e6)
    found = {}
    for archive in sorted((tmp_path / "small").iterdir()):
        with tarfile.open(archive) as tar:
            tar.extractall(tmp_path / "back", filter="data")
            found[archive.name] = {n.rpartition("/")[0] for n in tar.getnames() if "." in n}
    assert sorted(name for members in found.values() for name in members) == sorted(names)
    assert len(found) > 1
    back = Generator.load(tmp_path / "back" / "a" / "k8-low")
    assert back.config == generator.config


def test_arguments_of_the_recipe_want_known_units_and_their_files(tmp_path, capsys):
    file = tmp_path / "fastdepth.onnx"
    file.touch()
    given = ["--data", "d", "--out", "o", "--fastdepth", str(file)]
    wanted = [Unit("fastdepth", 1), Unit("lite", 0)]
    assert arguments([*given, "--units", "fastdepth:1", "lite:0"]).units == wanted
    for units, sentence in (("midas:0", "found 'midas:0'"), ("fastdepth-vit:0", "needs --vit")):
        with pytest.raises(SystemExit):
            arguments([*given, "--units", units])
        assert sentence in capsys.readouterr().err


def test_shards_of_a_dataset_have_every_frame_once():
    parts = [Shard(World(), i, 3) for i in range(3)]
    for split in ("train", "val"):
        found = [name for part in parts for name in part.names(split)]
        assert sorted(found) == World().names(split)
    assert len(Shard(World(), 0, 1, 5).names("train")) == 5
    assert parts[0].load("room/00").name == "room/00"


def test_summary_has_the_chosen_checkpoint_and_the_load_of_the_gpu(tmp_path):
    run = tmp_path / "generators" / "a" / "k8-low"
    write_json(run / "clock.json", {"step": 4, "share_in_step": 0.9})
    lines = [
        {"step": step, "val_loss": loss, "val_absrel": loss / 2}
        for step, loss in ((2, 0.2), (4, 0.3))
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "gpu.csv").write_text("now, 80, 1000\nthen, 100, 2000\nlater, [N/A], [N/A]\ncut, 1")
    found = summary(tmp_path)
    kept = found["generators"]["a/k8-low"]
    assert kept["chosen_step"] == 2
    assert kept["val_absrel"] == 0.1
    assert not kept["finished"]
    load = found["gpu, once a second, all processes"]
    assert load["mean_utilisation_percent"] == 90
    assert load["most_memory_gb"] == 2.1


def evaluated(tmp_path, name, rows, frames=("a/0", "a/1")):
    """A folder of results with these rows, each a label and conditions with an offset of depth."""
    true_m = np.linspace(1, 2, 50)
    home = tmp_path / name
    for i, frame in enumerate(frames):
        cells = [
            {
                "method": label,
                "condition": condition,
                "anchors": 10,
                "fallbacks": [],
                "clamped": sums(true_m * (1 + error + 0.01 * i), Truth.of(true_m)),
            }
            for (label, conditions), error in rows.items()
            for condition in conditions
        ]
        record = {
            "name": frame, "group": "a", "scene": frame, "sha256": frame, "pixels": 50, "holes": 0,
            "mde": {"model": "m", "revision": "1"}, "commit": None, "cells": cells,
        }  # fmt: skip
        write_json(home / "frames" / f"{frame}.json", record)
    methods = [
        {"label": label, "method": "basis", "options": {}, "conditions": list(conditions)}
        for label, conditions in rows
    ]
    write_json(home / "config.json", {"name": "places", "mde": name, "methods": methods})
    return home


def absrel(found, label, condition):
    """The mean over all images."""
    cells = [c for c in found["cells"] if (c["method"], c["condition"]) == (label, condition)]
    return next(c["clamped"]["abs_rel"][0] for c in cells if c["group"] == "all")


def test_merge_puts_the_rows_of_all_seeds_together_and_later_folders_replace(tmp_path):
    low, medium = ("low",), ("medium",)
    first = evaluated(tmp_path, "s0", {("LWLR", low): 0.3, ("Basis K=8", low): 0.1})
    again = evaluated(tmp_path, "again", {("Basis K=8", low): 0.2})
    second = evaluated(
        tmp_path, "s1", {("Basis K=8, seed 1", low): 0.4, ("Basis K=8, F = 0, seed 1", medium): 0.5}
    )
    found = merge([first, again, second], tmp_path / "merged")
    assert absrel(found, "Basis K=8", "low") == pytest.approx(0.205)
    assert absrel(found, "LWLR", "low") == pytest.approx(0.305)
    assert absrel(found, "Basis K=8, seed 1", "low") == pytest.approx(0.405)
    assert [source["folder"].rpartition("/")[2] for source in found["provenance"]["merged"]] == [
        "s0", "again", "s1",
    ]  # fmt: skip
    own = evaluated(tmp_path, "vit", {("Basis K=8", low): 0.05})
    other = merge([own], tmp_path / "other", same_depth=tmp_path / "merged")
    labels = {cell["method"] for cell in other["cells"]}
    assert labels == {"LWLR", "Basis K=8", "Basis K=8, F = 0, seed 1"}
    assert absrel(other, "Basis K=8", "low") == pytest.approx(0.055)


def test_merge_refuses_frames_that_lack_rows(tmp_path):
    first = evaluated(tmp_path, "s0", {("LWLR", ("low",)): 0.3})
    second = evaluated(tmp_path, "s1", {("Basis K=8", ("low",)): 0.1}, frames=("a/1",))
    with pytest.raises(InputError, match=r"1 of 2 frames lack rows .* Basis K=8 under low"):
        merge([first, second], tmp_path / "merged")
