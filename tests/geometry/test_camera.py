"""Cameras: round trips as properties, distortion against that of COLMAP, exact planes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalefield.errors import InputError
from scalefield.geometry.camera import (
    Camera,
    depth_edges,
    depth_map,
    normals,
    ray_length,
    read_rigid,
    remove_see_through,
    transform,
    unproject,
)

SHAPE = (24, 32)
PINHOLE = Camera(30.0, 28.0, 15.2, 11.7)
LENS = Camera(30.0, 28.0, 15.2, 11.7, (-0.21, 0.06, 0.002, -0.003, 0.01))

slants = st.floats(-0.6, 0.6)


def plane(camera: Camera, a: float, b: float, c: float = 0.5) -> np.ndarray:
    """Depth of the plane a·x + b·y + c·z = 1, seen by the camera."""
    x, y = np.moveaxis(camera.grid(SHAPE), -1, 0)
    return 1 / (a * x + b * y + c)


@pytest.mark.parametrize("camera", [PINHOLE, LENS], ids=["pinhole", "lens"])
@given(seed=st.integers(0, 2**32 - 1))
def test_project_inverts_unproject(camera, seed):
    depth_m = np.random.default_rng(seed).uniform(0.1, 100, SHAPE)
    points = unproject(depth_m, camera)
    u, v, z = camera.project(points.reshape(-1, 3))
    rows, columns = np.indices(SHAPE)
    np.testing.assert_allclose(u, columns.ravel(), atol=1e-6)
    np.testing.assert_allclose(v, rows.ravel(), atol=1e-6)
    np.testing.assert_array_equal(depth_map(u, v, z, SHAPE), depth_m)
    # The length of the ray is the point's distance from the camera.
    distance = np.linalg.norm(points, axis=-1)
    np.testing.assert_allclose(ray_length(SHAPE, camera) * depth_m, distance)


def test_camera_distortion_equals_that_of_colmap():
    pycolmap = pytest.importorskip("pycolmap")
    k = (-0.21, 0.06, 0.002, -0.003)
    theirs = pycolmap.Camera.create_from_model_name(0, "OPENCV", 30.0, 32, 24)
    theirs.params = [30.0, 28.0, 15.7, 12.2, *k]  # COLMAP's centres are half a pixel further
    ours = Camera(30.0, 28.0, 15.2, 11.7, k)
    points = np.random.default_rng(0).uniform([-0.5, -0.4, 1], [0.5, 0.4, 3], (200, 3))
    u, v, _ = ours.project(points)
    np.testing.assert_allclose(np.c_[u, v], theirs.img_from_cam(points) - 0.5, atol=1e-9)
    np.testing.assert_allclose(ours.rays(u, v), points[:, :2] / points[:, 2:], atol=1e-7)


def test_camera_project_gives_nan_beyond_the_turning_radius():
    barrel = Camera(30.0, 30.0, 15.5, 11.5, (-0.3, 0.0, 0.0, 0.0))
    beyond = 1.05 / math.sqrt(0.9)  # r + k1 r³ turns at r² = 1 / (3 · 0.3)
    points = np.array([[0.2, 0.1, 1.0], [beyond, 0, 1.0], [0.1, 0.1, -1.0], [0, 0, 0]])
    u, v, _ = barrel.project(points)
    assert np.isfinite(u).tolist() == np.isfinite(v).tolist() == [True, False, False, False]
    wide = Camera(8.0, 8.0, 15.5, 11.5, (-0.3, 0.0, 0.0, 0.0)).grid(SHAPE)
    assert np.isnan(wide[0, 0]).all()  # no ray reaches that corner
    assert np.isfinite(wide[12, 16]).all()


def test_depth_map_keeps_the_nearest_and_pixels_reach_half_a_pixel_around_their_centre():
    u, v = np.array([0.4, -0.5, -0.51, 2.49, 2.5, np.nan]), np.zeros(6)
    z = np.array([3.0, 2.0, 1.0, 4.0, 1.0, 1.0])
    seen = depth_map(u, v, z, (1, 3))
    np.testing.assert_array_equal(seen, [[2.0, np.nan, 4.0]])


@given(a=slants, b=slants, step=st.floats(1.3, 5))
def test_depth_edges_planes_have_no_edges_and_one_normal_and_steps_have_edges(a, b, step):
    depth_m = plane(PINHOLE, a, b)
    if not (depth_m > 0).all():
        return
    assert not depth_edges(depth_m).any()
    expected = -np.array([a, b, 0.5]) / math.hypot(a, b, 0.5)
    found = normals(depth_m, PINHOLE)
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), atol=1e-6)

    stepped = depth_m.copy()
    stepped[:, 16:] *= step
    edges = depth_edges(stepped)
    assert edges[:, 15:17].all()
    assert not np.delete(edges, [15, 16], axis=1).any()
    # The left side's normals know nothing of the step.
    np.testing.assert_allclose(normals(stepped, PINHOLE)[:, :16], found[:, :16], atol=1e-6)


def test_normals_are_nan_in_holes_only():
    depth_m = plane(PINHOLE, 0.1, 0.2)
    depth_m[10, 10] = np.nan
    found = normals(depth_m, PINHOLE)
    assert np.isnan(found[10, 10]).all()
    assert np.isnan(found).any(axis=-1).sum() == 1


def test_remove_see_through_uses_window_and_margin():
    depth_m = np.full((9, 9), np.nan)
    depth_m[4, 4], depth_m[4, 7] = 10.0, 12.0
    assert np.isfinite(remove_see_through(depth_m)[4, 7])  # three columns away, the window has two
    assert np.isnan(remove_see_through(depth_m, (1, 7))[4, 7])
    assert np.isfinite(remove_see_through(depth_m, (1, 7), margin=0.25)[4, 7])


def test_camera_field_of_view_spans_the_outer_edges_of_the_pixels():
    camera = Camera.from_fov(90.0, (10, 20))
    assert (camera.fx, camera.cx, camera.cy) == (pytest.approx(10), 9.5, 4.5)
    ray = camera.rays(np.array([-0.5, 19.5]), np.array([4.5, 4.5]))
    np.testing.assert_allclose(ray, [[-1, 0], [1, 0]], atol=1e-12)


def test_read_rigid_reads_three_or_four_rows(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("0 -1 0 0.5\n1 0 0 0\n0,0,1,2\n")
    moved = transform(np.array([[1.0, 2.0, 3.0]]), read_rigid(path))
    np.testing.assert_allclose(moved, [[-1.5, 1, 5]])
    path.write_text("0 -1 0 0.5\n1 0 0 0\n0 0 1 2\n0 0 0 1\n")
    np.testing.assert_allclose(transform(np.array([[1.0, 2.0, 3.0]]), read_rigid(path)), moved)
    for text, why in (("1 2 3", "12 or 16 numbers"), ("2 0 0 0 0 2 0 0 0 0 2 0", "rigid motion")):
        path.write_text(text)
        with pytest.raises(InputError, match=why):
            read_rigid(path)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Camera(0.0, 1.0, 1.0, 1.0), "fx, fy above zero, found 0, 1, 1, 1"),
        (lambda: Camera(1.0, 1.0, math.nan, 1.0), "finite numbers"),
        (lambda: Camera(1.0, 1.0, 1.0, 1.0, (0.1, 0.2)), "found 2 numbers"),
        (lambda: Camera.from_fov(180.0, (2, 2)), "between 0 and 180 degrees, found 180"),
    ],
)
def test_camera_impossible_cameras_are_refused(make, why):
    with pytest.raises(InputError, match=why):
        make()
