"""Previews: monotonic colours, ticks at round numbers, a picture for any input."""

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

from scalefield import Anchors, recover
from scalefield.export.preview import (
    HOLE,
    NEAR_TO_FAR,
    PAPER,
    SMALL_TO_LARGE,
    Scale,
    Sheet,
    depth_scale,
    deviation_colours,
    deviation_scale,
    draw_preview,
    round_steps,
)
from scalefield.io import write_image


def luminance(table: np.ndarray) -> np.ndarray:
    linear = (table / 255.0) ** 2.2
    return linear @ np.array([0.2126, 0.7152, 0.0722])


def test_preview_depth_colours_darken_with_distance_all_the_way():
    light = luminance(NEAR_TO_FAR)
    assert np.all(np.diff(light[::4]) < 0)
    assert light[0] > 0.8
    assert light[-1] < 0.05


def test_preview_factor_colours_are_lightest_in_the_middle():
    light = luminance(SMALL_TO_LARGE)
    assert np.all(np.diff(light[:128:4]) > 0)
    assert np.all(np.diff(light[128::4]) < 0)
    assert SMALL_TO_LARGE[20, 2] > SMALL_TO_LARGE[20, 0]  # blue below
    assert SMALL_TO_LARGE[235, 0] > SMALL_TO_LARGE[235, 2]  # brown above


def test_scale_colours_follow_the_scale_and_holes_are_grey():
    scale = Scale(NEAR_TO_FAR, 1.0, 100.0, logarithmic=True)
    values = np.array([[0.1, 1.0, 10.0], [100.0, 1e9, np.nan]])
    colours = scale.colours(values)
    np.testing.assert_array_equal(colours[0, 0], NEAR_TO_FAR[0])  # clipped, not wrapped
    np.testing.assert_array_equal(colours[0, 2], NEAR_TO_FAR[128])
    np.testing.assert_array_equal(colours[1, 1], NEAR_TO_FAR[255])
    np.testing.assert_array_equal(colours[1, 2], HOLE)


@given(
    low=st.floats(1e-6, 1e6),
    ratio=st.floats(1.01, 1e6) | st.floats(1e6, 1e40),
    most=st.integers(2, 9),
    logarithmic=st.booleans(),
)
def test_scale_ticks_are_few_round_and_inside(low, ratio, most, logarithmic):
    assume(logarithmic or ratio <= 1e6)
    scale = Scale(NEAR_TO_FAR, low, low * ratio, logarithmic)
    ticks = scale.ticks(most)
    assert 1 <= len(ticks) <= most
    assert ticks == sorted(set(ticks))
    assert all(low * (1 - 1e-5) <= t <= low * ratio * (1 + 1e-5) for t in ticks)
    if logarithmic and ratio > 20:
        digits = [f"{t:.6e}".split("e")[0].rstrip("0").rstrip(".") for t in ticks]
        assert all(len(d) <= 3 for d in digits), ticks


@pytest.mark.parametrize(
    ("low", "high", "most", "wanted"),
    [
        (1.1, 5.2, 5, [2, 3, 4, 5]),
        (0.0, 1.0, 6, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (3.71, 4.79, 6, [3.8, 4, 4.2, 4.4, 4.6]),
        (12.0, 79.0, 4, [20, 40, 60]),
    ],
)
def test_round_steps_linear_ticks_by_example(low, high, most, wanted):
    assert round_steps(low, high, most) == wanted


def test_depth_scale_is_logarithmic_for_streets_and_linear_for_rooms():
    assert not depth_scale(np.linspace(1, 5, 100)).logarithmic
    assert depth_scale(np.linspace(2, 80, 100)).logarithmic
    flat = depth_scale(np.full(9, 3.0))
    assert flat.low < 3 < flat.high


def relative_depth(height: int, width: int) -> np.ndarray:
    v, u = np.mgrid[:height, :width]
    return 1.0 + v / height + 0.3 * np.sin(u)


@pytest.mark.parametrize("shape", [(1, 1), (1, 500), (400, 2), (24, 32), (376, 1242)])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_draw_preview_of_any_size_is_legible(shape, count):
    height, width = shape
    rng = np.random.default_rng(0)
    u, v = rng.integers(0, width, count), rng.integers(0, height, count)
    depth = relative_depth(height, width)
    anchors = Anchors(u, v, 2 * depth[v, u])
    image = rng.integers(0, 255, (height, width, 3), dtype=np.uint8)
    r = recover(image, anchors, mde_depth=depth, kind="depth", method="median")
    sheet = draw_preview(r, anchors, image)
    assert sheet.mode == "RGB"
    assert 800 < sheet.width < 4200
    assert 300 < sheet.height < 3000
    assert sheet.getpixel((2, 2)) == PAPER


def test_draw_preview_panels_show_their_maps(tmp_path):
    image = np.full((48, 64, 3), (10, 200, 90), np.uint8)
    depth = relative_depth(48, 64)
    depth[:8] = np.nan
    anchors = Anchors([32], [30], [3.0])
    r = recover(image, anchors, mde_depth=depth, kind="depth", method="median")
    r = dataclasses.replace(r, std_log=None)
    sheet = np.asarray(draw_preview(r, anchors, image))
    top, bottom = sheet[: len(sheet) // 2], sheet[len(sheet) // 2 :]
    left, right = np.s_[:, : sheet.shape[1] // 2], np.s_[:, sheet.shape[1] // 2 :]

    def share(panel: np.ndarray, colour: tuple) -> float:
        return float(np.mean(np.all(panel == colour, axis=-1)))

    assert share(top[left], (10, 200, 90)) > 0.5  # the photograph
    assert share(bottom, (10, 200, 90)) == 0
    for panel in (top[right], bottom[left], bottom[right]):
        assert share(panel, HOLE) > 0.05  # holes are seen in every map
    # A constant scale changes nothing between relative and recovered depth but the numbers.
    height, width = 480, 640
    (y, x), (y2, x2) = (
        np.argwhere(np.all(half == HOLE, axis=-1))[0] for half in (top[right], bottom[left])
    )
    np.testing.assert_array_equal(
        top[right][y : y + height, x : x + width], bottom[left][y2 : y2 + height, x2 : x2 + width]
    )
    write_image(tmp_path / "p.png", draw_preview(r, anchors, image))
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "p.png")), sheet)


def test_draw_preview_crosses_out_rejected_anchors():
    depth = relative_depth(48, 64)
    depth[10, 10] = np.nan
    anchors = Anchors([10, 40], [10, 30], [3.0, 4.0])
    r = recover(None, anchors, mde_depth=depth, kind="depth", method="median")
    crossed = np.asarray(draw_preview(r, anchors))
    kept = dataclasses.replace(r.report, rejected=())
    plain = np.asarray(draw_preview(dataclasses.replace(r, report=kept), anchors))
    changed = np.argwhere((crossed != plain).any(-1))
    assert 20 < len(changed) < 2000
    assert np.ptp(changed, axis=0).max() < 40  # in one place


def test_draw_preview_labels_stay_apart_and_inside():
    depth = relative_depth(48, 64)
    corners = Anchors([0, 63, 0, 63, 32, 33], [0, 0, 47, 47, 24, 24], [1.0, 2, 3, 4, 5, 6])
    r = recover(None, corners, mde_depth=depth, kind="depth", method="median")
    sheet = np.asarray(draw_preview(r, corners))
    without = np.asarray(draw_preview(r, corners[:0]))
    changed = (sheet != without).any(-1)
    white = np.all(sheet > 225, axis=-1) & changed
    assert white.sum() > 6 * 60 * 12  # six plates of light ground, none hidden behind another


def test_preview_uncertainty_panel_darkens_with_std_log_and_has_notes():
    image = np.full((48, 64, 3), (10, 200, 90), np.uint8)
    depth = relative_depth(48, 64)
    anchors = Anchors([32], [30], [3.0])
    r = recover(image, anchors, mde_depth=depth, kind="depth", method="median")
    std_log = np.broadcast_to(np.linspace(0.01, 0.5, 64, dtype=np.float32), (48, 64)).copy()
    std_log[:6] = np.nan
    r = dataclasses.replace(r, std_log=std_log)
    sheet = np.asarray(draw_preview(r, anchors, image))
    panel = sheet[: len(sheet) // 2, 2 * sheet.shape[1] // 3 :]
    (_, left), (bottom, right) = (
        edge(np.argwhere(np.all(panel == HOLE, axis=-1)), axis=0) for edge in (np.min, np.max)
    )
    assert right - left == 639
    row = luminance(panel[bottom + 50, left : right + 1].astype(float))
    assert np.all(np.diff(row[::20]) < 0)
    noted = np.asarray(draw_preview(r, anchors, image, ["a note " * 30]))
    changed = np.argwhere((noted != sheet).any(-1))
    assert changed[:, 0].min() > len(sheet) // 2
    assert changed[:, 1].min() > 2 * sheet.shape[1] // 3 - 40


@pytest.mark.parametrize("high", [0.0, 0.3, 1.5, 500.0])
def test_deviation_scale_has_ticks_for_any_deviation(high):
    std_log = np.linspace(high / 2, high, 100).reshape(10, 10)
    scale = deviation_scale(std_log)
    assert len(scale.ticks(6)) >= 2
    assert scale.label(scale.ticks(6)[-1]).endswith("x" if high > 1.1 else "%")
    assert deviation_colours(std_log, scale).shape == (10, 10, 3)


def test_preview_thins_the_dots_of_many_anchors_and_keeps_rejected_ones():
    depth = relative_depth(480, 640)
    v, u = np.divmod(np.arange(0, 480 * 640, 19), 640)
    depth[v[7000], u[7000]] = np.nan
    anchors = Anchors(u, v, 2 * np.nan_to_num(depth, nan=1.0)[v, u])
    r = recover(None, anchors, mde_depth=depth, kind="depth", method="median")
    dots = Sheet((480, 640)).dots(anchors, r)
    assert 300 < len(dots) < 1000
    assert 7000 in dots
    assert dots == sorted(set(dots))
    few = anchors[:100]
    assert Sheet((480, 640)).dots(few, r) == list(range(100))
