"""`load_mde`: which name leads to which estimator."""

import os
import subprocess
import sys
import textwrap
import warnings

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import save_file

from scalefield.errors import InputError
from scalefield.io.weights import WEIGHTS
from scalefield.mde import LOADERS, MODELS, NonCommercialWarning, load_mde
from scalefield.mde.da3 import BASE, DA3, LARGE, PREPROCESS, SMALL
from scalefield.mde.estimator import Estimator, Raw


@pytest.fixture(autouse=True)
def by_hand(monkeypatch, tmp_path):
    """A folder for weights brought by hand, and no other."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("SCALEFIELD_WEIGHTS", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def small_state():
    torch.manual_seed(0)
    return {f"model.{k}": v.half() for k, v in DA3(SMALL).state_dict().items()}


def put(folder, state):
    folder.mkdir(parents=True)
    save_file(state, folder / "model.safetensors")
    return folder


def test_da3_by_name_by_hub_id_and_by_folder(by_hand, small_state, photograph):
    folder = put(by_hand / "depth-anything/DA3-SMALL", small_state)
    (folder / "config.json").write_text('{"model_name": "da3-small"}')
    image = photograph(28, 56)
    outputs = {
        name: load_mde(name)(image)
        for name in ("da3-small", "depth-anything/DA3-SMALL", str(folder))
    }
    names = [output.model for output in outputs.values()]
    assert names == ["da3-small", "depth-anything/DA3-SMALL", "DA3-SMALL"]
    first, *others = outputs.values()
    assert first.features.dtype == torch.float32  # though the file has float16
    for other in others:
        assert torch.equal(first.prediction, other.prediction)
        assert first.revision == other.revision


def test_estimator_lite_comes_from_the_package(monkeypatch):
    mde = Estimator("lite", "r", "depth", PREPROCESS, lambda pixels: Raw(pixels[:, 0]))
    asked = []
    monkeypatch.setattr("scalefield.mde.lite.load_lite", lambda *given: asked.append(given) or mde)
    assert load_mde("lite", device="cpu:0") is mde
    assert asked == [(WEIGHTS / "lite", "cpu:0")]


def test_load_mde_unknown_names_list_the_known_ones():
    names = r"no MDE 'da4'; there are lite, da3-small, .*\.onnx"
    with pytest.raises(InputError, match=names):
        load_mde("da4")


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("depth-anything-v2", "dav2-base or dav2-small or dav2-large"),
        ("Depth-Anything-V2-Small-hf", "dav2-small"),
        ("depthpro", "depth-pro or zoedepth"),
        ("lite2", "lite"),
    ],
)
def test_load_mde_unknown_names_suggest_models_by_name_and_by_repository(name, models):
    with pytest.raises(InputError, match=rf"no MDE '{name}'.*; did you mean {models}\?$"):
        load_mde(name)


def test_load_mde_pinned_revision_reaches_the_hub():
    with pytest.raises(InputError, match=r"DA3-BASE/resolve/abc/model.safetensors"):
        load_mde("da3-base@abc")


def test_load_mde_non_commercial_weights_say_so(by_hand, small_state):
    put(by_hand / MODELS["da3-large"].source, small_state)
    with (
        pytest.warns(NonCommercialWarning, match=r"weights of da3-large .* CC BY-NC 4.0"),
        pytest.raises(InputError, match="wanted the weights of da3-large, found da3-small"),
    ):
        load_mde("da3-large")
    # Any model card can say so, and its word is newer than our table.
    folder = put(by_hand / "owner/name", small_state)
    (folder / "README.md").write_text("---\nlicense: cc-by-nc-sa-4.0\n---\n")
    with pytest.warns(NonCommercialWarning, match="cc-by-nc-sa-4.0"):
        load_mde("owner/name")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_mde("owner/name")


def test_load_mde_has_a_loader_for_every_card():
    assert {card.loader for card in MODELS.values()} <= set(LOADERS)


def test_load_mde_cards_agree_with_the_networks():
    for name, config in (("da3-small", SMALL), ("da3-base", BASE), ("da3-large", LARGE)):
        with torch.device("meta"):
            parameters = sum(p.numel() for p in DA3(config).parameters())
        card = MODELS[name]
        assert card.parameters_m == round(parameters / 1e6)
        assert card.feature_channels == config.fused_channels


def test_load_mde_everything_essential_works_without_any_extra_and_without_a_network(tmp_path):
    """In a fresh interpreter where no optional package and no socket can be had."""
    program = """
        import builtins, socket, sys
        extras = ("transformers", "onnx", "onnxruntime", "OpenEXR", "skimage", "matplotlib")
        real = builtins.__import__
        def guarded(name, *args, **kwargs):
            if name.split(".")[0] in extras:
                raise ImportError(name)
            return real(name, *args, **kwargs)
        builtins.__import__ = guarded
        def no_network(*args, **kwargs):
            raise OSError("no network")
        socket.socket.connect = no_network

        import numpy as np, scalefield as sf
        relative = np.linspace(1, 2, 12).reshape(3, 4)
        anchors = sf.Anchors([0], [0], [5.0])
        r = sf.recover(None, anchors, mde_depth=relative, kind="depth", method="median")
        assert abs(r.depth_m[2, 3] - 10) < 1e-6
        from scalefield.mde import load_mde
        try:
            load_mde("da3-base")
        except sf.InputError as e:
            print(e)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True, text=True, check=False,
        env={
            "SCALEFIELD_WEIGHTS": str(tmp_path), "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        },
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "put https://huggingface.co/depth-anything/DA3-BASE" in result.stdout


@pytest.mark.parametrize(("name", "flags"), [("MoGe-2", "--kind depth,"), ("marigold", "--affine")])
def test_load_mde_names_the_flags_for_maps_of_other_packages(name, flags):
    with pytest.raises(InputError, match=f"runs in its own package.*{flags}"):
        load_mde(name)
