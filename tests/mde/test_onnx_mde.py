"""ONNX files as MDEs: a tiny graph made here, and a published network where there is one."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from scalefield.errors import InputError, MissingExtra
from scalefield.io import read_image
from scalefield.mde import load_mde
from scalefield.mde.onnx_mde import OnnxConfig, load_onnx, parse_config

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

ZERO, ONE = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
TINY = OnnxConfig("depth", (32, 48), multiple=8, dynamic=True, mean=ZERO, std=ONE, features="f")


@pytest.fixture
def tiny(tmp_path):
    """Stride-4 convolution to F, 1×1 to depth, its sizes stated as fixed 32×48."""
    helper, proto = onnx.helper, onnx.TensorProto
    generator = np.random.default_rng(0)
    weights = {
        "w1": generator.normal(size=(5, 3, 4, 4)).astype(np.float32),
        "w2": generator.uniform(size=(1, 5, 1, 1)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["f"], strides=[4, 4]),
        helper.make_node("Sigmoid", ["f"], ["g"]),
        helper.make_node("Conv", ["g", "w2"], ["depth"]),
        helper.make_node("Identity", ["depth"], ["confidence"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("image", proto.FLOAT, [1, 3, 32, 48])],
        [helper.make_tensor_value_info("depth", proto.FLOAT, [1, 1, 8, 12])],
        [onnx.numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path = tmp_path / "tiny.onnx"
    onnx.save(model, path)
    return path, {k: torch.from_numpy(v) for k, v in weights.items()}


def test_load_onnx_equals_the_graph_written_in_torch(tiny, photograph):
    path, weights = tiny
    images = [photograph(64, 72, seed) for seed in range(2)]  # processed at 40×48
    mde = load_onnx(path, TINY)
    pixels = mde.preprocess(images)
    assert pixels.shape[-2:] == (40, 48)
    features = F.conv2d(pixels, weights["w1"], stride=4)
    depth = F.conv2d(features.sigmoid(), weights["w2"])[:, 0]
    raw = mde.network(pixels)
    torch.testing.assert_close(raw.features, features, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(raw.prediction, depth, rtol=1e-4, atol=1e-5)
    output = mde.batch(images)[1]
    assert output.prediction.shape == (64, 72)
    torch.testing.assert_close(output.features, features[1], rtol=1e-4, atol=1e-5)


def test_load_onnx_features_follow_the_image(tiny, assert_features_follow_the_image):
    config = OnnxConfig("depth", (160, 160), "inside", 8, True, ZERO, ONE, features="f")
    assert_features_follow_the_image(load_onnx(tiny[0], config), 160)


def test_load_onnx_fixed_size_is_stretched_to(tiny, photograph):
    config = OnnxConfig("disparity", (32, 48), confidence="confidence", name="mine")
    mde = load_onnx(tiny[0], config)
    assert mde.preprocess.target((100, 100)) == (32, 48)
    output = mde(photograph(100, 100))
    assert (output.kind, output.model, output.features) == ("disparity", "mine", None)
    assert torch.equal(output.confidence, output.prediction)


def test_load_onnx_another_f_is_another_revision(tiny):
    path, _ = tiny
    one, two = (
        load_onnx(path, OnnxConfig("depth", (32, 48), features=name)) for name in ("f", "g")
    )
    assert one.revision != two.revision
    assert one.revision == load_onnx(path, OnnxConfig("depth", (32, 48), features="f")).revision


def test_load_mde_described_by_a_file_beside_it_or_elsewhere(tiny, tmp_path, photograph):
    path, _ = tiny
    message = {
        "kind": "depth", "size": [32, 48], "multiple": 8, "dynamic": True,
        "mean": [0, 0, 0], "std": [1, 1, 1], "features": "f",
    }  # fmt: skip
    with pytest.raises(InputError, match=r"describe it in .*tiny.json"):
        load_mde(str(path))
    path.with_suffix(".json").write_text(json.dumps(message))
    elsewhere = tmp_path / "folder" / "other.json"
    elsewhere.parent.mkdir()
    elsewhere.write_text(json.dumps({**message, "onnx": "../tiny.onnx"}))
    image = photograph(64, 72)
    wanted = load_onnx(path, TINY)(image)
    for source in (path, path.with_suffix(".json"), elsewhere):
        found = load_mde(str(source))(image)
        assert torch.equal(found.prediction, wanted.prediction)
        assert torch.equal(found.features, wanted.features)
        assert found.options == wanted.options


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({"size": [1, 1]}, "lacks 'kind'"),
        ({"kind": "metres", "size": [1, 1]}, 'kind must be "depth" or "disparity", found \'met'),
        ({"kind": "depth", "size": 224}, r"size must be \[height, width\] of 1 to 8192 pix"),
        ({"kind": "depth", "size": [1, 1], "mean": [0, 0]}, "mean must be a list of three"),
        ({"kind": "depth", "size": [1, 1], "multiple": 0}, "multiple must be a whole number"),
        ({"kind": "depth", "size": [1, 1], "dynamic": "yes"}, "dynamic must be true or false"),
        ({"kind": "depth", "size": [1, 1], "feature": "f"}, "no field 'feature'; there are kind"),
    ],
)
def test_parse_config_descriptions_are_checked(message, sentence):
    with pytest.raises(InputError, match=sentence):
        parse_config(message, "model.json")


@pytest.mark.parametrize("text", ["", "[]", "{", '"kind"'])
def test_load_mde_broken_descriptions(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError, match=r"not a (JSON file|description of an ONNX file)"):
        load_mde(str(tmp_path / "a.json"))


@pytest.mark.parametrize("data", [b"", b"this is not a graph"])
def test_load_onnx_broken_files(tmp_path, data):
    (tmp_path / "a.onnx").write_bytes(data)
    with pytest.raises(InputError, match="not a readable ONNX file"):
        load_onnx(tmp_path / "a.onnx", TINY)


def test_load_onnx_errors_name_what_is_there(tiny, photograph):
    path, _ = tiny
    with pytest.raises(InputError, match=r"no value 'h' in the graph; its last are \['f', 'g'"):
        load_onnx(path, OnnxConfig("depth", (32, 48), features="h"))
    with pytest.raises(InputError, match=r"shape \(1, h, w\) or \(1, 1, h, w\), found \(1, 5"):
        load_onnx(path, OnnxConfig("depth", (32, 48), output="f"))(photograph(32, 48))
    with pytest.raises(InputError, match="fails on 72×64 pixels"):
        load_onnx(path, OnnxConfig("depth", (64, 72)))(photograph(64, 72))


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_load_onnx_without_the_packages(tiny, without, package):
    without(package)
    with pytest.raises(MissingExtra, match=rf"'{package}'.*pip install 'scalefield\[onnx\]'"):
        load_onnx(tiny[0], TINY)


@pytest.mark.parametrize(("node", "channels", "stride"), [("346", 16, 2), ("338", 56, 4)])
def test_load_onnx_fastdepth(shared_data, node, channels, stride):
    config = OnnxConfig(
        "depth", (224, 224), "least", 32, True, ZERO, ONE, features=node, name="fastdepth"
    )
    mde = load_onnx(shared_data / "weights" / "fastdepth_7.onnx", config)
    image = read_image(sorted((shared_data / "data" / "7scenes").rglob("rgb/*"))[0])
    output = mde(image)
    height, width = mde.preprocess.target(image.shape[:2])
    assert output.features.shape == (channels, height // stride, width // stride)
    assert output.prediction.shape == image.shape[:2]
    # Trained on rooms, in metres: a room it is.
    assert 0.5 < float(output.prediction.median()) < 6
    assert float(output.prediction.std()) > 0.05
