import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalefield import Anchors, InputError
from scalefield.alignment.affine import Samples
from scalefield.methods.global_affine import Global
from scalefield.methods.piecewise import Piecewise, fit_bins


def ramp(relative, n: int = 40):
    """A map whose rows all rise from 1 to 5, so that a column is a relative depth."""
    mde_output = relative((3, n))
    return type(mde_output)(torch.linspace(1, 5, n).double().expand(3, n).clone(), "depth")


@pytest.mark.parametrize("edges", ["quantile", "equal_width", (2.0, 4.0)])
def test_piecewise_each_interval_has_its_own_line(relative, edges):
    mde_output = ramp(relative)
    x = mde_output.prediction
    u = np.arange(40)
    fixed = {
        "quantile": np.quantile(x[0], [1 / 3, 2 / 3]),
        "equal_width": 1 + np.array([4 / 3, 8 / 3]),
        (2.0, 4.0): (2.0, 4.0),
    }[edges]
    depth_m = torch.where(x < fixed[0], 2 * x, torch.where(x < fixed[1], 5 * x - 3, x + 30))
    anchors = Anchors(u, u % 3, depth_m[0])
    recovery = Piecewise(edges=edges)(mde_output, anchors)
    torch.testing.assert_close(recovery.depth_m, depth_m.float(), rtol=1e-5, atol=0)
    assert recovery.report.fallbacks == ()


def test_piecewise_interval_of_few_anchors_joins_its_neighbour_of_fewer(relative):
    mde_output = ramp(relative)
    # Columns below and from 20: intervals of 4, 2 and 6 anchors; the middle one joins the first.
    u = np.array([0, 3, 6, 9, 12, 14, 20, 24, 28, 32, 36, 39])
    x = mde_output.prediction[0].numpy()
    edges = (float(x[10]), float(x[18]))
    depth_m = np.where(np.arange(40) < 18, 2 * x + 1, 7 * x)
    recovery = Piecewise(edges=edges)(mde_output, Anchors(u, 0 * u, depth_m[u]))
    np.testing.assert_allclose(recovery.depth_m[0], depth_m, rtol=1e-5)
    (fallback,) = recovery.report.fallbacks
    assert str(fallback) == f"two depth intervals joined at x = {edges[0]:.4g}: " + (
        "2 anchors in one, fewer than 3"
    )


@pytest.mark.parametrize("flaw", ["falling", "flat"])
def test_piecewise_intervals_without_a_rising_line_join(relative, flaw):
    mde_output = ramp(relative)
    u = np.array([0, 4, 8, 12]) if flaw == "falling" else np.array([5, 5, 5, 5])
    u = np.concatenate([u, [20, 25, 30, 35, 38]])
    depth_m = np.concatenate([[9.0, 6, 4, 2], 2.0 * np.arange(20, 25)])
    recovery = Piecewise(edges=(2.5,))(mde_output, Anchors(u, 0 * u, depth_m))
    assert recovery.report.fallbacks[0].text.startswith("two depth intervals joined at x = 2.5")
    assert recovery.report.fallbacks[1].code == "one_line"
    alone = Global()(mde_output, Anchors(u, 0 * u, depth_m))
    torch.testing.assert_close(recovery.depth_m, alone.depth_m)


@given(st.integers(0, 10**6), st.lists(st.floats(0.5, 3), max_size=4, unique=True))
def test_fit_bins_of_any_data_gives_at_most_k_rising_lines(relative, measure, seed, edges):
    mde_output = relative(seed=seed % 11)
    rng = np.random.default_rng(seed)
    anchors = measure(rng.uniform(1, 9, mde_output.shape), 15, seed)
    curve, fallbacks, _ = fit_bins(Samples.at(mde_output, anchors, "depth"), sorted(edges))
    x = torch.linspace(0.1, 4, 2000).double()
    slopes = torch.unique(((curve(x + 1e-7) - curve(x)) / 1e-7).round(decimals=3))
    slopes = slopes[slopes.abs() < 1e4]  # not across a jump between two intervals
    joined = sum(fallback.code == "joined_intervals" for fallback in fallbacks)
    assert len(slopes) <= len(edges) + 1 - joined
    assert (slopes >= 0).all()


@pytest.mark.parametrize("kind", ["depth", "disparity"])
def test_piecewise_continuous_recovers_two_segments(relative, kind):
    mde_output = ramp(relative, 101)
    mde_output = type(mde_output)(mde_output.prediction, kind)
    x = mde_output.prediction
    # Anchors on every column: the breakpoint x = 3 is their median, which the search tries.
    metric = 0.5 * x + 1 + 2 * (x - 3).clamp(min=0)
    depth_m = metric if kind == "depth" else 1 / metric
    u = np.arange(101)
    anchors = Anchors(u, u % 3, depth_m[0])
    recovery = Piecewise(variant="continuous", space=kind)(mde_output, anchors)
    torch.testing.assert_close(recovery.depth_m, depth_m.float(), rtol=1e-5, atol=0)
    assert recovery.report.fallbacks == ()


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.floats(0.3, 0.7))
def test_piecewise_continuous_beats_one_line_and_joins_up(relative, measure, seed, place):
    mde_output = relative(seed=seed % 11)
    x = mde_output.prediction
    b = float(x.quantile(place))
    truth = x + 1 + 4 * (x - b).clamp(min=0)
    anchors = measure(truth.numpy(), 60, seed)
    recovery = Piecewise(variant="continuous", space="depth")(mde_output, anchors)
    line = Global()(mde_output, anchors)
    error, line_error = ((r.depth_m - truth).square().mean().sqrt() for r in (recovery, line))
    assert error < 0.1
    assert error <= line_error
    values, order = x.reshape(-1).sort()
    rises = recovery.depth_m.reshape(-1)[order].double().diff()
    assert (rises >= -1e-6).all()  # both slopes are above zero and there is no jump
    assert (rises <= 10 * values.diff() + 1e-5).all()


def test_piecewise_continuous_fallbacks(relative):
    mde_output = ramp(relative)
    method = Piecewise(variant="continuous")
    few = method(mde_output, Anchors([0, 20, 39], [0, 1, 2], [1.0, 3.0, 5.0])).report
    assert [f.code for f in few.fallbacks] == ["one_line"]
    falling = method(mde_output, Anchors([0, 9, 20, 30, 39], [0] * 5, [9.0, 7, 5, 3, 1])).report
    assert falling.fallbacks[0].code == "ransac_line"
    assert falling.fallbacks[1].code == "scale_only"


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"variant": "spline"}, "variant"),
        ({"bins": 6}, "bins"),
        ({"bins": 1}, "bins"),
        ({"edges": "log"}, "edges"),
        ({"edges": (3.0, 2.0)}, "edges"),
        ({"edges": ()}, "edges"),
        ({"edges": (1.0, np.inf)}, "edges"),
        ({"space": "both"}, "space"),
    ],
)
@pytest.mark.usefixtures("as_users_run_it")
def test_piecewise_wrong_options(options, option):
    with pytest.raises(InputError, match=f"^{option} must be"):
        Piecewise(**options)
