"""`scalefield models`: one line for each estimator, and whether its weights are present."""

import huggingface_hub.constants

from scalefield.cli import main
from scalefield.mde import MODELS


def test_models_table(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("SCALEFIELD_WEIGHTS", str(tmp_path))
    folder = tmp_path / MODELS["da3-large"].source
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"")
    assert main(["models"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == [
        "name", "size", "kind", "F", "code", "weights", "loaded", "from", "here",
    ]  # fmt: skip
    rows = {line.split()[0]: line for line in lines[: len(MODELS)]}
    assert set(rows) == set(MODELS)
    for part in ("337 M", "depth", "256", "CC BY-NC 4.0", "depth-anything/DA3-LARGE-1.1"):
        assert part in rows["da3-large"]
    here = {name for name, line in rows.items() if line.endswith("yes")}
    assert here == {"lite", "da3-large"}
