import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from field.worlds import KERNEL, observations_of
from scalefield.field.blocks import (
    Blocks,
    BlockSolutions,
    LinearPosterior,
    LinearPrior,
    Memo,
    bisection_leaves,
)
from scalefield.field.cholesky import Cholesky
from scalefield.field.config import InferenceConfig
from scalefield.field.exact import ExactPosterior

SMALL = InferenceConfig(block_size=10)


def fit_linear(observed, config, prior=None):
    features, H = KERNEL.features(observed.inputs), KERNEL.linear_features(observed.inputs)
    blocks = Blocks.split(observed, config).within(observed.mask)
    solutions = BlockSolutions.of(KERNEL, observed, features, H, blocks)
    return LinearPosterior.fit(observed, H, blocks, solutions, prior=prior)


def on_image(n, seed):
    """Observations within an image of square shape."""
    observed = observations_of(n, seed)
    inputs = dataclasses.replace(observed.inputs, position=observed.inputs.position - 0.5)
    return observed._replace(inputs=inputs)


def random_mask(n, seed, share=0.8):
    return torch.rand(n, generator=torch.Generator().manual_seed(seed)) < share


@given(
    n=st.integers(1, 300),
    seed=st.integers(0, 500),
    share=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
    block_size=st.sampled_from([1, 10, 128]),
)
@pytest.mark.parametrize("static", [False, True])
def test_split_has_every_masked_anchor_in_one_block_of_bounded_size(
    n, seed, share, block_size, static
):
    mask = random_mask(n, seed, share)
    observed = on_image(n, seed)._replace(mask=mask)
    blocks = Blocks.split(observed, InferenceConfig(block_size=block_size), static=static)
    assert sorted(blocks.index[blocks.mask].tolist()) == mask.nonzero().flatten().tolist()
    assert bool((blocks.index[~blocks.mask] == 0).all())
    assert int(blocks.mask.sum(dim=1).max()) <= block_size
    assert len(blocks.index) == 1 or n > block_size


@given(n=st.integers(2, 400), most=st.sampled_from([1, 8, 40]), seed=st.integers(0, 500))
def test_an_anchor_more_changes_only_the_leaf_that_it_falls_in(n, most, seed):
    """And the one that this leaf joins or that joins it; Or it is divided."""
    position = on_image(n, seed).inputs.position.numpy()
    before, after = (bisection_leaves(position[:m], most, 1.3) for m in (n - 1, n))
    members = [
        {frozenset(np.flatnonzero(leaves == i).tolist()) for i in np.unique(leaves)}
        for leaves in (before, after)
    ]
    assert len(members[0] - members[1]) <= 3


@given(n=st.integers(1, 300), seed=st.integers(0, 500))
def test_leaves_do_not_depend_on_the_order_of_the_anchors(n, seed):
    position = on_image(n, seed).inputs.position.numpy()
    order = np.random.default_rng(seed).permutation(n)
    assert (
        bisection_leaves(position[order], 16, 1.3) == bisection_leaves(position, 16, 1.3)[order]
    ).all()


def test_split_makes_compact_blocks():
    """The mean extent of blocks is within a factor of 1.6 of that of squares of equal number."""
    observed = on_image(4000, 0)
    position, blocks = observed.inputs.position, Blocks.split(observed, InferenceConfig())
    members = [position[i[m]] for i, m in zip(blocks.index, blocks.mask, strict=True)]
    extent = torch.stack([m.amax(dim=0) - m.amin(dim=0) for m in members])
    side = len(members) ** -0.5
    assert float(extent.mean()) < 1.6 * side
    assert float(extent.max()) < 3 * side


@given(n=st.integers(1, 60), seed=st.integers(0, 500))
def test_blocks_within_a_mask_are_the_same_blocks_with_fewer_anchors(n, seed):
    blocks, mask = Blocks.split(observations_of(n, seed), SMALL), random_mask(n, seed, 0.5)
    fewer = blocks.within(mask)
    assert sorted(fewer.index[fewer.mask].tolist()) == mask.nonzero().flatten().tolist()
    assert torch.equal(fewer.index[fewer.mask], blocks.index[fewer.mask])
    assert bool((fewer.index[~fewer.mask] == 0).all())


@given(n=st.integers(1, 60), seed=st.integers(0, 500), width=st.sampled_from([(), (3,)]))
def test_scatter_undoes_gathering_and_leaves_zero_elsewhere(n, seed, width):
    mask = random_mask(n, seed)
    values = torch.rand(n, *width, generator=torch.Generator().manual_seed(seed))
    blocks = Blocks.split(observations_of(n, seed)._replace(mask=mask), SMALL)
    found = blocks.scatter(values[blocks.index], n)
    assert torch.equal(found[mask], values[mask])
    assert not found[~mask].any()


@settings(max_examples=40)
@given(n=st.integers(1, 30), seed=st.integers(0, 500), noise=st.sampled_from([0.02, 1e-3]))
def test_one_block_equals_the_exact_posterior(n, seed, noise):
    """Covariances are float32: an error of 10⁻⁶ beside a noise variance of 10⁻⁶ or more."""
    observed = observations_of(n, seed, noise)
    found = fit_linear(observed, InferenceConfig())
    exact = ExactPosterior.fit(KERNEL, observed.inputs, observed.y, observed.noise)
    torch.testing.assert_close(found.offset, exact.offset)
    torch.testing.assert_close(found.weights, exact.linear_weights(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.covariance, exact.linear_covariance(), rtol=1e-3, atol=1e-4)
    residual, std = exact.leave_one_out()
    torch.testing.assert_close(found.loo_residual, residual, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.loo_std, std, rtol=1e-3, atol=1e-4)


def dense_block_model(observed, config):
    """Covariance of y − μ under the block model: shared linear part, stationary part by block."""
    inputs, _, noise, mask = observed
    blocks = Blocks.split(observed, config)
    block = torch.full((len(mask),), -1)
    for b, (index, known) in enumerate(zip(blocks.index, blocks.mask, strict=True)):
        block[index[known]] = b
    features = KERNEL.features(inputs)
    same = block[:, None] == block[None]
    H = KERNEL.linear_features(inputs)
    return KERNEL.stationary(features, features) * same + H @ H.mT + torch.diag(noise**2)


@settings(max_examples=20)
@given(n=st.integers(11, 60), seed=st.integers(0, 500))
def test_several_blocks_equal_a_dense_solve_of_the_block_model(n, seed):
    observed = observations_of(n, seed)._replace(mask=random_mask(n, seed))
    found = fit_linear(observed, SMALL)
    kept = observed.mask
    whole = dense_block_model(observed, SMALL)[kept][:, kept]
    precision = torch.linalg.inv(whole)
    target = (observed.y - observed.inputs.mean)[kept]
    target = target - target.quantile(0.5)
    alpha, H = precision @ target, KERNEL.linear_features(observed.inputs)[kept]
    close = {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(found.weights, H.mT @ alpha, **close)
    torch.testing.assert_close(found.loo_residual[kept], alpha / precision.diagonal(), **close)
    torch.testing.assert_close(found.loo_std[kept], precision.diagonal().rsqrt(), **close)
    torch.testing.assert_close(found.residual[kept], target - H @ found.weights)
    smoothed = found.covariance @ (found.whitened[kept].mT @ target)
    torch.testing.assert_close(smoothed, found.weights)
    for name in ("loo_residual", "residual", "whitened"):
        assert not getattr(found, name)[~kept].any()


@settings(max_examples=20)
@given(n=st.integers(1, 8), padding=st.integers(1, 5), seed=st.integers(0, 500))
def test_padding_does_not_change_the_linear_part(n, padding, seed):
    """Whatever the padded rows hold, if it is finite."""
    observed = observations_of(n + padding, seed)
    mask = torch.arange(n + padding) < n
    padded = fit_linear(observed._replace(mask=mask), InferenceConfig())
    inputs, y, noise, _ = observed
    short = type(observed)(inputs[:n], y[:n], noise[:n], mask[:n])
    alone = fit_linear(short, InferenceConfig())
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(padded.offset, alone.offset)
    torch.testing.assert_close(padded.weights, alone.weights, **close)
    torch.testing.assert_close(padded.covariance, alone.covariance, **close)
    for name in ("residual", "loo_residual", "loo_std"):
        torch.testing.assert_close(getattr(padded, name)[:n], getattr(alone, name), **close)


def test_a_given_offset_is_the_prior_mean():
    observed = observations_of(6, 0)
    offset = torch.tensor(0.25, dtype=torch.float64)
    prior = LinearPrior.unit(offset, KERNEL.linear_width(observed.inputs))
    found = fit_linear(observed, InferenceConfig(), prior)
    exact = ExactPosterior.fit(KERNEL, *observed[:3], offset=offset)
    assert found.offset == offset
    torch.testing.assert_close(found.weights, exact.linear_weights(), rtol=1e-3, atol=1e-4)


@given(n=st.integers(1, 40), seed=st.integers(0, 500))
def test_a_prior_of_the_linear_part_is_that_of_bayesian_regression(n, seed):
    """Against the dense normal equations with the covariance of stationary part and noise."""
    observed, offset = observations_of(n, seed), torch.tensor(0.3).double()
    H = KERNEL.linear_features(observed.inputs)
    root = torch.randn(H.shape[1], H.shape[1], generator=torch.Generator().manual_seed(seed))
    root = root.double() + 2 * torch.eye(len(root))
    prior = LinearPrior(root[0], root @ root.mT, offset)
    found = fit_linear(observed, InferenceConfig(), prior)
    features = KERNEL.features(observed.inputs)
    C = KERNEL.stationary(features, features) + torch.diag(observed.noise**2)
    target = observed.y - observed.inputs.mean - offset
    precision = H.mT @ torch.linalg.solve(C, H) + prior.precision
    known = H.mT @ torch.linalg.solve(C, target) + prior.precision @ prior.mean
    torch.testing.assert_close(
        found.weights, torch.linalg.solve(precision, known), rtol=1e-3, atol=1e-4
    )
    joint = C + H @ torch.linalg.solve(prior.precision, H.mT)
    mean = H @ prior.mean
    expected = mean[0] + joint[0, 1:] @ torch.linalg.solve(joint[1:, 1:], (target - mean)[1:])
    assert float(found.loo_residual[0]) == pytest.approx(float(target[0] - expected), abs=1e-3)


def test_cholesky_solves_and_has_determinant_and_diagonal_of_the_inverse():
    root = torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrices = root @ root.mT + torch.eye(6)
    inverse, made = torch.linalg.inv(matrices), Cholesky.of(matrices)
    right = torch.linspace(-1, 1, 3 * 6 * 2, dtype=torch.float64).reshape(3, 6, 2)
    torch.testing.assert_close(made.solve(right), inverse @ right)
    torch.testing.assert_close(made.inverse_diagonal(), inverse.diagonal(dim1=1, dim2=2))
    torch.testing.assert_close(made.half_log_det(), 0.5 * torch.logdet(matrices))


@given(n=st.integers(1, 200), seed=st.integers(0, 500))
def test_grouped_blocks_have_the_anchors_of_each_number(n, seed):
    number = torch.randint(0, 5, (n,), generator=torch.Generator().manual_seed(seed))
    rows = torch.arange(n) * 3
    blocks = Blocks.grouped(rows, number)
    assert blocks.index.shape == (int(number.max()) + 1, blocks.index.shape[1] // 16 * 16)
    for i, (index, known) in enumerate(zip(blocks.index, blocks.mask, strict=True)):
        assert index[known].tolist() == rows[number == i].tolist()


def test_memo_computes_the_rows_whose_values_changed():
    memo, computed = Memo(), []

    def double(values):
        def compute(rows):
            computed.append(rows.tolist())
            return (2 * values[rows],)

        return compute

    values = torch.arange(4.0)[:, None]
    changed = values + 7 * (torch.arange(4) == 2)[:, None]
    for key, each in (("a", values), ("a", values), ("a", changed), ("b", changed)):
        (found,) = memo(key, each, double(each))
        assert torch.equal(found, 2 * each)
    memo("b", changed[:2], double(changed))
    assert computed == [[0, 1, 2, 3], [2], [0, 1, 2, 3], [0, 1]]


def test_memo_is_right_while_another_call_replaces_the_last_results():
    memo, values = Memo(), torch.arange(4.0)[:, None]
    memo("a", values, lambda rows: (values[rows],))

    def compute(rows):
        memo("b", values[:2], lambda rows: (-values[rows],))  # as by another thread
        return (2 * changed[rows],)

    changed = values + (torch.arange(4) == 1)[:, None]
    (found,) = memo("a", changed, compute)
    assert found[:, 0].tolist() == [0.0, 4.0, 2.0, 3.0]
