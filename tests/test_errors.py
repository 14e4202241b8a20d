import pickle
from pathlib import Path

from scalefield.errors import (
    FileError,
    InputError,
    MissingExtra,
    counted,
    did_you_mean,
    size_text,
)


def test_file_error_names_the_file_the_line_and_the_problem():
    error = FileError(Path("a.csv"), "sigma_m is empty", line=3)
    assert isinstance(error, InputError)
    assert str(error) == "a.csv, line 3: sigma_m is empty"
    assert str(error.renamed("shard.tar:a.csv")) == "shard.tar:a.csv, line 3: sigma_m is empty"
    assert str(FileError("a.csv", "no such file")) == "a.csv: no such file"
    assert str(FileError(5000 * "a", "no such file")) == f"{500 * 'a'}…: no such file"


def test_errors_survive_pickling_between_processes():
    for error in (
        FileError(Path("a.csv"), "sigma_m is empty", line=3),
        MissingExtra("OpenEXR", "exr", "reading EXR"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert str(copy) == str(error)


def test_did_you_mean_names_the_closest_choice_or_nothing():
    assert did_you_mean("fild", ["field", "global"]) == "; did you mean field?"
    assert did_you_mean("xyz", ["field", "global"]) == ""


def test_counted_uses_the_singular_for_one_only():
    assert [counted(n, "pixel") for n in (0, 1, 2)] == ["0 pixels", "1 pixel", "2 pixels"]


def test_size_text_has_the_width_first():
    assert size_text((480, 640)) == size_text((480, 640, 3)) == "640×480"
