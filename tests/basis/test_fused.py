"""The generator's GPU kernels against torch; without a GPU Triton interprets them."""

import os

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from scalefield.basis.generator import Generator, GeneratorConfig
from scalefield.basis.grids import grid_log_depth
from scalefield.basis.realtime import Inputs, fused_steps, metric_depth, torch_steps
from scalefield.runtime.devices import full_precision

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are imported
pytest.importorskip("triton", reason="needs Triton")
fused = pytest.importorskip("scalefield.basis.fused")


def generator(**config) -> Generator:
    """One whose every number matters."""
    torch.manual_seed(0)
    sizes = {"feature_width": 10, "width": 16, "dilations": (1, 4), "cells": 17}
    net = Generator(GeneratorConfig(**{**sizes, **config})).eval().requires_grad_(False)
    for parameter in net.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return net.to(DEVICE)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize(
    ("config", "features"),
    [
        ({"k": 5}, None),
        ({"k": 8, "feature_channels": 6}, (30, 40)),  # finer than the grid: averaged
        ({"k": 3, "feature_channels": 6, "width": 24}, (6, 9)),  # coarser: interpolated
        ({"k": 4, "feature_channels": 6}, (30, 9)),  # each along one side
        ({"k": 20, "feature_channels": 6, "zero_features": True}, (30, 40)),
        ({"k": 2, "feature_channels": 6}, None),
        ({"k": 2, "feature_channels": 150}, (12, 18)),  # more than one product takes
    ],
)
def test_full_precision_same_maps_as_torch(config: dict, features: tuple[int, int] | None) -> None:
    net = generator(**config)
    depth = random(2, 24, 37).exp()
    f = None if features is None else 1 + random(2, config["feature_channels"], *features)
    with full_precision():
        found = fused.FusedGenerator(net)(f, depth)
        wanted = torch_steps(net).basis_maps(f, depth)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_grid_log_depth_half_precision_is_as_near_as_torch() -> None:
    exact = generator(k=8, feature_channels=6)
    depth, f = random(2, 24, 37).exp(), 1 + random(2, 6, 30, 40)
    wanted = exact(f, grid_log_depth(depth, 17)).basis_maps
    half = generator(k=8, feature_channels=6).to(torch.float16)
    found = fused.FusedGenerator(half)(f, depth)
    theirs = half(f.half(), grid_log_depth(depth, 17).half()).basis_maps.float()
    assert (found - wanted).abs().max() < 2 * (theirs - wanted).abs().max() + 1e-4


def test_fused_map_of_one_value_has_a_norm() -> None:
    """Whose variance must not be rounded below zero."""
    net = generator(k=3, feature_channels=6)
    found = fused.FusedGenerator(net)(
        torch.full((1, 6, 30, 40), 300.7, device=DEVICE), torch.ones(1, 24, 37, device=DEVICE)
    )
    assert found.isfinite().all()


def test_fused_same_bytes_again() -> None:
    net, depth = fused.FusedGenerator(generator(k=5)), random(1, 24, 37).exp()
    assert torch.equal(net(None, depth), net(None, depth))


def test_fused_image_does_not_depend_on_its_neighbours() -> None:
    net, depth = fused.FusedGenerator(generator(k=5)), random(3, 24, 37).exp()
    alone = torch.cat([net(None, image[None]) for image in depth])
    torch.testing.assert_close(net(None, depth), alone, rtol=1e-5, atol=1e-6)


@hypothesis.settings(max_examples=25)
@hypothesis.given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40)
)
def test_fused_median(values: list[float]) -> None:
    rows = torch.tensor(values, device=DEVICE)[None, :, None]
    assert torch.equal(fused.median(rows), rows.flatten(1).median(dim=1).values)


def test_fused_norms_of_any_part() -> None:
    """More pixels than a program sums at a time, and channels that fill no power of two."""
    x, bias, residual = random(2, 19, 31, 24), random(24, seed=1), random(2, 19, 31, 24, seed=2)
    norm = torch.nn.GroupNorm(3, 24, device=DEVICE).requires_grad_(False)
    norm.weight += random(24, seed=3) / 9
    kept, sums = fused.add_and_sum(x, bias, residual, keep=True)
    torch.testing.assert_close(kept, x + bias + residual, rtol=1e-5, atol=1e-5)
    found = fused.activate(kept, None, fused.normed(norm, sums), 3)
    wanted = torch.nn.functional.gelu(norm((x + bias + residual).permute(0, 3, 1, 2)))
    wanted = torch.nn.functional.pad(wanted, (3, 3, 3, 3), mode="replicate")
    torch.testing.assert_close(found.permute(0, 3, 1, 2), wanted, rtol=1e-4, atol=1e-5)


def test_fused_coarse_beside_fine() -> None:
    coarse, fine = random(2, 5, 7, 16), random(2, 12, 15, 8)
    maps = fused.lay_beside(coarse, fine)
    torch.testing.assert_close(maps[..., 16:], fine, rtol=0, atol=0)
    grown = torch.nn.functional.interpolate(
        coarse.permute(0, 3, 1, 2), (10, 13), mode="bilinear", align_corners=False
    )
    grown = torch.nn.functional.pad(grown, (1, 1, 1, 1), mode="replicate")
    torch.testing.assert_close(maps[..., :16].permute(0, 3, 1, 2), grown, rtol=1e-4, atol=1e-5)


def test_torch_steps_apply() -> None:
    depth, log_scale = random(2, 31, 40).exp(), random(2, 7, 9, seed=1)
    log_scale[1] = torch.nan  # no anchor, no depth
    wanted = torch_steps(generator(k=5)).apply(depth, log_scale)
    torch.testing.assert_close(fused.apply(depth, log_scale), wanted, equal_nan=True)


def test_metric_depth_by_these_steps() -> None:
    net = generator(k=5, feature_channels=6)
    inputs = Inputs(
        random(2, 24, 37).exp(),
        20 * random(2, 9, 2, seed=1).abs(),
        random(2, 9, seed=2).exp(),
        random(2, 6, 30, 40, seed=3),
    )
    with full_precision():
        found = metric_depth(net, inputs, fused_steps(net))
        wanted = metric_depth(net, inputs, torch_steps(net))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=0)
    assert isinstance(fused_steps(net).basis_maps, fused.FusedGenerator)


def test_fused_steps_torch_does_what_triton_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = generator(k=5, width=20)  # no groups of eight
    assert not isinstance(fused_steps(odd).basis_maps, fused.FusedGenerator)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("Failed to find C compiler. Please specify via CC.")

    monkeypatch.setattr(fused, "launch", fail)
    with pytest.warns(UserWarning, match="Triton does not work here .*C compiler"):
        steps = fused_steps(generator(k=5))
    assert not isinstance(steps.basis_maps, fused.FusedGenerator)
