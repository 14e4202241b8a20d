"""Results on a GPU equal those on a CPU within the tolerances of docs/reliability.md."""

import dataclasses
import os

import numpy as np
import pytest
import torch

from scalefield.anchors import Anchors
from scalefield.api import recover_from
from scalefield.field.kalman import FieldFilter
from scalefield.field.placement import suggest_from
from scalefield.mde.lite import load_lite
from scalefield.mde.output import MDEOutput
from scalefield.methods import METHODS
from scalefield.methods.field import Field
from scalefield.recovery import Recovery

DEVICE = os.environ.get("SCALEFIELD_DEVICE", "cuda")
"""The device that is held against the processor."""
if DEVICE == "cuda" and not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
TOLERANCE = {"field": 5e-3, "basis": 1e-3, "region": 1e-3}
"""Of log-depth, at the worst pixel; 10⁻⁴ for all others."""
SHAPE = (120, 160)


def output(device: str, kind: str = "depth") -> MDEOutput:
    """A map with an edge, a hole, and an image."""
    v, u = np.indices(SHAPE)
    relative = 2 + np.sin(u / 17) + v / 60 + (u > 90)
    relative[50:54, 20:25] = np.nan
    image = np.stack([u % 256, v % 256, (u + v) % 256], axis=-1).astype(np.uint8)
    prediction = relative if kind == "depth" else 1 / relative
    return MDEOutput(
        torch.from_numpy(prediction).float().to(device), kind, image=torch.from_numpy(image)
    )


def anchors(n: int, wrong: float = 0.1) -> Anchors:
    """Most of them twice as deep as the map, some wrong."""
    rng = np.random.default_rng(n)
    u, v = rng.integers(30, SHAPE[1], n), rng.integers(0, SHAPE[0], n)
    depth_m = 2 * output("cpu").mde_depth[v, u].double().numpy() * rng.uniform(0.95, 1.05, n)
    depth_m[rng.random(n) < wrong] *= 4
    return Anchors(u, v, depth_m)


def differ(a: Recovery, b: Recovery) -> float:
    """The largest difference of log-depth; NaN lies where it lay, and the report is the same."""
    first, second = (torch.as_tensor(r.depth_m).cpu().double().log() for r in (a, b))
    assert torch.equal(first.isnan(), second.isnan())
    assert a.report.rejected == b.report.rejected
    return float((first - second).abs().nan_to_num().max())


@pytest.mark.parametrize("kind", ["depth", "disparity"])
@pytest.mark.parametrize("n", [1, 12, 300])
@pytest.mark.parametrize("name", METHODS)
def test_gpu_methods_equal_those_on_the_cpu(name: str, n: int, kind: str) -> None:
    method = METHODS[name](**({"superpixels": 20} if name == "region" else {}))
    on_gpu, on_cpu = (recover_from(output(d, kind), anchors(n), method) for d in (DEVICE, "cpu"))
    assert differ(on_gpu, on_cpu) < TOLERANCE.get(name, 1e-4)
    if on_cpu.std_log is not None:
        theirs, ours = (torch.as_tensor(r.std_log).cpu() for r in (on_gpu, on_cpu))
        torch.testing.assert_close(theirs, ours, rtol=0.02, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("n", [0, 2500])
def test_gpu_field_without_anchors_and_with_thousands(n: int) -> None:
    method = Field(robust=False)
    on_gpu, on_cpu = (recover_from(output(d), anchors(n, 0), method) for d in (DEVICE, "cpu"))
    assert differ(on_gpu, on_cpu) < TOLERANCE["field"]
    assert on_gpu.report.fallbacks == on_cpu.report.fallbacks


def test_gpu_field_rejects_nearly_the_same_of_thousands_of_anchors() -> None:
    """A few of thousands of anchors are near the limit between inlier and outlier, where the last
    digit decides."""
    on_gpu, on_cpu = (
        {r.anchor for r in recover_from(output(d), anchors(2500), Field()).report.rejected}
        for d in (DEVICE, "cpu")
    )
    assert len(on_gpu & on_cpu) > 200
    assert len(on_gpu ^ on_cpu) < 0.05 * len(on_cpu)


def test_gpu_decomposition_influence_and_suggestions_equal_those_on_the_cpu() -> None:
    on_gpu, on_cpu = (Field().decompose(output(d), anchors(40)) for d in (DEVICE, "cpu"))
    for name, part in on_cpu.parts.items():
        torch.testing.assert_close(on_gpu.parts[name].cpu(), part.cpu(), rtol=0, atol=2e-3)
    theirs, ours = (Field().influence(output(d), anchors(40), 80, 60) for d in (DEVICE, "cpu"))
    np.testing.assert_allclose(theirs, ours, atol=1e-4)
    theirs, ours = (suggest_from(output(d), anchors(5), 3) for d in (DEVICE, "cpu"))
    assert [(s.u, s.v) for s in theirs] == [(s.u, s.v) for s in ours]


def test_gpu_stream_equals_that_on_the_cpu() -> None:
    streams = [(FieldFilter(), DEVICE), (FieldFilter(), "cpu")]
    for n in (8, 0, 5):
        on_gpu, on_cpu = (stream(output(d), anchors(n)) for stream, d in streams)
        assert differ(on_gpu, on_cpu) < TOLERANCE["field"]


def test_gpu_estimator_equals_that_on_the_cpu() -> None:
    image = output("cpu").image.numpy()
    on_gpu, on_cpu = (load_lite(device=d)(image).mde_depth.cpu() for d in (DEVICE, "cpu"))
    assert (on_gpu / on_cpu).log().abs().max() < 0.02  # convolutions in TF32, where allowed


def test_gpu_result_stays_on_the_device() -> None:
    made = Field()(output(DEVICE), anchors(12))
    fields = {f.name: getattr(made, f.name) for f in dataclasses.fields(made)}
    for name, value in fields.items():
        if isinstance(value, torch.Tensor):
            assert value.device.type == torch.device(DEVICE).type, name
