"""Depths and lengths between pixels, with their intervals."""

import numpy as np
import pytest

import scalefield as sf
from scalefield import samples
from scalefield.errors import InputError
from scalefield.geometry.camera import Camera
from scalefield.web.edits import apply_edit, parse_edit
from scalefield.web.exports import python_lines
from scalefield.web.measuring import KINDS, measure, parse_points, parse_question
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
            lengths.append(np.linalg.norm(np.diff(rays * truth_m[v, u][:, None], axis=0)))
            wanted.append(
                {"kind": "distance", "points": pixels(*zip(u.tolist(), v.tolist(), strict=True))}
            )
    found = asked(sample, room["anchors"], *wanted)["measurements"]
    inside = [m["low"] <= t <= m["high"] for m, t in zip(found, lengths, strict=True)]
    assert np.mean(inside) >= 0.85
    assert np.median([m["high"] / m["low"] for m in found]) < 37 / 3
    assert all(m["low"] <= m["value"] <= m["high"] for m in found)


@pytest.mark.parametrize("kind", KINDS)
def test_measurement_has_the_value_of_the_depths_at_its_points(sample, room, kind: str) -> None:
    corners = pixels((240, 60), (60, 300), (200, 420))[: 3 if kind == "area" else 2]
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
        ({"measurements": [LINE], "fov_deg": True}, "fov_deg must be a number"),
        ({"measurements": [{**LINE, "kind": "girth"}], "fov_deg": 60}, "kind is one of distance"),
        ({"measurements": [[]], "fov_deg": 60}, "kind is one of distance"),
        ({"measurements": [{"kind": "path"}], "fov_deg": 60}, 'wanted "points"'),
        ({"measurements": [LINE] * 2501, "fov_deg": 60}, "more than 5000 points together"),
    ],
)
def test_bad_questions_get_a_sentence(body: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_question(body, parse_edit({"anchors": [], **body}, LIMITS), (60, 80), LIMITS)


@pytest.mark.parametrize(
    ("kind", "points", "fov_deg", "words"),
    [
        ("area", ((1, 1), (9, 9)), 60, "3 pixels or more are wanted, found 2"),
        ("distance", ((1, 1), (1, 1)), 60, "both ends lie on one pixel"),
        ("height", ((1, 1), (1, 9)), 10**400, "between 0 and 180 degrees"),
    ],
)
def test_measurement_that_is_impossible_says_why_and_spoils_no_other(
    sample, room, kind: str, points: tuple, fov_deg: float, words: str
) -> None:
    both = {"kind": kind, "points": pixels(*points)}, {**LINE}
    found = asked(sample, room["anchors"], *both, fov_deg=fov_deg)["measurements"]
    assert words in found[0]["error"]
    assert found[0]["value"] is None
    assert (found[1]["value"] or 0) > 0 or fov_deg > 180


KNOWN = {"kind": "distance", "points": pixels((240, 60), (60, 300)), "value_m": 2.3}


def test_known_length_alone_gives_metres_everywhere(sample, room) -> None:
    """The map, single pixels and the exported script have what `recover` gives."""
    found = asked(sample, [], KNOWN, known=[KNOWN], points=pixels((300, 155)))
    assert found["measurements"][0]["value"] == pytest.approx(2.3, rel=0.02)
    length = sf.Length((240, 60), (60, 300), 2.3)
    expected = sf.recover(
        sample.image, sf.Anchors([], [], []), measurements=[length], fov_deg=FOV_DEG
    )
    assert found["depth_m"][0] == pytest.approx(float(expected.depth_m[155, 300]), rel=2e-3)
    edit = parse_edit({"anchors": [], "known": [KNOWN], "fov_deg": FOV_DEG}, LIMITS)
    header, maps = apply_edit(sample, edit)
    assert header["size"] == "full"
    shown = sample.relative.output.mde_depth.numpy() * np.exp(maps["log_scale"])
    np.testing.assert_allclose(shown, expected.depth_m, rtol=5e-3)
    names: dict = {}
    exec(compile(python_lines(sample, edit), "recover.py", "exec"), names)
    np.testing.assert_allclose(names["r"].depth_m, expected.depth_m, rtol=1e-5)


def test_known_lengths_scale_with_everything_and_count_beside_anchors(sample, room) -> None:
    line, point = {"kind": "path", "points": pixels((300, 155), (560, 155))}, pixels((300, 200))
    once, twice = (
        asked(sample, [], line, known=[{**KNOWN, "value_m": metres}], points=point)
        for metres in (2.3, 4.6)
    )
    assert twice["depth_m"][0] == pytest.approx(2 * once["depth_m"][0], rel=0.1)
    both = asked(sample, room["anchors"], KNOWN, known=[KNOWN])["measurements"][0]
    assert both["value"] == pytest.approx(2.3, rel=0.02)
    alone = asked(sample, room["anchors"], KNOWN)["measurements"][0]
    assert both["high"] / both["low"] < alone["high"] / alone["low"]


def test_floor_and_objects_count(sample, room) -> None:
    floor = {"kind": "level", "points": pixels((100, 440), (300, 430), (250, 330))}
    door = {"kind": "door", "points": pixels((400, 60), (400, 300))}
    for known in (floor, door):
        edit = parse_edit({"anchors": room["anchors"], "known": [known], "fov_deg": 62.73}, LIMITS)
        _, plain = apply_edit(sample, parse_edit({"anchors": room["anchors"]}, LIMITS))
        _, maps = apply_edit(sample, edit)
        assert np.isfinite(maps["log_scale"]).all()
        assert np.abs(maps["log_scale"] - plain["log_scale"]).max() > 0.01


@pytest.mark.parametrize(
    ("known", "method", "words"),
    [
        (3, "field", '"known" is a list'),
        ([3], "field", "known #0: an object with"),
        ([{"kind": "girth", "points": []}], "field", "known #0: no kind of measurement 'girth'"),
        ([{**KNOWN, "value_m": -1}], "field", "known #0: length: value_m must be"),
        ([{"kind": "path", "points": KNOWN["points"]}], "field", "known #0: value_m is wanted"),
        ([{**KNOWN, "girth": 1}], "field", "known #0: length has no girth"),
        ([KNOWN], "median", "counts with the method field only, found 'median'"),
    ],
)
def test_bad_known_lengths_get_a_sentence(known: object, method: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_edit({"anchors": [], "known": known, "method": method}, LIMITS)
