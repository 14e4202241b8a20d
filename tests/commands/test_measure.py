"""`scalefield measure`: the command and `Recovery.measure` say the same."""

import json

import numpy as np
import pytest
from PIL import Image

import scalefield as sf
from scalefield import samples
from scalefield.cli import main
from scalefield.geometry.exif import photo_fov_deg

ROOM = samples.load()


def command(*rest: str) -> list[str]:
    return ["measure", str(ROOM.image_path), "--anchors", str(ROOM.anchors_path), *rest]


def test_measure_prints_what_recovery_measure_reads(tmp_path, capsys):
    table = tmp_path / "questions.csv"
    table.write_text("kind,value,u,v,u2,v2\nlength,,300,300,480,300\n")
    flags = ("--fov-deg", "60", "--measurements", str(table), "--read", "slant 300,300")
    assert main(command(*flags, "--json")) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    recovery = sf.recover(ROOM.image_path, ROOM.anchors)
    questions = [sf.Length((300, 300), (480, 300)), sf.Slant(300, 300)]
    readings = recovery.measure(questions, fov_deg=60.0)
    for line, question, reading in zip(printed, questions, readings, strict=True):
        assert line["kind"] == question.name
        assert [line["value"], line["low"], line["high"]] == pytest.approx(list(reading[:3]))
        assert line["low"] < line["value"] < line["high"]
    assert main(command(*flags)) == 0
    assert "length (300, 300) – (480, 300): 1." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("length 300,300 300,300", "both ends lie on one pixel"),
        ("length 300,300 4x,300", "--read must be a kind and pixels"),
        ("order 300,300 400,300", "has no value to be read"),
    ],
)
def test_measure_refuses_bad_questions_in_one_sentence(text, wanted, capsys):
    assert main(command("--read", text)) == 2
    error = capsys.readouterr().err
    assert wanted in error
    assert error.count("\n") == 1


def test_measure_without_questions_says_what_is_wanted(capsys):
    assert main(command()) == 2
    assert "nothing to read" in capsys.readouterr().err


def test_recover_takes_measurements_and_the_camera_of_the_exif(tmp_path, capsys):
    image = Image.open(ROOM.image_path)
    exif = image.getexif()
    exif.get_ifd(0x8769)[41989] = 30  # 35 mm equivalent of the focal length
    photo, table, out = tmp_path / "photo.jpg", tmp_path / "tape.csv", tmp_path / "out"
    image.save(photo, exif=exif)
    table.write_text("kind,value,u,v,u2,v2\nlength,1.12 m,60,420,320,400\nslant,2.5 m,500,440\n")
    command = ["recover", str(photo), "--measurements", str(table), "--out", str(out)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "1 of 1 measurements used, 1 of 1 anchors used" in printed  # the slant is a depth
    assert "camera is not known" not in printed
    recovery = sf.recover(photo, measurements=table)
    assert recovery.camera == sf.Camera.from_fov(photo_fov_deg(photo), (480, 640))
    with np.load(out / "depth.npz") as saved:
        np.testing.assert_array_equal(saved["depth_m"], recovery.depth_m)
    table.write_text("kind,value,u,v,u2,v2\nlength,,60,420,320,400\n")
    assert main(command) == 2
    assert "length (60, 420) – (320, 400) has no value" in capsys.readouterr().err


def test_measure_without_anchors_has_intervals_of_the_learned_prior():
    reading = sf.recover(ROOM.image_path).measure(sf.Length((300, 300), (480, 300)))[0]
    assert 0 < reading.low < reading.value < reading.high
