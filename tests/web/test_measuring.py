"""Depths and lengths between pixels, with their intervals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scalefield as sf
from scalefield import samples
from scalefield.errors import InputError
from scalefield.geometry.camera import Camera
from scalefield.web.edits import parse_edit
from scalefield.web.measuring import (
    LEAST_POINTS,
    extents,
    measure,
    parse_points,
    parse_question,
)
from scalefield.web.uploads import Limits

LIMITS, FOV_DEG = Limits(), 62.73


def asked(session, anchors: list[dict], *measurements: dict, **more: object) -> dict:
    body = {"anchors": anchors, "measurements": list(measurements), "fov_deg": FOV_DEG, **more}
    return measure(session, parse_question(body, parse_edit(body, LIMITS), session.shape, LIMITS))


def pixels(*points: tuple[int, int]) -> list[dict]:
    return [{"u": u, "v": v} for u, v in points]


@pytest.fixture(scope="module")
def sample(room, client):
    return client.app.state.server.sessions.get(room["id"])


def test_measure_at_an_anchor_gives_the_anchor_and_its_own_deviation(sample, room) -> None:
    """Not that of the lattice around it."""
    anchors = room["anchors"]
    found = asked(sample, anchors, points=[{"u": a["u"], "v": a["v"]} for a in anchors])
    for low, depth, high, anchor in zip(
        found["low_m"], found["depth_m"], found["high_m"], anchors, strict=True
    ):
        assert depth == pytest.approx(anchor["depth_m"], rel=0.01)
        assert low < anchor["depth_m"] < high < 1.03 * low


def test_measure_reads_the_full_resolution(prepared) -> None:
    session = prepared(2000, 1400)
    anchors = [{"u": 100, "v": 100, "depth_m": 2.0}, {"u": 1700, "v": 1111, "depth_m": 3.5}]
    points = ((3, 7), (1234, 567), (1999, 1399))
    found = asked(session, anchors, points=pixels(*points))
    columns = {k: [a[k] for a in anchors] for k in ("u", "v", "depth_m")}
    expected = sf.recover(session.image, sf.Anchors(**columns))
    for i, (u, v) in enumerate(points):
        assert found["depth_m"][i] == pytest.approx(float(expected.depth_m[v, u]), rel=1e-4)
        assert found["std_log"][i] == pytest.approx(float(expected.std_log[v, u]), rel=0.02)


def test_intervals_of_lengths_hold_the_truth_and_are_narrower_than_a_bound(sample, room) -> None:
    """Random lengths of 30 to 200 pixels: 90 % of them should be within their intervals, which in
    the median are at least three times narrower than those that allow any correlation (37)."""
    truth_m, camera = samples.load("room").depth_m, Camera.from_fov(FOV_DEG, sample.shape)
    rng, wanted, lengths = np.random.default_rng(0), [], []
    while len(wanted) < 120:
        u, v = rng.integers(0, 640, 2), rng.integers(0, 480, 2)
        if 30 < np.hypot(*np.diff([u, v])[:, 0]) < 200:
            rays = np.c_[camera.rays(u.astype(float), v.astype(float)), [1, 1]]
            lengths.append(float(extents("distance", (rays * truth_m[v, u][:, None])[None])[0]))
            wanted.append(
                {"kind": "distance", "points": pixels(*zip(u.tolist(), v.tolist(), strict=True))}
            )
    found = asked(sample, room["anchors"], *wanted)["measurements"]
    inside = [m["low"] <= t <= m["high"] for m, t in zip(found, lengths, strict=True)]
    assert np.mean(inside) >= 0.85
    assert np.median([m["high"] / m["low"] for m in found]) < 37 / 3
    assert all(m["low"] <= m["value"] <= m["high"] for m in found)


@pytest.mark.parametrize("kind", LEAST_POINTS)
def test_measurement_has_the_value_of_the_depths_at_its_points(sample, room, kind: str) -> None:
    corners = pixels((240, 60), (60, 300), (200, 420))[: max(2, LEAST_POINTS[kind])]
    found = asked(sample, room["anchors"], {"kind": kind, "points": corners}, points=corners)
    focal = 320 / np.tan(np.radians(FOV_DEG / 2))
    points = [
        np.array([(p["u"] - 319.5) / focal, (p["v"] - 239.5) / focal, 1]) * depth
        for p, depth in zip(corners, found["depth_m"], strict=True)
    ]
    a, b = points[:2]
    slow = {
        "distance": np.linalg.norm(a - b),
        "path": np.linalg.norm(a - b),
        "height": abs(a[1] - b[1]),
        "area": np.linalg.norm(np.cross(b - a, points[-1] - a)) / 2,
    }[kind]
    assert found["measurements"][0]["value"] == pytest.approx(slow, rel=1e-6)


@given(st.integers(3, 7), st.integers(0, 99), st.floats(0.1, 10))
def test_extents_do_not_change_with_order_and_grow_with_scale(n: int, seed: int, s: float) -> None:
    points = np.random.default_rng(seed).standard_normal((2, n, 3))
    for kind, power in (("distance", 1), ("path", 1), ("height", 1), ("area", 2)):
        values = extents(kind, points[:, :2] if kind in ("distance", "height") else points)
        scaled = extents(kind, s * (points[:, :2] if kind in ("distance", "height") else points))
        np.testing.assert_allclose(scaled, s**power * values)
        if kind != "height":
            np.testing.assert_allclose(extents(kind, points[:, ::-1]), extents(kind, points))
    np.testing.assert_allclose(extents("area", np.roll(points, 1, 1)), extents("area", points))


def test_scaled_anchors_scale_every_measurement(sample, room) -> None:
    line = {"kind": "path", "points": pixels((240, 60), (60, 300), (200, 420))}
    (once,) = asked(sample, room["anchors"], line)["measurements"]
    doubled = [{**a, "depth_m": 2 * a["depth_m"]} for a in room["anchors"]]
    (twice,) = asked(sample, doubled, line)["measurements"]
    for name, value in once.items():
        assert twice[name] == pytest.approx(2 * value, rel=1e-3)


@pytest.mark.parametrize(("method", "deviation"), [("basis", True), ("interpolate", False)])
def test_other_methods_give_the_value_of_a_length_alone(sample, room, method, deviation) -> None:
    line = {"kind": "distance", "points": pixels((240, 60), (60, 300))}
    found = asked(sample, room["anchors"], line, points=pixels((5, 5)), method=method)
    assert found["measurements"][0]["value"] > 0
    assert found["measurements"][0]["low"] is None
    assert ("low_m" in found) == deviation


def test_measuring_over_a_hole_gives_nothing(prepared) -> None:
    from scalefield.inputs import from_array

    session = prepared(64, 48)
    depth = session.relative.output.mde_depth.numpy().copy()
    depth[:, :8] = np.nan
    session.prepare(from_array(depth, "depth", session.image), "mine.npy")
    line = {"kind": "distance", "points": pixels((3, 3), (50, 30))}
    anchors = [{"u": 20, "v": 20, "depth_m": 2.0}]
    found = asked(session, anchors, line, points=pixels((3, 3), (50, 30)))
    assert found["measurements"] == [{"value": None, "low": None, "high": None}]
    assert found["depth_m"][0] is None
    assert found["std_log"][0] is None
    assert found["depth_m"][1] > 0


def test_points_are_the_pixels_they_fall_in() -> None:
    """Whole numbers and fractions alike."""
    rows, columns = parse_points([{"u": 3, "v": 2}, {"u": 4.5, "v": 0}], (60, 80), most=9)
    assert (rows.tolist(), columns.tolist()) == ([2, 0], [3, 5])
    assert [len(axis) for axis in parse_points([], (60, 80), most=9)] == [0, 0]


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (None, r'wanted "points": \[{"u", "v"}, …\]$'),
        ([{"u": 1, "v": 1}] * 5001, "5001 points, and at most 5000 are taken$"),
        ([3], "^point #0: an object with u, v is wanted$"),
        ([{"u": 1, "v": 1}, {"u": 1}], "^point #1: v must be a number$"),
        ([{"u": 1, "v": 1, "depth_m": 2}], "^point #0: 'depth_m' is not read here; give u, v$"),
        ([{"u": 10**400, "v": 1}], "^point column u must be numbers"),
        ([{"u": 80, "v": 1}], "^1 of 1 points lie outside .* #0 at u=80, v=1$"),
    ],
)
def test_bad_points_get_a_sentence_of_their_own(points: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_points(points, (60, 80), most=5000)


LINE = {"kind": "path", "points": pixels((1, 1), (5, 5))}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, 'wanted "points"'),
        ({"measurements": 3}, 'wanted "points"'),
        ({"measurements": [LINE]}, "measurements need fov_deg"),
        ({"measurements": [LINE], "fov_deg": True}, "measurements need fov_deg"),
        ({"measurements": [LINE], "fov_deg": 10**400}, "between 0 and 180 degrees"),
        ({"measurements": [{**LINE, "kind": "girth"}], "fov_deg": 60}, "kind is one of distance"),
        ({"measurements": [[]], "fov_deg": 60}, "kind is one of distance"),
        ({"measurements": [{**LINE, "kind": "area"}], "fov_deg": 60}, "area needs 3 points"),
        ({"measurements": [{"kind": "path"}], "fov_deg": 60}, 'wanted "points"'),
        ({"measurements": [LINE] * 2501, "fov_deg": 60}, "more than 5000 points together"),
    ],
)
def test_bad_questions_get_a_sentence(body: dict, words: str) -> None:
    edit = parse_edit({"anchors": []}, LIMITS)
    with pytest.raises(InputError, match=words):
        parse_question(body, edit, (60, 80), LIMITS)
