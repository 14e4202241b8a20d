import hashlib

import numpy as np
import pytest
import torch

from scalefield.benchmark.method_spec import parse_methods
from scalefield.benchmark.protocols import (
    PROTOCOLS,
    Draw,
    protocol_anchors,
    protocol_named,
    sparse_map,
)
from scalefield.benchmark.published_rows import PUBLISHED, protocol_table
from scalefield.benchmark.run import Evaluation
from scalefield.datasets import Frame
from scalefield.errors import InputError

SHAPE = (120, 160)
K = (150.0, 150.0, 80.0, 60.0)


def world() -> tuple[np.ndarray, np.ndarray]:
    v, u = np.indices(SHAPE)
    rng = np.random.default_rng(11)
    depth = (2 + np.sin(u / 17) + v / 60).astype(np.float32)
    depth[:9, :40] = 0
    checks = np.sign(np.sin(u / 7) * np.sin(v / 9))[..., None]
    image = np.clip(127 + 60 * checks + rng.normal(0, 12, (*SHAPE, 3)), 0, 255).astype(np.uint8)
    return depth, image


def scan(depth: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(5)
    v, u = rng.integers(40, 120, 900), rng.integers(0, 160, 900)
    given = np.full(SHAPE, np.nan, np.float32)
    given[v, u] = depth[v, u] * 5
    return given


# Count and hash of the pixels that the public code chose: get_sparse_depth of src/data/__init__.py
# and sample_lidar_lines of src/data/kittidc.py at commit cc1a037 of princeton-vl/OMNI-DC, after
# torch.manual_seed(seed) and numpy.random.seed(seed), on this frame.
PUBLIC = {
    # ("pattern", seed): (count, hash)
    ("points-500", 0): (500, "0423a4dc17e3"),
    ("points-500", 7): (500, "4a119ac76285"),
    ("points-5", 0): (5, "42dabf4244f2"),
    ("points-5", 7): (5, "378a8914b49b"),
    ("random-2150", 0): (2110, "326a35b5bd3c"),
    ("random-2150", 7): (2110, "afbda63006c8"),
    ("random-100", 0): (98, "64db5143c193"),
    ("random-100", 7): (98, "5eef30b3abf4"),
    ("noise-0.1", 0): (2110, "326a35b5bd3c"),
    ("noise-0.1", 7): (2110, "afbda63006c8"),
    ("sift", 0): (99, "fda3e123001a"),
    ("sift", 7): (99, "fda3e123001a"),
    ("orb", 0): (66, "ce915511cf68"),
    ("orb", 7): (66, "ce915511cf68"),
    ("lidar-64", 0): (4266, "74fa00e886a6"),
    ("lidar-64", 7): (4266, "74fa00e886a6"),
    ("lidar-8", 0): (463, "312258abb97d"),
    ("lidar-8", 7): (463, "312258abb97d"),
    ("lines-32", 0): (444, "4bfefd79fced"),
    ("lines-16", 0): (224, "14b5751f17d4"),
    ("lines-8", 0): (116, "4a12a8a6c414"),
    ("lines-4", 0): (50, "afe9411f01b1"),
}


def fingerprint(sparse: np.ndarray) -> tuple[int, str]:
    pixels = np.flatnonzero(sparse)
    return len(pixels), hashlib.sha256(pixels.astype("<i8").tobytes()).hexdigest()[:12]


@pytest.mark.parametrize(("pattern", "seed"), PUBLIC)
def test_sparse_map_chooses_the_pixels_of_the_public_code(pattern, seed):
    if pattern in ("sift", "orb"):
        pytest.importorskip("cv2")
    depth, image = world()
    sparse = sparse_map(depth, pattern, Draw.of(seed), image=image, given=scan(depth), intrinsics=K)
    assert fingerprint(sparse) == PUBLIC[pattern, seed]
    kept = sparse > 0
    truth = scan(depth) if pattern.startswith("lines") else depth
    if not pattern.startswith("noise"):
        np.testing.assert_array_equal(sparse[kept], truth[kept])


def test_sparse_map_noise_replaces_a_share_by_depths_of_the_image():
    depth, image = world()
    sparse = sparse_map(depth, "noise-0.1", Draw.of(0), image=image)
    kept = sparse > 0
    wrong = sparse[kept] != depth[kept]
    assert wrong.mean() == pytest.approx(0.1, abs=0.02)
    # The mean of these depths in the public code, with the same seeds.
    assert sparse[kept].mean(dtype=np.float64) == pytest.approx(3.1629892370147163, rel=1e-6)


def test_sparse_map_shift_moves_all_points_by_one_step():
    depth, _ = world()
    depth = np.arange(1, 1 + depth.size, dtype=np.float32).reshape(SHAPE)
    sparse = sparse_map(depth, "shift-4", Draw.of(2))
    v, u = np.nonzero(sparse)
    from_v, from_u = np.divmod(sparse[v, u].astype(int) - 1, SHAPE[1])
    steps = {(int(a), int(b)) for a, b in zip(v - from_v, u - from_u, strict=True)}
    ((down, right),) = steps
    assert np.hypot(down, right) == pytest.approx(4, abs=0.8)


def test_sparse_map_image_without_keypoints_takes_random_pixels():
    pytest.importorskip("cv2")
    depth, image = world()
    flat = np.full_like(image, 90)
    sparse = sparse_map(depth, "sift", Draw.of(3), image=flat)
    assert fingerprint(sparse) == (981, "b9939c384b50")


def frame_of(depth: np.ndarray, image: np.ndarray) -> Frame:
    truth = np.where(depth > 0, depth, np.nan).astype(np.float32)
    return Frame("a", "g", "s", image, truth, (1e-4, 300.0), intrinsics=K, sparse_m=scan(depth))


@pytest.mark.parametrize("pattern", ["random-100", "lidar-8", "given", "lines-16"])
def test_protocol_anchors_are_measured_and_repeatable(pattern):
    frame = frame_of(*world())
    first, again, other = (protocol_anchors(frame, pattern, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.depth_m, again.depth_m)
    assert (len(first) != len(other)) or pattern.startswith("random") == (
        not np.array_equal(first.u, other.u)
    )
    source = frame.sparse_m if pattern in ("given", "lines-16") else frame.depth_m
    rows, columns = first.pixels(SHAPE)
    np.testing.assert_array_equal(first.depth_m, source[rows, columns])


def test_protocol_anchors_without_measurements_name_the_frame_or_pattern():
    depth, image = world()
    frame = Frame("a", "g", "s", image, depth, (1e-4, 300.0))
    with pytest.raises(InputError, match="given needs measurements that come with the frame"):
        protocol_anchors(frame, "given", 0)
    sky = Frame("b", "g", "s", image, np.full_like(depth, np.nan), (1e-4, 300.0))
    with pytest.raises(InputError, match="b: the pattern points-5 has no pixel"):
        protocol_anchors(sky, "points-5", 0)


@pytest.mark.parametrize(
    ("name", "dataset", "text"),
    [("nyuu", "nyu", "did you mean nyu"), ("nyu", "void", "for --dataset nyu, found void")],
)
def test_protocol_named_refuses(name, dataset, text):
    with pytest.raises(InputError, match=text):
        protocol_named(name, dataset)


def test_evaluation_has_the_conditions_of_its_protocol():
    evaluation = Evaluation(
        "n", "void", "test", "lite", parse_methods(["median"]), (), False, 0, protocol="void"
    )
    assert evaluation.conditions == ("given",)


def test_published_rows_are_of_patterns_that_are_drawn():
    for row in PUBLISHED:
        assert row.pattern.partition(",")[0] in PROTOCOLS[row.protocol].patterns
        assert row.rmse_m > 0
        assert (row.rel is None) != (row.mae_m is None)


def test_protocol_table_has_published_rows_beside_ours():
    errors = {"abs_rel": [0.05, None, None], "rmse": [0.3, 0, 0], "mae": [0.2, 0, 0]}
    cell = {"group": "all", "condition": "points-5", "method": "field", "raw": errors}
    text = protocol_table({"config": {"protocol": "nyu"}, "cells": [cell]})
    ours = next(line for line in text.splitlines() if "field" in line)
    assert ours.split() == ["points-5", "field", "0.050", "0.300", "0.200"]
    theirs = text.splitlines()[text.splitlines().index(ours) + 2]
    assert theirs.split() == ["points-5", "OMNI-DC", "v1.1", "(published)", "0.070", "0.330", "–"]
    assert "README of princeton-vl/OMNI-DC" in text


def test_draw_gives_what_the_global_seeds_give():
    torch.manual_seed(9)
    np.random.seed(9)  # noqa: NPY002, the public code uses the global generator
    np.random.choice(["x"], p=[1.0])  # noqa: NPY002
    expected = torch.randperm(50), np.random.uniform(size=3)  # noqa: NPY002
    draw = Draw.of(9)
    assert torch.equal(torch.randperm(50, generator=draw.points), expected[0])
    np.testing.assert_array_equal(draw.errors.uniform(size=3), expected[1])
