import numpy as np
import pytest
import torch

import scalefield as sf
from scalefield.inputs import from_array
from scalefield.methods.bilateral_grid import BilateralGrid, Grid3, huber_line

RNG = np.random.default_rng(3)


def test_huber_line_recovers_the_line_of_the_majority():
    x = RNG.uniform(0, 2, 40)
    y = 0.4 + 1.3 * x + 0.01 * RNG.normal(size=40)
    y[:6] += 3.0
    alpha, beta, fitted = huber_line(x, y, np.ones(40))
    assert fitted
    assert (alpha, beta) == pytest.approx((0.4, 1.3), abs=0.02)


@pytest.mark.parametrize(
    ("x", "y"), [([1.0], [3.0]), ([1.0] * 4, [3.0] * 4), ([0.0, 1.0, 2.0], [2.0, 1.0, 0.0])]
)
def test_huber_line_keeps_a_slope_of_one_without_a_rising_line(x, y):
    alpha, beta, fitted = huber_line(np.array(x), np.array(y), np.ones(len(x)))
    assert not fitted
    assert (alpha, beta) == (pytest.approx(np.mean(y) - np.mean(x)), 1.0)


def test_grid3_slice_agrees_with_its_weights():
    values = RNG.normal(size=(14, 22)).cumsum(axis=1)
    grid = Grid3.of(values, cell=0.2, level=0.5)
    nodes = RNG.normal(size=int(np.prod(grid.shape)))
    rows, columns = (index.ravel() for index in np.indices(values.shape))
    weights = grid.weights(rows, columns)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    np.testing.assert_allclose(weights @ nodes, grid.slice(nodes).ravel(), atol=1e-12)


def test_bilateral_grid_reproduces_a_power_of_the_map():
    depth = RNG.uniform(1, 4, (12, 16))
    u, v = RNG.integers(0, 16, 9), RNG.integers(0, 12, 9)
    found = BilateralGrid()(from_array(depth, "depth"), sf.Anchors(u, v, 2 * depth[v, u] ** 1.2))
    np.testing.assert_allclose(found.depth_m.numpy(), 2 * depth**1.2, rtol=1e-5)


def test_bilateral_grid_equals_dense_least_squares():
    depth = np.linspace(1, 4, 12 * 16).reshape(12, 16)
    u, v = np.arange(0, 16, 2), np.arange(8) % 6 * 2
    targets = 0.2 * np.sin(np.arange(8))
    method = BilateralGrid(cell=0.5, level=0.7, smoothness=0.3, check=1e9)
    anchors = sf.Anchors(u, v, depth[v, u] * np.exp(targets))
    found = method(from_array(depth, "depth"), anchors).depth_m.log().double().numpy()
    alpha, beta, _ = huber_line(np.log(depth[v, u]), np.log(anchors.depth_m), np.ones(8))
    base = alpha + beta * np.log(depth)
    grid = Grid3.of(base, 0.5, 0.7)
    design = grid.weights(v, u).toarray()
    nodes = np.arange(design.shape[1]).reshape(grid.shape)
    edges = [
        np.eye(design.shape[1])[b.ravel()] - np.eye(design.shape[1])[a.ravel()]
        for axis in range(3)
        for a, b in [
            (nodes.take(range(n - 1), axis), nodes.take(range(1, n), axis))
            for n in [grid.shape[axis]]
        ]
    ]
    rows = [design, *(0.3**0.5 * each for each in edges), 1e-3 * np.eye(design.shape[1])]
    wanted = np.zeros(sum(map(len, rows)))
    wanted[:8] = np.log(anchors.depth_m) - base[v, u]
    theta = np.linalg.lstsq(np.concatenate(rows), wanted, rcond=None)[0]
    np.testing.assert_allclose(found, base + grid.slice(theta), atol=1e-6)


def test_bilateral_grid_rejects_an_anchor_that_the_others_contradict():
    depth = 2 + np.indices((30, 40)).sum(axis=0) / 40
    u, v = RNG.integers(0, 40, 25), RNG.integers(0, 30, 25)
    depth_m = 3 * depth[v, u] * np.exp(0.005 * RNG.normal(size=25))
    depth_m[7] *= 4
    recovery = BilateralGrid()(from_array(depth, "depth"), sf.Anchors(u, v, depth_m))
    assert 7 in [rejection.anchor for rejection in recovery.report.rejected]
    assert torch.allclose(recovery.depth_m, torch.tensor(3 * depth).float(), rtol=0.03)


def test_bilateral_grid_aligns_affine_invariant_disparity_first():
    depth = RNG.uniform(1, 4, (12, 16))
    u, v = RNG.integers(0, 16, 9), RNG.integers(0, 12, 9)
    mde_output = from_array(0.7 / depth + 0.3, "disparity")
    found = BilateralGrid()(mde_output, sf.Anchors(u, v, depth[v, u])).depth_m
    np.testing.assert_allclose(found.numpy(), depth, rtol=1e-5)


@pytest.mark.parametrize("option", ["cell", "level", "smoothness", "check"])
def test_bilateral_grid_refuses_options(option):
    with pytest.raises(sf.InputError, match=option):
        BilateralGrid(**{option: 0.0})
