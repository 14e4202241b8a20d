"""Weights as they are published, against the networks of their authors on random weights."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mde.published_networks import DepthAnything, Midas, lively
from scalefield.errors import InputError
from scalefield.mde import load_mde
from scalefield.mde.hub import find_weights, weights_here
from scalefield.mde.published import (
    convert_release,
    depth_anything_config,
    midas_config,
    read_tensors,
)
from scalefield.mde.transformers_mde import TransformersNetwork

transformers = pytest.importorskip("transformers")

V1, V2 = (4, 5, 6, 7), (1, 3, 5, 7)
RELEASES = [
    ("dpt_hybrid-midas-501f0c75.pt", lambda: Midas(hybrid=True), 64, "disparity"),
    ("dpt_large-midas-2f21e586.pt", lambda: Midas(hybrid=False), 64, "disparity"),
    ("depth_anything_vits14.pth", lambda: DepthAnything(layers=V1), 42, "disparity"),
    ("depth_anything_v2_vitb.pth", lambda: DepthAnything(layers=V2), 42, "disparity"),
]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty folder for converted weights."""
    monkeypatch.setenv("SCALEFIELD_WEIGHTS", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize(("file", "build", "side", "kind"), RELEASES)
def test_a_release_file_gives_what_its_authors_network_gives(tmp_path, file, build, side, kind):
    network = lively(build())
    torch.save(network.state_dict(), tmp_path / file)
    mde = load_mde(str(tmp_path / file))
    assert (mde.name, mde.kind) == (Path(file).stem, kind)
    pixels = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        theirs, ours = network(pixels), mde.network(pixels).prediction
    assert theirs.std() > 1e-3
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_release_file_is_converted_once(tmp_path, home):
    file = tmp_path / "depth_anything_vits14.pth"
    torch.save(lively(DepthAnything(layers=V1)).state_dict(), file)
    first = find_weights(str(file))
    stamp = os.stat(first.file).st_mtime_ns
    again = find_weights(str(file))
    assert first == again
    assert os.stat(again.file).st_mtime_ns == stamp
    assert first.folder.parent == home / "converted"
    assert first.revision.startswith("sha256:")
    assert json.loads((first.folder / "source.json").read_text()) == {"file": file.name}


def test_a_release_file_in_the_folder_of_a_model_stands_for_it(tmp_path, home):
    folder = home / "Intel" / "dpt-hybrid-midas"
    folder.mkdir(parents=True)
    torch.save(lively(Midas(hybrid=True)).state_dict(), folder / "dpt_hybrid-midas-501f0c75.pt")
    assert weights_here("Intel/dpt-hybrid-midas")
    assert load_mde("midas-dpt-hybrid").name == "midas-hybrid"


def tiny_hub_model(folder):
    """A Depth Anything as the hub has it, with pickled weights alone."""
    torch.save(lively(DepthAnything(layers=V1)).state_dict(), folder / "depth_anything_vits14.pth")
    convert_release(folder / "depth_anything_vits14.pth", folder / "made")
    state = load_file(folder / "made" / "model.safetensors")
    hub = folder / "hub"
    hub.mkdir()
    torch.save(state, hub / "pytorch_model.bin")
    (hub / "config.json").write_bytes((folder / "made" / "config.json").read_bytes())
    (hub / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    return hub, state


def test_pytorch_model_bin_is_read_and_converted(tmp_path):
    hub, state = tiny_hub_model(tmp_path)
    weights = find_weights(str(hub))
    assert weights.licence == "apache-2.0"
    converted = load_file(weights.file)
    assert {k: tuple(v.shape) for k, v in converted.items()} == {
        k: tuple(v.shape) for k, v in state.items()
    }
    mde = load_mde(str(hub))
    assert isinstance(mde.network, TransformersNetwork)
    assert mde.revision == weights.revision


def test_a_weight_that_is_missing_or_has_another_shape_is_refused(tmp_path):
    state = lively(Midas(hybrid=True)).state_dict()
    file = tmp_path / "dpt_hybrid-midas-501f0c75.pt"
    wrong = dict(state) | {"scratch.refinenet1.out_conv.bias": torch.zeros(3)}
    torch.save(wrong, file)
    with pytest.raises(InputError, match="transformers finds no depth model"):
        load_mde(str(file))
    torch.save({k: v for k, v in state.items() if k != "pretrained.model.norm.bias"}, file)
    with pytest.raises(InputError, match=r"1 weights are missing, such as dpt.layernorm.bias"):
        load_mde(str(file))
    torch.save({k: v for k, v in state.items() if "blocks.0.mlp" not in k}, file)
    with pytest.raises(InputError, match=r"weights are missing, such as"):
        load_mde(str(file))
    torch.save(dict(state) | {"pretrained.model.dist_token": torch.zeros(1)}, file)
    with pytest.raises(InputError, match=r"'pretrained.model.dist_token' belongs to another"):
        load_mde(str(file))


class Code:
    def __reduce__(self):
        return os.system, ("echo this must never run > ran",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": torch.zeros(2), "epoch": 3}, "found int under 'epoch'"),
        ({"model": {"a": torch.zeros(2)}, "optimizer": {}}, "found dict under 'model'"),
        ([torch.zeros(2)], "wanted tensors by name, found list"),
        ({}, "wanted tensors by name, found dict"),
        ({"a": Code()}, r"all that is read \(it names the Python object posix.system\)"),
        (b"no pickle at all", "not a file of weights alone"),
    ],
)
def test_a_file_that_holds_anything_but_tensors_is_refused(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "weights.pt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    with pytest.raises(InputError, match=message):
        read_tensors(file)
    assert not (tmp_path / "ran").exists()


def test_a_release_file_without_its_blocks_is_refused_in_plain_words(tmp_path):
    torch.save({"pretrained.model.pos_embed": torch.zeros(1, 10, 16)}, tmp_path / "w.pt")
    with pytest.raises(InputError, match=r"missing, such as 'pretrained.model.blocks.0.…'"):
        convert_release(tmp_path / "w.pt", tmp_path / "out")


def test_a_wrapped_state_dict_is_read(tmp_path):
    torch.save({"state_dict": {"a": torch.ones(2)}}, tmp_path / "w.pt")
    assert read_tensors(tmp_path / "w.pt")["a"].tolist() == [1, 1]


def test_foreign_weights_and_unpublished_names_are_refused(tmp_path):
    torch.save({"fc.weight": torch.zeros(2)}, tmp_path / "w.pt")
    with pytest.raises(InputError, match=r"neither MiDaS DPT nor Depth Anything; its first weight"):
        load_mde(str(tmp_path / "w.pt"))
    torch.save(lively(DepthAnything(layers=V1)).state_dict(), tmp_path / "mine.pth")
    with pytest.raises(InputError, match="keep the published name of the file"):
        load_mde(str(tmp_path / "mine.pth"))
    (tmp_path / "w.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"wanted model.safetensors, pytorch_model.bin or"):
        find_weights(str(tmp_path / "w.bin"))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"no config.json beside it"):
        find_weights(str(tmp_path / "pytorch_model.bin"))


@pytest.mark.parametrize(
    ("file", "layers", "type_", "max_depth"),
    [
        ("depth_anything_vits14.pth", [5, 6, 7, 8], "relative", 1),
        ("depth_anything_v2_vits.pth", [2, 4, 6, 8], "relative", 1),
        ("depth_anything_v2_metric_hypersim_vits.pth", [2, 4, 6, 8], "metric", 20),
        ("depth_anything_v2_metric_vkitti_vits.pth", [2, 4, 6, 8], "metric", 80),
    ],
)
def test_published_version_follows_from_the_name_of_the_file(file, layers, type_, max_depth):
    config = depth_anything_config(DepthAnything(layers=V1).state_dict(), file)
    assert config["backbone_config"]["out_indices"] == layers
    assert (config["depth_estimation_type"], config["max_depth"]) == (type_, max_depth)


@pytest.mark.parametrize("hybrid", [True, False])
def test_the_published_sizes_give_the_hub_s_configuration(hybrid):
    with torch.device("meta"):
        state = {
            name: torch.empty(shape) for name, shape in published_shapes(hybrid=hybrid).items()
        }
    config = midas_config(state, hybrid=hybrid)
    assert config["num_attention_heads"] == (12 if hybrid else 16)
    assert config["backbone_out_indices"] == ([2, 5, 8, 11] if hybrid else [5, 11, 17, 23])
    assert config["image_size"] == 384
    if hybrid:
        assert config["neck_hidden_sizes"] == [256, 512, 768, 768]
        assert config["backbone_config"]["depths"] == [3, 4, 9]
        assert config["backbone_config"]["hidden_sizes"] == [256, 512, 1024, 2048]
        assert config["backbone_featmap_shape"] == [1, 1024, 24, 24]
    else:
        assert config["neck_hidden_sizes"] == [256, 512, 1024, 1024]


def published_shapes(*, hybrid):
    """Shapes, in the release files, of the weights that the configuration is read off."""
    width, depth = (768, 12) if hybrid else (1024, 24)
    channels = (256, 512, 768, 768) if hybrid else (256, 512, 1024, 1024)
    model = "pretrained.model"
    shapes = {
        f"{model}.pos_embed": (1, 577, width),
        f"{model}.patch_embed.proj.weight": (width, 1024, 1, 1) if hybrid else (width, 3, 16, 16),
    }
    shapes |= {f"{model}.blocks.{i}.mlp.fc1.weight": (4 * width, width) for i in range(depth)}
    shapes |= {f"scratch.layer{i}_rn.weight": (256, c, 3, 3) for i, c in enumerate(channels, 1)}
    if hybrid:
        backbone = f"{model}.patch_embed.backbone"
        shapes[f"{backbone}.stem.conv.weight"] = (64, 3, 7, 7)
        for stage, (blocks, outputs) in enumerate(((3, 256), (4, 512), (9, 1024))):
            for block in range(blocks):
                name = f"{backbone}.stages.{stage}.blocks.{block}.conv3.weight"
                shapes[name] = (outputs, outputs // 4, 1, 1)
    return shapes
