"""Rendered rooms: depth against marching along rays, and what training asks of a dataset."""

import numpy as np
import pytest
import torch

from scalefield.datasets import Dataset
from scalefield.seeding import seeded_rng
from scalefield.training.mde import MDETraining, load_frames
from scalefield.training.synthetic_rooms import (
    BALL,
    BOX,
    CYLINDER,
    Rooms,
    Things,
    furnish,
    into,
    reach,
    render,
    surface,
)


def inside(things: Things, points: torch.Tensor) -> torch.Tensor:
    """Which unit shapes hold which points."""
    local, _ = into(things, points, points)
    x, y, z = local.unbind(-1)
    box = (local.abs() < 1).all(dim=-1)
    cylinder = (x**2 + z**2 < 1) & (y.abs() < 1)
    ball = x**2 + y**2 + z**2 < 1
    shape = things.shape[:, None]
    return torch.where(shape == BOX, box, torch.where(shape == CYLINDER, cylinder, ball))


@pytest.fixture
def things():
    rng = np.random.default_rng(0)
    n = 9
    half = torch.from_numpy(rng.uniform(0.2, 0.8, (n, 3))).float()
    half[0] = 4.0
    centre = torch.from_numpy(rng.uniform(-2, 2, (n, 3))).float()
    centre[0] = 0
    shape = torch.tensor([BOX] + [BOX, CYLINDER, BALL, BOX] * 2)
    return Things(centre, half, torch.from_numpy(rng.uniform(0, 3, n)).float(), shape)


def test_distances_are_where_marching_along_the_ray_meets_a_thing(things):
    rng = np.random.default_rng(1)
    ray = torch.from_numpy(rng.normal(size=(2000, 3))).float()
    ray = ray / ray.norm(dim=1, keepdim=True)
    origin = torch.tensor([[0.1, -2.9, 0.2]]).expand_as(ray)
    found = reach(things, origin, ray)
    steps = torch.arange(0, 10, 0.02)
    held = torch.stack([inside(things, origin + t * ray) for t in steps])  # steps n r
    marched = torch.where(held.any(dim=0), steps[held.float().argmax(dim=0)], torch.inf)
    hit = marched[1:].isfinite()
    assert hit.sum() > 100
    torch.testing.assert_close(found[1:][hit], marched[1:][hit], atol=0.021, rtol=0)
    # What marching misses is grazed on less than a step.
    assert (found[1:].isfinite() & ~hit).float().mean() < 0.01
    left = torch.where(~held[:, 0], steps[:, None], torch.inf).amin(dim=0)
    torch.testing.assert_close(found[0], left, atol=0.021, rtol=0)


def test_normals_face_whoever_looks(things):
    rng = np.random.default_rng(2)
    ray = torch.from_numpy(rng.normal(size=(500, 3))).float()
    origin = torch.tensor([[0.1, -2.9, 0.2]]).expand_as(ray)
    distance, which = reach(things, origin, ray).min(dim=0)
    _, normal = surface(things, which, origin + distance[:, None] * ray)
    torch.testing.assert_close(normal.norm(dim=1), torch.ones(500))
    assert ((normal * ray).sum(dim=1) < 1e-3).all()


def test_rooms_depth_is_that_of_walls_and_furniture():
    room = furnish(seeded_rng(0, "a room"))
    height, width = 30, 40
    _, depth_m = render(room, (height, width), torch.device("cpu"))
    v, u = np.mgrid[0:height, 0:width] + 0.5
    seen = np.stack([u / width - 0.5, (v - height / 2) / width, np.full(u.shape, room.focal)], -1)
    points = (seen / room.focal * depth_m[..., None]).reshape(-1, 3) @ room.camera_axes.numpy()
    points = torch.from_numpy(points).float() + room.camera_position
    local, _ = into(room.things, points, points)
    wall = (local[0].abs().amax(dim=-1) - 1).abs() < 1e-3
    nearly = inside(Things(*room.things)._replace(half=room.things.half * 1.01 + 1e-3), points)
    assert (wall | nearly[1:].any(dim=0)).all()
    assert not inside(Things(*room.things)._replace(half=room.things.half * 0.99 - 1e-3), points)[
        1:
    ].any()


def test_a_room_has_four_right_angles_between_camera_axes():
    axes = furnish(seeded_rng(3, "axes")).camera_axes
    torch.testing.assert_close(axes @ axes.mT, torch.eye(3), atol=1e-5, rtol=0)
    right, down, ahead = axes
    # x right, y down, z ahead, as in photographs; y of the world is up.
    torch.testing.assert_close(torch.linalg.cross(right, -ahead), -down, atol=1e-5, rtol=0)
    assert down[1] < -0.5


def test_a_name_and_a_seed_decide_all():
    rooms = Rooms(3, seed=1, size=(24, 32))
    assert isinstance(rooms, Dataset)
    assert rooms.names("val") == []
    first, again = (rooms.load("rooms/00001") for _ in range(2))
    assert first.sha256() == again.sha256()
    assert first.sha256() != rooms.load("rooms/00002").sha256()
    assert first.sha256() != Rooms(3, seed=2, size=(24, 32)).load("rooms/00001").sha256()
    assert first.scene == "rooms-1"
    assert first.mask.mean() > 0.9
    assert 20 < first.image.mean() < 235


def test_rooms_stand_beside_the_frames_in_every_fold():
    dataset = Rooms(4, seed=9, size=(24, 32))  # one scene, which is in one of the folds
    counts = [
        len(
            load_frames(
                dataset, MDETraining(rooms=2, folds=3, fold=fold), torch.device("cpu")
            ).scenes
        )
        for fold in range(3)
    ]
    assert sorted(counts) == [2, 6, 6]
