import dataclasses
import math
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scalefield import patches, patchwork
from scalefield.kernel import Points
from scalefield.patches import cut
from scalefield.patchwork import Patchwork, far_apart, one_a_pixel
from scalefield.posterior import Posterior
from test_kernel import KERNEL, points

cases = {"n": st.integers(1, 60), "seed": st.integers(0, 500)}


@pytest.fixture
def small(monkeypatch):
    """Patches so small that few anchors need many of them."""
    for module, sizes in {
        patchwork: {"SPREAD": 150, "FAR": 30},
        patches: {"OWN": 25, "NEAR": 70},
    }.items():
        for name, size in sizes.items():
            monkeypatch.setattr(module, name, size)


def smooth_world(n, seed, clustered=False):
    """Anchors over a plane whose features change smoothly, as an image's do; y is a smooth field
    with a slope over depth."""
    rng = np.random.default_rng(seed)
    position = rng.uniform(0, 1, (n, 2))
    if clustered:
        crowd = rng.random(n) < 0.9
        position[crowd] = 0.3 + 0.02 * position[crowd]
    return over(torch.from_numpy(position)), torch.from_numpy(
        0.3 * np.sin(4 * position[:, 0]) + 0.2 * position[:, 1] ** 2 + 1
    )


def over(position):
    """Features at any position, smooth in it."""
    u, v = position.T
    waves = torch.stack([torch.sin(2 * u + v), torch.cos(3 * v), u * v, u - v], dim=1)
    embedding = torch.stack([waves[:, :3], waves[:, 1:]], dim=1)
    amplitude = 1 + 0.2 * waves[:, :2]
    like = points(1, 0)
    modes = waves[:, [i % 4 for i in range(like.modes.shape[1])]]
    channels = [i % 3 for i in range(like.embedding.shape[2])]
    return Points(
        position, 0.5 * u * v, modes, embedding[:, :, channels], amplitude, 0.1 * waves[:, 0]
    )


def noise_of(n, value=0.01):
    return torch.full((n,), value, dtype=torch.float64)


@settings(max_examples=15)
@given(**cases)
def test_patches_that_hear_everyone_are_the_posterior(n, seed):
    """Mean, variance, weights and speakers, whatever the patches; pixels may hold several."""
    rng = np.random.default_rng(seed)
    anchors = points(n, seed)[torch.from_numpy(rng.integers(0, n, n + 5))]
    y = torch.from_numpy(rng.normal(1, 0.3, n + 5))
    noise = torch.from_numpy(rng.uniform(0.02, 0.1, n + 5))
    query = points(9, seed + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patches, "OWN", 7)
        found = Patchwork.fit(KERNEL, anchors, y, noise)
    assert len(found.heard) >= len(anchors.position.unique(dim=0)) / 7
    exact = Posterior.fit(KERNEL, anchors, y, noise, found.coarse.offset)
    # Of the rounding between measurements of one pixel a rough term's cusp takes the root.
    close = {"rtol": 1e-6, "atol": 2e-6}
    torch.testing.assert_close(found.mean(query), exact.mean(query), **close)
    torch.testing.assert_close(found.variance(query), exact.variance(query), **close)
    torch.testing.assert_close(found.weights(), exact.weights(), **close)
    torch.testing.assert_close(found.speakers(query), exact.speakers(query), **close)
    torch.testing.assert_close(found.covariance(query), exact.covariance(query), **close)


@pytest.mark.parametrize("clustered", [False, True])
def test_patches_that_hear_their_neighbours_are_close_to_it(small, clustered):
    anchors, y = smooth_world(600, 0, clustered)
    y = y + 0.01 * torch.randn(600, generator=torch.Generator().manual_seed(0))
    query, truth = smooth_world(400, 1)
    found = Patchwork.fit(KERNEL, anchors, y, noise_of(600))
    assert len(found.heard) >= 24
    exact = Posterior.fit(KERNEL, anchors, y, noise_of(600))
    errors = [(p.mean(query) - truth).abs().mean() for p in (found, exact)]
    assert float(errors[0]) < 1.05 * float(errors[1])
    ratio = (found.variance(query) / exact.variance(query)).sqrt()
    assert float(ratio.min()) > 0.99
    assert float(ratio.median()) < 1.1
    ours, theirs = (p.leave_one_out() for p in (found, exact))
    assert float(ours[1].median()) == pytest.approx(float(theirs[1].median()), rel=0.05)
    strange = [float((r / d).abs().mean()) for r, d in (ours, theirs)]
    assert strange[0] == pytest.approx(strange[1], rel=0.1)


def test_nothing_jumps_where_patches_meet(small):
    """A step across any border changes the field by what such a step changes elsewhere."""
    anchors, y = smooth_world(600, 2)
    y = y + 0.1 * torch.randn(600, generator=torch.Generator().manual_seed(0)).double()
    found = Patchwork.fit(KERNEL, anchors, y, noise_of(600, 0.1))
    exact = Posterior.fit(KERNEL, anchors, y, noise_of(600, 0.1))
    along = torch.linspace(0, 1, 23, dtype=torch.float64)
    places, steps = [], []
    for lower in found.boxes.lower:
        for axis, at in enumerate(lower.tolist()):
            if np.isfinite(at):
                place = torch.stack([torch.full_like(along, at), along], dim=1)
                step = torch.tensor([1e-6, 0.0]).double().expand_as(place)
                places.append(place.flip(1) if axis else place)
                steps.append(step.flip(1) if axis else step)
    place, step = torch.cat(places), torch.cat(steps)
    sides = over(torch.cat([place - step, place + step]))
    for values in ("mean", "variance"):
        ours, theirs = (
            getattr(p, values)(sides).reshape(2, -1).diff(dim=0).abs().max() for p in (found, exact)
        )
        assert float(ours) < 2 * float(theirs) + 1e-9


@settings(max_examples=20)
@given(n=st.integers(2, 400), seed=st.integers(0, 500), crowd=st.floats(1e-3, 1))
@example(n=107, seed=450, crowd=0.0625)  # more than a patch hears, in it and on its border
def test_every_anchor_is_in_one_patch_and_heard_wherever_one_has_a_say(n, seed, crowd):
    rng = np.random.default_rng(seed)
    pixels = np.unique((rng.uniform(0, 1, (n, 2)) ** [1, 1 / crowd] * 50).astype(int), axis=0)
    position = torch.from_numpy(pixels / 40.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patches, "OWN", 20)
        patch.setattr(patches, "NEAR", 60)
        made = list(cut(position, torch.arange(min(3, len(position)))))
    assert torch.cat([p.own for p in made]).sort().values.tolist() == list(range(len(position)))
    for patch in made:
        assert len(patch.own) <= 20
        heard = patch.box.say(position).nonzero()[:, 0]
        assert len(patch.near) <= max(60, len(heard)) + 3
        assert set(heard.tolist()) <= set(patch.near.tolist())
        assert set(patch.own.tolist()) <= set(heard.tolist())


@pytest.mark.parametrize("clustered", [False, True])
def test_patches_solved_together_are_those_solved_alone(small, monkeypatch, clustered):
    """Those that hear fewer anchors than the others are filled up with nobody."""
    anchors, y = smooth_world(600, 7, clustered)
    query, _ = smooth_world(90, 8)
    alone = Patchwork.fit(KERNEL, anchors, y, noise_of(600))
    assert len({len(near) for near in alone.heard}) > 1
    variance = alone.variance(query)
    monkeypatch.setattr(patchwork, "patches_at_once", lambda _: 5)
    solve = mock.Mock(wraps=patchwork.local)
    monkeypatch.setattr(patchwork, "local", solve)
    found = Patchwork.fit(KERNEL, anchors, y, noise_of(600))
    assert solve.call_count == math.ceil(len(found.heard) / 5)
    close = {"rtol": 1e-6, "atol": 1e-7}
    torch.testing.assert_close(found.variance(query), variance, **close)
    torch.testing.assert_close(found.leave_one_out(), alone.leave_one_out(), **close)
    torch.testing.assert_close(found.mean(query), alone.mean(query), **close)


def test_it_passes_through_exact_anchors(small):
    anchors, y = smooth_world(300, 3)
    y = y + 0.1 * torch.randn(300, generator=torch.Generator().manual_seed(0)).double()
    found = Patchwork.fit(KERNEL, anchors, y, noise_of(300, 1e-5))
    torch.testing.assert_close(found.mean(anchors), y, atol=1e-4, rtol=0)
    assert float(found.variance(anchors).max()) < 1e-6


def test_speakers_are_the_derivative(small):
    anchors, y = smooth_world(300, 4)
    query = over(torch.rand(5, 2, generator=torch.Generator().manual_seed(0)).double())
    offset = {"constant": 2.0}  # wide enough for the median not to matter
    kernel = dataclasses.replace(KERNEL, **offset)
    found = Patchwork.fit(kernel, anchors, y, noise_of(300))
    change = torch.randn(300, generator=torch.Generator().manual_seed(1)).double() * 1e-3
    moved = Patchwork.fit(kernel, anchors, y + change, noise_of(300))
    shift = moved.coarse.offset - found.coarse.offset
    expected = found.speakers(query) @ (change - shift) + shift
    torch.testing.assert_close(moved.mean(query) - found.mean(query), expected, atol=1e-9, rtol=0)


def test_a_thousand_measurements_of_one_pixel_are_their_mean(small):
    anchors, _ = smooth_world(2, 0)
    anchors = anchors[torch.zeros(1000, dtype=torch.long)]
    y = 2 + 0.1 * torch.randn(1000, generator=torch.Generator().manual_seed(0)).double()
    found = Patchwork.fit(KERNEL, anchors, y, noise_of(1000, 0.1))
    assert len(found.anchors) == 1
    assert float(found.mean(anchors[:1])) == pytest.approx(float(y.mean()), abs=0.01)
    assert found.speakers(anchors[:1]).shape == (1, 1000)


def test_anchors_of_one_pixel_are_weighed_by_their_noise():
    anchors = points(2, 0)[torch.tensor([1, 0, 1])]
    y, noise = torch.tensor([1.0, 5.0, 2.0]).double(), torch.tensor([0.1, 0.1, 0.2]).double()
    _, level, deviation, member, part = one_a_pixel(anchors, y, noise)
    both = int(member[0])
    assert member.tolist() == [both, 1 - both, both]
    assert float(level[both]) == pytest.approx(0.8 * 1 + 0.2 * 2)
    assert float(deviation[both]) == pytest.approx(0.2 / np.sqrt(5))
    assert part.tolist() == pytest.approx([0.8, 1, 0.2])


def test_anchors_far_apart_leave_no_large_hole():
    anchors, _ = smooth_world(500, 5, clustered=True)
    chosen = far_apart(anchors, 40)
    assert len(set(chosen.tolist())) == 40
    place = torch.cat([anchors.position, 0.5 * anchors.log_depth[:, None]], dim=1)
    hole = torch.cdist(place, place[chosen]).amin(dim=1).max()
    apart = torch.cdist(place[chosen], place[chosen]).fill_diagonal_(torch.inf).min()
    assert float(hole) <= float(apart)


def test_patches_that_do_not_reach_a_box_have_no_say_in_it(small):
    anchors, y = smooth_world(600, 6)
    found = Patchwork.fit(KERNEL, anchors, y, noise_of(600))
    rng = np.random.default_rng(0)
    skipped = 0
    for lower in rng.uniform(0, 0.9, (20, 2)):
        place = torch.from_numpy(lower + rng.uniform(0, 0.1, (200, 2)))
        heard = torch.zeros(200, dtype=torch.float64)
        beyond = ~found.boxes.reaches(place.amin(dim=0), place.amax(dim=0))
        assert not found.boxes.say(place)[beyond].any()
        skipped += int(beyond.sum())
        for _, where, share in found.shares(place):
            heard[where] += share
        torch.testing.assert_close(heard, torch.ones_like(heard))
    assert skipped > 200
