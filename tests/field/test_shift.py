"""The unknown shift of affine-invariant maps: `AffineMap`, its posterior, and `field` with it."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import scalefield as sf
from field.worlds import KERNEL, draw_anchors, observations_of, room
from scalefield.anchors import Anchors
from scalefield.api import recover_from
from scalefield.field.condition import condition
from scalefield.field.error_scale import ErrorScale
from scalefield.field.kalman import FieldFilter
from scalefield.field.kernel import Kernel
from scalefield.field.model import load_field
from scalefield.field.observations import Readings
from scalefield.field.shift import (
    SHIFT_PRIOR,
    AffineMap,
    Shift,
    evidence_of_changes,
    shift_posterior,
)
from scalefield.mde.output import MDEOutput
from scalefield.methods.field import Field


@pytest.fixture(scope="module")
def model():
    return load_field("field")


def affine_room(scale: float = 1.0, shift: float = 0.0) -> tuple[MDEOutput, np.ndarray]:
    """The disparity of a room, scaled and shifted, and its true depth: no other error."""
    _, truth = room()
    disparity = torch.from_numpy(scale * (1 / truth) + shift).float()
    return MDEOutput(disparity, "disparity", affine=True), truth


def posterior_of(model, image, anchors, **options):
    readings = Readings.of(anchors, image.shape, float(model.kernel.noise_std))
    return condition(model, image, readings, **options)


def error(recovery, truth: np.ndarray) -> float:
    return float(np.mean(np.abs(np.asarray(recovery.depth_m) / truth - 1)))


@given(t=st.floats(-4, 3), scale=st.floats(1e-3, 1e3), shift=st.floats(-5, 5))
def test_affine_map_does_not_depend_on_scale_and_shift(t, scale, shift):
    values = torch.linspace(0.2, 3, 60, dtype=torch.float64).reshape(6, 10)
    for kind in ("depth", "disparity"):
        plain = AffineMap.of(MDEOutput(values, kind, affine=True))
        moved = values * scale + shift
        if kind == "depth" and float(moved.min()) <= 0:
            continue
        other = AffineMap.of(MDEOutput(moved, kind, affine=True))
        torch.testing.assert_close(other.log_depth(t), plain.log_depth(t), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["depth", "disparity"])
def test_affine_map_at_the_true_shift_is_depth_up_to_a_scale(kind):
    truth = torch.linspace(1, 5, 60, dtype=torch.float64).reshape(6, 10)
    proportional = truth if kind == "depth" else 1 / truth
    affine = AffineMap.of(MDEOutput(3 * proportional + 0.7, kind, affine=True))
    t = float(((-0.7 + affine.low) / affine.unit).log())  # the shift b is −0.7
    assert affine.offset(t) == pytest.approx(-0.7)
    ratio = affine.log_depth(t).exp() / truth
    assert float(ratio.max() / ratio.min()) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("kind", ["depth", "disparity"])
def test_sensitivity_is_the_derivative_of_log_depth(kind):
    values = torch.rand(8, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    affine = AffineMap.of(MDEOutput(values + 0.1, kind, affine=True))
    affine = dataclasses.replace(affine, values=affine.values.double())
    for t in (-3.0, 0.0, 2.0):
        inside = affine.values + np.exp(t) > 0.6 * np.exp(t)  # where nothing is limited
        numeric = (affine.log_depth(t + 1e-5) - affine.log_depth(t - 1e-5)) / 2e-5
        torch.testing.assert_close(
            affine.sensitivity(t)[inside], numeric[inside], rtol=1e-4, atol=1e-6
        )
        assert float(affine.sensitivity(t).abs().max()) <= 1


@pytest.mark.parametrize("values", [torch.ones(4, 5), torch.tensor([[0.0] * 9 + [1.0]])])
def test_affine_map_of_constant_and_nearly_constant_maps_is_finite(values):
    affine = AffineMap.of(MDEOutput(values, "disparity", affine=True))
    assert torch.isfinite(affine.log_depth(0.0)).all()


def test_log_evidence_is_the_normal_density_of_shifted_targets():
    """log N(y; 0, K + σ²) of shifted targets, relative to that without a change."""
    observed = observations_of(12, 3)
    changes = torch.stack([torch.zeros(12), torch.linspace(-0.5, 0.8, 12)]).double()
    medians = torch.tensor([0.0, 0.1], dtype=torch.float64)
    scales = [ErrorScale(1.0, 1.0, 1.0, 1.0)]
    found = evidence_of_changes(KERNEL, observed, changes, medians, scales)
    for change, median, value in zip(changes, (0.0, 0.1), found, strict=True):
        inputs = dataclasses.replace(
            observed.inputs,
            log_depth=observed.inputs.log_depth + change - median,
            shift=torch.zeros(12, dtype=torch.float64),
        )
        y = observed.y - change
        target = y - inputs.mean - (y - inputs.mean).quantile(0.5)
        covariance = KERNEL(inputs, inputs) + torch.diag(observed.noise**2)
        normal = torch.distributions.MultivariateNormal(torch.zeros(12).double(), covariance)
        constant = 6 * np.log(2 * np.pi)
        assert float(value) == pytest.approx(float(normal.log_prob(target)) + constant, rel=1e-6)


def test_measurements_that_tell_nothing_leave_the_prior_of_the_shift():
    """One anchor under a kernel that does not depend on log-depth: its evidence is constant."""
    values = torch.linspace(0.1, 2, 30).reshape(5, 6)
    affine = AffineMap.of(MDEOutput(values, "disparity", affine=True))
    kernel = Kernel(constant_std=2.0, mode_std=0.0, terms=(), noise_std=0.02)
    one, prior = torch.tensor([2]), Shift(0.3, 0.8)
    scales = [ErrorScale(1.0, 1.0, 1.0, 1.0)]
    found = shift_posterior(
        kernel, affine, observations_of(1, 0), (one, one), prior=prior, scales=scales
    )
    assert float(found.mean) == pytest.approx(prior.mean, abs=1e-3)
    assert float(found.std) == pytest.approx(prior.std, rel=0.01)


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (200.0, -15.0), (0.05, 2.0)])
def test_field_recovers_a_shifted_room_from_few_anchors(model, scale, shift):
    output, truth = affine_room(scale, shift)
    anchors = draw_anchors(truth, 8)
    recovery = recover_from(output, anchors, Field())
    assert error(recovery, truth) < 0.05
    low, value, high = (
        getattr(recovery.report.shift, name) / scale for name in ("low", "value", "high")
    )
    assert low < value < high
    assert low <= -shift / scale <= high
    unknown = recover_from(dataclasses.replace(output, affine=False), anchors, Field())
    if shift:
        assert error(recovery, truth) < 0.6 * error(unknown, truth)


def test_the_shift_becomes_certain_with_more_anchors(model):
    output, truth = affine_room(1.0, 0.5)
    image = model.image_inputs(output)
    stds = [posterior_of(model, image, draw_anchors(truth, n)).shift.std for n in (1, 4, 30, 120)]
    assert stds == sorted(stds, reverse=True)
    assert stds[0] > 0.8 * SHIFT_PRIOR.std
    assert stds[-1] < 0.3 * SHIFT_PRIOR.std


def test_the_shift_is_continuous_in_a_measurement(model):
    output, truth = affine_room(1.0, 0.5)
    image = model.image_inputs(output)
    anchors = draw_anchors(truth, 6)

    def largest_step(count):
        means = []
        for factor in np.linspace(0.96, 1.04, count):
            depth_m = anchors.depth_m.copy()
            depth_m[2] *= factor
            changed = Anchors(anchors.u, anchors.v, depth_m)
            means.append(posterior_of(model, image, changed, robust=False).shift.mean)
        return np.abs(np.diff(means)).max()

    assert largest_step(65) < 0.4 * largest_step(17)


def test_the_shift_does_not_depend_on_the_order_of_anchors(model):
    output, truth = affine_room(1.0, 0.5)
    image = model.image_inputs(output)
    anchors = draw_anchors(truth, 300)
    order = np.random.default_rng(0).permutation(300)
    one, other = (posterior_of(model, image, each).shift for each in (anchors, anchors[order]))
    assert one == other


def test_an_outlier_does_not_decide_the_shift(model):
    output, truth = affine_room(1.0, 0.5)
    anchors = draw_anchors(truth, 20)
    depth_m = anchors.depth_m.copy()
    depth_m[4] *= 20
    recovery = recover_from(output, Anchors(anchors.u, anchors.v, depth_m), Field())
    assert [r.anchor for r in recovery.report.rejected] == [4]
    assert error(recovery, truth) < 0.06


def test_anchors_at_one_depth_do_not_determine_the_shift():
    output, truth = affine_room(1.0, 0.5)
    rows, columns = np.nonzero(np.abs(truth / np.median(truth) - 1) < 0.01)
    rows, columns = rows[::40][:5], columns[::40][:5]
    depth_m = truth[rows, columns] * [1.1, 0.9, 1.0, 1.05, 0.95]
    anchors = Anchors(columns, rows, depth_m)
    report = recover_from(output, anchors, Field()).report
    assert "shift_undetermined" in [w.code for w in report.warnings]


def test_std_log_includes_the_shift(model):
    """With one anchor, depth unlike that of the anchor is less certain than with a known shift."""
    output, truth = affine_room()
    known = dataclasses.replace(output, affine=False)
    anchors = draw_anchors(truth, 1)
    far = truth > np.percentile(truth, 95)
    unsure, sure = (
        recover_from(each, anchors, Field()).std_log.numpy()[far].mean() for each in (output, known)
    )
    assert unsure > 1.05 * sure


def test_parts_of_a_decomposition_with_a_shift_sum_to_log_scale(model):
    output, truth = affine_room(1.0, 0.5)
    anchors = draw_anchors(truth, 9)
    result = posterior_of(model, model.image_inputs(output), anchors)
    parts = result.parts()
    assert "shift" in parts
    torch.testing.assert_close(
        torch.stack(list(parts.values())).sum(dim=0), result.fit.render().mean, rtol=0, atol=1e-4
    )


def test_depth_without_anchors_is_that_of_a_usual_shift():
    recovery = recover_from(affine_room()[0], Anchors([], [], []), Field())
    assert recovery.report.shift is not None
    assert torch.isfinite(recovery.depth_m).all()


@pytest.mark.parametrize("method", ["basis", "field"])
def test_learned_methods_find_the_shift_of_affine_depth(method):
    """As of Marigold: depth itself is known up to scale and shift."""
    _, truth = room()
    mde_depth = (truth - truth.min() + 0.01) / np.ptp(truth)
    anchors = draw_anchors(truth, 12)
    known, unknown = (
        sf.recover(None, anchors, mde_depth=mde_depth, kind="depth", affine=affine, method=method)
        for affine in (True, False)
    )
    assert error(known, truth) < 0.7 * error(unknown, truth)
    assert known.report.kind == "depth"


def test_the_shift_of_a_users_disparity_is_unknown_unless_it_is_declared():
    output, truth = affine_room(1.0, 0.5)
    anchors = draw_anchors(truth, 6)
    given = {"mde_depth": output.prediction.numpy(), "kind": "disparity"}
    assert sf.recover(None, anchors, **given).report.shift is not None
    assert sf.recover(None, anchors, affine=False, **given).report.shift is None


def test_basis_of_the_paper_ignores_the_shift():
    output, truth = affine_room(1.0, 0.5)
    anchors = draw_anchors(truth, 12)
    paper = recover_from(output, anchors, sf.METHODS["basis"](estimate_shift=False))
    known = recover_from(dataclasses.replace(output, affine=False), anchors, sf.METHODS["basis"]())
    assert paper.report.shift is None
    torch.testing.assert_close(paper.depth_m, known.depth_m)


@pytest.mark.parametrize("name", ["global", "lwlr", "piecewise"])
def test_aligners_fit_affine_disparity_in_disparity_unless_told_otherwise(name):
    output, truth = affine_room(1.0, 0.5)
    anchors, method = draw_anchors(truth, 12), sf.METHODS[name]
    default, disparity, depth = (
        recover_from(output, anchors, method(**options)).depth_m
        for options in ({}, {"space": "disparity"}, {"space": "depth"})
    )
    assert torch.equal(default, disparity)
    assert not torch.allclose(default, depth)
    plain = dataclasses.replace(output, affine=False)
    assert torch.equal(recover_from(plain, anchors, method()).depth_m, depth)


def test_a_stream_keeps_the_shift_for_frames_without_anchors():
    output, truth = affine_room(1.0, 0.5)
    stream = FieldFilter()
    stream(output, draw_anchors(truth, 40))
    before = stream.state.shift.mean
    later = stream(output, None)
    assert stream.state.shift.mean == pytest.approx(before, abs=1e-3)
    assert error(later, truth) < 0.1
