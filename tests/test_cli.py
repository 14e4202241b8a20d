"""The command line: files, messages, exit codes, imports of --help."""

import json
import os
import re
import subprocess
import sys
import warnings
from io import BytesIO, TextIOWrapper
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import scalefield
from scalefield import METHODS, Anchors, InputError, MDEOutput, io
from scalefield.cli import COMMANDS, main
from scalefield.commands.recover import parse_option
from scalefield.errors import Notice
from scalefield.export.result_folder import OUTPUTS

RELATIVE = np.linspace(1, 3, 48).reshape(6, 8).astype(np.float32)
PIXELS = ([0, 3, 7, 2], [0, 2, 5, 4])


def rows(scale: float = 2.0) -> str:
    cells = zip(*PIXELS, strict=True)
    lines = [f"{u},{v},{scale * RELATIVE[v, u]:.4f}" for u, v in cells]
    return "\n".join(["u,v,depth_m", *lines])


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A photograph, anchors and a relative depth map, in the current folder."""
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.full((6, 8, 3), 128, np.uint8)).save("photo.png")
    Path("anchors.csv").write_text(rows())
    np.save("depth.npy", RELATIVE)
    return tmp_path


def recover(*more: str) -> int:
    return main(
        ["recover", "photo.png", "--anchors", "anchors.csv", "--method", "median", *more]
    )  # fmt: skip


OWN = ("--depth", "depth.npy", "--kind", "depth")


def test_cli_recover_writes_all_four_files_and_names_them(folder, capsys):
    assert recover(*OWN, "--out", "results/here") == 0
    out = folder / "results" / "here"
    assert sorted(p.name for p in out.iterdir()) == sorted(OUTPUTS)

    exact = io.read_npz(out / "depth.npz", required=("depth_m", "log_scale"))
    np.testing.assert_allclose(exact["depth_m"], 2 * RELATIVE, rtol=1e-4)
    np.testing.assert_allclose(exact["log_scale"], np.log(2), rtol=1e-4)
    np.testing.assert_allclose(io.read_depth_png(out / "depth.png"), exact["depth_m"], atol=6e-4)
    with Image.open(out / "preview.png") as preview:
        assert preview.mode == "RGB"
    record = json.loads((out / "recovery.json").read_text())
    assert record["report"]["method"] == "median"
    assert record["report"]["anchors_used"] == 4
    assert (record["image"], record["depth"]) == ("photo.png", "depth.npy")
    assert record["png_units_per_metre"] == 1000
    assert "torch" in record["provenance"]["versions"]

    printed = capsys.readouterr()
    assert "4 of 4 anchors used\n" in printed.out
    assert "each anchor from the others: median error 0.0 % (leave-one-out)" in printed.out
    assert "depth 2.00 … 6.00 m" in printed.out
    assert f"{Path('results/here')}: depth.png, depth.npz, preview.png" in printed.out
    assert printed.err == ""  # progress is for terminals


def test_cli_out_is_named_after_the_image_by_default(folder):
    assert recover(*OWN) == 0
    assert (folder / "photo_metric" / "depth.png").is_file()


def test_cli_named_mde_sees_the_image(folder, monkeypatch):
    seen = {}

    def load(name: str, *, device: str, kind: str | None):
        def mde(image: np.ndarray) -> MDEOutput:
            seen[name] = image.shape
            return MDEOutput(torch.from_numpy(RELATIVE), "depth", model=name)

        mde.name = name
        return mde

    monkeypatch.setattr("scalefield.mde.load_mde", load)
    assert recover("--mde", "mine") == 0
    assert recover() == 0  # the default
    assert recover("--kind", "disparity") == 2  # it knows better
    assert seen == {"mine": (6, 8, 3), "lite": (6, 8, 3)}


def test_cli_impossible_camera_is_refused_before_the_estimator_runs(folder, monkeypatch, capsys):
    monkeypatch.setattr("scalefield.mde.load_mde", lambda *_, **__: pytest.fail("it ran"))
    assert recover("--formats", "ply", "--fov-deg", "180") == 2
    assert "between 0 and 180 degrees, found 180" in capsys.readouterr().err


def test_cli_far_pixels_are_counted_and_other_units_hold_them(folder, capsys):
    Path("anchors.csv").write_text(rows(scale=30.0))  # 30 m to 90 m
    assert recover(*OWN, "--png-units", "1000") == 0
    far = int((30 * RELATIVE > 65.535).sum())
    assert f"depth.png ends at 65.5 m: {far} farther pixels are 0" in capsys.readouterr().out
    known = io.read_depth_png("photo_metric/depth.png")
    assert np.isnan(known).sum() == far
    record = json.loads(Path("photo_metric/recovery.json").read_text())
    assert record["png_overflow_pixels"] == far
    assert recover(*OWN) == 0
    assert "depth.png has 256 units per metre" in capsys.readouterr().out
    known = io.read_depth_png("photo_metric/depth.png")
    np.testing.assert_allclose(known, 30 * RELATIVE, atol=0.003)


def test_cli_options_labels_and_resize_reach_the_method(folder):
    Image.fromarray((RELATIVE > 2).astype(np.uint8)).save("labels.png")
    more = ("--method", "region", "--labels", "labels.png", "--option", "strict=true")
    assert recover(*OWN, *more) == 0
    options = json.loads(Path("photo_metric/recovery.json").read_text())["report"]["options"]
    assert options["strict"] is True
    assert options["labels"] == "ndarray"
    np.save("depth.npy", RELATIVE[::2, ::2])
    assert recover(*OWN) == 2
    assert recover(*OWN, "--resize") == 0


def test_cli_warnings_rejections_and_holes_are_printed(folder, capsys):
    values = 1 / RELATIVE
    values[1, 1] = np.nan
    np.save("depth.npy", values)
    Path("anchors.csv").write_text(rows() + "\n1,1,5.0\n")
    assert recover(*OWN) == 0
    printed = capsys.readouterr().out
    assert "4 of 5 anchors used" in printed
    assert "line 6, u=1 v=1 (5 m) not used: no relative depth here" in printed
    assert "1 pixel without relative depth: NaN there" in printed
    assert "warning: the map was declared depth" in printed
    assert "is it disparity, or" in printed


def test_cli_recover_reads_anchors_from_sparse_png_and_npz(folder):
    anchors = Anchors.read("anchors.csv")
    anchors.write("anchors.npz")
    sparse = np.zeros((6, 8), np.uint16)
    sparse[anchors.pixels((6, 8))] = np.round(anchors.depth_m * 256)
    Image.fromarray(sparse).save("sparse.png")
    medians = []
    for more in (["anchors.csv"], ["anchors.npz"], ["sparse.png", "--anchor-units", "256"]):
        command = ["recover", "photo.png", *OWN, "--method", "median", "--anchors", *more]
        assert main(command) == 0
        arrays = io.read_npz(Path("photo_metric/depth.npz"), required=("depth_m",))
        medians.append(np.median(arrays["depth_m"]))
    np.testing.assert_allclose(medians, medians[0], rtol=2e-3)


def bad_anchors(text: str) -> dict[str, str]:
    return {"anchors.csv": "u,v,depth_m\n" + text}


@pytest.mark.parametrize(
    ("contents", "more", "sentence"),
    [
        (bad_anchors(""), OWN, "no anchors: at least one pixel of known metric depth"),
        (bad_anchors("1,1,2\n8,0,1"), OWN, "1 of 2 anchors lie outside.*line 3 at u=8, v=0"),
        (bad_anchors("1,1,nan"), OWN, "line 2: depth_m is not a length: 'nan'"),
        (bad_anchors("1,1,0"), OWN, "line 2: depth_m: a length above zero is wanted"),
        (bad_anchors("1,1,-4"), OWN, "line 2: depth_m: a length above zero is wanted"),
        (bad_anchors("1,1"), OWN, "line 2: 3 cells wanted, 2 found"),
        ({"anchors.csv": None}, OWN, "anchors.csv: no such file"),
        ({"photo.png": None}, OWN, "photo.png: no such file"),
        ({"photo.png": "text"}, OWN, "photo.png: not a readable image"),
        ({"depth.npy": "text"}, OWN, "depth.npy"),
        ({}, ("--depth", "d8.png", "--kind", "depth"), "d8.png.*16-bit PNG, found mode L with 8"),
        ({}, ("--depth", "small.npy", "--kind", "depth"), "map is 4×6 pixels.*8×6.*--resize"),
        ({}, ("--depth", "depth.npy"), "--depth needs --kind depth"),
        ({}, ("--resize",), "--depth-key and --resize apply only to --depth FILE"),
        ({}, ("--mde", "lite", *OWN), "--depth is your own depth map and --mde computes one"),
        ({}, ("--mde", "no-such-estimator"), "no-such-estimator"),
        ({}, ("--mde", ""), "no MDE ''; there are lite"),
        ({}, (*OWN, "--method", "magic"), "no method 'magic'; there are"),
        ({}, (*OWN, "--option", "magic=1"), "method median has no option 'magic'; there are none"),
        ({}, (*OWN, "--option", "magic"), "--option must be name=value, found 'magic'"),
        ({}, (*OWN, "--option", "k=8", "--option", "k=30"), "--option k is given twice, 8 and 30"),
        ({}, (*OWN, "--anchor-units", "1000"), "--anchor-units is for a .png; depth_m of .*csv"),
        (bad_anchors("5,7,2"), OWN, r"line 2 at u=5, v=7; u and v swapped, all would lie inside"),
        ({}, ("--depth", "none.npz", "--kind", "depth"), "none.npz: holds no array"),
        ({}, (*OWN, "--labels", "nothing.png"), "nothing.png: no such file"),
        ({}, (*OWN, "--png-units", "0"), "--png-units must be 0.001 … 1e9, found 0"),
        ({}, (*OWN, "--out", "x" * 300), "x: cannot be written .File name too long"),
        ({}, (*OWN, "--fov-deg", "0", "--formats", "ply"), "between 0 and 180 degrees, found 0"),
        ({}, ("--device", "cuda:99"), "device 'cuda:99' cannot be used here .*; cpu always can"),
        ({}, ("--device", "meta"), "device 'meta' cannot be used here .*; cpu always can"),
        ({}, (*OWN, "--out", "anchors.csv"), "anchors.csv: cannot be written .a file is in the pl"),
        ({}, (*OWN, "--out", "anchors.csv/a/b"), "cannot be written .a file is in the place of a"),
        ({}, ("--depth", "new\nline.npy", "--kind", "depth"), "new line.npy: no such file"),
        ({}, (*OWN, "--method", "lwlr", "--option", "bandwidth=inf"), "bandwidth must be .*float"),
    ],
)
def test_cli_bad_input_is_one_sentence_exit_code_2_and_nothing_written(
    folder, capsys, contents, more, sentence
):
    Image.fromarray(np.ones((6, 8), np.uint8)).save("d8.png")
    np.save("small.npy", RELATIVE[:, ::2])
    np.savez("none.npz")
    for name, text in contents.items():
        Path(name).unlink() if text is None else Path(name).write_text(text)
    before = {p: p.read_bytes() for p in folder.rglob("*")}
    assert recover(*more) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("scalefield: ")
    assert printed.err.count("\n") == 1
    assert re.search(sentence, printed.err), printed.err
    assert {p: p.read_bytes() for p in folder.rglob("*")} == before


def test_cli_recover_takes_anchors_of_the_upright_picture_if_exif_rotates_it(folder, capsys):
    """An 8×6 photograph that stands upright as 6×8: u = 7 is outside, v = 7 is not."""
    exif = Image.Exif()
    exif[io.ORIENTATION] = 6
    Image.open("photo.png").save("turned.jpg", exif=exif)
    np.save("depth.npy", RELATIVE.T)
    Path("anchors.csv").write_text("u,v,depth_m\n1,1,2\n7,2,3\n")
    words = ["turned.jpg", "--anchors", "anchors.csv", "--method", "median", *OWN]
    assert main(["recover", *words]) == 2
    message = capsys.readouterr().err
    assert "line 3 at u=7, v=2" in message
    assert "EXIF rotates the photograph, and u and v refer to the upright picture" in message
    Path("anchors.csv").write_text("u,v,depth_m\n1,1,2\n2,7,3\n")
    upright = "turned.jpg: EXIF rotates the photograph; u, v, maps and intrinsics are those of"
    for command in (["recover", *words], ["suggest", "turned.jpg", *OWN]):
        assert main(command) == 0
        assert upright in capsys.readouterr().err
    assert main(["suggest", "photo.png", "--n", "1"]) == 0
    assert "EXIF" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "args",
    [
        ["recover", "photo.png", "--anchors", "a.csv", "--kind", "inverse"],
        ["recover", "photo.png", "--anchors", "a.csv", "--png-units", "many"],
        ["recover", "photo.png", "--anchrs", "a.csv"],
        [],
    ],
)
def test_cli_wrong_command_line_exits_with_2(args, capsys):
    with pytest.raises(SystemExit) as caught:
        main(args)
    assert caught.value.code == 2
    assert capsys.readouterr().err


def test_methods_lists_every_method_on_one_line(capsys):
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(METHODS)
    assert all(len(line.split(maxsplit=1)[1]) > 20 and line.endswith(".") for line in lines)


def test_cli_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"scalefield {scalefield.__version__}\n"


def test_methods_shows_no_text_for_an_option_that_is_a_dataclass(capsys):
    assert main(["methods", "field"]) == 0
    out = capsys.readouterr().out
    assert "--option robust=True" in out
    assert "inference (in Python only): InferenceConfig()" in out


def test_methods_prints_the_options_of_one(capsys):
    assert main(["methods", "region"]) == 0
    printed = capsys.readouterr().out
    assert "--option superpixels=100\n    Approximate number of superpixels." in printed
    assert main(["methods", "magic"]) == 2
    assert "no method 'magic'; there are field, basis" in capsys.readouterr().err


@given(st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none())
def test_cli_option_values_become_python_values(value):
    name, parsed = parse_option(f"name={value}")
    assert name == "name"
    assert type(parsed) is type(value)
    assert parsed == value


@pytest.mark.parametrize("text", ["adaptive", "a=b", "", "-", "1e", "0x10"])
def test_cli_other_option_values_stay_strings(text):
    assert parse_option(f"bandwidth={text}") == ("bandwidth", text)


@pytest.mark.parametrize("text", ["=1", "two words=1", "flag", ""])
def test_cli_options_need_a_name(text):
    with pytest.raises(InputError, match="must be name=value"):
        parse_option(text)


def test_cli_importing_the_command_line_loads_nothing_heavy():
    code = (
        "import sys, scalefield, scalefield.cli;"
        "print(*{'torch', 'numpy', 'scipy', 'PIL', 'tqdm', 'jaxtyping'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )  # fmt: skip
    assert done.stdout.split() == []


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_cli_help_exists_for_every_command(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*command.split(), "--help"])
    assert caught.value.code in (0, None)
    assert "usage: scalefield" in capsys.readouterr().out


def test_cli_folder_in_the_place_of_an_output_keeps_all_of_them(folder, capsys):
    assert recover(*OWN, "--out", "out") == 0
    Path("out/preview.png").unlink()
    Path("out/preview.png").mkdir()
    before = {p: p.read_bytes() for p in Path("out").iterdir() if p.is_file()}
    Path("anchors.csv").write_text(rows(scale=3.0))
    assert recover(*OWN, "--out", "out") == 2
    assert "preview.png: cannot be written (it is a folder)" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in Path("out").iterdir() if p.is_file()} == before


def test_cli_recover_states_a_factor_for_contradicting_anchors(folder, capsys):
    Path("anchors.csv").write_text("u,v,depth_m\n1,1,1e-9\n1,1,1e9\n")
    for method in ("field", "median"):
        assert recover(*OWN, "--method", method) == 0
        printed = capsys.readouterr()
        assert re.search(r"typical pixel: a factor of [1-9]", printed.out), printed.out
        assert printed.err == ""


def test_cli_recover_refuses_to_overwrite_its_inputs(folder, capsys):
    photo = Path("preview.png")
    photo.write_bytes(Path("photo.png").read_bytes())
    before = photo.read_bytes()
    assert main(["recover", "preview.png", "--anchors", "anchors.csv", "--out", "."]) == 2
    assert "preview.png is an input and would be overwritten" in capsys.readouterr().err
    assert main(["anchors", "photo.png", "--depth", "depth.npy", "--out", "photo.png"]) == 2
    assert photo.read_bytes() == Path("photo.png").read_bytes() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("streams", "code", "message"),
    [
        ("| true", 0, ""),
        ("> /dev/full", 1, "scalefield: [Errno 28] No space left on device\n"),
        (">&-", 0, ""),
        (">&- 2>&- <&-", 0, ""),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_cli_streams_may_be_closed_or_full(streams, code, message, unbuffered):
    command = f"set -o pipefail; {sys.executable} -m scalefield.cli --help {streams}"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert (done.returncode, done.stderr) == (code, message)


def test_cli_prints_to_a_terminal_that_cannot_encode_its_characters(folder, monkeypatch):
    out = TextIOWrapper(BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert recover(*OWN) == 0
    assert rb"2.00 \u2026 6.00 m" in out.buffer.getvalue()


@pytest.mark.parametrize("given", [(), ("500", "500"), ("500", "500", "320", "240", "1")])
def test_cli_intrinsics_of_another_number_get_a_sentence(folder, capsys, given):
    assert recover(*OWN, "--intrinsics", *given, "--out", "o") == 2
    found = " ".join(given) or "nothing"
    assert f"--intrinsics wants four numbers, FX FY CX CY in pixels, found {found};" in (
        capsys.readouterr().err
    )


def test_cli_suggests_flags_of_the_same_command_only(capsys):
    with pytest.raises(SystemExit):
        main(["recover", "photo.png", "--anchor", "x"])
    assert "--anchors FILE" in (printed := capsys.readouterr().err)
    assert "--anchor-draw" not in printed


def test_cli_works_in_the_c_locale(folder):
    command = [sys.executable, "-m", "scalefield.cli", "recover", "photo.png", *OWN]
    command += ["--anchors", "anchors.csv", "--method", "median"]
    c_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, **c_locale})
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"2.00 \u2026 6.00 m" in done.stdout


def test_cli_hides_warnings_of_other_libraries(folder, monkeypatch, capsys):
    def load(*_: object) -> np.ndarray:
        warnings.warn("an array is not writable", stacklevel=1)
        warnings.warn("a cache is damaged", Notice, stacklevel=1)
        raise MemoryError

    monkeypatch.setattr("scalefield.io.read_image", load)
    assert recover(*OWN) == 1
    message = ["a cache is damaged", "not enough memory on this machine"]
    assert capsys.readouterr().err.splitlines() == [f"scalefield: {line}" for line in message]


def test_cli_reports_torch_out_of_memory_and_hides_no_other_error(folder, monkeypatch, capsys):
    def load(path: Path) -> np.ndarray:
        return torch.empty(2**62, dtype=torch.uint8).numpy()

    monkeypatch.setattr("scalefield.io.read_image", load)
    assert recover(*OWN) == 1
    assert capsys.readouterr().err == "scalefield: not enough memory on this machine\n"

    def fail(path: Path) -> np.ndarray:
        raise RuntimeError("something else")

    monkeypatch.setattr("scalefield.io.read_image", fail)
    with pytest.raises(RuntimeError, match="something else"):
        recover(*OWN)


@pytest.mark.parametrize("command", ["", *COMMANDS])
@pytest.mark.parametrize("columns", ["60", "100"])
def test_cli_help_is_filled_to_the_width_of_the_terminal(command, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= int(columns)
    assert "{None}" not in printed
    assert "default: None" not in printed
    assert "default: )" not in printed


def test_cli_help_of_recover_imports_no_torch():
    """Help answers at once because it imports neither torch nor numpy."""
    code = """
import sys
from scalefield.cli import main
try:
    main(["recover", "--help"])
except SystemExit:
    pass
print([name for name in ("torch", "numpy", "scipy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--anchors" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_cli_top_help_names_version_and_completion_and_is_short(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    assert "scalefield --version" in printed
    assert "scalefield --completion bash" in printed
    assert printed.count("\n") < 60


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_cli_completion_prints_a_script(shell, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--completion", shell])
    assert caught.value.code in (0, None)
    assert "recover" in capsys.readouterr().out


def test_cli_completion_of_another_shell_is_refused(capsys):
    for words in (["--completion"], ["--completion", "fish"]):
        assert main(words) == 2
        assert "--completion must be bash or zsh, found" in capsys.readouterr().err


def test_cli_unknown_command_suggests_the_nearest(capsys):
    assert main(["reciver", "a.jpg"]) == 2
    assert capsys.readouterr().err == "scalefield: no command 'reciver'; did you mean recover?\n"
    assert main(["xyzzy"]) == 2
    assert "no command 'xyzzy'; there are recover, suggest" in capsys.readouterr().err


def test_cli_prints_a_warning_once(capsys, monkeypatch):
    def run(self) -> None:
        warnings.warn("licence", Notice, stacklevel=1)
        warnings.warn("licence", Notice, stacklevel=1)  # which Python counts as another one

    monkeypatch.setattr("scalefield.commands.methods.MethodsCommand.run", run)
    assert main(["methods"]) == 0
    assert capsys.readouterr().err == "scalefield: licence\n"
