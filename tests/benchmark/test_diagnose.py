import json
import pickle
import re
from functools import partial

import pytest

from scalefield.benchmark.diagnosis import PARTS, diagnose_frame
from scalefield.benchmark.diagnosis_summary import collect
from scalefield.cli import main
from scalefield.datasets.source import FrameSource
from worlds import RED_MODULE


@pytest.fixture
def flags(world, tmp_path, monkeypatch):
    """Flags of a diagnosis of the small world."""
    (tmp_path / "red_eye.py").write_text(RED_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    data = ["--root", str(world.root), "--range", "*=0.1,20", "--mde", "red_eye:red"]
    return ["diagnose", *data, "--splits", "test", "--out", str(tmp_path / "out"), "--name", "W&B"]


def test_diagnose_writes_a_page_and_numbers(flags, world, tmp_path, capsys) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    (world.root / "home" / "room" / "depth" / "f1.png").unlink()
    assert main([*flags, "--workers", "1", "--cache", str(tmp_path / "cache")]) == 2  # no revision
    assert main([*flags, "--workers", "1"]) == 0
    printed = capsys.readouterr().out
    assert "5 of 6 frames" in printed
    assert "no result for home/room/f1" in printed
    out = tmp_path / "out"
    found = json.loads((out / "diagnosis.json").read_text())
    assert found["config"]["mde"] == "red_eye:red"
    assert [row["part"] for row in found["parts"]] == list(PARTS)
    assert sum(row["share"] for row in found["parts"]) == pytest.approx(1, abs=1e-5)
    assert {g["group"] for g in found["groups"]} == {"home/room", "home/hall"}
    page = (out / "diagnosis.html").read_text()
    assert "What is wrong with red_eye:red’s depth on W&amp;B" in page
    bare = re.sub(r'"data:[^"]*"', "", page)
    assert not re.search(r"https?://(?!www\.w3\.org)", bare)
    assert bare.count("<img") == 3 + 3  # figures; the worst, median and best frame
    for sentence in ("one number per image", "no result for home/room/f1", "Shares by place"):
        assert sentence in bare.replace("\xa0", " ")
    lines = (out / "images.csv").read_text().splitlines()
    assert len(lines) == 1 + 5


@pytest.mark.slow
def test_diagnose_frame_and_its_result_can_be_pickled(flags, world, red, tmp_path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    diagnoser = pickle.loads(pickle.dumps(partial(diagnose_frame, FrameSource(world, red))))
    names = world.names("test")
    answers = {name: pickle.loads(pickle.dumps(diagnoser(name))) for name in names}
    assert main([*flags, "--workers", "1", "--no-pictures"]) == 0
    written = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    found = collect(answers, written["config"])
    assert all(found[key] == written[key] for key in found if key not in ("data", "provenance"))
    assert (tmp_path / "out" / "diagnosis.html").read_text().count("<img") == 3


def test_diagnose_flags_are_checked(flags, capsys) -> None:
    assert main([*flags, "--limit", "0"]) == 2
    assert "--limit must be 1 or more, found 0" in capsys.readouterr().err
