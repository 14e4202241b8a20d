"""Standard deviations in single frames: coverage, steps between nested sets, limits."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from field.worlds import KERNEL, observations_of, room
from scalefield.anchors import Anchors
from scalefield.field import error_scale
from scalefield.field.condition import MAX_FACTOR, calibrated, condition
from scalefield.field.error_scale import log_evidence, prior_factors, scale_factors
from scalefield.field.kernel import ScaleFactors
from scalefield.field.model import load_field
from scalefield.field.observations import Readings
from scalefield.field.posterior import DEPTH_MARGIN, MIN_MARGIN, Extent
from scalefield.recovery import MIN_SUPPORT

NESTED = (8, 12, 20, 32, 50, 80)


@pytest.fixture(scope="module")
def model():
    return load_field("field")


def drawn_world(model, seed, count=200):
    """An image, pixels of it, and a log-scale drawn from one of the hypotheses there."""
    mde_output, _ = room(seed)
    image = model.image_inputs(mde_output)
    rng = np.random.default_rng(seed)
    flat = rng.choice(math.prod(image.shape), count, replace=False)
    rows, columns = (torch.from_numpy(x) for x in np.divmod(flat, image.shape[1]))
    scale = model.error_scales[seed % len(model.error_scales)]
    inputs = image.pixels(rows, columns)
    covariance = model.kernel.scaled(ScaleFactors(*scale[1:]))(inputs, inputs)
    factor = torch.linalg.cholesky(covariance + 1e-9 * torch.eye(count).double())
    log_scale = 0.3 * (factor @ torch.from_numpy(rng.normal(size=count)))
    return image, rows, columns, log_scale


def posterior(model, image, rows, columns, log_scale, **options):
    depth_m = (log_scale + image.mde_depth[rows, columns].double().log()).exp()
    anchors = Anchors(columns.numpy(), rows.numpy(), depth_m.numpy())
    readings = Readings.of(anchors, image.shape, float(model.kernel.noise_std))
    return condition(model, image, readings, **options)


@pytest.mark.parametrize("n", [12, 50, 104])
def test_intervals_of_single_frames_hold_most_of_their_pixels(model, n):
    shares = []
    for seed in range(16):
        image, *world = drawn_world(model, seed)
        found = posterior(model, image, *(x[:n] for x in world))
        rows, columns, log_scale = (x[n:] for x in world)
        mean, std = found.at(rows, columns)
        shares.append(float(((mean - log_scale).abs() < 1.645 * std).double().mean()))
    assert np.mean(shares) > 0.85
    assert np.quantile(shares, 0.1) > 0.75


def test_consistent_anchors_raise_the_median_deviation_little(model):
    steps = []
    for seed in range(8):
        image, *world = drawn_world(model, seed)
        medians = [
            float(posterior(model, image, *(x[:n] for x in world)).at(*world[:2])[1].median())
            for n in NESTED
        ]
        steps += [b / a for a, b in itertools.pairwise(medians)]
    assert max(steps) < 1.5
    assert np.mean(np.array(steps) > 1.25) <= 0.05


@pytest.mark.parametrize("seed", range(3))
def test_a_repeated_row_changes_no_deviation(model, seed):
    image, *world = drawn_world(model, seed, 60)
    once, (rows, columns) = [x[:20] for x in world], world[:2]
    twice = [torch.cat([x, x[:7]]) for x in once]
    stds = [posterior(model, image, *each).at(rows, columns)[1] for each in (once, twice)]
    torch.testing.assert_close(*stds)


@given(n=st.integers(1, 40), padding=st.integers(0, 5), seed=st.integers(0, 50))
def test_factors_are_weighted_by_the_evidence_to_the_power_of_its_count(n, padding, seed):
    observed = observations_of(n + padding, seed)
    observed = observed._replace(mask=torch.arange(n + padding) < n)
    scales, c = error_scale.ERROR_SCALES, error_scale.EVIDENCE_COUNT
    prior = np.array([scale.probability for scale in scales])
    likelihood = log_evidence(KERNEL, observed, scales).numpy() - np.log(prior)
    weight = prior * np.exp((likelihood - likelihood.max()) * c / (n + c))
    weight /= weight.sum()
    for name, found in scale_factors(KERNEL, observed, scales)._asdict().items():
        wanted = np.sqrt(weight @ np.square([getattr(scale, name) for scale in scales]))
        assert abs(math.log2(float(found) / wanted)) <= 0.51 / error_scale.STEPS_PER_OCTAVE


def test_prior_factors_are_those_of_one_anchor(model):
    found = scale_factors(model.kernel, _one_observation(model), model.error_scales)
    for name, wanted in prior_factors(model.error_scales)._asdict().items():
        assert float(getattr(found, name)) == pytest.approx(wanted, rel=0.1)


def _one_observation(model):
    image, *world = drawn_world(model, 0)
    return posterior(model, image, *(x[:1] for x in world)).fit.observations


def test_std_decay_falls_with_the_number_of_anchors(model):
    image, *world = drawn_world(model, 1)
    fitted = posterior(model, image, *(x[:40] for x in world)).fit
    factors = [
        float(calibrated(dataclasses.replace(model, std_decay=d), fitted).calibration.factor)
        for d in (0.0, 0.2)
    ]
    assert factors[1] / factors[0] == pytest.approx(40**-0.2)


def test_one_wild_anchor_raises_the_factor_to_its_limit_at_most(model):
    image, rows, columns, log_scale = drawn_world(model, 1)
    wild = log_scale[:6] + torch.tensor([0, 0, 0, 0, 0, 2.0])
    found = posterior(model, image, rows[:6], columns[:6], wild, robust=False)
    limit = MAX_FACTOR * 6**-model.std_decay
    assert float(found.fit.calibration.factor) <= limit + 1e-9
    noise = model.std_scale * limit * float(model.kernel.noise_std)
    assert float(found.at(rows[:6], columns[:6])[1].max()) < 1.01 * noise


@pytest.mark.parametrize("n", [9, 60])
def test_depth_outside_the_anchors_has_no_support_and_at_least_the_deviation_of_the_prior(model, n):
    image, rows, columns, log_scale = drawn_world(model, 1, 400)
    below = rows >= 0.6 * image.shape[0]
    found = posterior(model, image, *(x[below][:n] for x in (rows, columns, log_scale)))
    rendered = found.render()
    sky = slice(0, image.shape[0] // 5)
    assert float((rendered.support[sky] < MIN_SUPPORT).float().mean()) > 0.95
    assert float(rendered.support[-5:].median()) > 0.4
    grid = torch.meshgrid(*map(torch.arange, image.shape), indexing="ij")
    kernel = found.fit.kernel
    pixels = image.pixels(*(x[sky].flatten() for x in grid))
    prior = kernel.prior_variance(kernel.features(pixels)).sqrt()
    std = rendered.std[sky].flatten()
    assert float((std > 0.99 * prior).double().mean()) > 0.9


@pytest.mark.parametrize("n", [1, 3, 30])
def test_extent_is_the_hull_of_the_anchors_and_their_range_of_depth(model, n):
    image, rows, columns, log_scale = drawn_world(model, 2, 60)
    found = posterior(model, image, *(x[:n] for x in (rows, columns, log_scale)))
    extent, at = Extent.of(found.fit.observations), image.pixels(rows[:n], columns[:n])
    assert bool((extent.beyond(at.position) == 0).all())
    pairs = at.position.mean(dim=0, keepdim=True)
    assert float(extent.beyond(pairs)) == 0
    far = extent.beyond(pairs + torch.tensor([[3.0, 4.0]]).double())
    assert 0 < 5 - float(far * extent.few.clamp(min=MIN_MARGIN)) < 2
    beyond = at.log_depth.max() + (DEPTH_MARGIN + 1 / n) * torch.tensor([0.0, 0.5, 1, 2]).double()
    share = extent.share(torch.zeros(4).double(), beyond)
    torch.testing.assert_close(share, torch.exp(-torch.tensor([0.0, 0.5**4, 1, 16]).double()))


@pytest.mark.parametrize("n", [6, 50])
def test_at_joint_and_render_agree_beyond_the_extent(model, n):
    image, rows, columns, log_scale = drawn_world(model, 3, 300)
    left = columns < 0.4 * image.shape[1]
    found = posterior(model, image, *(x[left][:n] for x in (rows, columns, log_scale)))
    rows, columns = rows[~left][:40], columns[~left][:40]
    _, std = found.at(rows, columns)
    torch.testing.assert_close(
        found.joint(rows, columns).covariance.diagonal().sqrt(), std, rtol=0.05, atol=1e-3
    )
    rendered = found.render().std[rows, columns].double()
    assert float((rendered / std).log().abs().median()) < 0.05
