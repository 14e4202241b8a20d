import numpy as np
import pytest
import torch

import scalefield as sf
from scalefield.inputs import from_array
from scalefield.methods.poisson import Poisson, solve_screened

RNG = np.random.default_rng(2)


def dense_solution(base, anchors, weight, limit=3.0):
    """Least squares on the stacked equations of gradients and anchors."""
    size = base.size
    index = np.arange(size).reshape(base.shape)
    rows, values = [], []
    for axis in (0, 1):
        step = np.diff(base, axis=axis).ravel()
        before = index.take(range(base.shape[axis] - 1), axis).ravel()
        after = index.take(range(1, base.shape[axis]), axis).ravel()
        for i, j, value in zip(before, after, np.clip(step, -limit, limit), strict=True):
            row = np.zeros(size)
            row[i], row[j] = -1, 1
            rows.append(row)
            values.append(value)
    for u, v, depth in zip(anchors.u, anchors.v, anchors.depth_m, strict=True):
        row = np.zeros(size)
        row[index[int(v), int(u)]] = weight**0.5
        rows.append(row)
        values.append(weight**0.5 * np.log(depth))
    solution = np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)[0]
    return solution.reshape(base.shape)


@pytest.mark.parametrize("weight", [0.1, 5.0])
def test_poisson_equals_dense_least_squares(weight):
    depth = RNG.uniform(1, 4, (7, 9))
    u, v = np.array([1, 5, 8, 3, 3]), np.array([0, 3, 6, 5, 5])
    # With these anchors the global fit is the map itself, so that the base is known.
    anchors = sf.Anchors(u, v, depth[v, u])
    changed = sf.Anchors(u[:1], v[:1], 2 * depth[v[:1], u[:1]])
    for given, base in ((anchors, depth), (changed, 2 * depth)):
        found = Poisson(data_weight=weight)(from_array(depth, "depth"), given).depth_m
        expected = np.exp(dense_solution(np.log(base), given, weight))
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def test_poisson_limits_steps_of_log_depth():
    depth = np.ones((3, 6))
    depth[:, 3:] = 50.0
    anchors = sf.Anchors([0, 5], [0, 2], [1.0, 50.0])
    found = Poisson(gradient_limit=1.0)(from_array(depth, "depth"), anchors).depth_m
    expected = np.exp(dense_solution(np.log(depth), anchors, 5.0, limit=1.0))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)
    plain = Poisson()(from_array(depth, "depth"), anchors).depth_m
    assert plain[1, 3] / plain[1, 2] > found[1, 3] / found[1, 2] + 1


def test_poisson_row_of_pixels_is_a_chain_of_resistances():
    """Between two anchors on a row, log-depth runs linearly; each end yields by the same flow."""
    mde_output = from_array(np.ones((1, 5)), "depth")
    anchors = sf.Anchors([0, 4], [0, 0], [1.0, np.e])
    log_depth = Poisson(data_weight=2.0)(mde_output, anchors).depth_m.log()[0]
    flow = 1 / (4 + 2 / 2.0)
    torch.testing.assert_close(log_depth, flow / 2 + flow * torch.arange(5), rtol=0, atol=1e-6)


def test_poisson_reproduces_a_scaled_and_shifted_map():
    depth = RNG.uniform(1, 4, (12, 16))
    u, v = RNG.integers(0, 16, 8), RNG.integers(0, 12, 8)
    found = Poisson()(from_array(depth, "depth"), sf.Anchors(u, v, 3 * depth[v, u] + 0.5))
    np.testing.assert_allclose(found.depth_m.numpy(), 3 * depth + 0.5, rtol=1e-6)


def test_solve_screened_leaves_no_residual():
    mass = np.where(RNG.random((9, 13)) < 0.1, 5.0, 0.0)
    load = RNG.normal(size=mass.shape)
    x = solve_screened(mass, load)
    padded = np.pad(x, 1, mode="edge")
    neighbours = padded[2:, 1:-1] + padded[:-2, 1:-1] + padded[1:-1, 2:] + padded[1:-1, :-2]
    np.testing.assert_allclose(mass * x + 4 * x - neighbours, load, atol=1e-6)


@pytest.mark.parametrize("options", [{"data_weight": 0.0}, {"gradient_limit": -1.0}])
def test_poisson_refuses_options(options):
    with pytest.raises(sf.InputError, match=next(iter(options))):
        Poisson(**options)
