"""`scalefield measure`: the command and `Recovery.measure` say the same."""

import json

import pytest

import scalefield as sf
from scalefield import samples
from scalefield.cli import main

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
