import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalefield.basis.ridge import LITERAL, Ridge, masked_median, solve
from scalefield.errors import InputError

sizes = {"n": st.integers(1, 30), "k": st.integers(2, 12), "seed": st.integers(0, 10_000)}


def problem(n, k, seed, batch=1):
    rng = torch.Generator().manual_seed(seed)
    M = torch.randn(batch, n, k, generator=rng, dtype=torch.float64)
    y = torch.randn(batch, n, generator=rng, dtype=torch.float64) + 2
    return M, y, torch.ones(batch, n, dtype=torch.float64)


@given(**sizes)
def test_solve_equals_scipy_on_the_stacked_system(n, k, seed):
    """‖Mw − y‖² + λ‖w‖² is the plain least squares of [M; √λ I] w = [y; 0]."""
    M, y, ones = problem(n, k, seed)
    stacked = np.vstack([M[0].numpy(), np.sqrt(LITERAL.ridge) * np.eye(k)])
    expected = scipy.linalg.lstsq(stacked, np.concatenate([y[0].numpy(), np.zeros(k)]))[0]
    solution = solve(M, y, ones, LITERAL)
    assert solution.offset.item() == 0
    np.testing.assert_allclose(solution.weights[0].numpy(), expected, rtol=1e-6, atol=1e-8)


@given(**sizes, padding=st.integers(1, 9), centre=st.sampled_from(["none", "median"]))
def test_solve_padded_rows_change_nothing_whatever_they_hold(n, k, seed, padding, centre):
    M, y, ones = problem(n, k, seed)
    junk = torch.full((1, padding, k), torch.nan, dtype=torch.float64)
    padded = solve(
        torch.cat([M, junk], dim=1),
        torch.cat([y, junk[..., 0]], dim=1),
        torch.cat([ones, torch.zeros(1, padding, dtype=torch.float64)], dim=1),
        Ridge(centre=centre),
    )
    plain = solve(M, y, ones, Ridge(centre=centre))
    torch.testing.assert_close(padded.weights, plain.weights)
    torch.testing.assert_close(padded.offset, plain.offset)


@given(**sizes)
def test_solve_batch_is_its_images_one_by_one(n, k, seed):
    M, y, ones = problem(n, k, seed, batch=3)
    together = solve(M, y, ones)
    for i in range(3):
        alone = solve(M[i : i + 1], y[i : i + 1], ones[i : i + 1])
        torch.testing.assert_close(together.weights[i], alone.weights[0], rtol=1e-9, atol=1e-12)


@given(**sizes)
def test_solve_order_of_anchors_is_irrelevant(n, k, seed):
    M, y, ones = problem(n, k, seed)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(
        solve(M[:, order], y[:, order], ones).weights, solve(M, y, ones).weights
    )


@given(**sizes, shift=st.floats(-20, 20))
def test_a_centred_solve_moves_with_its_targets(n, k, seed, shift):
    """y + c gives ℓ + c: scaling the anchors by e^c scales the depth by e^c."""
    M, y, ones = problem(n, k, seed)
    moved, plain = solve(M, y + shift, ones), solve(M, y, ones)
    torch.testing.assert_close(moved.weights, plain.weights, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(moved.offset, plain.offset + shift)


@given(**sizes)
def test_a_field_in_the_span_is_recovered_as_the_ridge_vanishes(n, k, seed):
    M, _, ones = problem(n + k, k, seed)
    truth = torch.randn(1, k, dtype=torch.float64)
    y = (M @ truth[..., None])[..., 0]
    found = solve(M, y, ones, Ridge(ridge=1e-13, ridge_global=1e-13, centre="none"))
    torch.testing.assert_close((M @ found.weights[..., None])[..., 0], y, rtol=1e-6, atol=1e-6)


def test_solve_weights_count_as_repetition():
    M, y, _ = problem(4, 3, 0)
    twice = solve(
        torch.cat([M, M[:, :1]], 1), torch.cat([y, y[:, :1]], 1), torch.ones(1, 5), LITERAL
    )
    weighted = solve(M, y, torch.tensor([[2.0, 1, 1, 1]]), LITERAL)
    torch.testing.assert_close(twice.weights, weighted.weights)


def test_gradients_flow_through_the_solve():
    M, y, ones = problem(6, 4, 1, batch=2)
    M.requires_grad_()
    y.requires_grad_()
    assert torch.autograd.gradcheck(lambda m, t: solve(m, t, ones, LITERAL).weights, (M, y))


def test_the_plain_ridge_shrinks_the_global_mode_and_centring_does_not():
    """One anchor, G₀ ≈ 0.21, an offset of ln 20: the loss that the default avoids."""
    M = torch.zeros(1, 1, 8, dtype=torch.float64)
    M[..., 0] = 0.21
    y = torch.full((1, 1), float(np.log(20)), dtype=torch.float64)
    ones = torch.ones(1, 1, dtype=torch.float64)
    maps = M[0, 0][None, :, None, None]
    literal = solve(M, y, ones, LITERAL).log_scale(maps).item()
    centred = solve(M, y, ones).log_scale(maps).item()
    assert 1 - literal / y.item() == pytest.approx(0.0222, abs=5e-4)
    assert centred == pytest.approx(y.item(), abs=1e-12)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=9))
def test_masked_median_is_numpy_s(values):
    """Of the known values of each row; 0 where there is none."""
    padded = torch.tensor([[*values, 7.0, -7.0]] * 2, dtype=torch.float64)
    known = torch.tensor([[True] * len(values) + [False] * 2, [False] * (len(values) + 2)])
    found, nothing = masked_median(padded, known).tolist()
    assert found == pytest.approx(np.median(values))
    assert nothing == 0


def test_solve_float32_inputs_are_solved_in_float64():
    M, y, ones = problem(20, 8, 3)
    single = solve(M.float(), y.float(), ones.float())
    assert single.weights.dtype == torch.float64
    torch.testing.assert_close(single.weights, solve(M, y, ones).weights, rtol=1e-3, atol=1e-4)


def test_ridge_bad_options_are_named():
    with pytest.raises(InputError, match="above zero, found 0"):
        Ridge(ridge=0.0)
