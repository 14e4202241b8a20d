"""Shipped weights are checked, and nothing that runs code is read from a file."""

import ast
import shutil
from pathlib import Path

import pytest
import torch

from scalefield.basis.generator import Generator, GeneratorConfig
from scalefield.basis.pretrained import load_generator
from scalefield.errors import InputError
from scalefield.io import weights
from scalefield.io.weights import SUMS, WEIGHTS, read_sums, sha256, verify_checksums, write_sums
from scalefield.mde.lite import load_lite

ROOT = Path(__file__).parents[2]
CODE = [p for folder in ("src", "scripts", "recipes", "benchmarks", "examples", "fuzz")
        for p in sorted((ROOT / folder).rglob("*.py"))]  # fmt: skip
PICKLING = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "_pickle"}


def test_weights_sums_are_those_of_every_shipped_file():
    recorded = read_sums(WEIGHTS)
    files = [p for p in WEIGHTS.glob("*/*") if p.suffix != ".md"]
    assert recorded == {f"{p.parent.name}/{p.name}": sha256(p) for p in files}
    assert len(recorded) == 2 * len(weights.shipped())


@pytest.fixture
def shipped(tmp_path, monkeypatch) -> Path:
    """A package of our own with one generator in it."""
    monkeypatch.setattr(weights, "WEIGHTS", tmp_path)
    torch.manual_seed(0)
    Generator(GeneratorConfig(k=2, width=8, dilations=(1,))).save(tmp_path / "basis-x")
    write_sums(tmp_path)
    return tmp_path / "basis-x"


def test_verify_checksums_refuses_a_changed_file(shipped):
    assert verify_checksums(shipped) == shipped
    weights = shipped / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1  # one bit, and still readable
    weights.write_bytes(bytes(data))
    with pytest.raises(InputError, match=r"model\.safetensors differs from the file"):
        verify_checksums(shipped)


def test_verify_checksums_refuses_a_file_without_a_sum(shipped):
    shutil.copytree(shipped, shipped.parent / "basis-y")
    with pytest.raises(InputError, match="make weights-sums"):
        verify_checksums(shipped.parent / "basis-y")


def test_verify_checksums_ignores_other_folders(tmp_path):
    assert verify_checksums(tmp_path / "mine") == tmp_path / "mine"


@pytest.mark.parametrize(
    ("load", "name"),
    [
        (load_generator.__wrapped__, "basis-depth-k8"),
        (load_lite.__wrapped__, WEIGHTS / "lite"),
    ],
)
def test_loaders_of_weights_verify_checksums(load, name, monkeypatch):
    monkeypatch.setattr(weights, "read_sums", lambda folder: {})
    with pytest.raises(InputError, match=SUMS):
        load(name)


@pytest.mark.parametrize("path", CODE, ids=lambda p: str(p.relative_to(ROOT)))
def test_weights_no_pickle_is_ever_read(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            if path.name == "published.py" and names == ["", "pickle"]:
                continue  # for the name of the error that torch.load raises, see below
            assert not PICKLING & {name.partition(".")[0] for name in names}
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pickle":
            assert node.attr == "UnpicklingError"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            options = {k.arg: ast.unparse(k.value) for k in node.keywords}
            if called in ("torch.load", "load_state_dict_from_url"):
                assert options.get("weights_only") == "True"
            if called.endswith(("np.load", "numpy.load")):
                assert options.get("allow_pickle", "False") == "False"
            assert not called.endswith("read_pickle")
