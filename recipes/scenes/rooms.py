"""Plans of rooms: style, size, walls with openings, and free floor. Pure code."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

STYLES = {
    "living": 5, "bedroom": 3, "dining": 4, "office": 4, "kitchen": 3, "bath": 1.5, "store": 2,
    "mixed": 5,
}  # fmt: skip
"""Style of a room: its weight in the draw."""
WALL_THICKNESS_M = 0.18
Rect = tuple[float, float, float, float]
"""x0, y0, x1, y1 in metres."""


@dataclass(frozen=True)
class Opening:
    """A window or a door in a wall: from s0 to s1 along it and from z0 to z1 above the floor."""

    kind: str
    s0: float
    s1: float
    z0: float
    z1: float


@dataclass
class Wall:
    """One of the four walls. s runs along it, d is the distance from it into the room."""

    index: int
    """0: x = 0, 1: x = length, 2: y = 0, 3: y = width."""
    size_m: tuple[float, float]
    """Length (x) and width (y) of the room."""
    openings: tuple[Opening, ...] = ()
    blocked: list[tuple[float, float, float, float]] = field(default_factory=list)
    """(s0, s1, z0, z1) that other things must not cover."""

    @property
    def length_m(self) -> float:
        """Extent along s."""
        return self.size_m[1] if self.index < 2 else self.size_m[0]

    @property
    def yaw_rad(self) -> float:
        """Direction into the room."""
        return (0.0, math.pi, math.pi / 2, -math.pi / 2)[self.index]

    def at(self, s: float, d: float) -> tuple[float, float]:
        """x and y of a point."""
        lx, ly = self.size_m
        return ((d, s), (lx - d, s), (s, d), (s, ly - d))[self.index]

    def rect(self, s0: float, s1: float, d0: float, d1: float) -> Rect:
        """The rectangle on the floor between two positions along the wall and two distances."""
        (ax, ay), (bx, by) = self.at(s0, d0), self.at(s1, d1)
        return min(ax, bx), min(ay, by), max(ax, bx), max(ay, by)

    def covers(self, s0: float, s1: float, z0: float, z1: float) -> bool:
        """Whether a rectangle on the wall overlaps something that must stay free."""
        return any(s0 < b1 and s1 > b0 and z0 < c1 and z1 > c0 for b0, b1, c0, c1 in self.blocked)


@dataclass
class Room:
    """A rectangular room with its corner at the origin."""

    style: str
    size_m: tuple[float, float, float]
    walls: list[Wall]
    taken: list[Rect] = field(default_factory=list)
    """Rectangles on the floor that are in use."""

    @property
    def windows(self) -> list[tuple[Wall, Opening]]:
        """All windows with their walls."""
        return [(w, o) for w in self.walls for o in w.openings if o.kind == "window"]

    def free(self, rect: Rect, pad_m: float = 0.04) -> bool:
        """Whether a rectangle is inside the room and touches nothing that is in use."""
        x0, y0, x1, y1 = rect
        if x0 <= 0 or y0 <= 0 or x1 >= self.size_m[0] or y1 >= self.size_m[1]:
            return False
        return all(
            x1 + pad_m < a0 or a1 + pad_m < x0 or y1 + pad_m < b0 or b1 + pad_m < y0
            for a0, b0, a1, b1 in self.taken
        )


def plan_room(rng: random.Random) -> Room:
    """A room of a random style with a door and up to three windows or pairs of windows."""
    style = rng.choices(list(STYLES), list(STYLES.values()))[0]
    large = style in ("store", "mixed")
    if style == "bath":
        size = (rng.uniform(2.2, 4), rng.uniform(1.8, 3.4), rng.uniform(2.35, 2.8))
    else:
        size = (
            rng.uniform(3.0, 11 if large else 6.5),
            rng.uniform(2.8, 8 if large else 5.5),
            rng.uniform(2.3, 4.2 if large else 3.1),
        )
    walls = [Wall(i, size[:2]) for i in range(4)]
    door = rng.randrange(4)
    others = [i for i in range(4) if i != door]
    windows = set(rng.sample(others, rng.choices([0, 1, 2, 3], [2, 5, 3, 1])[0]))
    for wall in walls:
        openings = []
        if wall.index in windows:
            openings = _plan_windows(rng, wall.length_m, size[2])
        if wall.index == door:
            width = rng.uniform(0.78, 1.0)
            center = rng.uniform(0.7, wall.length_m - 0.7)
            openings = [Opening("door", center - width / 2, center + width / 2, 0, 2.05)]
        wall.openings = tuple(openings)
        wall.blocked = [(o.s0 - 0.1, o.s1 + 0.1, o.z0, o.z1) for o in openings]
    room = Room(style, size, walls)
    for wall in walls:  # the way in stays free
        room.taken += [wall.rect(o.s0, o.s1, 0, 0.8) for o in wall.openings if o.kind == "door"]
    return room


def _plan_windows(rng: random.Random, length_m: float, height_m: float) -> list[Opening]:
    count = 1 if length_m < 3.5 else rng.choice([1, 1, 2])
    openings = []
    for k in range(count):
        width = min(rng.uniform(0.8, 2.4), length_m / count - 0.6)
        center = (k + 0.5) * length_m / count + rng.uniform(-0.15, 0.15)
        z0 = rng.choice([rng.uniform(0.02, 0.15), rng.uniform(0.7, 1.1), rng.uniform(0.7, 1.1)])
        z1 = min(height_m - 0.15, rng.uniform(1.9, 2.4))
        openings.append(Opening("window", center - width / 2, center + width / 2, z0, z1))
    return openings


def turned_extent(size_m: tuple[float, float], yaw_rad: float) -> tuple[float, float]:
    """Half the extent in x and y of a rectangle that is turned by a yaw."""
    c, s = abs(math.cos(yaw_rad)), abs(math.sin(yaw_rad))
    return (c * size_m[0] + s * size_m[1]) / 2, (s * size_m[0] + c * size_m[1]) / 2
