import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from field.worlds import KERNEL, kernel_inputs
from scalefield.errors import InputError
from scalefield.field.kernel import Kernel, ScaleFactors, StationaryTerm, TermFeatures


def disparity_plane(inputs, i):
    relative_depth = min(float(inputs.log_depth[i].exp()), 2.0)
    return relative_depth * np.array([*inputs.position[i], 0.5])


def test_kernel_equals_the_formula_pair_by_pair():
    a, b = kernel_inputs(5, 1), kernel_inputs(4, 2)
    found = KERNEL(a, b)
    for i in range(5):
        for j in range(4):
            value = 2.0**2 + 1.5**2 * float(a.modes[i] @ b.modes[j])
            value += 0.3**2 * float(a.log_depth[i] * b.log_depth[j])
            value += 0.4**2 * float(a.mean[i] * b.mean[j]) + float(a.shift[i] * b.shift[j])
            value += 0.2**2 * float(disparity_plane(a, i) @ disparity_plane(b, j))
            for t, (amplitude, length, depth, family) in enumerate(
                ((0.15, 0.5, 0.6, "rbf"), (0.2, 0.1, 0.3, "exponential"))
            ):
                dp = np.asarray(a.position[i] - b.position[j]) / length
                dd = float(a.log_depth[i] - b.log_depth[j]) / depth
                de = np.asarray(a.embedding[i, t] - b.embedding[j, t])
                r = np.sqrt(dp @ dp + dd**2 + de @ de)
                correlation = np.exp(-(r**2) / 2) if family == "rbf" else np.exp(-r)
                local = float(a.amplitude[i, t] * b.amplitude[j, t])
                value += amplitude**2 * local * correlation
            assert float(found[i, j]) == pytest.approx(value, rel=1e-6)


@given(n=st.integers(1, 25), seed=st.integers(0, 500))
def test_kernel_is_symmetric_and_positive_semidefinite(n, seed):
    a = kernel_inputs(n, seed)
    whole = KERNEL(a, a)
    torch.testing.assert_close(whole, whole.mT)
    assert float(torch.linalg.eigvalsh(whole).min()) > -1e-9
    torch.testing.assert_close(KERNEL.variance(a), whole.diagonal())


def test_kernel_has_derivatives_by_its_hyperparameters():
    a = kernel_inputs(6)
    values = torch.tensor([0.2, 0.3, 0.4], dtype=torch.float64, requires_grad=True)

    def total(x):
        return Kernel(1.0, 1.0, (StationaryTerm(x[0], x[1], x[2], "rbf"),), 0.1)(a, a).sum()

    assert torch.autograd.gradcheck(total, values)


@pytest.mark.parametrize(
    "name", ["constant_std", "mode_std", "noise_std", "slope_std", "mean_weight_std", "plane_std"]
)
def test_negative_standard_deviations_are_refused(name):
    with pytest.raises(InputError, match=f"{name} must not be negative, found -0.1"):
        dataclasses.replace(KERNEL, **{name: -0.1})


def batched(features: list[TermFeatures]) -> TermFeatures:
    return TermFeatures(*(torch.stack(parts) for parts in zip(*features, strict=True)))


@settings(max_examples=25)
@given(n=st.integers(1, 9), seed=st.integers(0, 500))
def test_covariance_within_small_sets_equals_stationary_of_each(n, seed):
    sets = [KERNEL.features(kernel_inputs(n, seed + i)) for i in range(3)]
    found = KERNEL.covariance(batched(sets), batched(sets), torch.float64)
    for each, features in zip(found.double(), sets, strict=True):
        torch.testing.assert_close(each, KERNEL.stationary(features, features), rtol=0, atol=1e-6)
        prior = features.amplitude.square().sum(dim=1)
        torch.testing.assert_close(each.diagonal(), prior, rtol=1e-6, atol=0)


@settings(max_examples=25)
@given(n=st.integers(1, 9), pixels=st.integers(1, 20), seed=st.integers(0, 500))
def test_covariance_of_anchors_and_pixels_equals_stationary_of_each(n, pixels, seed):
    anchors = [KERNEL.features(kernel_inputs(n, seed + i)) for i in range(3)]
    cells = [KERNEL.features(kernel_inputs(pixels, seed + 9 + i)) for i in range(3)]
    single = (TermFeatures(*(x.float() for x in batched(each))) for each in (anchors, cells))
    found = KERNEL.covariance(*single)
    for each, a, b in zip(found, anchors, cells, strict=True):
        torch.testing.assert_close(each.double(), KERNEL.stationary(a, b), rtol=0, atol=1e-5)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_covariance_does_not_change_its_arguments(precision):
    features = batched([KERNEL.features(kernel_inputs(5, 3))])
    before = [part.clone() for part in features]
    KERNEL.covariance(features, features, precision)
    assert all(torch.equal(x, y) for x, y in zip(features, before, strict=True))


def test_each_factor_scales_the_deviations_of_its_terms():
    scaled = KERNEL.scaled(ScaleFactors(smooth=2.0, rough=3.0, plane=5.0))
    factors = {"rbf": 2.0, "exponential": 3.0}
    for term, before in zip(scaled.terms, KERNEL.terms, strict=True):
        amplitude = factors[term.family] * before.amplitude
        assert term == dataclasses.replace(before, amplitude=amplitude)
    expected = dataclasses.replace(
        KERNEL, terms=scaled.terms, mode_std=2 * KERNEL.mode_std, plane_std=5 * KERNEL.plane_std
    )
    assert scaled == expected


def test_a_kernel_without_stationary_terms_has_only_its_linear_part():
    linear, a = Kernel(1.0, 0.5, (), 0.1, slope_std=0.2), kernel_inputs(4)
    H = linear.linear_features(a)
    torch.testing.assert_close(linear(a, a), H @ H.mT)
    torch.testing.assert_close(linear.variance(a), H.square().sum(dim=1))


def test_kernel_inputs_joined_and_indexed():
    a, b = kernel_inputs(3, 1), kernel_inputs(2, 2)
    both = a.joined(b)
    assert len(both) == 5
    for name in vars(a):
        assert torch.equal(getattr(both[3:], name), getattr(b, name))
        assert getattr(both.to(torch.float32), name).dtype == torch.float32


def test_covariance_of_repeated_pixels_is_positive_semidefinite():
    """Also where log-depth is far from the reference: a rounded distance may be negative."""
    for seed in range(40):
        inputs = kernel_inputs(12, seed)
        inputs = dataclasses.replace(inputs, log_depth=30 * inputs.log_depth)
        features = KERNEL.features(inputs[torch.arange(12).repeat_interleave(3)])
        features = TermFeatures(*(x[None].float() for x in features))
        covariance = KERNEL.covariance(features, features, torch.float64)[0].double()
        # A rounding of float32, where the least variance of the noise is 1e-6.
        assert float(torch.linalg.eigvalsh(covariance).min()) > -1e-7
