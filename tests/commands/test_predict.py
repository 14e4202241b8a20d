"""`scalefield predict`: it fills the cache, continues a run and names bad images."""

import json

import numpy as np
import pytest
from PIL import Image

from scalefield import Anchors
from scalefield.cli import main
from scalefield.io import read_image
from scalefield.mde import load_mde
from scalefield.mde.cache import MDECache

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture
def mde(tmp_path):
    """The path of a small ONNX network that halves the image."""
    helper, proto = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [helper.make_node("Conv", ["image", "w"], ["depth"], strides=[2, 2])],
        "halve",
        [helper.make_tensor_value_info("image", proto.FLOAT, [1, 3, "h", "w_"])],
        [helper.make_tensor_value_info("depth", proto.FLOAT, [1, 1, "h2", "w2"])],
        [onnx.numpy_helper.from_array(np.full((1, 3, 2, 2), 0.1, np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "halve.onnx")
    printed = {"kind": "depth", "size": [32, 32], "multiple": 2, "dynamic": True}
    (tmp_path / "halve.json").write_text(json.dumps(printed))
    return str(tmp_path / "halve.onnx")


@pytest.fixture
def images(tmp_path):
    """Five images of two sizes, in two folders."""
    generator = np.random.default_rng(0)
    for i in range(5):
        shape = (24, 32, 3) if i % 2 else (32, 20, 3)
        path = tmp_path / "images" / ("sub" if i > 2 else ".") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8)).save(path)
    return tmp_path / "images"


def run(images, mde, tmp_path, *flags):
    return main(["predict", str(images), "--mde", mde, "--cache", str(tmp_path / "cache"), *flags])


@pytest.mark.parametrize("batch", ["1", "2", "8"])
def test_predict_fills_the_cache(images, mde, tmp_path, capsys, batch):
    assert run(images, mde, tmp_path, "--batch", batch) == 0
    assert capsys.readouterr().out.startswith("5 computed, 0 already there, 0 unreadable")
    cache = MDECache(tmp_path / "cache", load_mde(mde))
    assert len(list(cache.folder.iterdir())) == 5
    for path in images.rglob("*.png"):
        image = read_image(path)
        found, wanted = cache.load(image), load_mde(mde)(image)
        np.testing.assert_array_equal(found.prediction, wanted.prediction)


def test_predict_goes_on_where_it_stopped(images, mde, tmp_path, capsys):
    run(images / "sub", mde, tmp_path)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").iterdir()}
    assert len(before) == 2
    capsys.readouterr()
    assert run(images, mde, tmp_path) == 0
    assert capsys.readouterr().out.startswith("3 computed, 2 already there")
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_predict_bad_image_is_named_and_does_not_stop_the_run(images, mde, tmp_path, capsys):
    (images / "bad.jpg").write_bytes(b"no picture")
    assert run(images, mde, tmp_path) == 1
    captured = capsys.readouterr()
    assert "5 computed, 0 already there, 1 unreadable" in captured.out
    assert "bad.jpg: not a readable image" in captured.err


def test_predict_damaged_files_are_mentioned_in_a_sentence(images, mde, tmp_path, capsys):
    run(images, mde, tmp_path)
    damaged = min((tmp_path / "cache").iterdir())
    damaged.write_bytes(b"")
    capsys.readouterr()
    assert run(images, mde, tmp_path) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("1 computed, 4 already there")
    assert f"scalefield: {damaged} is damaged" in captured.err


@pytest.mark.parametrize("times", [1, 2])  # whether it is computed, or there already
def test_predict_kind_that_the_estimator_does_not_give_is_refused(images, tmp_path, capsys, times):
    flags = ["predict", str(images), "--mde", "lite", "--cache", str(tmp_path / "cache")]
    for _ in range(times - 1):
        assert main(flags) == 0
    assert main([*flags, "--kind", "disparity"]) == 2
    assert "lite gives depth, and not disparity" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["absent", "--mde", "x/y"], "absent: no such folder"),
        ([".", "--mde", "x/y", "--batch", "0"], "--batch must be 1 or more, found 0"),
        ([".", "--mde", "x/y"], "no images in it"),
    ],
)
def test_predict_errors(tmp_path, monkeypatch, capsys, flags, sentence):
    monkeypatch.chdir(tmp_path)
    assert main(["predict", *flags]) == 2
    assert sentence in capsys.readouterr().err


def test_predict_leaves_files_of_anchors_out(images, mde, tmp_path, capsys):
    Anchors([1], [2], [3.0]).write(images / "0.anchors.png", shape=(32, 20))
    assert run(images, mde, tmp_path) == 0
    assert capsys.readouterr().out.startswith("5 computed, 0 already there, 0 unreadable")
