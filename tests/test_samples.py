"""The bundled scene: small and consistent."""

import numpy as np
import pytest

from scalefield import InputError, cli, samples


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

    truth = torch.from_numpy(samples.load("room").depth_m).float()

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
    assert f"look at {out / 'preview.png'}" in printed
    ratio = np.load(out / "depth.npz")["depth_m"] / truth.numpy()
    assert f"AbsRel {np.mean(np.abs(ratio - 1)):.3f}" in printed
    assert f"δ1 {np.mean(np.maximum(ratio, 1 / ratio) < 1.25):.3f}" in printed
