import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalefield.kernel import Kernel, Points
from scalefield.posterior import MOST_JUDGED, Posterior, credence, doubt, evidence
from scalefield.ridge import Ridge, solve
from test_kernel import KERNEL, points

cases = {"n": st.integers(1, 20), "seed": st.integers(0, 500)}


def problem(n, seed, noise=0.02):
    rng = torch.Generator().manual_seed(seed)
    y = torch.randn(n, generator=rng, dtype=torch.float64) * 0.3 + 1
    return points(n, seed), y, torch.full((n,), noise, dtype=torch.float64)


@given(**cases)
def test_equals_the_textbook_with_an_explicit_inverse(n, seed):
    anchors, y, noise = problem(n, seed)
    query = points(7, seed + 1)
    found = Posterior.fit(KERNEL, anchors, y, noise)
    inverse = torch.linalg.inv(KERNEL(anchors, anchors) + torch.diag(noise**2))
    cross = KERNEL(query, anchors)
    offset = torch.quantile(y - anchors.mean, 0.5)
    mean = query.mean + offset + cross @ inverse @ (y - anchors.mean - offset)
    variance = KERNEL(query, query).diagonal() - (cross @ inverse @ cross.mT).diagonal()
    torch.testing.assert_close(found.mean(query), mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.variance(query), variance, rtol=1e-5, atol=1e-6)
    spoken = found.speakers(query) @ (y - anchors.mean - offset) + offset + query.mean
    torch.testing.assert_close(spoken, found.mean(query), rtol=1e-6, atol=1e-6)


@given(n=st.integers(2, 12), seed=st.integers(0, 500))
def test_leave_one_out_is_leaving_one_out(n, seed):
    anchors, y, noise = problem(n, seed)
    posterior = Posterior.fit(KERNEL, anchors, y, noise)
    residual, deviation = posterior.leave_one_out()
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
        assert float(deviation[i]) == pytest.approx(float(own.sqrt()), rel=1e-5)


@given(**cases)
def test_it_passes_through_exact_anchors(n, seed):
    anchors, y, _ = problem(n, seed)
    exact = Posterior.fit(KERNEL, anchors, y, torch.full((n,), 1e-6, dtype=torch.float64))
    torch.testing.assert_close(exact.mean(anchors), y, atol=1e-5, rtol=0)
    assert float(exact.variance(anchors).max()) < 1e-6


@given(n=st.integers(2, 20), seed=st.integers(0, 500))
def test_more_anchors_never_increase_the_variance(n, seed):
    anchors, y, noise = problem(n, seed)
    query = points(9, seed + 1)
    fewer = Posterior.fit(KERNEL, anchors[:-1], y[:-1], noise[:-1]).variance(query)
    more = Posterior.fit(KERNEL, anchors, y, noise).variance(query)
    assert bool((more <= fewer + 1e-9).all())


@given(n=st.integers(1, 15), seed=st.integers(0, 500))
def test_the_paper_s_ridge_is_the_case_of_linear_modes_alone(n, seed):
    """Prior variance τ² of the weights and noise σ² are a ridge of σ²/τ²."""
    anchors, y, noise = problem(n, seed, noise=0.3)
    linear = Kernel(0.0, 2.0, (), 0.3)
    anchors, query = (
        dataclasses.replace(p, mean=torch.zeros_like(p.mean))
        for p in (anchors, points(6, seed + 1))
    )
    gaussian = Posterior.fit(linear, anchors, y, noise).mean(query)
    strength = 0.3**2 / 2.0**2
    ridge = solve(
        anchors.modes[None], y[None], torch.ones(1, n),
        Ridge(ridge=strength, ridge_global=strength),
    )  # fmt: skip
    torch.testing.assert_close(gaussian, ridge.offset + query.modes @ ridge.weights[0])


@given(n=st.integers(2, 15), more=st.integers(1, 4), seed=st.integers(0, 200))
def test_adding_anchors_is_solving_with_all_of_them(n, more, seed):
    anchors, y, noise = problem(n + more, seed)
    fewer = Posterior.fit(KERNEL, anchors[:n], y[:n], noise[:n])
    grown = fewer.add(anchors[n:], y[n:], noise[n:])
    whole = Posterior.fit(KERNEL, anchors, y, noise, offset=fewer.offset)
    query = points(6, seed + 1)
    torch.testing.assert_close(grown.mean(query), whole.mean(query), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(grown.variance(query), whole.variance(query), rtol=1e-5, atol=1e-7)


@given(n=st.integers(1, 9), seed=st.integers(0, 200))
def test_images_in_a_batch_are_solved_alone(n, seed):
    problems = [problem(n, seed + i) for i in range(3)]
    stacked = Points(
        *(
            torch.stack(values)
            for values in zip(*(vars(p[0]).values() for p in problems), strict=True)
        )
    )
    y, noise = (torch.stack([p[i] for p in problems]) for i in (1, 2))
    together = Posterior.fit(KERNEL, stacked, y, noise)
    query = points(5, seed + 9)
    for i, (anchors, own, sigma) in enumerate(problems):
        alone = Posterior.fit(KERNEL, anchors, own, sigma)
        torch.testing.assert_close(together[i].mean(query), alone.mean(query))
        torch.testing.assert_close(together[i].variance(query), alone.variance(query))


def field_of_the_kernel(n, seed, scale=1.0):
    """Anchors whose y is drawn from the kernel itself, its bends `scale` times as rough."""
    anchors = points(n, seed)
    rng = np.random.default_rng(seed)
    covariance = scale**2 * KERNEL(anchors, anchors).numpy() + 1e-9 * np.eye(n)
    y = torch.from_numpy(np.linalg.cholesky(covariance) @ rng.normal(size=n)) + anchors.mean
    return anchors, y + 0.02 * torch.from_numpy(rng.normal(size=n)), rng


def test_gross_errors_are_found_and_honest_anchors_stay():
    """30 % of the anchors wrong by a factor of 4 to 10, in ten fields."""
    n, found, honest = 100, [], []
    noise = torch.full((n,), 0.02, dtype=torch.float64)
    for seed in range(10):
        anchors, y, rng = field_of_the_kernel(n, seed)
        wrong = torch.from_numpy(rng.permutation(n) < 30)
        factor = torch.from_numpy(rng.choice([-1, 1], n) * rng.uniform(np.log(4), np.log(10), n))
        assert float((credence(KERNEL, anchors, y, noise) > 0.5).double().mean()) >= 0.97
        kept, _ = doubt(KERNEL, anchors, y + wrong * factor, noise)
        found.append(float((~kept)[wrong].double().mean()))
        honest.append(float(kept[~wrong].double().mean()))
    assert np.mean(found) > 0.85
    assert np.mean(honest) > 0.9


def test_scattered_errors_are_the_anchors_and_those_that_hang_together_the_estimator_s():
    """Of 100 anchors over a flat field 12 are off by a factor of two: anywhere, or side by side."""
    v, u = np.divmod(np.arange(100), 10)
    one = torch.ones(100, 1, dtype=torch.float64)
    position = torch.from_numpy(np.stack([u, v], axis=1) / 10.0)
    flat = torch.zeros(100, dtype=torch.float64)
    anchors = Points(
        position, flat, 0 * one, 0 * one[:, None].expand(-1, 2, -1), one.expand(-1, 2), flat
    )
    noise = torch.full((100,), 0.01, dtype=torch.float64)
    rng = np.random.default_rng(0)
    scattered, together = flat.clone(), flat.clone()
    scattered[torch.from_numpy(rng.permutation(100)[:12])] = torch.from_numpy(
        0.7 * rng.choice([-1.0, 1.0], 12)
    )
    together[torch.from_numpy((u < 3) & (v < 4))] = 0.7
    for y, blamed in ((scattered, True), (together, False)):
        proof = evidence(KERNEL, anchors, y, noise, y == 0)
        assert (proof > 20) == blamed


def test_many_anchors_are_judged_by_their_neighbours():
    """In blocks: what a block says is what it says alone."""
    anchors, y, rng = field_of_the_kernel(MOST_JUDGED + 20, 3)
    y[torch.from_numpy(rng.permutation(len(y))[:40])] += torch.from_numpy(rng.choice([-2, 2], 40))
    noise = torch.full((len(y),), 0.02, dtype=torch.float64)
    kept, _ = doubt(KERNEL, anchors, y, noise)
    place = anchors.position
    axis = int((place.amax(dim=0) - place.amin(dim=0)).argmax())
    half = place[:, axis].argsort(stable=True)[: len(y) // 2]
    alone = credence(KERNEL, anchors[half], y[half], noise[half]) > 0.5
    assert torch.equal(kept[half], alone)


@settings(max_examples=15)
@given(seed=st.integers(0, 500))
def test_a_rough_field_is_no_proof_against_its_anchors(seed):
    anchors, y, _ = field_of_the_kernel(60, seed, scale=4.0)
    noise = torch.full((60,), 0.02, dtype=torch.float64)
    kept = credence(KERNEL, anchors, y, noise) > 0.5
    assert evidence(KERNEL, anchors, y, noise, kept) < 9


def test_without_a_majority_nobody_is_doubted():
    anchors, _, noise = problem(4, 0)
    y = torch.tensor([0.0, 0.0, 0.0, 9.0], dtype=torch.float64)
    assert bool((credence(KERNEL, anchors, y, noise) == 1).all())
    assert evidence(KERNEL, anchors, y, noise, torch.ones(4, dtype=torch.bool)) == 0
