"""The bundled scene: small and consistent."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scalefield import InputError, cli, recover, samples


def test_samples_room_is_consistent():
    room = samples.load("room")
    assert room.image.shape == (480, 640, 3)
    assert room.depth_m.shape == (480, 640)
    assert np.isfinite(room.depth_m).all()
    assert 1.0 < room.depth_m.min() < room.depth_m.max() < 6.0
    rows, columns = room.anchors.pixels((480, 640))
    # As a person measures: within a centimetre of the truth.
    np.testing.assert_allclose(room.anchors.depth_m, room.depth_m[rows, columns], atol=0.01)
    assert 5 <= len(room.anchors) <= 10
    assert sum(p.stat().st_size for p in samples.FOLDER.glob("room*")) < 600_000


def test_samples_load_refuses_an_unknown_name():
    with pytest.raises(InputError, match="no sample 'attic'; there are room"):
        samples.load("attic")


def test_samples_demo_measures_the_error_of_what_it_wrote(tmp_path, monkeypatch, capsys):
    import torch

    from scalefield import MDEOutput

    room = samples.load("room")
    truth = torch.from_numpy(room.depth_m).float()

    def load(name: str, **_: object):
        def mde(image: np.ndarray) -> MDEOutput:
            return MDEOutput(truth**1.2 / 7, "depth", model=name)

        mde.name = name
        return mde

    monkeypatch.setattr("scalefield.mde.load_mde", load)
    out = tmp_path / "demo"
    assert cli.main(["demo", "--method", "median", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert (out / "preview.png").is_file()
    assert str(out / "preview.png") in printed
    assert (out / "comparison.jpg").is_file()
    for name, row in re.findall(r"^  (global|median) +(.*)$", printed, re.MULTILINE):
        r = recover(room.image, room.suggested, method=name)
        ratio = r.depth_m / room.depth_m
        assert row.split()[0] == f"{np.mean(np.abs(ratio - 1)):.3f}"
        assert row.split()[1] == f"{np.mean(np.maximum(ratio, 1 / ratio) < 1.25):.3f}"
        inside = np.abs(np.log(ratio)) <= 1.645 * r.std_log
        assert row.endswith(f" {100 * inside.mean():.0f} % of the pixels")
    assert cli.main(["demo", "--points", "16", "--out", str(out)]) == 2
    assert "--points must be 1 … 15, found 16" in capsys.readouterr().err


def test_samples_demo_shows_that_field_is_better_than_one_scale_and_shift(tmp_path, capsys):
    """The figures in the alternative text of the README's picture."""
    assert cli.main(["demo", "--out", str(tmp_path)]) == 0
    found = dict(re.findall(r"^  (global|field) +([0-9.]+)", capsys.readouterr().out, re.MULTILINE))
    readme = Path(__file__).parents[1].joinpath("README.md").read_text()
    for name, text in (("global", "one scale and shift"), ("field", "scalefield")):
        stated = float(re.search(rf"{text}, ([0-9.]+) %", readme)[1]) / 100
        assert float(found[name]) == pytest.approx(stated, abs=0.01)
    assert float(found["field"]) < 0.8 * float(found["global"])
    with Image.open(tmp_path / "comparison.jpg") as picture:
        assert picture.width == pytest.approx(1400, abs=50)  # 28 pixels of text: 14 at half of it


def test_samples_suggested_points_are_true_and_begin_with_the_anchors():
    room = samples.load()
    rows, columns = room.suggested.pixels(room.depth_m.shape)
    np.testing.assert_allclose(room.suggested.depth_m, room.depth_m[rows, columns], atol=0.02)
    np.testing.assert_array_equal(room.suggested.depth_m[:6], room.anchors.depth_m)
