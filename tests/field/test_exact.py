import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from field.worlds import KERNEL, all_pixels, image_inputs, kernel_inputs, problem
from scalefield.basis.ridge import Ridge, solve
from scalefield.field.exact import ExactPosterior
from scalefield.field.kernel import Kernel, KernelInputs

cases = {"n": st.integers(1, 20), "seed": st.integers(0, 500)}


@given(**cases)
def test_mean_and_variance_equal_the_textbook_with_an_explicit_inverse(n, seed):
    anchors, y, noise = problem(n, seed)
    query = kernel_inputs(7, seed + 1)
    found = ExactPosterior.fit(KERNEL, anchors, y, noise)
    inverse = torch.linalg.inv(KERNEL(anchors, anchors) + torch.diag(noise**2))
    cross = KERNEL(query, anchors)
    offset = torch.quantile(y - anchors.mean, 0.5)
    mean = query.mean + offset + cross @ inverse @ (y - anchors.mean - offset)
    variance = KERNEL(query, query).diagonal() - (cross @ inverse @ cross.mT).diagonal()
    torch.testing.assert_close(found.mean(query), mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.variance(query), variance, rtol=1e-5, atol=1e-6)
    smoothed = found.smoother_weights(query) @ (y - anchors.mean - offset)
    smoothed = smoothed + offset + query.mean
    torch.testing.assert_close(smoothed, found.mean(query), rtol=1e-6, atol=1e-6)


@settings(max_examples=30)
@given(n=st.integers(2, 12), seed=st.integers(0, 500))
def test_leave_one_out_equals_solving_without_each_anchor(n, seed):
    anchors, y, noise = problem(n, seed)
    posterior = ExactPosterior.fit(KERNEL, anchors, y, noise)
    residual, std = posterior.leave_one_out()
    for i in range(n):
        others = torch.arange(n) != i
        covariance = KERNEL(anchors[others], anchors[others]) + torch.diag(noise[others] ** 2)
        cross = KERNEL(anchors[i : i + 1], anchors[others])
        weights = torch.linalg.solve(covariance, cross.mT)[:, 0]
        # The median stays that of all anchors, as in the closed form.
        known = y[others] - anchors.mean[others] - posterior.offset
        predicted = anchors.mean[i] + posterior.offset + weights @ known
        own = KERNEL.variance(anchors[i : i + 1])[0] - cross[0] @ weights + noise[i] ** 2
        assert float(residual[i]) == pytest.approx(float(y[i] - predicted), abs=1e-6)
        assert float(std[i]) == pytest.approx(float(own.sqrt()), rel=1e-5)


@given(**cases)
def test_mean_passes_through_exact_anchors(n, seed):
    anchors, y, _ = problem(n, seed)
    exact = ExactPosterior.fit(KERNEL, anchors, y, torch.full((n,), 1e-6, dtype=torch.float64))
    torch.testing.assert_close(exact.mean(anchors), y, atol=1e-5, rtol=0)
    assert float(exact.variance(anchors).max()) < 1e-6


@given(n=st.integers(2, 20), seed=st.integers(0, 500))
def test_more_anchors_never_increase_the_variance(n, seed):
    anchors, y, noise = problem(n, seed)
    query = kernel_inputs(9, seed + 1)
    fewer = ExactPosterior.fit(KERNEL, anchors[:-1], y[:-1], noise[:-1]).variance(query)
    more = ExactPosterior.fit(KERNEL, anchors, y, noise).variance(query)
    assert bool((more <= fewer + 1e-9).all())


@given(n=st.integers(1, 15), seed=st.integers(0, 500))
def test_ridge_regression_is_the_case_of_linear_modes_alone(n, seed):
    """Prior variance τ² of the weights and noise σ² are a ridge of σ²/τ²."""
    anchors, y, noise = problem(n, seed, noise=0.3)
    linear = Kernel(0.0, 2.0, (), 0.3)
    anchors, query = (
        dataclasses.replace(p, mean=torch.zeros_like(p.mean), shift=torch.zeros_like(p.shift))
        for p in (anchors, kernel_inputs(6, seed + 1))
    )
    gaussian = ExactPosterior.fit(linear, anchors, y, noise).mean(query)
    strength = 0.3**2 / 2.0**2
    ridge = solve(
        anchors.modes[None], y[None], torch.ones(1, n),
        Ridge(ridge=strength, ridge_global=strength),
    )  # fmt: skip
    torch.testing.assert_close(gaussian, ridge.offset + query.modes @ ridge.weights[0])


@settings(max_examples=30)
@given(n=st.integers(1, 9), seed=st.integers(0, 200))
def test_images_in_a_batch_are_solved_alone(n, seed):
    problems = [problem(n, seed + i) for i in range(3)]
    stacked = KernelInputs(
        *(
            torch.stack(values)
            for values in zip(*(vars(p[0]).values() for p in problems), strict=True)
        )
    )
    y, noise = (torch.stack([p[i] for p in problems]) for i in (1, 2))
    together = ExactPosterior.fit(KERNEL, stacked, y, noise)
    query = kernel_inputs(5, seed + 9)
    queries = KernelInputs(*(x.expand(3, *x.shape) for x in vars(query).values()))
    found = together.mean(queries), together.variance(queries), *together.leave_one_out()
    for i, (anchors, own, sigma) in enumerate(problems):
        alone = ExactPosterior.fit(KERNEL, anchors, own, sigma)
        wanted = alone.mean(query), alone.variance(query), *alone.leave_one_out()
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours[i], theirs)


@settings(max_examples=30)
@given(**cases)
def test_covariance_and_linear_part_equal_the_joint_posterior(n, seed):
    """The linear weights are one more set of unknowns with prior N(0, I)."""
    anchors, y, noise = problem(n, seed)
    found = ExactPosterior.fit(KERNEL, anchors, y, noise)
    query = kernel_inputs(5, seed + 1)
    # The exponential terms are exp(−1e-6) at a distance of zero, where their root is shifted.
    torch.testing.assert_close(
        found.covariance(query).diagonal(), found.variance(query), rtol=1e-5, atol=1e-6
    )
    H = KERNEL.linear_features(anchors)
    inverse = torch.linalg.inv(KERNEL(anchors, anchors) + torch.diag(noise**2))
    weights = H.mT @ inverse @ (y - anchors.mean - found.offset)
    torch.testing.assert_close(found.linear_weights(), weights, rtol=1e-6, atol=1e-6)
    covariance = torch.eye(H.shape[1], dtype=H.dtype) - H.mT @ inverse @ H
    torch.testing.assert_close(found.linear_covariance(), covariance, rtol=1e-6, atol=1e-6)


def test_a_plane_in_disparity_is_recovered_from_a_few_anchors():
    """Disparity that is off by a plane over the image, as that of a tilted flat surface is."""
    shape = (30, 40)
    kernel = Kernel(2.0, 0.0, (), noise_std=1e-3, plane_std=0.2)
    at = all_pixels(image_inputs(shape, variation=0))
    disparity = (-at.log_depth).exp()
    u, v = at.position.unbind(dim=1)
    wanted = (disparity / (disparity + 0.03 * u - 0.02 * v + 0.01)).log()
    few = torch.arange(0, len(at), 109)
    posterior = ExactPosterior.fit(kernel, at[few], wanted[few], torch.full((len(few),), 1e-3))
    assert float(wanted.max() - wanted.min()) > 0.03
    torch.testing.assert_close(posterior.mean(at), wanted, rtol=0, atol=1e-3)
