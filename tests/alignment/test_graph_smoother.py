import numpy as np
import pytest

import scalefield as sf
from scalefield.alignment import graph_smoother
from scalefield.alignment.affine import Samples
from scalefield.alignment.graph_smoother import (
    GraphSmoother,
    grid_laplacian,
    laplacian,
    ridge,
    selection,
)
from scalefield.alignment.uncertainty import LinearSmoother, fit_std
from scalefield.inputs import from_array


def samples_of(n: int, sigma_m: float | None = None) -> Samples:
    rng = np.random.default_rng(4)
    u, v = rng.permutation(30)[:n], rng.integers(0, 20, n)
    depth_m = rng.uniform(1, 5, n)
    anchors = sf.Anchors(u, v, depth_m, None if sigma_m is None else sigma_m * depth_m)
    return Samples.at(from_array(np.ones((20, 30)), "depth"), anchors, "log")


def smoother_and_dense(samples: Samples) -> tuple[GraphSmoother, LinearSmoother, np.ndarray]:
    nodes = samples.rows // 5 * 6 + samples.columns // 5
    penalty = 0.3 * grid_laplacian((4, 6)) + ridge(1e-3, 24)
    design = selection(nodes, 24)
    sparse = GraphSmoother.of(design, samples.weight, penalty)
    return (
        sparse,
        LinearSmoother.of(design.toarray(), samples.weight, penalty.toarray()),
        design.toarray(),
    )


def test_grid_laplacian_sums_squared_differences_of_neighbours():
    values = np.random.default_rng(0).normal(size=(2, 3, 4))
    expected = sum((np.diff(values, axis=axis) ** 2).sum() for axis in range(3))
    theta = values.ravel()
    assert theta @ grid_laplacian(values.shape) @ theta == pytest.approx(expected)


def test_laplacian_weighs_edges():
    graph = laplacian(np.array([0, 1]), np.array([1, 2]), np.array([2.0, 5.0]), 3)
    theta = np.array([1.0, 4.0, 2.0])
    assert theta @ graph @ theta == pytest.approx(2 * 9 + 5 * 4)


@pytest.mark.parametrize("sigma", [None, 0.02])
def test_graph_smoother_equals_the_dense_smoother(sigma):
    samples = samples_of(12, sigma)
    sparse, dense, design = smoother_and_dense(samples)
    theta = sparse.solve(samples.y)
    np.testing.assert_allclose(theta, dense.gain @ samples.y, atol=1e-12)
    residuals = samples.y - design @ theta
    every = selection(np.arange(24), 24)
    ones = np.ones(len(samples)), np.ones(24)
    expected = fit_std(dense, residuals, samples.tau, ones, every.toarray())
    np.testing.assert_allclose(sparse.std_log(residuals, samples, every), expected, rtol=1e-9)


def test_graph_smoother_random_probes_are_near_the_exact_deviation(monkeypatch):
    samples = samples_of(30, 0.02)
    sparse, _, design = smoother_and_dense(samples)
    residuals = samples.y - design @ sparse.solve(samples.y)
    every = selection(np.arange(24), 24)
    exact = sparse.std_log(residuals, samples, every)
    monkeypatch.setattr(graph_smoother, "PROBES", 29)
    np.testing.assert_allclose(sparse.std_log(residuals, samples, every), exact, rtol=0.15)
