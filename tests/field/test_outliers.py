import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scalefield.doubt import (
    BEYOND,
    GROSS,
    MOST_JUDGED,
    Blame,
    blocks,
    chance,
    doubt,
    honest,
    vouched,
)
from scalefield.kernel import Points
from scipy.stats import multivariate_normal
from test_kernel import KERNEL, points


def field_of_the_kernel(n, seed, scale=1.0, kernel=KERNEL):
    """Anchors whose y is drawn from the kernel itself, its bends `scale` times as rough."""
    anchors = points(n, seed)
    rng = np.random.default_rng(seed)
    covariance = scale**2 * kernel(anchors, anchors).numpy() + 1e-9 * np.eye(n)
    y = torch.from_numpy(np.linalg.cholesky(covariance) @ rng.normal(size=n)) + anchors.mean
    return anchors, y + 0.02 * torch.from_numpy(rng.normal(size=n)), rng


def noise_of(n, sigma=0.02):
    return torch.full((n,), sigma, dtype=torch.float64)


def marks(verdict):
    return verdict.wrong, verdict.strange, verdict.vouched


@settings(max_examples=40, deadline=None)
@given(n=st.integers(5, 12), seed=st.integers(0, 500))
def test_no_single_change_of_the_marks_explains_more(n, seed):
    """The closed form against the textbook's density, at the end of the search."""
    anchors, y, rng = field_of_the_kernel(n, seed)
    y = (y - anchors.mean).numpy() + rng.choice([0, 0, 0, 1.5, -1.5, 4.5], n)
    gross = np.where(np.abs(y) > BEYOND, y, GROSS) ** 2
    covariance, variance = KERNEL(anchors, anchors).numpy(), np.full(n, 0.02**2)

    def score(marked):
        whole = covariance + np.diag(variance + gross * marked)
        constant = 0.5 * n * np.log(2 * np.pi)
        return multivariate_normal(cov=whole).logpdf(y) + constant + chance(int(marked.sum()), n)

    start = rng.random(n) < 0.2
    whole = torch.from_numpy(covariance + np.diag(variance))
    ((blame,),) = honest(whole[None, None], torch.from_numpy(y)[None])
    nobody = np.zeros(n, bool)
    assert blame.score + chance(0, n) == pytest.approx(score(nobody), rel=1e-6, abs=1e-6)
    blame.search(start)
    found = blame.score + chance(int(blame.marked.sum()), n)
    assert found == pytest.approx(score(blame.marked), rel=1e-6, abs=1e-6)
    assert found >= score(start) - 1e-9
    for i in range(n):
        other = blame.marked.copy()
        other[i] = not other[i]
        assert other.sum() > 0.45 * n or score(other) <= found + 1e-6


def test_gross_errors_are_found_and_honest_anchors_stay():
    """30 % of the anchors wrong by a factor of 4 to 10, in ten fields."""
    n, found, honest = 100, [], []
    for seed in range(10):
        anchors, y, rng = field_of_the_kernel(n, seed)
        wrong = torch.from_numpy(rng.permutation(n) < 30)
        factor = torch.from_numpy(rng.choice([-1, 1], n) * rng.uniform(np.log(4), np.log(10), n))
        assert int(doubt(KERNEL, anchors, y, noise_of(n)).wrong.sum()) <= 3
        verdict = doubt(KERNEL, anchors, y + wrong * factor, noise_of(n))
        blamed = [verdict.wrong[wrong], verdict.strange[wrong]]
        found.append([float(which.double().mean()) for which in blamed])
        honest.append(float((~verdict.wrong)[~wrong].double().mean()))
    left_out, named = np.mean(found, axis=0)
    assert left_out > 0.7
    assert left_out + named > 0.85
    assert np.mean(honest) > 0.95


def flat_world():
    """100 anchors in a grid over a flat depth map."""
    v, u = np.divmod(np.arange(100), 10)
    one = torch.ones(100, 1, dtype=torch.float64)
    position = torch.from_numpy(np.stack([u, v], axis=1) / 10.0)
    flat = torch.zeros(100, dtype=torch.float64)
    embedding = 0 * one[:, None].expand(-1, 2, -1)
    return Points(position, flat, 0 * one, embedding, one.expand(-1, 2), flat), u, v


def test_scattered_errors_are_the_anchors_and_those_that_hang_together_the_estimator_s():
    """12 of 100 anchors are off by a factor of two: anywhere, or side by side."""
    anchors, u, v = flat_world()
    rng = np.random.default_rng(0)
    y = 0.01 * torch.from_numpy(rng.normal(size=100))
    scattered = torch.from_numpy(rng.permutation(100) < 12)
    signs = torch.from_numpy(rng.choice([-1.0, 1.0], 100))
    verdict = doubt(KERNEL, anchors, y + 0.7 * signs * scattered, noise_of(100))
    assert torch.equal(verdict.wrong, scattered)
    together = torch.from_numpy((u < 3) & (v < 4))
    verdict = doubt(KERNEL, anchors, y + 0.7 * together, noise_of(100))
    assert not verdict.wrong.any()


def test_a_missed_object_is_vouched_for_by_its_depth_where_scales_differ():
    """Behind it the map slopes, so that one depth is many scales."""
    rng = np.random.default_rng(0)
    position = np.stack(np.divmod(np.arange(100), 10), axis=1) / 10.0
    inside = (position[:, 0] < 0.3) & (position[:, 1] < 0.4)
    sloped = 2.0 * position[:, 1]
    scale = np.where(inside, -1 - sloped, 0.01 * rng.normal(size=100))
    P = np.diag(1 / np.where(inside, 0.7, 0.01))
    blame = Blame.nobody(0.0, scale, P, P @ scale)
    blame.marked = inside
    seen = vouched(position, scale, sloped + scale, blame)
    assert np.array_equal(seen > 0.5, inside)
    assert not seen[~inside].any()
    believed = []
    for _ in range(20):
        scattered = np.where(inside, rng.uniform(-2, 2, 100), scale)
        blame.alpha = P @ scattered
        believed.append((vouched(position, scattered, sloped + scattered, blame) > 0.5).sum())
    assert np.mean(believed) <= 3


@settings(max_examples=30, deadline=None)
@given(n=st.integers(5, 30), seed=st.integers(0, 500), factor=st.sampled_from([0.01, 100]))
def test_a_slip_of_the_pen_is_left_out_however_few_there_are(n, seed, factor):
    """Centimetres for metres, which gross errors of a common size would not explain."""
    smooth = dataclasses.replace(KERNEL, linear=0.2, slope=0.1, doubt=0.1)
    anchors, y, _ = field_of_the_kernel(n, seed, kernel=smooth)
    y[n // 2] += np.log(factor)
    assert bool(doubt(smooth, anchors, y, noise_of(n)).wrong[n // 2])


def test_what_is_weakly_contradicted_is_named_and_not_dropped():
    anchors, _, _ = flat_world()
    y = torch.zeros(100, dtype=torch.float64)
    seen = []
    for error in np.linspace(0, 1, 41):
        y[44] = error
        verdict = doubt(KERNEL, anchors, y, noise_of(100, 0.05))
        seen.append(tuple(int(which.sum()) for which in marks(verdict)))
    # As the error grows: nothing, a warning, a rejection.
    assert list(dict.fromkeys(seen)) == [(0, 0, 0), (0, 1, 0), (1, 0, 0)]


def test_doubt_makes_an_anchor_vague_before_it_is_dropped():
    anchors, _, _ = flat_world()
    y, given = torch.zeros(100, dtype=torch.float64), noise_of(100, 0.05)
    assert torch.equal(doubt(KERNEL, anchors, y, given).noise, given)
    noise = []
    for error in np.linspace(0, 1, 21):
        y[44] = error
        verdict = doubt(KERNEL, anchors, y, given)
        assert bool((verdict.noise >= given).all())
        noise.append(float(verdict.noise[44]))
    assert noise == sorted(noise)
    assert noise[-1] > 10 * noise[0]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 500))
def test_a_rough_field_is_no_proof_against_its_anchors(seed):
    anchors, y, _ = field_of_the_kernel(60, seed, scale=4.0)
    assert int(doubt(KERNEL, anchors, y, noise_of(60)).wrong.sum()) <= 6


def test_many_anchors_are_judged_by_those_around_them():
    """In blocks, each of them once: what a block says is what it says alone."""
    anchors, y, rng = field_of_the_kernel(MOST_JUDGED + 20, 3)
    y[torch.from_numpy(rng.permutation(len(y))[:40])] += torch.from_numpy(rng.choice([-2, 2], 40))
    verdict = doubt(KERNEL, anchors, y, noise_of(len(y)))
    halves = blocks(anchors.position.numpy())
    assert sorted(np.concatenate(halves).tolist()) == list(range(len(y)))
    assert [len(half) for half in halves] == [len(y) // 2] * 2
    for half in halves:
        alone = doubt(KERNEL, anchors[torch.from_numpy(half)], y[half], noise_of(len(half)))
        for ours, theirs in zip(vars(verdict).values(), vars(alone).values(), strict=True):
            assert torch.equal(ours[half], theirs)
    assert int(verdict.wrong.sum()) >= 20


def test_without_a_majority_nobody_is_doubted():
    anchors = points(4, 0)
    y = torch.tensor([0.0, 0.0, 0.0, 9.0], dtype=torch.float64)
    verdict = doubt(KERNEL, anchors, y, noise_of(4))
    assert not any(bool(which.any()) for which in marks(verdict))
    assert torch.equal(verdict.noise, noise_of(4))


def test_a_measurement_that_is_known_to_be_vague_is_not_wrong():
    anchors, _, _ = flat_world()
    y, noise = torch.zeros(100, dtype=torch.float64), noise_of(100)
    y[44] = 1.0
    assert doubt(KERNEL, anchors, y, noise).wrong.nonzero().flatten().tolist() == [44]
    noise[44] = 0.7
    assert not doubt(KERNEL, anchors, y, noise).wrong.any()
