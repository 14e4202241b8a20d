"""Measurements of every kind in the field: against the exact Gaussian process and each other."""

import dataclasses
import math

import numpy as np
import pytest
import torch

import scalefield as sf
from field.worlds import KERNEL, all_pixels, draw_anchors, image_inputs, random_pixels, room
from scalefield.anchors import Anchors
from scalefield.api import recover_from
from scalefield.errors import InputError
from scalefield.field.config import InferenceConfig
from scalefield.field.gauss_newton import LinearRows, MeasuredRows, find_mode, objective
from scalefield.field.kernel import SumInputs
from scalefield.field.observations import Observations
from scalefield.field.posterior import fit
from scalefield.geometry.camera import Camera, unproject
from scalefield.geometry.survey import Survey, split_depths
from scalefield.methods.field import Field

SHAPE = (45, 60)
CAMERA = Camera.from_fov(60.0, SHAPE)


@pytest.fixture(scope="module")
def world():
    return room(0, SHAPE)


def true_length(truth: np.ndarray, start: tuple, end: tuple, error: float = 0.0) -> sf.Length:
    points = unproject(truth, CAMERA)
    true = np.linalg.norm(points[start[1], start[0]] - points[end[1], end[0]])
    return sf.Length(start, end, float(true * math.exp(error)))


def lengths(truth: np.ndarray, n: int, seed: int = 0) -> list[sf.Length]:
    """Random lengths of 15 pixels or more."""
    rows, columns = (x.numpy().tolist() for x in random_pixels(SHAPE, 8 * n, seed))
    pixels = list(zip(columns, rows, strict=True))
    pairs = [(a, b) for a, b in zip(pixels[::2], pixels[1::2], strict=True) if math.dist(a, b) > 15]
    return [true_length(truth, a, b) for a, b in pairs[:n]]


def recovered(world, measured, anchors=None, camera=CAMERA, **options):
    depths, others = split_depths(measured, SHAPE, camera)
    given = (anchors or Anchors([], [], [])).joined(depths)
    survey = Survey.of(others, SHAPE, camera) if others else None
    return recover_from(world[0], given, Field(**options), survey=survey)


def test_fit_of_sums_is_the_exact_process():
    """Random sums of pixels, with the camera's numbers as unit normal ones, by dense algebra."""
    image, rng = image_inputs(SHAPE, KERNEL), np.random.default_rng(0)
    pixels = image.pixels(*random_pixels(SHAPE, 12))
    weights = torch.from_numpy(rng.normal(size=(7, 12)))
    camera = 0.3 * torch.from_numpy(rng.normal(size=(7, 3)))
    y, noise = torch.from_numpy(rng.normal(size=7)), torch.full((7,), 0.05).double()
    inputs = SumInputs(pixels, weights, camera)
    observed = Observations(inputs, y, noise, torch.ones(7, dtype=torch.bool))
    fitted = fit(KERNEL, image, observed, InferenceConfig())
    offset = fitted.linear.offset
    every = all_pixels(image)
    K = weights @ KERNEL(pixels, pixels) @ weights.mT + camera @ camera.mT + torch.diag(noise**2)
    cross = KERNEL(every, pixels) @ weights.mT
    residual = y - weights @ (pixels.mean + offset)
    mean = every.mean + offset + cross @ torch.linalg.solve(K, residual)
    variance = KERNEL.variance(every) - (cross * torch.linalg.solve(K, cross.mT).mT).sum(dim=1)
    rendered = fitted.render()
    torch.testing.assert_close(rendered.mean.flatten().double(), mean, atol=2e-4, rtol=0)
    enclosed = fitted.lost(every) < 1e-4  # elsewhere prior variance is added
    assert int(enclosed.sum()) > 500
    std = rendered.std.flatten().double()[enclosed]
    torch.testing.assert_close(std, variance.sqrt()[enclosed], atol=3e-3, rtol=0)
    precision = torch.linalg.inv(K)
    wanted = precision @ residual / precision.diagonal()
    torch.testing.assert_close(fitted.linear.loo_residual, wanted)


def test_sums_of_single_pixels_are_those_pixels():
    image = image_inputs(SHAPE, KERNEL)
    rows, columns = random_pixels(SHAPE, 6)
    pixels = image.pixels(rows, columns)
    y, noise = torch.linspace(0, 1, 6).double(), torch.full((6,), 0.05).double()
    sums = SumInputs(pixels, torch.eye(6).double(), torch.zeros(6, 3).double())
    known = torch.ones(6, dtype=torch.bool)
    both = [
        fit(KERNEL, image, Observations(inputs, y, noise, known), InferenceConfig())
        for inputs in (pixels, sums)
    ]
    for a, b in zip(*(f.render() for f in both), strict=True):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=0)


def test_find_mode_of_linear_rows_is_the_gaussian_process_and_of_bounds_a_stationary_point():
    rng = np.random.default_rng(0)
    A = torch.from_numpy(rng.normal(size=(5, 5)))
    covariance, J = A @ A.mT, torch.from_numpy(rng.normal(size=(4, 5)))
    y, noise = torch.from_numpy(rng.normal(size=4)), torch.full((4,), 0.1).double()
    rows = lambda u: LinearRows(J @ u, J)  # noqa: E731
    linear = MeasuredRows(y, noise, torch.zeros(4, dtype=torch.bool))
    u, converged = find_mode(covariance, rows, linear)
    K = J @ covariance @ J.mT + torch.diag(noise**2)
    torch.testing.assert_close(u, covariance @ J.mT @ torch.linalg.solve(K, y))
    assert converged
    bounds = linear._replace(bound=torch.tensor([True, False, True, False]))
    u, converged = find_mode(covariance, rows, bounds)
    assert converged
    z = torch.linalg.solve(covariance, u)
    best = objective(z, u, J @ u, bounds)
    for _ in range(20):
        near = z + 1e-3 * torch.from_numpy(rng.normal(size=5))
        assert objective(near, covariance @ near, J @ covariance @ near, bounds) >= best


def test_depths_and_slants_of_a_known_camera_are_anchors(world):
    _, truth = world
    anchors = draw_anchors(truth, 5)
    wanted = recover_from(world[0], anchors, Field())
    rays = np.sqrt(1 + (CAMERA.grid(SHAPE) ** 2).sum(axis=2))
    listed = list(zip(anchors.u, anchors.v, anchors.depth_m, strict=True))
    depths = [sf.Depth(u, v, d) for u, v, d in listed]
    slants = [sf.Slant(u, v, float(d * rays[int(v), int(u)])) for u, v, d in listed]
    for measured in (depths, slants):
        found = recovered(world, measured)
        torch.testing.assert_close(found.depth_m, wanted.depth_m, rtol=1e-5, atol=0)
        torch.testing.assert_close(found.std_log, wanted.std_log, rtol=1e-4, atol=1e-6)


def test_a_slant_of_an_unknown_camera_is_nearly_a_depth(world):
    _, truth = world
    u, v = 30, 22  # near the optical axis
    slant = recovered(world, [sf.Slant(u, v, float(truth[v, u]))], camera=None)
    depth = recovered(world, [sf.Depth(u, v, float(truth[v, u]), 0.01 * float(truth[v, u]))])
    torch.testing.assert_close(slant.depth_m, depth.depth_m, rtol=2e-3, atol=0)


def test_lengths_fix_the_scale_and_are_read_again(world):
    _, truth = world
    measured = lengths(truth, 6)
    recovery = recovered(world, measured)
    error = np.abs(recovery.depth_m.numpy() / truth - 1).mean()
    assert error < 0.15
    for m, reading in zip(measured, recovery.measure(measured, camera=CAMERA), strict=True):
        assert reading.value == pytest.approx(m.value_m, rel=0.02)
        assert reading.low < reading.value < reading.high


def test_scaling_all_measurements_scales_the_depth(world):
    _, truth = world
    measured = [
        *lengths(truth, 3),
        sf.Order((20, 15), (5, 5)),
        sf.Plane(((1, 1), (8, 2), (3, 9), (9, 9))),
    ]
    scaled = [
        dataclasses.replace(m, value_m=3 * m.value_m) if hasattr(m, "value_m") else m
        for m in measured
    ]
    a, b = recovered(world, measured), recovered(world, scaled)
    torch.testing.assert_close(3 * a.depth_m, b.depth_m, rtol=1e-4, atol=0)
    torch.testing.assert_close(a.std_log, b.std_log, rtol=1e-3, atol=1e-5)


def test_the_order_of_measurements_changes_nothing(world):
    _, truth = world
    measured = [*lengths(truth, 5), sf.Order((20, 15), (5, 5)), sf.Interval(3, 3, 1.0, 9.0)]
    a, b = recovered(world, measured), recovered(world, measured[::-1])
    torch.testing.assert_close(a.depth_m, b.depth_m, rtol=1e-4, atol=0)


def test_a_length_between_anchored_pixels_is_what_measure_reads(world):
    _, truth = world
    anchors = draw_anchors(truth, 4)
    ends = [(int(u), int(v)) for u, v in zip(anchors.u, anchors.v, strict=True)]
    recovery = recover_from(world[0], anchors, Field())
    true = true_length(truth, ends[0], ends[1]).value_m
    (reading,) = recovery.measure(sf.Length(ends[0], ends[1]), camera=CAMERA)
    assert reading.value == pytest.approx(true, rel=0.01)
    assert reading.high / reading.low < 1.1


@pytest.mark.parametrize("factor", [0.1, 10.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_wrong_length_is_named(world, factor, seed):
    _, truth = world
    measured = lengths(truth, 10, seed)
    measured[2] = dataclasses.replace(measured[2], value_m=factor * measured[2].value_m)
    recovery = recovered(world, measured)
    reports = recovery.report.measurements
    assert [i for i, r in enumerate(reports) if r.code == "outlier"] == [2]
    assert reports[2].predicted == pytest.approx(measured[2].value_m / factor, rel=0.6)
    (warning,) = [w for w in recovery.report.warnings if w.code == "measurements_outlier"]
    assert str(measured[2]) in warning.text


def test_order_and_interval_move_depth_only_where_they_contradict_it(world):
    _, truth = world
    anchors = draw_anchors(truth, 4)
    plain = recover_from(world[0], anchors, Field())
    u, v = 50, 8
    depth = float(plain.depth_m[v, u])
    kept = recovered(world, [sf.Interval(u, v, 0.2 * depth, 5 * depth)], anchors)
    torch.testing.assert_close(kept.depth_m, plain.depth_m, rtol=5e-3, atol=0)
    moved = recovered(world, [sf.Interval(u, v, 1.5 * depth, 2 * depth)], anchors)
    assert moved.depth_m[v, u] > 1.3 * depth


def test_an_order_alone_leaves_the_expected_scale(world):
    recovery = recovered(world, [sf.Order((20, 15), (5, 5))])
    expected = recover_from(world[0], Anchors([], [], []), Field())
    ratio = (recovery.depth_m / expected.depth_m).median()
    assert 0.8 < float(ratio) < 1.25


def test_an_affine_map_is_recovered_from_lengths(world):
    output, truth = world
    disparity = 1 / output.prediction
    affine = dataclasses.replace(output, prediction=disparity - 0.3, kind="disparity", affine=True)
    recovery = recovered((affine, truth), lengths(truth, 8))
    assert np.abs(recovery.depth_m.numpy() / truth - 1).mean() < 0.2


@pytest.mark.parametrize(
    ("measured", "wanted"),
    [
        (sf.Length((0, 0), (30, 20), 1.0), r"no relative depth at u=0 v=0 \(a hole of the map\)"),
        (sf.Length((3, 3), (90, 20), 1.0), "lie outside the image"),
    ],
)
def test_recover_refuses_measurements_off_the_map(world, measured, wanted):
    output, truth = world
    prediction = output.prediction.clone()
    prediction[0, 0] = math.nan
    with pytest.raises(InputError, match=wanted):
        recovered((dataclasses.replace(output, prediction=prediction), truth), [measured])


def test_other_methods_refuse_a_length_in_one_sentence(world):
    survey = Survey.of([sf.Length((3, 3), (30, 20), 1.0)], SHAPE, CAMERA)
    with pytest.raises(InputError, match="takes depths, and slant distances"):
        recover_from(world[0], draw_anchors(world[1], 3), sf.METHODS["knn"](), survey=survey)


def test_a_length_beside_many_anchors_moves_the_pixels_that_they_leave_open(world):
    """All anchors are in the left half; a length and its far end are in the right one."""
    _, truth = world
    rows, columns = (x.numpy() for x in random_pixels((SHAPE[0], 30), 300))
    anchors = Anchors(columns, rows, truth[rows, columns])
    plain = recover_from(world[0], anchors, Field())
    measured = [true_length(truth, (58, 3), (58, 40)), true_length(truth, (45, 3), (56, 35))]
    recovery = recovered(world, measured, anchors)
    error, before = (
        np.abs(r.depth_m.numpy() / truth - 1)[:, 40:].mean() for r in (recovery, plain)
    )
    assert error < before
    readings = recovery.measure(measured, camera=CAMERA)
    for m, after, old in zip(
        measured, readings, plain.measure(measured, camera=CAMERA), strict=True
    ):
        assert abs(after.value / m.value_m - 1) < 0.5 * abs(old.value / m.value_m - 1) + 0.01
    assert [r.code for r in recovery.report.measurements] == ["", ""]


def test_an_unknown_camera_is_stated(world):
    _, truth = world
    recovery = recovered(world, lengths(truth, 2), camera=None)
    (warning,) = [w for w in recovery.report.warnings if w.code == "camera_unknown"]
    assert "60°" in warning.text
    known = recovered(world, lengths(truth, 2))
    assert "camera_unknown" not in [w.code for w in known.report.warnings]
    depths = recover_from(world[0], draw_anchors(truth, 6), Field())
    question = sf.Length((2, 20), (57, 22))
    (unknown,), (seen,) = (depths.measure(question, camera=c) for c in (None, CAMERA))
    assert unknown.high / unknown.low > 1.1 * seen.high / seen.low
