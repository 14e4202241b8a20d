import dataclasses

import numpy as np
import pytest
import torch

from field.worlds import draw_anchors, room, with_depth
from scalefield.anchors import Anchors
from scalefield.field.condition import (
    calibrated,
    condition,
    empirical_bayes_scale,
    expected_recovery,
    sum_abs_z,
)
from scalefield.field.config import InferenceConfig
from scalefield.field.exact import ExactPosterior
from scalefield.field.model import load_field
from scalefield.field.observations import MIN_NOISE_STD, Readings
from scalefield.field.posterior import UNCALIBRATED, Calibration


@pytest.fixture(scope="module")
def model():
    return load_field("field")


@pytest.fixture(scope="module")
def world(model):
    mde_output, truth = room()
    return model.image_inputs(mde_output), truth


def readings_of(model, image, anchors):
    return Readings.of(anchors, image.shape, float(model.kernel.noise_std))


def observe(model, image, anchors):
    return image.observe(readings_of(model, image, anchors))


def infer(model, image, anchors, **options):
    return condition(model, image, readings_of(model, image, anchors), **options)


def uncalibrated_std(fitted):
    """The posterior's own standard deviation at every pixel, and what extrapolation adds."""
    return dataclasses.replace(fitted, calibration=UNCALIBRATED).render().std


def test_targets_are_log_ratios_and_noise_is_that_of_the_anchors(model, world):
    image, truth = world
    anchors = draw_anchors(truth, 5)
    observed = observe(model, image, anchors)
    rows, columns = anchors.v.astype(int), anchors.u.astype(int)
    wanted = np.log(anchors.depth_m) - image.mde_depth[rows, columns].double().log().numpy()
    np.testing.assert_allclose(observed.y.numpy(), wanted, atol=1e-9)
    assert observed.noise.tolist() == [float(model.kernel.noise_std)] * 5
    assert bool(observed.mask.all())
    precise = Anchors(anchors.u, anchors.v, anchors.depth_m, np.full(5, 1e-9))
    noise = observe(model, image, precise).noise
    assert noise.tolist() == pytest.approx([MIN_NOISE_STD] * 5)


def test_no_anchors_are_one_masked_observation(model, world):
    observed = observe(model, world[0], Anchors([], [], []))
    assert observed.mask.tolist() == [False]


@pytest.mark.parametrize("n", [2, 9, 60])
def test_leave_one_out_is_that_of_the_exact_posterior_in_the_order_given(model, world, n):
    """Calibrated, for anchors in any order."""
    image, truth = world
    anchors = draw_anchors(truth, n)
    result = infer(model, image, anchors, robust=False)
    residual, std = result.leave_one_out()
    inputs, y, noise, _ = observe(model, image, anchors)
    exact = ExactPosterior.fit(result.fit.kernel, inputs, y, noise).leave_one_out()
    np.testing.assert_allclose(residual, exact[0].numpy(), atol=1e-4)
    np.testing.assert_allclose(
        std, exact[1].numpy() * float(result.fit.calibration.at_anchors), rtol=1e-3
    )


def test_leave_one_out_of_outliers_is_their_distance_from_the_others(model, world):
    """Rejected or with less weight: the prediction is without them, the noise is their own."""
    image, truth = world
    anchors = draw_anchors(truth, 40)
    depth_m = anchors.depth_m.copy()
    depth_m[[5, 17]] *= [10, 3]
    result = infer(model, image, with_depth(anchors, depth_m))
    assert {5, 17} <= set(result.in_conflict.tolist())
    residual, std = result.leave_one_out()
    clean = infer(model, image, anchors[np.setdiff1d(np.arange(40), [5, 17])])
    for i, factor in ((5, 10), (17, 3)):
        at = (torch.tensor([int(x)]) for x in (anchors.v[i], anchors.u[i]))
        mean, variance = clean.fit.predict(*at)
        wanted = np.log(depth_m[i] / float(image.mde_depth[int(anchors.v[i]), int(anchors.u[i])]))
        wanted -= float(mean)
        assert residual[i] == pytest.approx(wanted, abs=0.05)
        assert residual[i] == pytest.approx(np.log(factor), abs=0.3)
        own = float(variance + model.kernel.noise_std**2) ** 0.5
        assert std[i] / float(result.fit.calibration.at_anchors) == pytest.approx(own, rel=0.2)


def test_the_scale_of_std_follows_the_residuals_of_the_image(model, world):
    image, truth = world
    rng = np.random.default_rng(0)
    anchors = draw_anchors(truth, 200)
    scales = []
    for noise in (0.0, 0.1, 0.3):
        noisy = with_depth(anchors, anchors.depth_m * np.exp(noise * rng.normal(size=200)))
        scales.append(float(infer(model, image, noisy, robust=False).fit.calibration.factor))
    assert scales == sorted(scales)
    assert scales[2] > 3 * scales[0]


@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_calibration_factor_is_the_formula(model, world, decay):
    model, (image, truth) = dataclasses.replace(model, std_decay=decay), world
    for n in (1, 7, 50):
        fitted = infer(model, image, draw_anchors(truth, n), robust=False).fit
        z = fitted.linear.loo_residual / fitted.linear.loo_std
        total = float(z.abs().sum()) * np.sqrt(np.pi / 2)
        wanted = (model.prior_count + total) / (model.prior_count + n - 1)
        wanted *= model.std_scale * n**-decay
        found = float(calibrated(model, fitted).calibration.at_anchors)
        assert found == pytest.approx(wanted, rel=1e-5)
    nothing = dataclasses.replace(
        fitted,
        observations=fitted.observations._replace(mask=torch.zeros(50, dtype=torch.bool)),
    )
    assert float(calibrated(model, nothing).calibration.at_anchors) == pytest.approx(
        model.std_scale
    )


def test_a_small_factor_holds_by_the_share_of_variance_that_is_left():
    calibration = Calibration(1.5, torch.tensor(0.25), torch.tensor(0.1))
    prior, left = torch.full((4,), 2.0), torch.tensor([0.05, 0.1, 0.2, 0.4])
    weight = torch.tensor([1.0, 1.0, 0.5, 0.25])
    wanted = 1.5 * (left * prior).sqrt() * 0.25**weight
    torch.testing.assert_close(calibration.std(left * prior, prior), wanted)


def test_without_anchors_std_is_that_of_the_scale_and_the_scaled_one_of_the_field(model):
    model = dataclasses.replace(model, std_scale=3.0)
    output, _ = room()
    image = model.image_inputs(output)
    pixels = [x.flatten() for x in torch.meshgrid(*map(torch.arange, image.shape), indexing="ij")]
    field = model.prior_kernel.variance(image.pixels(*pixels)) - model.kernel.constant_std**2
    wanted = (model.scale_prior_std**2 + 9 * field).sqrt().reshape(image.shape)
    found = expected_recovery(model, output, image).std_log
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=0)


def test_calibration_shrinks_std_only_where_the_anchors_determine_the_field(model, world):
    """Hundreds of perfect anchors in the left half say nothing about the right half."""
    image, truth = world
    width = truth.shape[1]
    anchors = draw_anchors(truth, 900)
    anchors = anchors[anchors.u < 0.4 * width]
    result = infer(model, image, anchors)
    assert float(result.fit.calibration.factor) < 0.6
    std, raw = result.fit.render().std, uncalibrated_std(result.fit) * model.std_scale
    left, right = slice(0, int(0.3 * width)), slice(int(0.8 * width), None)
    assert float((std / raw)[:, left].median()) < 0.7
    assert float((std / raw)[:, right].median()) > 0.9
    support = result.fit.render().support
    assert 0 <= float(support.min()) <= float(support.max()) <= 1
    assert float(support[:, left].median()) > 0.8
    assert float(support[:, right].median()) < 0.5 * float(support[:, left].median())


def test_calibration_enlarges_std_everywhere_if_the_estimator_errs_more(model, world):
    image, truth = world
    anchors = draw_anchors(truth, 60)
    noisy = with_depth(anchors, anchors.depth_m * np.exp(np.random.default_rng(0).normal(size=60)))
    result = infer(model, image, noisy, robust=False)
    assert float(result.fit.calibration.factor) > 1
    grid = torch.meshgrid(*map(torch.arange, image.shape), indexing="ij")
    lost = result.fit.lost(image.pixels(*(x.flatten() for x in grid))).reshape(image.shape)
    wanted = uncalibrated_std(result.fit) * result.fit.calibration.at_anchors
    inner = torch.zeros_like(lost, dtype=torch.bool)
    inner[16:-16, 16:-16] = True  # a cell from where the field is extrapolated
    ratio = (result.fit.render().std / wanted)[inner & (lost < 1e-6)]
    assert len(ratio) > 300
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=1e-3, atol=0)


def test_contradicting_readings_of_one_pixel_are_one_with_the_noise_of_their_spread(model, world):
    image, _ = world
    anchors = Anchors([9, 9, 30], [7, 7, 20], [1.6, 2.9, 1.6])
    result = infer(model, image, anchors)
    deviation = np.log(2.9 / 1.6) / 2
    noise = result.fit.observations.noise
    assert result.group.tolist() == [0, 0, 1]
    assert noise.tolist() == pytest.approx([deviation, float(model.kernel.noise_std)])
    assert float(result.fit.render().std.max()) < 2


def test_unit_normal_residuals_have_a_scale_of_one():
    z = torch.randn(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    total = sum_abs_z(3 * z, torch.full_like(z, 3.0))
    assert float(empirical_bayes_scale(total, len(z), 10.0)) == pytest.approx(1, abs=0.02)


def test_settings_of_inference_reach_the_outlier_search(model, world):
    image, truth = world
    anchors = draw_anchors(truth, 30)
    depth_m = anchors.depth_m * np.where(np.arange(30) == 7, 10, 1)
    config = InferenceConfig()
    strict = dataclasses.replace(
        config, outliers=dataclasses.replace(config.outliers, min_anchors=31)
    )
    found = infer(model, image, with_depth(anchors, depth_m), config=config)
    none = infer(model, image, with_depth(anchors, depth_m), config=strict)
    assert [r.anchor for r in found.report(anchors)[0]] == [7]
    assert none.report(anchors)[0] == ()
