"""How far rounding can go, against solutions in exact fractions.

Bounds are stated in units of the arithmetic's own: eps = 2⁻⁵² for float64, 2⁻²³ for float32.
"""

from fractions import Fraction

import numpy as np
import pytest
import torch

import scalefield as sf
from field.worlds import KERNEL, kernel_inputs
from scalefield.basis.ridge import Ridge, solve
from scalefield.field.exact import ExactPosterior
from scalefield.methods import METHODS

EPS64, EPS32 = 2.0**-52, 2.0**-23
CONDITIONS = (1.0, 1e3, 1e6, 1e9, 1e12)


def exact_solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """x with matrix · x = right, by elimination in fractions: no rounding but at the end."""
    rows = [
        [*map(Fraction, row), Fraction(value)]
        for row, value in zip(matrix.tolist(), right.tolist(), strict=True)
    ]
    n = len(rows)
    for i in range(n):
        pivot = next(r for r in range(i, n) if rows[r][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(n):
            if r != i and rows[r][i]:
                factor = rows[r][i] / rows[i][i]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i], strict=True)]
    return np.array([float(rows[i][n] / rows[i][i]) for i in range(n)])


def exact_ridge(M: np.ndarray, y: np.ndarray, ridge: float) -> np.ndarray:
    """(MᵀM + λI)⁻¹ Mᵀy, in fractions throughout."""
    columns = [[Fraction(value) for value in column] for column in M.T.tolist()]
    target = [Fraction(value) for value in y.tolist()]
    normal = [[sum(map(_times, a, b)) for b in columns] for a in columns]
    for i, row in enumerate(normal):
        row[i] += Fraction(ridge)
    moment = [sum(map(_times, a, target)) for a in columns]
    return exact_solve(np.array(normal, dtype=object), np.array(moment, dtype=object))


def _times(a: Fraction, b: Fraction) -> Fraction:
    return a * b


def ill_posed(condition: float, ridge: float, n: int = 12, k: int = 5) -> np.ndarray:
    """An M whose normal matrix MᵀM + λI has this condition number."""
    rng = np.random.default_rng(0)
    left, _ = np.linalg.qr(rng.normal(size=(n, k)))
    right, _ = np.linalg.qr(rng.normal(size=(k, k)))
    eigenvalues = ridge * np.geomspace(1, condition, k)
    return left * np.sqrt(eigenvalues - ridge) @ right


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_the_ridge_solve(condition, dtype):
    """Weights within 8 · condition · eps of the exact ones, the fit within a thousandth of that.

    Inputs of less precision are solved in float64, so that the same holds for them.
    """
    config = Ridge(ridge=1e-3, ridge_global=1e-3, centre="none")
    M = torch.from_numpy(ill_posed(condition, 1e-3)).to(dtype)
    y = torch.linspace(-2, 3, len(M)).to(dtype)
    found = solve(M[None], y[None], torch.ones(1, len(M)), config).weights[0]
    assert found.dtype == torch.float64
    wanted = exact_ridge(M.double().numpy(), y.double().numpy(), 1e-3)
    bound = 8 * max(condition, 10) * EPS64
    error = np.linalg.norm(found.numpy() - wanted) / max(np.linalg.norm(wanted), 1e-300)
    assert error <= bound
    fit_error = np.abs(M.double().numpy() @ (found.numpy() - wanted)).max()
    assert fit_error <= max(bound / 1000, 100 * EPS64) * float(y.abs().max())


@pytest.mark.parametrize("condition", CONDITIONS)
def test_float32_basis_maps(condition):
    """Maps that a network gives in float32 change the fit by √condition · eps at most."""
    config = Ridge(ridge=1e-3, ridge_global=1e-3, centre="none")
    M, y = torch.from_numpy(ill_posed(condition, 1e-3))[None], torch.linspace(-2, 3, 12)[None]
    one = torch.ones_like(y)
    fits = [
        (maps.double() @ solve(maps, y, one, config).weights[..., None])[0, :, 0]
        for maps in (M, M.float())
    ]
    assert float((fits[0] - fits[1]).abs().max()) <= 3 * condition**0.5 * EPS32


@pytest.mark.parametrize("copies", [2, 10, 1000])
def test_repeated_anchors_count_as_weight(copies):
    rng = np.random.default_rng(1)
    M, y = torch.from_numpy(rng.normal(size=(1, 6, 8))), torch.from_numpy(rng.normal(size=(1, 6)))
    repeated = solve(M.repeat(1, copies, 1), y.repeat(1, copies), torch.ones(1, 6 * copies))
    weighted = solve(M, y, torch.full((1, 6), float(copies)))
    # Fewer anchors than weights: the smallest eigenvalue is λ, the largest grows with the copies.
    condition = copies * float(torch.linalg.matrix_norm(M[0], 2)) ** 2 / Ridge().ridge
    error = torch.linalg.norm(repeated.weights - weighted.weights)
    # A sum of n terms is known to n · eps at worst.
    assert float(error / torch.linalg.norm(weighted.weights)) <= 6 * copies * condition * EPS64


@pytest.mark.parametrize("noise", [1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
@pytest.mark.parametrize("apart", [True, False], ids=["apart", "in pairs"])
def test_the_exact_posterior(noise, apart):
    """α within 8 · condition · eps of the exact one, though anchors stand in one pixel by pairs."""
    n = 10
    anchors = kernel_inputs(n, 3)
    if not apart:
        anchors = anchors[torch.arange(n) // 2 * 2]
    y = torch.linspace(0, 2, n, dtype=torch.float64)
    posterior = ExactPosterior.fit(KERNEL, anchors, y, torch.full((n,), noise, dtype=torch.float64))
    gram = KERNEL(anchors, anchors).double()
    covariance = gram + noise**2 * torch.eye(n, dtype=torch.float64)
    prior = posterior.mean(anchors) - gram @ posterior.alpha
    wanted = exact_solve(covariance.numpy(), (y - prior).numpy())
    condition = float(torch.linalg.cond(covariance))
    assert condition > 1e11 or apart or noise > 1e-6
    error = np.linalg.norm(posterior.alpha.numpy() - wanted) / np.linalg.norm(wanted)
    assert error <= 8 * condition * EPS64
    assert bool(torch.isfinite(posterior.variance(anchors)).all())
    assert bool((posterior.variance(anchors) >= 0).all())


def wide_range(ratio: float) -> tuple[np.ndarray, sf.Anchors]:
    """A map of float16 values that spans this ratio, and a dozen anchors that span it too."""
    shape = (12, 16)
    relative = np.geomspace(2.0**-9, 2.0**-9 * min(ratio, 1e6), 192).astype(np.float16)
    relative = relative.reshape(shape)
    pixels = np.random.default_rng(2).permutation(192)[:12]
    v, u = pixels // 16, pixels % 16
    return relative, sf.Anchors(u, v, np.geomspace(1e-3, 1e-3 * ratio, 192)[pixels])


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("ratio", [10.0, 1e6])
def test_precision_of_the_map_does_not_matter(name, ratio):
    """The same values in float16, float32 and float64 give the same depth to a part in 10⁴."""
    relative, anchors = wide_range(ratio)
    depths = []
    for kind in (np.float64, np.float32, np.float16):
        options = {"superpixels": 6} if name == "region" else {}
        given = relative.astype(kind)
        found = sf.recover(None, anchors, mde_depth=given, kind="depth", method=name, **options)
        assert np.isfinite(found.depth_m).all()
        depths.append(found.depth_m)
    for other in depths[1:]:
        np.testing.assert_allclose(other, depths[0], rtol=1e-4)
    np.testing.assert_array_equal(depths[1], depths[2])  # float16 is read as float32


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_the_unit_of_the_map_does_not_matter(name, unit):
    relative, anchors = wide_range(10.0)
    relative = relative.astype(np.float64)
    options = {"superpixels": 6} if name == "region" else {}
    plain, scaled = (
        sf.recover(None, anchors, mde_depth=m, kind="depth", method=name, **options).depth_m
        for m in (relative, unit * relative)
    )
    np.testing.assert_allclose(scaled, plain, rtol=1e-3)
