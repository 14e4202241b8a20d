"""The exported generator against torch, through the consumer that users are shown."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from scalefield import Anchors, MDEOutput
from scalefield.api import recover_from
from scalefield.basis.generator import Generator, GeneratorConfig
from scalefield.basis.pretrained import load_generator
from scalefield.cli import main
from scalefield.export.onnx import OPSET, export_onnx
from scalefield.field.image_inputs import ChannelLayout
from scalefield.field.model import load_field
from scalefield.field.network import FieldNet
from scalefield.methods.basis import Basis

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_consumer.py"
NAMES = ("basis-depth-k8", "with-features")
CHANNELS = 64
"""Channels of F of the networks that use them; none of those that ship does."""


@pytest.fixture(scope="module")
def networks(tmp_path_factory) -> dict[str, str]:
    """What each network is loaded by: a shipped name, or the folder of a random one with F."""
    folder = tmp_path_factory.mktemp("networks")
    torch.manual_seed(0)
    generator = Generator(GeneratorConfig(k=8, feature_channels=CHANNELS))
    generator.save(folder / "generator")
    field = load_field("field")
    net = FieldNet(replace(field.net.config, feature_channels=CHANNELS)).eval()
    replace(field, net=net).save(folder / "field")
    return {
        "basis-depth-k8": "basis-depth-k8", "with-features": str(folder / "generator"),
        "field": "field", "field-with-features": str(folder / "field"),
    }  # fmt: skip


@pytest.fixture(scope="module")
def consumer() -> dict:
    scope: dict = {"__name__": "onnx_consumer"}
    exec(compile(EXAMPLE.read_text(), EXAMPLE, "exec"), scope)
    return scope


@pytest.fixture(scope="module")
def exported(networks, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("onnx")
    for name in NAMES:
        assert main(["export", networks[name], "--out", str(folder / f"{name}.onnx")]) == 0
    return folder


@pytest.fixture(scope="module")
def sessions(exported) -> dict:
    return {name: onnxruntime.InferenceSession(exported / f"{name}.onnx") for name in NAMES}


def world(shape: tuple[int, int], features: tuple[int, int], seed: int) -> tuple:
    """A smooth relative depth with features, and anchors that disagree with it smoothly."""
    rng = np.random.default_rng(seed)
    v, u = np.indices(shape) / max(shape)
    mde_depth = 1 + u + np.sin(7 * v * u) ** 2 + 0.01 * rng.random(shape)
    f = rng.normal(size=(CHANNELS, *features)).astype(np.float32)
    rows, columns = rng.integers(0, shape[0], 12), rng.integers(0, shape[1], 12)
    depth_m = 3 * mde_depth[rows, columns] * np.exp(0.3 * rng.normal(size=12))
    return mde_depth, f, columns, rows, depth_m


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("shape", "features"),
    [((240, 320), (96, 128)), ((375, 1242), (12, 39)), ((90, 61), (90, 61)), ((64, 500), (30, 40))],
    ids=str,
)
def test_basis_onnxruntime_and_numpy_equal_torch(
    networks, sessions, consumer, name, shape, features
):
    mde_depth, f, u, v, depth_m = world(shape, features, seed=sum(shape))
    output = MDEOutput(torch.from_numpy(mde_depth).float(), "depth", torch.from_numpy(f))
    anchors = Anchors(u, v, depth_m)
    ours = recover_from(output, anchors, Basis(load_generator(networks[name]))).numpy().depth_m
    single = mde_depth.astype(np.float32).astype(np.float64)
    theirs = consumer["recover"](sessions[name], single, u, v, depth_m, features=f)
    np.testing.assert_allclose(theirs, ours, rtol=1e-4)
    assert np.std(np.log(theirs / mde_depth)) > 0.01  # more than a factor was recovered


def test_onnx_export_resampling_matrices_are_torchs(consumer):
    rng = np.random.default_rng(0)
    for old, new in ((17, 5), (320, 160), (5, 17), (6, 6), (7, 1)):
        x = rng.normal(size=(1, 1, old))
        for average, mode in ((True, "area"), (False, "linear")):
            how = {} if average else {"align_corners": False}
            expected = torch.nn.functional.interpolate(
                torch.from_numpy(x), size=new, mode=mode, **how
            )
            found = consumer["resampling"](old, new, average) @ x[0, 0]
            np.testing.assert_allclose(found, expected[0, 0], atol=1e-12)


def test_export_onnx_file_says_all_a_consumer_needs(sessions, tmp_path):
    import onnx

    printed = sessions["with-features"].get_modelmeta().custom_metadata_map
    assert printed["scalefield:feature_channels"] == str(CHANNELS)
    assert printed["scalefield:cells"] == "160"
    assert float(printed["scalefield:ridge"]) == 1e-3
    inputs = {i.name: i.shape for i in sessions["basis-depth-k8"].get_inputs()}
    assert list(inputs) == ["log_depth"]
    assert [isinstance(size, str) for size in inputs["log_depth"]] == [True, False, True, True]
    fresh = Generator(GeneratorConfig(k=3, width=16, dilations=(1,))).eval()  # no features at all
    export_onnx(fresh, tmp_path / "fresh.onnx")
    model = onnx.load(tmp_path / "fresh.onnx")
    assert model.opset_import[0].version == OPSET
    session = onnxruntime.InferenceSession(tmp_path / "fresh.onnx")
    log_depth = torch.randn(3, 1, 20, 27)
    (maps,) = session.run(["basis_maps"], {"log_depth": log_depth.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(maps, fresh(None, log_depth).basis_maps, atol=1e-4)


def test_basis_consumer_runs_as_a_program_without_torch(exported, tmp_path):
    mde_depth, _, u, v, depth_m = world((48, 64), (2, 2), seed=1)
    np.save(tmp_path / "relative.npy", mde_depth)
    anchors = Anchors(u, v, depth_m)
    anchors.write(tmp_path / "anchors.csv")
    code = (
        "import runpy, sys; sys.modules['torch'] = None; "
        f"runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    )
    names = [str(tmp_path / n) for n in ("relative.npy", "anchors.csv", "out.npy")]
    model = str(exported / "basis-depth-k8.onnx")
    subprocess.run([sys.executable, "-c", code, model, *names], check=True)
    output = MDEOutput(torch.from_numpy(mde_depth).float(), "depth")
    ours = recover_from(output, anchors, Basis("basis-depth-k8")).numpy().depth_m
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), ours, rtol=1e-4)


@pytest.mark.parametrize("name", ["field", "field-with-features"])
def test_export_field_onnx_equals_torch(tmp_path, networks, name, consumer, capsys):
    path = tmp_path / "field.onnx"
    assert main(["export", networks[name], "--out", str(path)]) == 0
    assert "the kernel's inputs" in capsys.readouterr().out
    model = load_field(networks[name])
    session = onnxruntime.InferenceSession(path)
    message = session.get_modelmeta().custom_metadata_map
    layout = ChannelLayout(**json.loads(message["scalefield:layout"]))
    channels = int(message["scalefield:feature_channels"])
    assert channels == model.net.config.feature_channels
    assert json.loads(message["scalefield:model"])["std_scale"] == model.std_scale
    assert len(json.loads(message["scalefield:kernel"])["terms"]) == layout.terms
    for batch, shape, grid in ((1, (120, 160), (96, 128)), (3, (50, 160), (12, 39))):
        torch.manual_seed(batch)
        log_depth = torch.randn(batch, 1, *shape).cumsum(dim=3) / 10
        image = torch.rand(batch, 3, *shape) * 2 - 1
        image[0] = torch.nan  # no image
        inputs = {"log_depth": log_depth, "image": image}
        features = torch.randn(batch, channels, *grid) if channels else None
        if features is not None:
            average = grid[0] >= shape[0] and grid[1] >= shape[1]
            inputs["features"] = features
            for axis, (old, new) in zip(
                ("rows", "columns"), zip(grid, shape, strict=True), strict=True
            ):
                inputs[axis] = torch.from_numpy(consumer["resampling"](old, new, average)).float()
        maps, expected = session.run(
            ["maps", "expected_log_depth"], {key: value.numpy() for key, value in inputs.items()}
        )
        with torch.no_grad():
            wanted = model.net(log_depth, image, features)
        assert maps.shape[1] == layout.total
        np.testing.assert_allclose(maps, wanted.maps, atol=2e-4)
        np.testing.assert_allclose(expected, wanted.expected_log_depth, atol=1e-4)


def test_torch_compile_takes_the_generator_whole():
    # In a process of its own: here annotations are checked, which dynamo cannot trace.
    code = """
import torch
from scalefield.basis.pretrained import load_generator
generator = load_generator("basis-depth-k8")
compiled = torch.compile(generator, fullgraph=True, backend="eager")
log_depth = torch.randn(1, 1, 30, 40)
torch.testing.assert_close(compiled(None, log_depth), generator(None, log_depth))
print("equal")
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "equal"
