import numpy as np
import pytest
from PIL import Image

from scalefield.cli import main
from scalefield.commands.data import parse_ranges
from scalefield.errors import InputError


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


@pytest.mark.parametrize(
    ("flags", "message"),
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
    sunrgbd, tmp_path, capsys, flags, message
) -> None:
    data = ["--dataset", "sunrgbd", "--root", str(sunrgbd), "--mde", "lite", "--split", "all"]
    assert main(["evaluate", *data, "--out", str(tmp_path / "out"), *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ([], "nothing to report: give one or more folders"),
        (["a", "a/../a"], "a is given twice"),
        (["a"], "a/results.json: no such file"),
    ],
)
def test_benchmark_commands_report_wants_folders_that_evaluate_wrote(
    tmp_path, monkeypatch, capsys, folders, message
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", *folders]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_benchmark_commands_ranges_are_read_by_source() -> None:
    assert parse_ranges(["kitti=0.1,80", "*=0.1,1e1"]) == {"kitti": (0.1, 80), "*": (0.1, 10)}


@pytest.mark.parametrize(
    ("texts", "message"),
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
def test_benchmark_commands_ranges_that_cannot_be_meant_are_refused(texts, message) -> None:
    with pytest.raises(InputError, match=message):
        parse_ranges(texts)
