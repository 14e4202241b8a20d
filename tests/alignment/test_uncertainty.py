"""Closed forms against refits, and std_log against the scatter over draws of noise."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalefield import Anchors, MDEOutput
from scalefield.alignment import uncertainty
from scalefield.alignment.affine import Samples
from scalefield.alignment.uncertainty import (
    LARGEST_STD,
    PRIOR_STD,
    STEP,
    LinearSmoother,
    at_coarse_pixels,
    coarse_positions,
    fit_std,
    fit_variance,
    left_out_indices,
    log_residuals,
    noise_variance,
    to_image,
    total_std,
)
from scalefield.basis.generator import Generator, GeneratorConfig
from scalefield.methods import METHODS
from scalefield.methods.basis import Basis
from scalefield.methods.log_kernel import LogKernel
from scalefield.methods.region import Region

SHAPE = (64, 80)


def small_basis() -> Basis:
    torch.manual_seed(0)
    return Basis(Generator(GeneratorConfig(k=4, feature_channels=0, width=8, cells=16)))


@pytest.mark.parametrize("seed", [32, 36, 44])
def test_linear_smoother_variance_of_an_ill_conditioned_fit_is_not_negative(seed):
    rng = np.random.default_rng(seed)
    x = 1 + 10.0 ** rng.uniform(-8.5, -6) * rng.uniform(-1, 1, 6)
    smoother = LinearSmoother.of(np.stack([x, np.ones(6)], axis=1), np.ones(6))
    between = np.stack([rng.uniform(x.min(), x.max(), 50), np.ones(50)], axis=1)
    variance = smoother.variance(between, np.full(6, 0.1), np.ones(50))
    assert variance.min() >= 0


SURE = {
    **{name: METHODS[name] for name in ("median", "global", "piecewise", "grid", "lwlr")},
    "knn": METHODS["knn"],
    "log_kernel": METHODS["log_kernel"],
    "basis": small_basis,
    "region": lambda: Region(labels=(np.indices(SHAPE)[1] >= 40).astype(int)),
}


def solve(design, weight, y, penalty) -> np.ndarray:
    rows = design * weight[:, None]
    return np.linalg.solve(rows.T @ design + penalty, rows.T @ y)


@given(st.integers(0, 2**32), st.integers(4, 12), st.sampled_from([0.0, 0.3]))
@settings(max_examples=25)
def test_linear_smoother_leverage_gives_the_leave_one_out_residual(seed, n, ridge) -> None:
    rng = np.random.default_rng(seed)
    design, y = rng.normal(size=(n, 3)), rng.normal(size=n)
    weight, penalty = rng.uniform(0.5, 2, n), ridge * np.eye(3)
    fitted = LinearSmoother.of(design, weight, penalty if ridge else None)
    theta = solve(design, weight, y, penalty)
    np.testing.assert_allclose(fitted.gain @ y, theta, rtol=1e-6, atol=1e-9)
    for i in range(n):
        rest = np.arange(n) != i
        without = solve(design[rest], weight[rest], y[rest], penalty)
        left_out = (y - design @ theta)[i] / (1 - fitted.leverage[i])
        assert left_out == pytest.approx(y[i] - design[i] @ without, rel=1e-5, abs=1e-7)


def test_log_kernel_leverage_gives_the_leave_one_out_residual() -> None:
    rng = np.random.default_rng(0)
    mde = MDEOutput(torch.from_numpy(rng.uniform(1, 2, (40, 50))), "depth")
    pixel = rng.choice(2000, 9, replace=False)
    anchors = Anchors(pixel % 50, pixel // 50, rng.uniform(1, 4, 9))
    method = LogKernel(bandwidth_px=9.0)
    found = []
    for i in range(9):
        depth_m = method(mde, anchors[np.arange(9) != i]).depth_m
        row, column = pixel[i] // 50, pixel[i] % 50
        found.append(np.log(anchors.depth_m[i] / float(depth_m[row, column])))
    samples = Samples.at(mde, anchors, "log")
    order = samples.index
    square = ((samples.pixels[:, None] - samples.pixels) ** 2).sum(axis=2)
    total = np.exp(-square / (2 * 81)).sum(axis=1)
    fitted = np.log(method(mde, anchors).depth_m[samples.rows, samples.columns].numpy())
    residuals = (samples.y - fitted) / (1 - 1 / total)
    np.testing.assert_allclose(residuals, np.array(found)[order], rtol=1e-4, atol=1e-5)


def test_fit_variance_recovers_the_noise_without_that_of_the_measurements() -> None:
    rng = np.random.default_rng(0)
    n = 4000
    design = rng.normal(size=(n, 2))
    tau = rng.uniform(0.05, 0.3, n)
    y = design @ [1.0, 2.0] + rng.normal(0, np.sqrt(0.1**2 + tau**2))
    fitted = LinearSmoother.of(design, np.ones(n))
    residuals = y - design @ (fitted.gain @ y)
    assert fit_variance(residuals, fitted.leverage, fitted.leverage, tau) == pytest.approx(
        0.01, rel=0.15
    )
    none = np.zeros(n)
    total = 0.01 + (tau**2).mean()
    assert fit_variance(residuals, fitted.leverage, fitted.leverage, none) == pytest.approx(
        total, rel=0.05
    )
    assert (
        fit_variance(0 * residuals, fitted.leverage, fitted.leverage, tau) > 0
    )  # never below the prior's share


def test_fit_variance_leaves_out_anchors_that_determine_their_own_fit() -> None:
    design = np.array([[1.0, 1.0], [2.0, 1.0]])
    fitted = LinearSmoother.of(design, np.ones(2))
    np.testing.assert_allclose(fitted.leverage, 1)
    assert fit_variance(np.zeros(2), fitted.leverage, fitted.leverage, np.zeros(2)) == PRIOR_STD**2
    assert noise_variance(*[np.empty(0)] * 3) == PRIOR_STD**2


def test_log_residuals_and_total_std_are_limited() -> None:
    residuals = log_residuals(np.array([1.0, 1.0, 2.0]), np.array([0.0, -5.0, 1.0]))
    np.testing.assert_allclose(residuals, [LARGEST_STD, LARGEST_STD, np.log(2)])
    assert total_std(0.01, np.array([np.inf, np.nan])).tolist() == [LARGEST_STD] * 2
    far = fit_std(
        LinearSmoother.of(np.ones((3, 1)), np.ones(3)),
        np.zeros(3),
        np.zeros(3),
        (np.ones(3), np.array([1.0, 0.0])),
        np.ones((2, 1)),
    )
    assert far[1] == LARGEST_STD
    assert far[0] < 0.3


@pytest.mark.parametrize("shape", [(1, 1), (3, 40), (16, 17), (100, 130)])
def test_to_image_covers_the_image(shape) -> None:
    v, u = (torch.arange(n, dtype=torch.float64) for n in shape)
    plane = 1 + 0.01 * v[:, None] + 0.02 * u
    brought = to_image(at_coarse_pixels(plane), shape, torch.device("cpu"))
    assert brought.shape == shape
    rows, columns = (coarse_positions(n) for n in shape)
    inside = np.ix_(np.arange(rows[0], rows[-1] + 1), np.arange(columns[0], columns[-1] + 1))
    np.testing.assert_allclose(brought[inside], plane[inside], rtol=1e-5)
    assert max(shape[0] - 1 - rows[-1], shape[1] - 1 - columns[-1]) < STEP


def test_at_coarse_pixels_fills_holes_with_the_median() -> None:
    holed = torch.full((40, 40), 2.0)
    holed[coarse_positions(40)[0], coarse_positions(40)[0]] = torch.nan
    assert (at_coarse_pixels(holed) == 2).all()
    assert (at_coarse_pixels(torch.full((5, 5), torch.nan)) == 1).all()


def test_left_out_indices_are_all_of_few_anchors_and_some_of_many() -> None:
    np.testing.assert_array_equal(left_out_indices(5), np.arange(5))
    thinned = left_out_indices(10_000)
    assert len(thinned) == uncertainty.LEFT_OUT
    assert (thinned[0], thinned[-1]) == (0, 9999)


def world(n=80, noise=0.0, seed=0, shape=SHAPE):
    """A map that is correct up to its scale, and anchors with multiplicative noise."""
    rng = np.random.default_rng(0)
    coarse = torch.from_numpy(np.exp(0.5 * rng.standard_normal((5, 6))))[None, None]
    values = torch.nn.functional.interpolate(coarse, size=shape, mode="bicubic")[0, 0]
    mde = MDEOutput(values.clamp(min=0.2), "depth")
    pixel = rng.choice(shape[0] * shape[1], n, replace=False)
    v, u = np.divmod(pixel, shape[1])
    factors = np.exp(noise * np.random.default_rng(seed).standard_normal(n))
    return mde, Anchors(u, v, 2 * mde.mde_depth.numpy()[v, u] * factors)


@pytest.mark.parametrize("name", SURE)
def test_std_log_of_a_method_is_the_noise_and_its_propagation(name, monkeypatch) -> None:
    """Var[log D − log D̂] = v + Var[log D̂] over draws of the anchors' noise."""
    monkeypatch.setattr(uncertainty, "PRIOR_COUNT", 1e-9)  # nothing but the residuals
    noise, method = 0.03, SURE[name]()
    logs, squares = [], []
    for seed in range(60):
        found = method(*world(noise=noise, seed=seed))
        logs.append(np.log(found.depth_m.numpy()))
        squares.append(np.square(found.std_log.numpy()))
    expected, printed = noise**2 + np.var(logs, axis=0), np.mean(squares, axis=0)
    assert np.median(printed / expected) == pytest.approx(1, abs=0.12)
    if name != "knn":  # lines through five anchors may be nearly vertical, which is not first order
        assert printed.mean() == pytest.approx(expected.mean(), rel=0.12)


@pytest.mark.parametrize("name", SURE)
def test_std_log_of_one_anchor_is_that_of_the_prior(name) -> None:
    mde, anchors = world(n=1)
    std_log = SURE[name]()(mde, anchors).std_log
    assert PRIOR_STD <= float(std_log.min()) <= float(std_log.max()) <= 1.6 * PRIOR_STD


@pytest.mark.parametrize("name", SURE)
def test_std_log_ignores_units_and_order_and_falls_with_good_anchors(name) -> None:
    mde, anchors = world(n=40, noise=0.1)
    method = SURE[name]()
    std_log = method(mde, anchors).std_log
    kilometres = Anchors(anchors.u, anchors.v, anchors.depth_m / 1000)
    np.testing.assert_allclose(method(mde, kilometres).std_log, std_log, rtol=1e-4)
    backwards = anchors[np.arange(40)[::-1]]
    np.testing.assert_allclose(method(mde, backwards).std_log, std_log, rtol=1e-4)
    better = method(*world(n=40, noise=0.01)).std_log
    assert float(better.mean()) < 0.7 * float(std_log.mean())
    # Noise that the measurements are known to have is theirs, and not the model's.
    known = Anchors(anchors.u, anchors.v, anchors.depth_m, 0.1 * anchors.depth_m)
    assert float(method(mde, known).std_log.mean()) < 0.85 * float(std_log.mean())
