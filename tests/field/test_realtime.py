"""LiveField against Field on a processor, and its refusals."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from scalefield import Anchors, InputError, MDEOutput
from scalefield.api import recover_from
from scalefield.field.config import InferenceConfig
from scalefield.field.model import load_field
from scalefield.field.network import FieldNet, FieldNetConfig
from scalefield.field.realtime import LiveField
from scalefield.methods.field import Field

SHAPE = (72, 96)


@pytest.fixture(scope="module")
def output() -> MDEOutput:
    v, u = np.indices(SHAPE)
    depth = torch.from_numpy(2 + np.sin(u / 17) + v / 60 + (u > 50)).float()
    image = torch.from_numpy(np.stack([u, v, u + v], axis=-1).astype(np.uint8))
    return MDEOutput(depth, "depth", image=image)


def measured(output: MDEOutput, n: int) -> Anchors:
    rng = np.random.default_rng(n)
    u, v = rng.integers(0, SHAPE[1], n), rng.integers(0, SHAPE[0], n)
    return Anchors(u, v, 2 * output.mde_depth[v, u].double().numpy() * rng.uniform(0.995, 1.005, n))


def call(live: LiveField, output: MDEOutput, anchors: Anchors, **more: torch.Tensor):
    pixels = torch.from_numpy(np.stack([anchors.u, anchors.v], axis=1)).float()
    depth_m = torch.tensor(anchors.depth_m).float()
    return live(output.prediction, pixels, depth_m, image=output.image, **more)


@pytest.mark.parametrize("robust", [False, True])
@pytest.mark.parametrize("n", [1, 12, 90])
def test_live_field_equals_field(output, n, robust) -> None:
    anchors = measured(output, n)
    live = LiveField(SHAPE, max_anchors=n, robust=robust)
    depth_m, std_log = call(live, output, anchors)
    wanted = recover_from(output, anchors, Field(robust=robust))
    # Field sorts its anchors; of two that are equally far from a node either may be a neighbour.
    ties = 1e-5 if n <= InferenceConfig().neighbours else 5e-3
    difference = (depth_m.log() - wanted.depth_m.log()).abs()
    assert float(difference.median()) < 1e-5
    assert float(difference.max()) < ties
    assert float((std_log / wanted.std_log).log().abs().median()) < 1e-4


@pytest.mark.parametrize("kind", ["depth", "disparity"])
def test_live_field_estimates_the_shift_as_field_does(output, kind) -> None:
    anchors = measured(output, 40)
    prediction = output.mde_depth if kind == "depth" else 1 / output.mde_depth
    changed = MDEOutput(7 * prediction - 0.4, kind, affine=True, image=output.image)
    live = LiveField(SHAPE, kind=kind, affine=True, max_anchors=60)
    pixels = torch.from_numpy(np.stack([anchors.u, anchors.v], axis=1)).float()
    measured_m = torch.tensor(anchors.depth_m).float()
    depth_m, std_log = live(changed.prediction, pixels, measured_m, image=output.image)
    wanted = recover_from(changed, anchors, Field())
    assert wanted.report.shift is not None
    difference = (depth_m.log() - wanted.depth_m.log()).abs()
    assert float(difference.median()) < 1e-4
    assert float(difference.max()) < 5e-3
    assert float((std_log / wanted.std_log).log().abs().median()) < 1e-2
    # A known shift would be wrong by more.
    exact = (depth_m / (2 * output.mde_depth)).log().abs()
    assert float(exact.median()) < 0.02


def test_live_field_takes_the_inverse_of_disparity_with_a_known_shift(output) -> None:
    anchors = measured(output, 12)
    live = LiveField(SHAPE, kind="disparity", affine=False, max_anchors=12)
    pixels = torch.from_numpy(np.stack([anchors.u, anchors.v], axis=1)).float()
    measured_m = torch.tensor(anchors.depth_m).float()
    found = live(1 / output.mde_depth, pixels, measured_m, image=output.image)
    wanted = call(LiveField(SHAPE, max_anchors=12), output, anchors)
    torch.testing.assert_close(found.depth_m, wanted.depth_m, rtol=1e-4, atol=0)


def test_live_field_ignores_padding_and_pixels_outside(output) -> None:
    anchors = measured(output, 10)
    exact = call(LiveField(SHAPE, max_anchors=10), output, anchors)
    live = LiveField(SHAPE, max_anchors=64)
    call(live, output, measured(output, 60))  # what is left in the buffers must not count
    padded = call(live, output, anchors)
    assert torch.allclose(exact.depth_m, padded.depth_m, rtol=1e-5)
    beyond = Anchors(
        np.append(anchors.u, 1e4), np.append(anchors.v, 3), np.append(anchors.depth_m, 9.0)
    )
    outside = call(live, output, beyond)
    assert torch.allclose(exact.depth_m, outside.depth_m, rtol=1e-5)


def test_live_field_without_anchors_is_nan(output) -> None:
    depth_m, std_log = call(LiveField(SHAPE, max_anchors=5), output, Anchors([], [], []))
    assert bool(depth_m.isnan().all() and std_log.isnan().all())


def test_live_field_sigma_m_sets_the_noise(output) -> None:
    anchors, sigma_m = measured(output, 8), np.geomspace(0.01, 2, 8)
    live = LiveField(SHAPE, max_anchors=8, robust=False)
    without = call(live, output, anchors).depth_m.clone()
    depth_m, std_log = call(live, output, anchors, sigma_m=torch.tensor(sigma_m).float())
    noisy = Anchors(anchors.u, anchors.v, anchors.depth_m, sigma_m)
    wanted = recover_from(output, noisy, Field(robust=False))
    assert torch.allclose(depth_m.log(), wanted.depth_m.log(), atol=1e-5)
    # At an anchor's own pixel a small variance is the difference of two in float32.
    assert torch.allclose(std_log, wanted.std_log, rtol=1e-3)
    assert float((depth_m / without).log().abs().max()) > 1e-3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"max_anchors": 0}, "must be positive"),
        ({"device": "nowhere"}, "cannot be used"),
    ],
)
def test_live_field_refuses_settings(change, sentence) -> None:
    with pytest.raises(InputError, match=sentence):
        LiveField(SHAPE, **change)


def test_live_field_refuses_a_model_for_features() -> None:
    net = FieldNet(FieldNetConfig(feature_channels=4, width=8, dilations=(1,)))
    with pytest.raises(InputError, match="without features"):
        LiveField(SHAPE, model=dataclasses.replace(load_field("field"), net=net))


def test_live_field_refuses_wrong_shapes(output) -> None:
    live = LiveField(SHAPE, max_anchors=3)
    depth, pixels, depth_m = output.mde_depth, torch.zeros(2, 2), torch.ones(2)
    with pytest.raises(InputError, match=r"shape \(72, 96\) wanted"):
        live(depth[:-1], pixels, depth_m, image=output.image)
    with pytest.raises(InputError, match=r"pixels of shape \(n, 2\)"):
        live(depth, torch.zeros(3, 2), depth_m, image=output.image)
    with pytest.raises(InputError, match="at most 3"):
        live(depth, torch.zeros(4, 2), torch.ones(4), image=output.image)
    with pytest.raises(InputError, match="an image wanted"):
        live(depth, pixels, depth_m)


def test_live_field_leaves_out_what_is_not_finite(output) -> None:
    """A hole of the prediction is a hole of the depth; NaN noise is that of an anchor without."""
    anchors = measured(output, 12)
    prediction = output.mde_depth.clone()
    prediction[5, 7] = torch.nan
    live = LiveField(SHAPE, max_anchors=12)
    holed = MDEOutput(prediction, "depth", image=output.image)
    sigma_m = torch.where(torch.arange(12) == 3, torch.nan, 0.01)
    depth_m, std_log = call(live, holed, anchors, sigma_m=sigma_m)
    assert depth_m.isnan().nonzero().tolist() == [[5, 7]]
    assert std_log.isnan().nonzero().tolist() == [[5, 7]]
    given = Anchors(anchors.u, anchors.v, anchors.depth_m, sigma_m.numpy())
    wanted = recover_from(holed, given, Field())
    known = ~depth_m.isnan()
    torch.testing.assert_close(depth_m[known], wanted.depth_m[known], rtol=1e-4, atol=0)


def test_live_field_does_not_depend_on_the_room_for_anchors(output) -> None:
    anchors = measured(output, 60)
    few, many = (call(LiveField(SHAPE, max_anchors=m), output, anchors) for m in (60, 5000))
    assert torch.equal(few.depth_m, many.depth_m)
    assert torch.equal(few.std_log, many.std_log)


WAITS = {
    *("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "bincount"),
    *("_unique2", "unique_dim", "unique_consecutive", "repeat_interleave"),
}
"""Operations whose result or size a GPU would have to tell the host."""


class HostWaits(TorchDispatchMode):
    """Names of these operations, and of an index by a mask, where they are called."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        if name in WAITS or any(i is not None and i.dtype == torch.bool for i in indices):
            self.found.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("n", [3, 12, 200])
def test_what_a_graph_captures_never_waits_for_the_host(n, affine) -> None:
    """As on a GPU, with every shape independent of the measurements."""
    live = LiveField((30, 40), affine=affine, max_anchors=n)
    live.static = True
    rng = torch.Generator().manual_seed(0)
    live.inputs.prediction.copy_(1 + torch.rand(30, 40, generator=rng))
    live.inputs.pixels.copy_(30 * torch.rand(n, 2, generator=rng))
    live.inputs.depth_m.copy_(2 + torch.rand(n, generator=rng))
    live.inputs.depth_m[0] = 20.0
    live.run()
    with HostWaits() as waits:
        found = live.run()
    assert waits.found == []
    assert bool(found.depth_m.isfinite().all())
    live.static = False
    with HostWaits() as waits:
        live.run()
    assert waits.found  # that they are counted
