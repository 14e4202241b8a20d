"""Recovery: depth = D_MDE · exp(log-scale), limits, holes, residuals."""

import dataclasses
import json

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from scalefield import Anchors, MDEOutput
from scalefield.errors import InputError
from scalefield.recovery import DEPTH_LIMITS, Recovery, interval_factor
from scalefield.report import Rejection, Warning


def output(values: object, kind: str = "depth") -> MDEOutput:
    return MDEOutput(torch.tensor(values, dtype=torch.float64), kind)


@given(
    prediction=hnp.arrays(np.float64, (3, 4), elements=st.floats(-1e6, 1e6)),
    kind=st.sampled_from(["depth", "disparity"]),
    holes=hnp.arrays(bool, (3, 4)),
)
def test_from_depth_is_relative_depth_times_scale(prediction, kind, holes):
    relative = np.where(holes, np.nan, np.linspace(0.5, 4, 12).reshape(3, 4))
    mde_output = output(relative, kind)
    anchors = Anchors([0, 3], [0, 2], [2.0, 8.0])
    r = Recovery.from_depth(mde_output, anchors, torch.from_numpy(prediction))
    known = ~holes
    assert r.report.hole_pixels == holes.sum()
    assert r.depth_m.dtype == r.log_scale.dtype == torch.float32
    assert torch.isnan(r.depth_m[torch.from_numpy(holes)]).all()
    assert torch.isnan(r.log_scale[torch.from_numpy(holes)]).all()
    product = (mde_output.mde_depth * r.log_scale.double().exp()).numpy()[known]
    np.testing.assert_allclose(product, r.depth_m.numpy()[known], rtol=1e-4)
    low, high = DEPTH_LIMITS[0] * 2.0, DEPTH_LIMITS[1] * 8.0
    assert np.all(r.depth_m.numpy()[known] >= low * 0.999999)
    assert np.all(r.depth_m.numpy()[known] <= high * 1.000001)
    unreasonable = ((prediction < low) | (prediction > high)) & known
    assert r.report.limited_pixels == unreasonable.sum()


def test_from_space_limits_non_positive_disparity_and_counts_it():
    mde_output = output([[1.0, 2.0, 4.0]], "disparity")
    anchors = Anchors([1], [0], [5.0])
    prediction = torch.tensor([[0.0, 0.2, -1.0]], dtype=torch.float64)
    r = Recovery.from_space(mde_output, anchors, prediction, "disparity")
    np.testing.assert_allclose(r.depth_m.numpy(), [[5000, 5, 5000]])
    assert r.report.limited_pixels == 2
    np.testing.assert_allclose(r.report.residuals_log, [0], atol=1e-12)
    same = Recovery.from_space(mde_output, anchors, prediction, "depth")
    np.testing.assert_allclose(same.depth_m.numpy(), [[0.005, 0.2, 0.005]])


def test_from_depth_residuals_are_those_of_anchors_not_rejected():
    mde_output = output([[1.0, 2.0, 4.0]])
    anchors = Anchors([0, 1, 2], [0, 0, 0], [1.0, 2.0, 100.0])
    r = Recovery.from_log_scale(
        mde_output,
        anchors,
        torch.tensor(np.log(2.0)),
        rejected=(Rejection(2, "outlier", "far from the line"),),
    )
    np.testing.assert_allclose(r.depth_m.numpy(), [[2, 4, 8]])
    np.testing.assert_allclose(r.report.residuals_log, [np.log(2), np.log(2)])
    assert (r.report.anchors_given, r.report.anchors_used) == (3, 2)
    assert r.report.rejected == (Rejection(2, "outlier", "far from the line"),)


def test_from_depth_report_is_plain_json_and_numpy_changes_only_the_maps():
    r = Recovery.from_depth(
        output([[1.0, 2.0]]),
        Anchors([0], [0], [3.0]),
        torch.ones(1, 2),
        warnings=(Warning("test", "careful"),),
    )
    again = json.loads(json.dumps(r.report.as_dict(), allow_nan=False))
    assert again["warnings"] == [{"code": "test", "text": "careful"}]
    assert again["kind"] == "depth"
    with_weights = dataclasses.replace(r, weights=torch.ones(2, requires_grad=True))
    n = with_weights.numpy()
    assert isinstance(n.depth_m, np.ndarray)
    assert isinstance(n.weights, np.ndarray)
    assert n.basis_maps is None
    assert n.report is r.report


def test_from_log_scale_gradients_reach_the_prediction():
    log_scale = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    r = Recovery.from_log_scale(output([[1.0, 2], [3, 4]]), Anchors([0], [0], [1.0]), log_scale)
    r.depth_m.sum().backward()
    torch.testing.assert_close(log_scale.grad, torch.tensor([[1.0, 2], [3, 4]]).double())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_from_depth_any_float_type_gives_float32(dtype):
    mde_output = MDEOutput(torch.tensor([[1.0, 2.0]], dtype=dtype), "depth")
    r = Recovery.from_depth(mde_output, Anchors([0], [0], [3.0]), 3 * mde_output.mde_depth)
    assert r.depth_m.dtype == torch.float32
    np.testing.assert_allclose(r.depth_m.numpy(), [[3, 6]])


@given(st.floats(0.01, 0.999), st.floats(0.01, 0.999))
def test_interval_factor_is_a_quantile_of_students_t(level, other):
    quantile = scipy.stats.t(2).ppf
    wanted = 1.645 * quantile(0.5 + level / 2) / quantile(0.95)
    assert interval_factor(level) == pytest.approx(wanted, rel=1e-6)
    assert (level < other) == (interval_factor(level) < interval_factor(other))


@pytest.mark.parametrize("numpy", [True, False])
def test_interval_of_a_recovery_is_symmetric_in_log_depth(numpy):
    std_log = torch.tensor([[0.1, 0.3, torch.nan]])
    mde_output = output([[1.0, 2.0, 4.0]])
    found = Recovery.from_depth(
        mde_output, Anchors([0], [0], [2.0]), torch.tensor([[2.0, 4.0, 8.0]]), std_log=std_log
    )
    recovery = found.numpy() if numpy else found
    low, high = (np.asarray(bound) for bound in recovery.interval())
    depth_m = np.asarray(recovery.depth_m)
    np.testing.assert_allclose(np.log(high / depth_m), 1.645 * std_log, rtol=1e-5)
    np.testing.assert_allclose((low * high)[0, :2], depth_m[0, :2] ** 2, rtol=1e-5)
    narrow = recovery.interval(0.5)
    assert bool(np.all(np.asarray(narrow[1])[0, :2] < high[0, :2]))
    assert isinstance(narrow[0], np.ndarray if numpy else torch.Tensor)


@pytest.mark.parametrize("level", [0.0, 1.0, 90.0, -0.5, float("nan")])
def test_interval_refuses_levels_that_are_no_probabilities(level):
    with pytest.raises(InputError, match="the level of an interval lies between 0 and 1, found"):
        interval_factor(level)


def test_interval_needs_a_std_log():
    anchors = Anchors([0], [0], [2.0])
    recovery = Recovery.from_depth(output([[1.0]]), anchors, torch.tensor([[2.0]]))
    with pytest.raises(InputError, match="no std_log, which an interval is made of"):
        recovery.interval()
