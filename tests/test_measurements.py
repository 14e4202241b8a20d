"""Measurements: their values, tables and JSON, and what is refused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import scalefield as sf
from scalefield.geometry.camera import Camera
from scalefield.geometry.survey import Survey
from scalefield.measurements import KINDS, OBJECTS, measurement, measurements

SHAPE = (48, 64)
CAMERA = Camera.from_fov(60.0, SHAPE)
FLOOR = ((5, 40), (60, 41), (30, 47), (20, 36))

EXAMPLES = (
    sf.Depth(3, 4, 2.0),
    sf.Slant(3, 4, 2.0, 0.01),
    sf.Length((3, 4), (30, 20), 0.74),
    sf.Path(((3, 4), (30, 20), (40, 8)), 2.5),
    sf.Area(FLOOR, 3.0),
    sf.Height((30, 10), ((30, 40),), 1.2),
    sf.Height((30, 10), FLOOR, 1.2),
    sf.CameraHeight(FLOOR, 1.5),
    sf.Plane(FLOOR),
    sf.Plane(FLOOR, "level", 0.02),
    sf.Plane(FLOOR, "upright"),
    sf.EqualDepth(((3, 4), (30, 20), (40, 8))),
    sf.Order((3, 4), (30, 20), 0.1),
    sf.Interval(3, 4, 2.0, 3.0),
    sf.Footprint((3, 4), (12, 9), 2.0),
    sf.Footprint((3, 4), (12, 9), 2.0, statistic="mean"),
    sf.KnownObject((3, 4), (30, 20), object="door"),
    sf.Tilt(20.0, 2.0),
)
"""One of every kind."""


def inverse_depth(normal: np.ndarray, camera: Camera = CAMERA) -> np.ndarray:
    """1/z over the image of the plane normal·X = 1."""
    rays = camera.grid(SHAPE)
    return np.concatenate([rays, np.ones((*SHAPE, 1))], axis=2) @ normal


def rows_on(measured: sf.Length, depth_m: np.ndarray, psi: tuple = (0, 0, 0)) -> torch.Tensor:
    """The rows of a measurement on a depth map."""
    survey = Survey.of([measured], SHAPE, CAMERA)
    log_depth = torch.from_numpy(np.log(depth_m[survey.pixels]))
    return survey.linearise(log_depth, torch.tensor(psi, dtype=torch.float64)).values


@pytest.mark.parametrize("measured", EXAMPLES, ids=str)
def test_as_dict_makes_the_same_measurement(measured):
    assert measurements([measured.as_dict()]) == (measured,)


def test_examples_have_every_kind():
    assert {m.name for m in EXAMPLES} - set(OBJECTS) == KINDS.keys() - set(OBJECTS)


@pytest.mark.parametrize("measured", [m for m in EXAMPLES if m.reads], ids=str)
def test_rows_are_homogeneous_in_depth(measured):
    depth_m = 1 / inverse_depth(np.array([0.1, 0.5, 0.3]))
    change = rows_on(measured, 3 * depth_m) - rows_on(measured, depth_m)
    torch.testing.assert_close(change, torch.full_like(change, measured.degree * math.log(3)))


def test_values_on_a_floor_are_those_of_geometry():
    """A camera 1.5 m above a level floor that looks down by 30°."""
    pitch = math.radians(30)
    down = np.array([0, math.cos(pitch), math.sin(pitch)])
    depth_m = 1 / inverse_depth(down / 1.5)
    psi = (0, pitch / math.radians(15), 0)
    assert rows_on(sf.CameraHeight(FLOOR, 1.0), depth_m).exp() == pytest.approx(1.5)
    for plane in (sf.Plane(FLOOR), sf.Plane(FLOOR, "level")):
        torch.testing.assert_close(
            rows_on(plane, depth_m, psi), torch.zeros(3 if plane.name == "level" else 1).double()
        )
    assert rows_on(sf.Plane(FLOOR, "level"), depth_m).abs().max() > 0.01  # not of a level camera
    wall = 1 / inverse_depth(np.array([0.1, -0.3 * math.sin(pitch), 0.3 * math.cos(pitch)]))
    assert rows_on(sf.Plane(FLOOR, "upright"), wall, psi).abs().max() < 1e-9
    points = CAMERA.rays(*np.array(FLOOR, float).T)
    points = np.c_[points, np.ones(4)] * depth_m[tuple(np.array(FLOOR).T[::-1])][:, None]
    length = rows_on(sf.Length(FLOOR[0], FLOOR[1], 1.0), depth_m).exp()
    assert length == pytest.approx(np.linalg.norm(points[0] - points[1]))
    path = rows_on(sf.Path(FLOOR[:3], 1.0), depth_m).exp()
    assert path == pytest.approx(np.linalg.norm(np.diff(points[:3], axis=0), axis=1).sum())
    triangle = rows_on(sf.Area(FLOOR[:3], 1.0), depth_m).exp()
    cross = np.cross(points[1] - points[0], points[2] - points[0])
    assert triangle == pytest.approx(np.linalg.norm(cross) / 2)
    raised = depth_m.copy()
    raised[10, 30] = 2.0
    top = np.r_[CAMERA.grid(SHAPE)[10, 30], 1] * 2.0
    for base in (FLOOR, FLOOR[:1]):
        height = rows_on(sf.Height((30, 10), base, 1.0), raised, psi).exp()
        assert height == pytest.approx(1.5 - top @ down)


def test_footprint_nearest_and_mean():
    depth_m = np.full(SHAPE, 3.0)
    depth_m[5:7, 5:8] = 2.0
    rays = np.sqrt(1 + (CAMERA.grid(SHAPE) ** 2).sum(axis=2))[4:10, 3:10] * depth_m[4:10, 3:10]
    nearest = rows_on(sf.Footprint((3, 4), (9, 9), 1.0), depth_m).exp()
    mean = rows_on(sf.Footprint((3, 4), (9, 9), 1.0, statistic="mean"), depth_m).exp()
    assert nearest == pytest.approx(rays.min(), rel=0.05)
    assert mean == pytest.approx(rays.mean())


@given(st.data())
def test_linearise_has_the_derivatives_of_the_rows(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    # Planes at other places than a plane of points are differentiated at their own best fit.
    listed = [m for m in EXAMPLES if m.name not in ("level", "upright", "nearest")]
    survey = Survey.of([*listed, sf.Length((1, 1), (40, 40))], SHAPE)
    log_depth = torch.from_numpy(rng.normal(0.5, 0.1, len(survey.rays)))
    psi = torch.from_numpy(rng.normal(0, 0.3, 3))
    change, psi_change = torch.from_numpy(rng.normal(size=len(log_depth))), torch.randn(3).double()
    at = survey.linearise(log_depth, psi)
    step = 1e-6
    two = [
        survey.linearise(log_depth + s * change, psi + s * psi_change).values for s in (-step, step)
    ]
    wanted = at.by_log_depth @ change + at.by_camera @ psi_change
    torch.testing.assert_close((two[1] - two[0]) / (2 * step), wanted, atol=1e-5, rtol=1e-4)


def test_measurements_of_a_table(tmp_path):
    table = tmp_path / "m.csv"
    table.write_text(
        "kind,value,sigma,u,v,u2,v2\n"
        "length,74 cm,,320,400,420,400\n"
        "slant,2.31 m,1 cm,100,200\n"
        "floor,,2 %,100,300,200,310,150,350\n"
        "camera height,5 ft,,100,300,200,310,150,350\n"
        "order,10 %,,1,2,3,4\n"
        "interval,2 m … 3.5 m,,7,8\n"
        "door,,,1,2,1,40\n"
        "tilt,20°,2\n"
        "height,,,1,2,3,4\n"
    )
    found = measurements(table)
    assert found == (
        sf.Length((320, 400), (420, 400), 0.74),
        sf.Slant(100, 200, 2.31, 0.01),
        sf.Plane(((100, 300), (200, 310), (150, 350)), "level", 0.02),
        sf.CameraHeight(((100, 300), (200, 310), (150, 350)), 1.524),
        sf.Order((1, 2), (3, 4), 0.1),
        sf.Interval(7, 8, 2.0, 3.5),
        sf.KnownObject((1, 2), (1, 40), object="door"),
        sf.Tilt(20, sigma_deg=2),
        sf.Height((1, 2), ((3, 4),)),
    )
    assert [m.is_question for m in found] == 8 * [False] + [True]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("u,v\n1,2\n", "wanted the header kind,value"),
        ("kind,value,u,v\nlength,2 m,1,2,3\n", "line 2: pixels are pairs"),
        ("kind,value,u,v\nlenght,2 m,1,2,3,4\n", "did you mean length"),
        ("kind,value,u,v\nlength,2 q,1,2,3,4\n", "line 2: value: “q” is not a unit"),
        ("kind,value,u,v\nlength,2 m,1,2\n", "line 2: length: wanted 2 pixels, found 1"),
        ("kind,value,u,v\ninterval,2 m,1,2\n", "2 m … 3 m"),
        ("kind,value,u,v\nfloor,2 m,1,2,3,4\n", "level has no value_m"),
    ],
)
def test_measurements_refuse_a_bad_table_in_one_sentence(tmp_path, text, wanted):
    table = tmp_path / "m.csv"
    table.write_text(text)
    with pytest.raises(sf.InputError, match=wanted):
        measurements(table)


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: sf.Length((3, 3), (3.2, 2.9), 1.0), "both ends lie on one pixel, u=3 v=3"),
        (lambda: sf.Length((3, 3), (9, 3), -1.0), "value_m must be"),
        (lambda: sf.Length((3, math.nan), (9, 3), 1.0), "finite pixel"),
        (lambda: sf.Slant(3, math.inf, 1.0), "v must be"),
        (lambda: sf.Plane(((1, 1), (2, 2), (3, 4))), "4 pixels or more are wanted, found 3"),
        (lambda: sf.Plane(FLOOR, sigma=0), "sigma must be"),
        (lambda: sf.Interval(1, 1, 3.0, 2.0), "low_m below high_m"),
        (lambda: sf.Order((1, 1), (2, 2), -0.5), "margin must be"),
        (lambda: sf.KnownObject((1, 1), (2, 2), object="dor"), "did you mean door"),
        (lambda: sf.Height((1, 1), ((2, 2), (3, 3)), 1.0), "1 pixel of a level, or 3"),
        (lambda: sf.Tilt(100), "pitch_deg must be -90 to 90"),
        (lambda: measurement("length", [(1, 1), (2, 2)], value=3), "length has no value"),
        (lambda: measurements([{"kind": "length", "pixels": 3}]), 'a list of "pixels"'),
        (lambda: measurements([3]), "wanted a measurement such as"),
    ],
)
def test_measurements_refuse_bad_values_in_one_sentence(make, wanted):
    with pytest.raises(sf.InputError, match=wanted) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("measured", "wanted"),
    [
        (sf.Length((3, 3), (70, 3), 1.0), "1 of 2 points of measurements lie outside"),
        (sf.Length((3, 3), (60, 3), 1e-4), "the camera sees no length so short there"),
        (sf.Plane(((1, 1), (2, 2), (30, 30), (40, 40))), "lie on one line"),
        (sf.CameraHeight(((1, 40), (30, 40), (60, 40)), 1.0), "lie on one line"),
    ],
)
def test_survey_refuses_what_the_camera_cannot_see(measured, wanted):
    with pytest.raises(sf.InputError, match=wanted):
        Survey.of([measured], SHAPE, CAMERA)
