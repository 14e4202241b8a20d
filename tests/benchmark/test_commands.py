import json

import numpy as np
import pytest
from PIL import Image

from scalefield.benchmark.method_spec import parse_methods
from scalefield.cli import main
from scalefield.commands.data import parse_ranges
from scalefield.commands.reproduce import paper_methods
from scalefield.errors import InputError

RED = """
import torch
from scalefield import MDEOutput

class Red:
    name = "red"
    def __call__(self, image):
        red = torch.tensor(image[..., 0], dtype=torch.float32)
        return MDEOutput((red + 20) / 100, "depth", model="red")

red = Red()
"""


@pytest.fixture
def sunrgbd(tmp_path):
    """Two frames in SUN RGB-D's layout."""
    rng = np.random.default_rng(0)
    for i in range(2):
        frame = tmp_path / "SUNRGBD" / "kv1" / "NYUdata" / f"NYU{i:04d}"
        for folder in ("image", "depth_bfx"):
            (frame / folder).mkdir(parents=True)
        millimetres = (1500 + 60 * np.arange(40)[:, None] + 10 * i).repeat(50, axis=1)
        noisy = millimetres / 20 + rng.normal(0, 4, (40, 50))
        image = np.stack([noisy] * 3, axis=2).clip(0, 255).astype(np.uint8)
        Image.fromarray(image).save(frame / "image" / "a.jpg", quality=95)
        stored = ((millimetres << 3) | (millimetres >> 13)).astype(np.uint16)
        Image.fromarray(stored).save(frame / "depth_bfx" / "a.png")
        (frame / "intrinsics.txt").write_text("50 0 25 0 50 20 0 0 1")
    return tmp_path / "SUNRGBD"


@pytest.mark.slow
def test_benchmark_commands_reproduce_goes_from_raw_data_to_the_papers_table(
    sunrgbd, tmp_path, monkeypatch, capsys
) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    (tmp_path / "red_mde.py").write_text(RED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "out"
    flags = ["--sunrgbd", str(sunrgbd), "--mdes", "red_mde:red", "--split", "all"]
    assert main(["reproduce", *flags, "--out", str(out)]) == 0
    assert (out / "report" / "report.html").exists()
    text = (out / "report" / "report.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| Piecewise | 0.16"))
    results = json.loads((out / "results" / "sunrgbd-red_mde:red" / "results.json").read_text())
    cell = next(c for c in results["cells"] if c["method"] == "Piecewise")
    assert f"[{cell['clamped']['abs_rel'][0]:.2f}]" in row
    lists = [out / "splits" / "sunrgbd" / f"{s}.txt" for s in ("train", "val", "test")]
    assert sorted("".join(p.read_text() for p in lists).split()) == [
        "kv1/NYUdata/NYU0000",
        "kv1/NYUdata/NYU0001",
    ]
    assert "2 of 2 frames evaluated" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--mde", "nosuch"], "no MDE 'nosuch'; there are lite"),
        (["--mde", "nosuch:thing"], "nosuch:thing cannot be imported"),
        (["--methods", "nosuch"], "no method 'nosuch'; there are"),
        (["--methods", "global(fit=1, nosuch=1)"], "has no option 'nosuch'"),
        (["--methods", "basis(generator=runs/of/nowhere)"], "no generator 'runs/of/nowhere'"),
        (["--methods", "field(model=nosuch)"], "no field model 'nosuch'"),
        (["--shard", "1"], "--shard must be i/n, found '1'"),
    ],
)
def test_benchmark_commands_wrong_names_are_refused_before_anything_is_written(
    sunrgbd, tmp_path, capsys, flags, said
) -> None:
    data = ["--dataset", "sunrgbd", "--root", str(sunrgbd), "--mde", "lite", "--split", "all"]
    assert main(["evaluate", *data, "--out", str(tmp_path / "out"), *flags]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_benchmark_commands_reproduce_wants_a_dataset(tmp_path, capsys) -> None:
    assert main(["reproduce", "--out", str(tmp_path)]) == 2
    assert "give --kitti, --urbansyn or --sunrgbd" in capsys.readouterr().err


@pytest.mark.parametrize("dataset", ["kitti", "urbansyn", "sunrgbd"])
def test_benchmark_commands_papers_rows_are_methods_of_ours(dataset) -> None:
    specs = parse_methods(paper_methods(dataset))
    assert [type(spec.make()).__name__ for spec in specs][:4] == [
        "Global",
        "Grid",
        "LWLR",
        "Piecewise",
    ]
    assert ("Region" in {spec.label for spec in specs}) == (dataset != "kitti")
    low = [spec.label for spec in specs if spec.applies("low")]
    assert "Basis K=8" in low
    assert "Basis K=30" not in low


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        ([], "nothing to report: give one or more folders"),
        (["a", "a/../a"], "a is given twice"),
        (["a"], "a/results.json: no such file"),
    ],
)
def test_benchmark_commands_report_wants_folders_that_evaluate_wrote(
    tmp_path, monkeypatch, capsys, folders, said
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", *folders]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_benchmark_commands_ranges_are_read_by_source() -> None:
    assert parse_ranges(["kitti=0.1,80", "*=0.1,1e1"]) == {"kitti": (0.1, 80), "*": (0.1, 10)}


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["kitti"], "--range must be SOURCE=NEAR,FAR in metres, found 'kitti'"),
        (["kitti=1,2,3"], "must be SOURCE=NEAR,FAR"),
        (["kitti=80,0.1"], "kitti=80,0.1: wanted 0 < NEAR < FAR"),
        (["kitti=0,80"], "wanted 0 < NEAR < FAR"),
        (["kitti=nan,80"], "wanted 0 < NEAR < FAR"),
        (["kitti=1,inf"], "wanted 0 < NEAR < FAR"),
        (["kitti=1,2", "kitti=1,3"], "--range kitti is given twice"),
    ],
)
def test_benchmark_commands_ranges_that_cannot_be_meant_are_refused(texts, said) -> None:
    with pytest.raises(InputError, match=said):
        parse_ranges(texts)
