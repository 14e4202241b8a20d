"""Plans of corridors, halls and stairwells, with the rooms behind their doors. Pure code."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

from recipes.scenes.rooms import WALL_THICKNESS_M, Opening, Room, Wall

STYLES = {"corridor": 5, "hall": 3, "stairwell": 2}
"""Style of a passage: its weight in the draw."""
SIDE_DOORS = {"door": 5, "doorway": 4, "glass": 1.5}
"""What a door of a long wall is: a closed leaf, an open one, or a pane in a frame."""
ENDS = {"door": 2, "doorway": 2, "glass": 3, "window": 3, "mirror": 1, "blank": 1}
"""What closes a passage at its end."""
DOOR_HEIGHT_M = 2.05


@dataclass(frozen=True)
class SideRoom:
    """A room that is seen through an open door or a pane, outside the passage."""

    wall: Wall
    s0: float
    s1: float
    depth_m: float
    height_m: float


@dataclass(frozen=True)
class Mirror:
    """A mirror on a wall: from s0 to s1 along it and from z0 to z1 above the floor."""

    wall: Wall
    s0: float
    s1: float
    z0: float
    z1: float


@dataclass(frozen=True)
class Stairs:
    """A straight flight along +x, from x0 at the floor, between y0 and y1."""

    x0: float
    y0: float
    y1: float
    steps: int
    rise_m: float
    going_m: float


@dataclass(frozen=True)
class Passage:
    """A rectangular passage, and what is behind and in it."""

    room: Room
    sides: tuple[SideRoom, ...]
    mirrors: tuple[Mirror, ...]
    stairs: Stairs | None


def plan_passage(rng: random.Random) -> Passage:
    """A corridor, hall or stairwell of random size, with doors along it."""
    style = rng.choices(list(STYLES), list(STYLES.values()))[0]
    u = rng.uniform
    size = {
        "corridor": (u(6, 24), u(1.3, 3.2), u(2.3, 3.4)),
        "hall": (u(8, 18), u(4.5, 11), u(2.8, 5.5)),
        "stairwell": (u(5, 9), u(2.6, 5.5), u(4.4, 6.5)),
    }[style]
    walls = [Wall(i, size[:2]) for i in range(4)]
    room = Room(style, size, walls)
    stairs = _plan_stairs(rng, room) if style == "stairwell" or rng.random() < 0.12 else None
    for wall in walls[:2]:
        end = rng.choices(list(ENDS), list(ENDS.values()))[0]
        wall.openings = _plan_end(rng, wall, size[2], end)
    for wall in walls[2:]:
        beside_stairs = stairs is not None and wall.index == 2
        wall.openings = () if beside_stairs else _plan_side_doors(rng, wall)
    if style != "corridor" and stairs is None and rng.random() < 0.5:  # daylight from one side
        walls[3].openings = _plan_window_row(rng, walls[3], size[2])
    for wall in walls:
        wall.blocked = [(o.s0 - 0.1, o.s1 + 0.1, o.z0, o.z1) for o in wall.openings]
        room.taken += [wall.rect(o.s0, o.s1, 0, 0.8) for o in wall.openings if o.kind != "window"]
    mirrors = tuple(_plan_mirrors(rng, room))
    return Passage(room, tuple(_plan_side_rooms(rng, room)), mirrors, stairs)


def _plan_side_doors(rng: random.Random, wall: Wall) -> tuple[Opening, ...]:
    """Doors at about equal distances along a wall."""
    pitch, width = rng.uniform(2.3, 4.5), rng.uniform(0.78, 1.05)
    count = int((wall.length_m - 1) / pitch)
    first = (wall.length_m - (count - 1) * pitch) / 2
    openings = []
    for k in range(count):
        if rng.random() < 0.2:
            continue
        kind = rng.choices(list(SIDE_DOORS), list(SIDE_DOORS.values()))[0]
        wide = width * (rng.choice((1.0, 1.8)) if kind == "glass" else 1.0)
        s = first + k * pitch
        openings.append(Opening(kind, s - wide / 2, s + wide / 2, 0, DOOR_HEIGHT_M))
    return tuple(openings)


def _plan_end(rng: random.Random, wall: Wall, height_m: float, end: str) -> tuple[Opening, ...]:
    if end in ("mirror", "blank"):
        return ()
    most = wall.length_m - 0.3
    if end == "window":
        width, z0 = min(most, rng.uniform(0.8, 2.4)), rng.choice((0.05, 0.9))
        z1 = min(height_m - 0.15, rng.uniform(1.9, 2.6))
    else:
        wide = rng.uniform(1.2, 2.2) if end == "glass" else rng.uniform(0.8, 1.0)
        width, z0, z1 = min(most, wide), 0.0, DOOR_HEIGHT_M
    s = wall.length_m / 2
    return (Opening(end, s - width / 2, s + width / 2, z0, z1),)


def _plan_window_row(rng: random.Random, wall: Wall, height_m: float) -> tuple[Opening, ...]:
    """Windows of one size along a whole wall."""
    pitch = rng.uniform(1.8, 3.5)
    count, width = int((wall.length_m - 0.4) / pitch), pitch * rng.uniform(0.5, 0.85)
    z0, z1 = rng.choice((0.05, 0.5, 0.9)), min(height_m - 0.2, rng.uniform(2.0, 3.6))
    first = (wall.length_m - (count - 1) * pitch) / 2
    centres = [first + k * pitch for k in range(count)]
    return tuple(Opening("window", s - width / 2, s + width / 2, z0, z1) for s in centres)


def _plan_stairs(rng: random.Random, room: Room) -> Stairs | None:
    """A flight along the wall y = 0, which rises away from x = 0; none where it does not fit."""
    lx, ly, lz = room.size_m
    rise, going = rng.uniform(0.155, 0.19), rng.uniform(0.25, 0.31)
    x0, width = rng.uniform(1.2, 2.2), min(rng.uniform(0.9, 1.5), 0.6 * ly)
    steps = min(int((lx - x0 - 0.3) / going), int((lz - 0.5) / rise))
    if steps < 4 or ly - width < 0.6:
        return None
    room.taken.append((0.01, 0.01, x0 + steps * going, width))
    return Stairs(x0, 0.0, width, steps, rise, going)


def _plan_side_rooms(rng: random.Random, room: Room) -> list[SideRoom]:
    """The rooms behind open and glass doors; those of one wall do not overlap."""
    sides, gap = [], WALL_THICKNESS_M
    for wall in room.walls:
        seen = sorted(
            (o for o in wall.openings if o.kind in ("doorway", "glass")), key=lambda o: o.s0
        )
        beyond = 3.0 if wall.index < 2 else 0.0  # past the corners there is one room, not two
        middles = [(a.s1 + b.s0) / 2 for a, b in pairwise(seen)]
        limits = [-beyond, *middles, wall.length_m + beyond]
        for o, low, high in zip(seen, limits, limits[1:], strict=False):
            s0 = max(low + gap, o.s0 - rng.uniform(0.2, 2.5))
            s1 = min(high - gap, o.s1 + rng.uniform(0.2, 2.5))
            depth = rng.uniform(4, 9) if wall.index < 2 else rng.uniform(2.2, 5)
            height = min(room.size_m[2] - 0.04, rng.uniform(2.3, 3.0))
            sides.append(SideRoom(wall, min(s0, o.s0 - 0.05), max(s1, o.s1 + 0.05), depth, height))
    return sides


def _plan_mirrors(rng: random.Random, room: Room) -> list[Mirror]:
    """Up to two mirrors on free parts of the walls, some of them as large as the wall's end."""
    mirrors = []
    for wall in rng.sample(room.walls, rng.choices((0, 1, 2), (6, 3, 1))[0]):
        width = min(wall.length_m - 0.2, rng.uniform(0.5, 2.5))
        s = rng.uniform(width / 2 + 0.05, wall.length_m - width / 2 - 0.05)
        z0 = rng.choice((0.05, 0.6, 1.1))
        mirror = Mirror(wall, s - width / 2, s + width / 2, z0, min(2.1, room.size_m[2] - 0.1))
        if not wall.covers(mirror.s0, mirror.s1, mirror.z0, mirror.z1):
            wall.blocked.append((mirror.s0, mirror.s1, mirror.z0, mirror.z1))
            mirrors.append(mirror)
    return mirrors
