"""Warnings about a relative map and its anchors."""

import re

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import spearmanr

from scalefield import Anchors, MDEOutput, recover
from scalefield.api import recover_from
from scalefield.checks import input_warnings, rank_correlation
from scalefield.methods.median import Median
from scalefield.report import ShiftInterval

RELATIVE = np.linspace(1, 3, 48).reshape(6, 8)
ANCHORS = Anchors([0, 3, 7, 2], [0, 2, 5, 4], 2.5 * RELATIVE[[0, 2, 5, 4], [0, 3, 7, 2]])


@given(hnp.arrays(np.float64, (2, 9), elements=st.integers(0, 5)))
def test_rank_correlation_is_that_of_spearman(values):
    x, y = values
    assume(len(set(x)) > 1 and len(set(y)) > 1)
    assert rank_correlation(x, y) == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)


@pytest.mark.parametrize(("truth", "declared"), [("depth", "disparity"), ("disparity", "depth")])
def test_input_warnings_name_the_wrong_kind(truth, declared):
    values = RELATIVE if truth == "depth" else 1 / RELATIVE
    right = recover(None, ANCHORS, mde_depth=values, kind=truth, method="median")
    assert right.report.warnings == ()
    wrong = recover(None, ANCHORS, mde_depth=values, kind=declared, method="median")
    (warning,) = wrong.report.warnings
    assert warning.code == "kind_mismatch"
    assert f"declared {declared}" in str(warning)
    assert "rank correlation -1.00" in str(warning)
    assert warning.text.endswith(f"is it {truth}, or are u and v those of another image?")


def test_input_warnings_ask_whether_anchors_are_in_millimetres():
    metres = recover(None, ANCHORS, mde_depth=RELATIVE, kind="depth", method="median")
    assert metres.report.warnings == ()
    millimetres = Anchors(ANCHORS.u, ANCHORS.v, 1000 * ANCHORS.depth_m)
    (warning,) = recover(
        None, millimetres, mde_depth=RELATIVE, kind="depth", method="median"
    ).report.warnings
    typical = np.median(millimetres.depth_m)
    assert warning.code == "far_anchors"
    assert warning.text.startswith(f"half of the anchors are {typical:.0f} m away or more")
    assert warning.text.endswith("are they millimetres?")


def test_input_warnings_count_disparity_below_zero():
    """All such pixels count as equally far, and no number overflows."""
    disparity = 1 / RELATIVE
    shifted = disparity - np.quantile(disparity, 0.25)
    bring = {"kind": "disparity", "affine": False, "method": "median"}
    (warning,) = recover(None, ANCHORS, mde_depth=shifted, **bring).report.warnings
    assert warning.code == "negative_disparity"
    assert re.match("2[0-9] % of the disparity map is not above zero", warning.text)
    for right in (disparity, shifted - shifted.min()):  # zeros are infinitely far, and mean it
        assert recover(None, ANCHORS, mde_depth=right, **bring).report.warnings == ()


def test_input_warnings_judge_no_kind_by_three_anchors():
    r = recover(None, ANCHORS[:3], mde_depth=1 / RELATIVE, kind="depth", method="median")
    assert r.report.warnings == ()


@pytest.mark.parametrize(
    ("factor", "unit"), [(1000.0, "millimetres"), (100.0, "centimetres"), (1.0, None)]
)
def test_input_warnings_ask_whether_far_anchors_are_in_another_unit(factor, unit):
    anchors = Anchors([1, 4, 6], [1, 2, 3], np.array([1.52, 2.1, 2.86]) * factor)
    report = recover(None, anchors, mde_depth=RELATIVE, kind="depth", method="median").report
    asked = [w.text for w in report.warnings if w.code == "far_anchors"]
    assert bool(asked) == (unit is not None)
    assert unit is None or asked[0].endswith(f"are they {unit}?")


@pytest.mark.parametrize(
    ("depth_m", "unit"),
    [
        ([40, 75, 180], "centimetres"),
        ([40.5, 75.2, 80.1], None),
        ([12, 18, 30], None),
        ([4000, 7500, 9000], "millimetres"),
    ],
)
def test_input_warnings_ask_for_the_unit_of_far_whole_numbers(depth_m, unit):
    anchors = Anchors([1, 4, 6], [1, 2, 3], depth_m)
    report = recover(None, anchors, mde_depth=RELATIVE, kind="depth", method="median").report
    asked = [w.text for w in report.warnings if w.code == "far_anchors"]
    assert [text.rpartition("are they ")[2] for text in asked] == ([f"{unit}?"] if unit else [])


@pytest.mark.parametrize(
    ("factor", "unit"),
    [(0.4, None), (0.4 * 3.28, "feet"), (100, "centimetres"), (1000, "millimetres")],
)
def test_input_warnings_compare_the_anchors_with_a_metric_estimator(factor, unit):
    output = MDEOutput(torch.from_numpy(RELATIVE).float(), "depth", model="lite")
    anchors = Anchors(ANCHORS.u, ANCHORS.v, factor * ANCHORS.depth_m)
    report = recover_from(output, anchors, Median()).report
    asked = [w.text for w in report.warnings if w.code == "far_anchors"]
    assert bool(asked) == (unit is not None)
    assert unit is None or "times as far as lite estimates" in asked[0]
    assert unit is None or asked[0].endswith(f"are they {unit}?")


WIDE = np.linspace(1, 3, 48 * 64).reshape(48, 64)


def codes(u, v, relative=WIDE, **more) -> dict[str, str]:
    """The texts of the warnings by code, for exact anchors at these positions."""
    rows, columns = np.round(v).astype(int), np.round(u).astype(int)
    anchors = Anchors(u, v, 2.5 * WIDE[rows, columns])
    report = recover(None, anchors, mde_depth=relative, kind="depth", method="median", **more)
    return {w.code: w.text for w in report.report.warnings}


def test_input_warnings_recognise_positions_that_are_shares_of_the_size():
    shares = codes(np.array([0.1, 0.9, 0.5]), np.array([0.2, 0.3, 0.8]))
    assert "multiply u by 64 and v by 48?" in shares["relative_positions"]
    assert codes(np.array([0, 1, 1]), np.array([0, 0, 1])) == {}  # pixels
    assert codes(np.array([0.1, 20.9, 0.5]), np.array([0.2, 0.3, 0.8])) == {}


def test_input_warnings_recognise_positions_of_a_smaller_copy():
    u, v = np.array([3, 19, 8, 14, 20]), np.array([2, 12, 15, 9, 4])
    assert "first 20 columns and 15 rows of 64×48" in codes(u, v)["upper_left_positions"]
    assert codes(np.r_[u, 40], np.r_[v, 3]) == {}  # one of them is elsewhere
    assert codes(u[:4], v[:4]) == {}  # too few to tell
    assert codes(np.full(9, 5), np.full(9, 5)) == {}  # one pixel


def test_input_warnings_say_that_an_image_or_a_map_shows_nothing():
    u, v = np.array([10, 50, 30]), np.array([5, 40, 20])
    constant = codes(u, v, np.full((48, 64), 0.5))
    assert constant == {
        "constant_map": "the depth map is 0.5 everywhere: the depth comes from the anchors alone"
    }
    for relative, text in ((np.ones((1, 1)), "1×1"), (np.ones((1, 300)), "300×1")):
        report = recover(None, [(0, 0, 2.0)], mde_depth=relative, kind="depth").report
        assert f"only {text} pixels" in report.warnings[0].text
    for value, text in ((0, "black"), (90, "of one colour")):
        image = np.full((48, 64, 3), value, np.uint8)
        blank = recover(image, [(5, 5, 2.0)], mde_depth=WIDE, kind="depth").report.warnings
        assert [w.code for w in blank] == ["blank_image"]
        assert text in blank[0].text


def test_steps_of_an_eight_bit_map_whose_farthest_values_lie_at_infinity_have_no_limit():
    """A negative shift puts the lowest values of the map there."""
    disparity = torch.linspace(40, 255, 48 * 64).round().reshape(48, 64)
    output, pixels = MDEOutput(disparity, "disparity", affine=True), ANCHORS.pixels((48, 64))
    for value, size in ((-60.0, "without a limit far away"), (-39.0, "of up to 100 %")):
        shift = ShiftInterval(value, value - 5, value + 5)
        codes = {w.code: w.text for w in input_warnings(output, ANCHORS, pixels, shift)}
        assert f"depth comes in steps {size}" in codes["few_steps"]


def test_a_check_that_fails_is_a_warning_and_no_error(monkeypatch):
    def broken(*_):
        raise ValueError("math domain error")

    monkeypatch.setattr("scalefield.checks.rank_correlation", broken)
    recovery = recover(None, ANCHORS, mde_depth=RELATIVE, kind="depth")
    (warning,) = (w for w in recovery.report.warnings if w.code == "check_failed")
    assert warning.text == "the check for other kind failed (math domain error)"
