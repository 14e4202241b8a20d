import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scalefield import Anchors, samples
from scalefield.cli import main
from scalefield.field.placement import Suggestion


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_suggest_writes_a_picture_and_a_table_to_fill_in(capsys):
    room = samples.load()
    command = ["suggest", str(room.image_path), "--anchors", str(room.anchors_path), "--n", "2"]
    assert main([*command, "--out", "here"]) == 0
    lines = Path("here/points.csv").read_text().splitlines()
    given = Anchors.read(room.anchors_path)
    spots = re.findall(r"u=(\d+) v=(\d+)", capsys.readouterr().out)
    assert [line.split(",") for line in lines[-2:]] == [[u, v, ""] for u, v in spots]
    filled = "\n".join([*lines[:-2], *(line + "3.5" for line in lines[-2:])])
    Path("filled.csv").write_text(filled)
    back = Anchors.read("filled.csv")
    np.testing.assert_array_equal(back.depth_m, [*given.depth_m, 3.5, 3.5])
    with Image.open("here/points.png") as picture, Image.open(room.image_path) as photo:
        changed = np.abs(np.asarray(picture).astype(int) - np.asarray(photo)).max(axis=2) > 0
    assert picture.size == photo.size
    for u, v in spots:
        assert changed[int(v), int(u)]
    assert changed.mean() < 0.1


def test_suggest_leaves_out_what_would_tell_nothing_new(capsys, monkeypatch):
    spots = [Suggestion(i, 2, 0.2, 0.5 / (i + 1) ** 2) for i in range(100)]
    monkeypatch.setattr("scalefield.api.suggest", lambda *_, **__: spots)
    assert main(["suggest", str(samples.load().image_path), "--n", "100"]) == 0
    printed = capsys.readouterr().out
    assert len(re.findall("u=", printed)) == 10  # by 0.5 % or more
    assert "any other pixel reduces it by less than 0.5 %" in printed
    many = [Suggestion(i, 2, 0.2, 0.1) for i in range(100)]
    monkeypatch.setattr("scalefield.api.suggest", lambda *_, **__: many)
    assert main(["suggest", str(samples.load().image_path), "--n", "100"]) == 0
    printed = capsys.readouterr().out
    assert len(re.findall("u=", printed)) == 20
    assert "and 80 more in points.csv" in printed
    assert len(Path("room_points/points.csv").read_text().splitlines()) == 101


def test_suggest_prints_pixels_best_first(capsys):
    room = samples.load()
    command = ["suggest", str(room.image_path), "--anchors", str(room.anchors_path)]
    assert main([*command, "--n", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    line = r"\d\. u=(\d+) v=(\d+): now ±\d+ %; measuring it .* by \d+ %"
    found = [re.fullmatch(line, x) for x in lines[:-1]]
    assert len(found) == 2
    assert all(0 <= int(m[1]) < 640 and 0 <= int(m[2]) < 480 for m in found)


def test_suggest_reachable_limits_the_pixels(tmp_path, capsys):
    room = samples.load()
    mask = np.zeros((480, 640), np.uint8)
    mask[300:] = 255
    Image.fromarray(mask).save(tmp_path / "floor.png")
    assert main(["suggest", str(room.image_path), "--reachable", str(tmp_path / "floor.png")]) == 0
    rows = re.findall(r"v=(\d+)", capsys.readouterr().out)
    assert len(rows) == 3
    assert all(int(v) >= 300 for v in rows)


def test_suggest_prints_a_large_std_log_as_a_factor(monkeypatch, capsys):
    spots = [Suggestion(1, 2, 0.2, 0.5), Suggestion(3, 4, 3.0, 0.1)]
    monkeypatch.setattr("scalefield.api.suggest", lambda *_, **__: spots)
    assert main(["suggest", str(samples.load().image_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1. u=1 v=2: now ±22 %; ")
    assert lines[1].startswith("2. u=3 v=4: now a factor of 20; ")


def test_suggest_refuses_n_below_one(capsys):
    assert main(["suggest", str(samples.load().image_path), "--n", "0"]) == 2
    assert "at least one pixel" in capsys.readouterr().err


def test_suggest_among_prints_lines_of_the_csv(capsys):
    room = samples.load()
    command = ["suggest", str(room.image_path), "--among", str(room.anchors_path), "--n", "2"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    found = re.findall(r"^\d\. line (\d+): u=(\d+) v=(\d+): now", printed, re.MULTILINE)
    assert len(set(found)) == 2
    lines = room.anchors_path.read_text().splitlines()
    assert all(lines[int(line) - 1].startswith(f"{u},{v},") for line, u, v in found)


def test_suggest_takes_kind_and_units_of_files_from_flags(tmp_path, capsys):
    """An .npz of two arrays at half the size, and a PNG of millimetres."""
    room = samples.load()
    relative = room.depth_m[::2, ::2] / 3
    np.savez(tmp_path / "maps.npz", one=relative, two=relative)
    room.anchors.write(tmp_path / "tagged.png", shape=(480, 640))
    with Image.open(tmp_path / "tagged.png") as tagged:
        Image.fromarray(np.asarray(tagged)).save(tmp_path / "anchors.png")
    command = ["suggest", str(room.image_path), "--depth", str(tmp_path / "maps.npz")]
    command += ["--depth-key", "two", "--resize", "--kind", "depth"]
    found = []
    for anchors in (room.anchors_path, tmp_path / "anchors.png"):
        units = ["--anchor-units", "1000"] if anchors.suffix == ".png" else []
        assert main([*command, "--anchors", str(anchors), *units]) == 0
        found.append(re.findall(r"u=(\d+) v=(\d+)", capsys.readouterr().out))
    assert len(found[0]) == 3
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--depth", "a.npy", "--mde", "lite"],
            "--depth is your own depth map and --mde computes one",
        ),
        (["--resize"], "--depth-key and --resize apply only to --depth FILE, which is not given"),
        (["--anchor-units", "1000"], "--anchor-units is for anchors in a .png, and none is given"),
    ],
)
def test_suggest_refuses_flags_without_effect(flags, message, capsys):
    assert main(["suggest", str(samples.load().image_path), *flags]) == 2
    assert message in capsys.readouterr().err
