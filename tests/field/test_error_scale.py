"""Factors on the prior deviations, from the errors of an estimator at the anchors."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from field.worlds import KERNEL, image_inputs, observations_of, observe_pixels, random_pixels
from scalefield.field.config import InferenceConfig
from scalefield.field.error_scale import (
    ERROR_SCALES,
    ErrorScale,
    kernel_of_image,
    log_evidence,
    scale_factors,
)
from scalefield.field.exact import ExactPosterior
from scalefield.field.explain import parts
from scalefield.field.kernel import KernelInputs, ScaleFactors
from scalefield.field.posterior import fit

SHAPE = (48, 64)


def sampled(scale: ErrorScale, n: int, seed: int):
    """Observations of a field drawn from the prior of one hypothesis."""
    observed = observations_of(n, seed)
    kernel = KERNEL.scaled(ScaleFactors(*scale[1:]))
    covariance = kernel(observed.inputs, observed.inputs) + torch.diag(observed.noise**2)
    rng = torch.Generator().manual_seed(seed)
    draw = torch.randn(n, generator=rng, dtype=torch.float64)
    return observed._replace(y=torch.linalg.cholesky(covariance) @ draw + observed.inputs.mean)


@pytest.mark.parametrize("scale", ERROR_SCALES)
def test_evidence_is_the_normal_density_with_scaled_deviations(scale):
    observed = observations_of(11, 2)
    kernel = dataclasses.replace(
        KERNEL,
        mode_std=scale.smooth * KERNEL.mode_std,
        plane_std=scale.plane * KERNEL.plane_std,
        terms=tuple(
            dataclasses.replace(
                t, amplitude=t.amplitude * (scale.smooth if t.family == "rbf" else scale.rough)
            )
            for t in KERNEL.terms
        ),
    )
    covariance = kernel(observed.inputs, observed.inputs) + torch.diag(observed.noise**2)
    target = observed.y - observed.inputs.mean
    normal = torch.distributions.MultivariateNormal(torch.zeros(11).double(), covariance)
    wanted = float(normal.log_prob(target - target.median())) + np.log(scale.probability)
    found = float(log_evidence(KERNEL, observed, [scale])[0]) - 5.5 * np.log(2 * np.pi)
    assert found == pytest.approx(wanted, rel=1e-6)


@settings(max_examples=20)
@given(n=st.integers(1, 30), padding=st.integers(1, 20), seed=st.integers(0, 100))
def test_masked_observations_do_not_change_the_evidence(n, padding, seed):
    padded = observations_of(n + padding, seed)
    padded = padded._replace(mask=torch.arange(n + padding) < n)
    alone = type(padded)(padded.inputs[:n], padded.y[:n], padded.noise[:n], padded.mask[:n])
    torch.testing.assert_close(
        log_evidence(KERNEL, padded, ERROR_SCALES), log_evidence(KERNEL, alone, ERROR_SCALES)
    )


def test_factors_of_fields_drawn_from_hypotheses_are_in_their_order():
    """The evidence counts as that of few anchors, so that no hypothesis is excluded."""
    medians = []
    for scale in ERROR_SCALES:
        found = [scale_factors(KERNEL, sampled(scale, 60, seed), ERROR_SCALES) for seed in range(9)]
        medians.append(float(torch.stack([factors.smooth for factors in found]).median()))
    assert medians == sorted(medians, reverse=True)
    assert medians[0] > 0.8
    assert medians[-1] < 0.2


def test_factors_of_images_in_a_batch_are_those_of_each():
    observed = [sampled(scale, 20, 4) for scale in ERROR_SCALES]
    inputs = zip(*(vars(o.inputs).values() for o in observed), strict=True)
    rest = (torch.stack([o[i] for o in observed]) for i in (1, 2, 3))
    together = type(observed[0])(KernelInputs(*map(torch.stack, inputs)), *rest)
    found = scale_factors(KERNEL, together, ERROR_SCALES)
    for i, one in enumerate(observed):
        alone = scale_factors(KERNEL, one, ERROR_SCALES)
        assert [float(x) for x in alone] == [float(x[i]) for x in found]


def test_factors_of_many_observations_ignore_those_that_are_masked():
    observed = observations_of(300, 1)
    wild = torch.arange(300) % 3 == 0
    wrong = observed._replace(y=observed.y + 100.0 * wild, mask=~wild)
    right = observed._replace(mask=~wild)
    kernels = (kernel_of_image(KERNEL, each, ERROR_SCALES, 64) for each in (wrong, right))
    assert len({float(kernel.mode_std) for kernel in kernels}) == 1


def test_one_anchor_leaves_the_prior_mean_of_the_factors():
    """One anchor determines the global scale alone: the weights are the prior probabilities."""
    found = scale_factors(KERNEL, observations_of(1, 0), ERROR_SCALES)
    for name in ScaleFactors._fields:
        wanted = sum(s.probability * getattr(s, name) ** 2 for s in ERROR_SCALES) ** 0.5
        assert float(getattr(found, name)) == pytest.approx(wanted, rel=0.2)


@pytest.mark.parametrize("n", [5, 60])
def test_a_scaled_kernel_is_evaluated_as_the_exact_posterior(n):
    image = image_inputs(SHAPE)
    observed = observe_pixels(image, *random_pixels(SHAPE, n))
    config = InferenceConfig(neighbours=n)
    kernel = kernel_of_image(KERNEL, observed, ERROR_SCALES, config.block_size)
    assert float(kernel.mode_std) < 0.9 * KERNEL.mode_std
    fitted = fit(kernel, image, observed, config)
    rows, columns = (x.flatten() for x in torch.meshgrid(*map(torch.arange, SHAPE), indexing="ij"))
    exact = ExactPosterior.fit(kernel, observed.inputs, observed.y, observed.noise)
    wanted = exact.mean(image.pixels(rows, columns)).reshape(SHAPE)
    torch.testing.assert_close(fitted.render().mean.double(), wanted, rtol=0, atol=1e-3)
    torch.testing.assert_close(sum(parts(fitted).values()), fitted.render().mean, rtol=0, atol=1e-5)
