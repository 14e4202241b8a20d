"""Errors at anchors that are left out together with their neighbours."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from scalefield import Anchors, recover
from scalefield.anchor_sampling import block_folds
from scalefield.labelling.figures import held_out_errors
from scalefield.mde import MDEOutput
from scalefield.methods import make_method

RNG = np.random.default_rng(0)
HEIGHT, WIDTH = 96, 320


def rings(gap: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Points at every second column of rows that are `gap` apart."""
    v, u = np.meshgrid(np.arange(gap, HEIGHT, gap), np.arange(0, WIDTH, 2), indexing="ij")
    return u.ravel(), v.ravel()


def rough_depth_m() -> np.ndarray:
    """Depth whose rows have random errors of log-depth that change every few rows and columns."""
    coarse = np.random.default_rng(1).normal(size=(HEIGHT // 6 + 2, WIDTH // 6 + 2))
    v, u = np.mgrid[:HEIGHT, :WIDTH] / 6
    i, j, a, b = v.astype(int), u.astype(int), v % 1, u % 1
    mixed = (1 - a) * ((1 - b) * coarse[i, j] + b * coarse[i, j + 1])
    return 5 * np.exp(0.1 * (mixed + a * ((1 - b) * coarse[i + 1, j] + b * coarse[i + 1, j + 1])))


@pytest.mark.parametrize("n", [3, 6, 12, 100, 500])
def test_block_folds_are_none_for_random_positions(n):
    found = [block_folds(*RNG.random((2, n)) * [[640], [480]], folds=8) for _ in range(10)]
    assert sum(fold is None for fold in found) >= (7 if n < 12 else 10)


def test_block_folds_are_none_for_grids_maps_and_single_places():
    u, v = (x.ravel() for x in np.meshgrid(np.arange(0, 640, 64), np.arange(0, 480, 60)))
    assert block_folds(u, v, 8) is None
    u, v = (x.ravel() for x in np.meshgrid(np.arange(40), np.arange(30)))
    assert block_folds(u, v, 8) is None
    assert block_folds(np.full(9, 5.0), np.full(9, 7.0), 8) is None
    assert block_folds(np.array([1.0, 90.0]), np.array([2.0, 3.0]), 8) is None


@pytest.mark.parametrize("folds", [2, 4, 8])
@pytest.mark.parametrize("gap", [6, 12, 24])
def test_block_folds_separate_anchors_on_rings_from_their_neighbours(folds, gap):
    u, v = rings(gap)
    fold = block_folds(u, v, folds)
    assert set(fold) <= set(range(folds))
    assert len(set(fold)) > 1
    distance = np.hypot(u[:, None] - u, v[:, None] - v)
    nearest = np.where(fold[:, None] == fold, np.inf, distance).min(axis=1)
    assert np.median(nearest) >= gap / 2  # and 2 on the ring itself


def test_block_folds_hold_out_bunches():
    centres = np.array([[40, 30], [300, 200], [600, 420], [80, 400]])
    u, v = (centres[:, None] + RNG.normal(size=(4, 10, 2)) * 3).reshape(-1, 2).T
    fold = block_folds(u, v, 4).reshape(4, 10)
    assert (fold == np.median(fold, axis=1, keepdims=True)).mean() > 0.8  # a square may cut one


def test_held_out_log_of_rings_is_the_error_between_them_and_leave_one_out_is_not():
    depth_m, (u, v) = rough_depth_m(), rings()
    anchors, relative = Anchors(u, v, depth_m[v, u]), np.ones((HEIGHT, WIDTH))
    recovery = recover(None, anchors, mde_depth=relative, kind="depth")
    between = np.abs(np.log(recovery.depth_m / depth_m))[12:84]
    truth, report = np.median(between), recovery.report
    alone = np.median(np.abs(report.leave_one_out_log))
    blocks = np.median(np.abs(report.held_out_log))
    assert alone < truth / 2
    assert truth / 1.5 < blocks < 3 * truth  # the errors change within half a gap
    refitted = recover(
        None, anchors, mde_depth=relative, kind="depth", method="knn", leave_one_out=True
    ).report
    assert truth / 2 < np.median(np.abs(refitted.held_out_log)) < 3 * truth


def test_held_out_log_of_bunches_is_that_of_fits_without_them():
    u, v = (
        (np.array([[5, 5], [60, 10], [30, 40]])[:, None] + [[0, 0], [1, 1], [0, 2]])
        .reshape(-1, 2)
        .T
    )
    world = np.linspace(1, 3, 48 * 64).reshape(48, 64)
    anchors = Anchors(u, v, 2.5 * world[v, u] ** 1.3)
    kept = {"mde_depth": world, "kind": "depth"}
    fold = block_folds(u, v, 8)
    found = recover(None, anchors, **kept).report.held_out_log
    for i in range(len(u)):
        others = recover(None, anchors[fold != fold[i]], robust=False, **kept)
        expected = np.log(others.depth_m[v[i], u[i]] / anchors.depth_m[i])
        assert found[i] == pytest.approx(expected, abs=0.1)


SHARED = Path(os.environ.get("SCALEFIELD_SHARED", "-"), "native", "kitti_raw", "2011_09_26")


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs scans of KITTI below SCALEFIELD_SHARED")
@pytest.mark.parametrize("every", [4, 8])
def test_held_out_log_of_a_lidar_is_the_error_at_the_rings_between(every):
    from scalefield.datasets.kitti import read_calibration
    from scalefield.geometry.point_clouds import anchors_from_points
    from scalefield.io import read_image

    calibration = read_calibration(SHARED, 2)
    image_file = sorted(SHARED.glob("*/image_02/data/*.png"))[0]
    scan = (
        np.fromfile(
            image_file.parents[2] / "velodyne_points" / "data" / f"{image_file.stem}.bin",
            np.float32,
        )
        .reshape(-1, 4)[:, :3]
        .astype(np.float64)
    )
    azimuth = np.arctan2(scan[:, 1], scan[:, 0])
    ring = np.cumsum(np.r_[0, (azimuth[:-1] < 0) & (azimuth[1:] >= 0)])
    image = read_image(image_file)

    def seen(points_m: np.ndarray) -> Anchors:
        return anchors_from_points(
            points_m, calibration.camera, image.shape[:2],
            camera_from_points=calibration.camera_from_velo,
        )  # fmt: skip

    kept = ring % every == every // 2
    recovery = recover(image, seen(scan[kept]))
    left_out, depth_m = seen(scan[~kept]), recovery.depth_m
    rows, columns = left_out.pixels(depth_m.shape)
    inside = (rows > np.min(recovery.anchors.v)) & (rows < np.max(recovery.anchors.v))
    errors = np.abs(np.log(depth_m[rows, columns] / left_out.depth_m))[inside]
    found = np.median(np.abs(recovery.report.held_out_log))
    assert np.median(errors) / 1.5 < found < 2 * np.median(errors)
    assert np.median(np.abs(recovery.report.leave_one_out_log)) < np.median(errors) / 3


def test_label_holds_out_blocks_of_rings_and_random_folds_of_random_anchors():
    depth_m, (u, v) = rough_depth_m(), rings()
    output = MDEOutput(torch.ones(HEIGHT, WIDTH), "depth")
    method = make_method("knn")
    blocks = held_out_errors(output, Anchors(u, v, depth_m[v, u]), method, 4, "a")
    random_u, random_v = RNG.integers(0, WIDTH, 300), RNG.integers(0, HEIGHT, 300)
    anchors = Anchors(random_u, random_v, depth_m[random_v, random_u])
    assert len(held_out_errors(output, anchors, method, 4, "a")) == 75
    alone = recover(
        None, Anchors(u, v, depth_m[v, u]), mde_depth=np.ones((HEIGHT, WIDTH)), kind="depth"
    ).report.leave_one_out_log
    assert np.median(np.abs(blocks)) > 2 * np.median(np.abs(alone))
