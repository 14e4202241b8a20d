"""Live: what `basis` recovers, at a camera's rate."""

import numpy as np
import pytest
import torch

from scalefield.anchors import Anchors
from scalefield.basis.generator import Generator, GeneratorConfig
from scalefield.basis.pretrained import load_generator
from scalefield.basis.realtime import Inputs, Live, metric_depth
from scalefield.errors import InputError
from scalefield.mde.output import MDEOutput
from scalefield.methods.basis import Basis

SHAPE = (60, 80)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU"
))]  # fmt: skip


def generator(features: int = 0) -> Generator:
    torch.manual_seed(0)
    config = GeneratorConfig(k=5, feature_channels=features, width=16, dilations=(1, 2))
    return Generator(config).eval().requires_grad_(False)


def scene(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Relative depth, and anchors that double it, more or less."""
    rng = np.random.default_rng(seed)
    v, u = np.mgrid[0 : SHAPE[0], 0 : SHAPE[1]]
    mde_depth = torch.from_numpy(1 + u / 40 + np.sin(v / 9)).float()
    pixels = torch.from_numpy(rng.uniform(-0.4, (SHAPE[1] - 0.6, SHAPE[0] - 0.6), (n, 2))).float()
    column, row = (pixels + 0.5).floor().long().unbind(1)
    depth_m = 2 * mde_depth[row, column] * torch.from_numpy(rng.uniform(0.8, 1.2, n)).float()
    return mde_depth.clamp(min=0.1), pixels, depth_m


def recovered(net: Generator, n: int, features: torch.Tensor | None = None) -> torch.Tensor:
    """The same result through `recover`."""
    mde_depth, pixels, depth_m = scene(n)
    anchors = Anchors(*(x.double().numpy() for x in (*pixels.unbind(1), depth_m)))
    return Basis(net)(MDEOutput(mde_depth, "depth", features=features), anchors).depth_m


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [1, 7, 40])
def test_live_is_basis(device: str, n: int) -> None:
    live = Live(generator(), SHAPE, anchors=40, device=device)
    mde_depth, pixels, depth_m = (x[None].to(device) for x in scene(n))
    found = live(mde_depth, pixels, depth_m).cpu()
    torch.testing.assert_close(found[0], recovered(generator(), n), rtol=1e-4, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_every_call_forgets_the_one_before(device: str) -> None:
    live = Live(generator(), SHAPE, anchors=40, device=device)
    many, few = ([x[None].to(device) for x in scene(n)] for n in (40, 3))
    first = live(*few).clone()
    assert not torch.equal(live(*many), first)
    assert torch.equal(live(*few), first)


@pytest.mark.parametrize("device", DEVICES)
def test_anchors_that_say_nothing_count_for_nothing(device: str) -> None:
    mde_depth, pixels, depth_m = (x[None].to(device) for x in scene(12))
    plain = metric_depth(generator().to(device), Inputs(mde_depth, pixels, depth_m))
    odd = torch.tensor([[[-5.0, 3.0], [3.0, 1e9], [torch.nan, 2.0], [4.0, 4.0], [5.0, 5.0]]])
    wrong = torch.tensor([[1.0, 1.0, 1.0, -2.0, torch.inf]])
    more = Inputs(
        mde_depth, torch.cat([pixels, odd.to(device)], 1), torch.cat([depth_m, wrong.to(device)], 1)
    )
    torch.testing.assert_close(metric_depth(generator().to(device), more), plain)


def test_an_image_without_anchors_is_nan_and_leaves_the_others_alone() -> None:
    mde_depth, pixels, depth_m = (x[None].expand(2, *x.shape) for x in scene(9))
    depth_m = torch.stack([depth_m[0], torch.zeros(9)])
    found = metric_depth(generator(), Inputs(mde_depth, pixels, depth_m))
    assert found[1].isnan().all()
    torch.testing.assert_close(found[0], recovered(generator(), 9), rtol=1e-4, atol=0)


def test_features_are_heard() -> None:
    net = generator(features=6)
    features = torch.randn(6, 15, 20)
    live = Live(net, SHAPE, features=(6, 15, 20))
    mde_depth, pixels, depth_m = (x[None] for x in scene(30))
    found = live(mde_depth, pixels, depth_m, features[None])
    wanted = recovered(net, 30, features)
    torch.testing.assert_close(found[0], wanted, rtol=1e-4, atol=0)
    others = live(mde_depth, pixels, depth_m, torch.randn(1, 6, 15, 20))
    assert not torch.allclose(others[0], wanted, rtol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "near"), [(torch.float16, 0.005), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("k", [8, 50])
def test_half_precision_is_near(k: int, dtype: torch.dtype, near: float, device: str) -> None:
    mde_depth, pixels, depth_m = (x[None].to(device) for x in scene(40))
    net = load_generator(f"basis-depth-k{k}")
    exact = Live(net, SHAPE, device=device)(mde_depth, pixels, depth_m)
    half = Live(net, SHAPE, device=device, dtype=dtype)(mde_depth, pixels, depth_m)
    assert half.dtype == torch.float32
    assert (half / exact).log().abs().max() < near
    assert net.basis_head.weight.dtype == torch.float32


def test_what_does_not_fit_is_refused() -> None:
    live = Live(generator(), SHAPE, anchors=5)
    mde_depth, pixels, depth_m = (x[None] for x in scene(6))
    with pytest.raises(InputError, match="6 anchors given, more than the 5"):
        live(mde_depth, pixels, depth_m)
    with pytest.raises(InputError, match=r"made for relative depth of shape \(1, 60, 80\)"):
        live(mde_depth[:, :50], pixels[:, :5], depth_m[:, :5])
    with pytest.raises(InputError, match=r"pixels of shape \(1, n, 2\) and depth_m of \(1, n\)"):
        live(mde_depth, pixels[:, :4], depth_m[:, :5])
    with pytest.raises(InputError, match="trained with features of 6 channels"):
        Live(generator(features=6), SHAPE)
    with pytest.raises(InputError, match=r"features of shape \(1, 6, 15, 20\) wanted, found None"):
        Live(generator(features=6), SHAPE, features=(6, 15, 20))(mde_depth, pixels, depth_m)
    with pytest.raises(InputError, match="must be positive"):
        Live(generator(), SHAPE, anchors=0)
    with pytest.raises(InputError, match=r"must be a floating type, found torch\.int32"):
        Live(generator(), SHAPE, dtype=torch.int32)
    with pytest.raises(InputError, match="device 'cuda:99' cannot be used here"):
        Live(generator(), SHAPE, device="cuda:99")


def test_a_shipped_generator_is_found_by_name() -> None:
    live = Live("basis-depth-k8", SHAPE)
    mde_depth, pixels, depth_m = (x[None] for x in scene(20))
    assert live(mde_depth, pixels, depth_m).isfinite().all()


def test_large_images_are_counted_whole() -> None:
    """Beyond 2²⁴ pixels float32 has no odd numbers; anchors on them must find their own pixel."""
    shape = (3, 6_000_001)
    mde_depth = torch.ones(1, *shape)
    mde_depth[0, 2, 5_999_999] = 4.0  # the 18,000,001st from zero
    pixels = torch.tensor([[[5_999_999.0, 2.0]]])
    found = metric_depth(generator(), Inputs(mde_depth, pixels, torch.tensor([[8.0]])))
    assert float(found[0, 2, 5_999_999]) == pytest.approx(8.0, rel=1e-4)
