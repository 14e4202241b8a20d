"""The recipes of the experiments in docs/paper.md."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from recipes.paper_splits import BLOCK, blocks, places

from commands.test_train import write_folder
from scalefield.errors import InputError

RECIPES = Path(__file__).parent.parent / "recipes"
NAMES = [f"d/{source}/{i:03d}" for source, n in (("a", 83), ("b", 40), ("c", 3)) for i in range(n)]


def test_blocks_have_every_frame_once_and_each_source_in_all_splits():
    lists = blocks(NAMES, [7, 1, 2])
    assert sorted(name for frames in lists.values() for name in frames) == sorted(NAMES)
    for split, share in zip(lists, (0.7, 0.1, 0.2), strict=True):
        sources = Counter(name.split("/")[1] for name in lists[split])
        assert abs(sources["a"] - 83 * share) <= 1
        assert abs(sources["b"] - 40 * share) <= 1
    # Neighbours are apart only where a block ends, or where a split is full.
    split_of = {name: split for split, frames in lists.items() for name in frames}
    apart = sum(split_of[f"d/a/{i:03d}"] != split_of[f"d/a/{i + 1:03d}"] for i in range(82))
    assert apart <= 83 / BLOCK + 2


def test_places_moves_the_frames_of_a_source_to_train_alone():
    given = {"train": ["d/a/1", "d/b/1"], "val": ["d/a/2", "d/c/1"], "test": ["d/a/3", "d/e/1"]}
    assert places(given, ("d/a",)) == {
        "train": ["d/a/1", "d/b/1", "d/a/2", "d/a/3"], "val": ["d/c/1"], "test": ["d/e/1"],
    }  # fmt: skip
    with pytest.raises(InputError, match="no frame of d/z; there are"):
        places(given, ("d/z",))


@pytest.mark.slow
def test_the_experiment_runs_from_frames_to_results(tmp_path):
    data = write_folder(tmp_path / "data")
    (data / "test.txt").write_text((data / "val.txt").read_text())
    (data / "val.txt").write_text("")
    names = (data / "train.txt").read_text().split()
    for split, frames in (("train", names[:-1]), ("val", names[-1:])):
        (data / f"{split}.txt").write_text("".join(f"{name}\n" for name in frames))
    own = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    own |= {"PYTHONPATH": os.pathsep.join(sys.path), "SPLITS": "places", "CURVE": "", "GATES": ""}
    small = ["--k", "8", "--seeds", "0", "--epochs", "1", "--fine-tune-epochs", "1", "--device"]
    small += ["cpu", "--width", "8", "--workers", "1", "--no-drop", "--no-report", "--mde", "lite"]
    command = ["bash", str(RECIPES / "paper_experiment.sh"), str(data), str(tmp_path / "out")]
    subprocess.run([*command, "--", *small], check=True, env=os.environ | own)
    results = json.loads(
        (tmp_path / "out/places/results/places-median-lite/results.json").read_text()
    )
    rows = {cell["method"] for cell in results["cells"]}
    assert {"Basis K=8", "Basis K=8, F = 0"} <= rows
    assert results["config"]["mde"] == "median-lite"
