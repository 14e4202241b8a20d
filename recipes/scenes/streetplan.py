"""Plans of streets: course, cross-section, lots and cars. Pure code.

s runs along the street, the offset t to the left of it; `Course.at` gives x, y, z and heading.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np

STYLES = {"urban": 5, "suburban": 4, "rural": 2, "industrial": 2, "park": 1.2, "carpark": 0.8}
"""Style of a street: its weight in the draw."""


@dataclass(frozen=True)
class Course:
    """The centre line: a parabola in plan, a wave in height."""

    curvature_per_m: float
    hill_m: float
    """Amplitude of the height."""
    hill_length_m: float
    phase_rad: float

    def height_m(self, s: float) -> float:
        """Height of the centre line."""
        return self.hill_m * math.sin(2 * math.pi * s / self.hill_length_m + self.phase_rad)

    def slope(self, s: float) -> float:
        """Rise per metre along the street."""
        k = 2 * math.pi / self.hill_length_m
        return self.hill_m * k * math.cos(k * s + self.phase_rad)

    def at(self, s: float, t: float) -> tuple[float, float, float, float]:
        """x, y, z in metres and heading in radians of a point beside the centre line."""
        heading = math.atan(self.curvature_per_m * s)
        x = s - t * math.sin(heading)
        y = self.curvature_per_m * s * s / 2 + t * math.cos(heading)
        return x, y, self.height_m(s), heading

    def matrix(self, s: float, t: float, yaw_rad: float = 0.0, lift_m: float = 0.0) -> np.ndarray:
        """Pose of a thing on the street, 4×4: x along the street, pitched with its slope."""
        x, y, z, heading = self.at(s, t)
        pitch = math.atan(self.slope(s))
        ch, sh, cp, sp = math.cos(heading), math.sin(heading), math.cos(pitch), math.sin(pitch)
        frame = np.array([[ch * cp, -sh, -ch * sp], [sh * cp, ch, -sh * sp], [sp, 0, cp]])
        c, s_ = math.cos(yaw_rad), math.sin(yaw_rad)
        matrix = np.eye(4)
        matrix[:3, :3] = frame @ np.array([[c, -s_, 0], [s_, c, 0], [0, 0, 1]])
        matrix[:3, 3] = (x, y, z + lift_m)
        return matrix

    def upright(self, s: float, t: float, yaw_rad: float = 0.0, lift_m: float = 0.0) -> np.ndarray:
        """Pose of a thing that stands vertically: x along the street, turned by a yaw."""
        x, y, z, heading = self.at(s, t)
        c, s_ = math.cos(heading + yaw_rad), math.sin(heading + yaw_rad)
        matrix = np.eye(4)
        matrix[:2, :2] = [[c, -s_], [s_, c]]
        matrix[:3, 3] = (x, y, z + lift_m)
        return matrix


@dataclass(frozen=True)
class Side:
    """The side of the road: parking, kerb, pavement, front gardens, buildings."""

    sign: int
    """1 for the left side, -1 for the right side."""
    parking_m: float
    """Width of the parking lane, 0 for none."""
    pavement_m: float
    verge_m: float
    """Width of a strip of grass between kerb and pavement, 0 for none."""
    setback_m: float
    """Distance between pavement and buildings."""
    use: str
    """`blocks`, `houses`, `halls`, `cars` (a car park) or `open` (grass and trees)."""


@dataclass(frozen=True)
class StreetPlan:
    """A street."""

    style: str
    course: Course
    lanes: int
    """Lanes in each direction."""
    lane_m: float
    kerb_m: float
    """Height of the kerb."""
    sides: tuple[Side, Side]
    """Left and right."""
    traffic: float
    """Moving cars in 100 m of a lane."""
    parked: float
    """Share of the parking places that are taken."""
    crossing_m: tuple[float, float] | None = None
    """Where a crossing road begins and ends along the street."""
    extent_m: tuple[float, float] = (-70.0, 130.0)

    def in_crossing(self, s0: float, s1: float | None = None, pad_m: float = 1.5) -> bool:
        """Whether a position, or a part of the street, is in the crossing road or close to it."""
        if self.crossing_m is None:
            return False
        begin, end = self.crossing_m
        return s0 < end + pad_m and (s0 if s1 is None else s1) > begin - pad_m

    @property
    def soft(self) -> bool:
        """Whether the road has no kerbs and no pavements, but grass."""
        return self.style in ("rural", "park")

    @property
    def half_road_m(self) -> float:
        """Half the width of the lanes."""
        return self.lanes * self.lane_m

    def kerb_t(self, side: Side) -> float:
        """Offset of the kerb, without sign."""
        return self.half_road_m + side.parking_m

    def pavement_t(self, side: Side) -> tuple[float, float]:
        """Offsets of the pavement's inner and outer edges, without sign."""
        inner = self.kerb_t(side) + 0.15 + side.verge_m
        return inner, inner + side.pavement_m


def plan_street(rng: random.Random) -> StreetPlan:
    """A random street."""
    style = rng.choices(list(STYLES), list(STYLES.values()))[0]
    u = rng.uniform
    hilly = rng.random() < 0.4
    course = Course(
        curvature_per_m=rng.choice((0, 0, 1, -1)) * u(0.0005, 0.006),
        hill_m=u(0.3, 2.0) if hilly else 0.0,
        hill_length_m=u(110, 260),
        phase_rad=u(0, 2 * math.pi),
    )
    lanes = rng.choice((1, 1, 1, 2)) if style in ("urban", "industrial") else 1
    soft = style in ("rural", "park")
    crossing = None
    if style in ("urban", "suburban", "industrial") and rng.random() < 0.5:
        begin = u(5, 60)
        crossing = (begin, begin + u(6, 13))
    sides = tuple(_plan_side(rng, style, sign) for sign in (1, -1))
    return StreetPlan(
        style=style,
        course=course,
        lanes=lanes,
        lane_m=u(0.8, 1.8) if style == "park" else u(2.6, 3.6),
        kerb_m=0.0 if soft else u(0.08, 0.16),
        sides=sides,  # type: ignore[arg-type]
        traffic=0.0 if style == "park" else rng.choice((0.0, 1.0, 2.0, 4.0)),
        parked=u(0.3, 0.95),
        crossing_m=crossing,
    )


def _plan_side(rng: random.Random, style: str, sign: int) -> Side:
    u = rng.uniform
    use = {
        "urban": rng.choice(("blocks", "blocks", "blocks", "blocks", "open")),
        "suburban": rng.choice(("houses", "houses", "houses", "open")),
        "rural": rng.choice(("open", "open", "houses")),
        "industrial": rng.choice(("halls", "halls", "blocks", "open")),
        "park": "open",
        "carpark": rng.choice(("cars", "cars", "halls")),
    }[style]
    verge = {"urban": 0.15, "suburban": 0.4, "rural": 0.6, "industrial": 0.3}.get(style, 0.0)
    setback = {
        "blocks": rng.choice((0.0, 0.0, 1.5)), "houses": u(3, 8), "halls": u(3, 14),
    }.get(use, 0.0)  # fmt: skip
    parking = {"urban": 0.75, "suburban": 0.6, "rural": 0.1, "industrial": 0.5}.get(style, 0.0)
    return Side(
        sign=sign,
        parking_m=u(2.0, 2.5) if rng.random() < parking else 0.0,
        pavement_m=u(1.4, 4.5) if style == "urban" else u(1.2, 2.2),
        verge_m=u(0.8, 2.5) if rng.random() < verge else 0.0,
        setback_m=setback,
        use=use,
    )


@dataclass(frozen=True)
class Lot:
    """A building's place: from s0 to s1, with its front at an offset t (without sign)."""

    side: Side
    s0: float
    s1: float
    t: float
    depth_m: float


def plan_lots(rng: random.Random, plan: StreetPlan) -> list[Lot]:
    """Lots on both sides with gaps between them."""
    lots = []
    for side in plan.sides:
        if side.use in ("open", "cars"):
            continue
        s = plan.extent_m[0] + rng.uniform(0, 8)
        _, outer = plan.pavement_t(side)
        while s < plan.extent_m[1]:
            width, gap = {
                "blocks": (rng.uniform(9, 26), rng.choice((0.0, 0.0, 0.0, 0.0, 3.0, 9.0))),
                "houses": (rng.uniform(7, 14), rng.uniform(3, 9)),
                "halls": (rng.uniform(18, 45), rng.uniform(5, 20)),
            }[side.use]
            if plan.crossing_m and plan.in_crossing(s, s + width):
                s = plan.crossing_m[1] + 1.6
            jitter = rng.uniform(-0.4, 0.4) if side.use == "houses" else 0.0
            depth = rng.uniform(8, 13)
            lots.append(
                Lot(side, s, s + width, outer + 0.05 + max(0.0, side.setback_m + jitter), depth)
            )
            s += width + gap
    return lots


@dataclass(frozen=True)
class CarPlace:
    """A car on the road."""

    s: float
    t: float
    """Signed offset of its centre."""
    yaw_rad: float
    moving: bool


def plan_cars(rng: random.Random, plan: StreetPlan) -> list[CarPlace]:
    """Parked cars along the kerbs and moving cars in the lanes, without overlap."""
    cars = []
    low, high = plan.extent_m
    for side in plan.sides:
        forward = 0.0 if side.sign < 0 else math.pi  # traffic keeps to the right
        if side.parking_m:
            s = low + rng.uniform(0, 6)
            while s < high:
                if rng.random() < plan.parked and not plan.in_crossing(s, pad_m=7):
                    t = side.sign * (
                        plan.half_road_m + side.parking_m - 1.05 + rng.uniform(-0.12, 0.08)
                    )
                    turned = math.pi if rng.random() < 0.12 else 0.0
                    yaw = forward + turned + rng.gauss(0, 0.03)
                    cars.append(CarPlace(s, t, yaw, moving=False))
                s += rng.uniform(6.2, 7.5)
        for lane in range(plan.lanes):
            t = side.sign * (lane + 0.5) * plan.lane_m
            s = low + rng.uniform(5, 40)
            while plan.traffic and s < high:
                cars.append(CarPlace(s, t + rng.gauss(0, 0.15), forward + rng.gauss(0, 0.02), True))
                s += 11 + rng.expovariate(plan.traffic / 100)
        if side.use == "cars":
            cars += _plan_rows(rng, plan, side)
    if plan.crossing_m:
        begin, end = plan.crossing_m
        for sign in (1, -1):
            if rng.random() < 0.6:
                s, t = (begin + end) / 2 + sign * (end - begin) / 4, rng.uniform(9, 40)
                cars.append(CarPlace(s, rng.choice((-1, 1)) * t, sign * math.pi / 2, True))
    return cars


def _plan_rows(rng: random.Random, plan: StreetPlan, side: Side) -> list[CarPlace]:
    """Three rows of a car park with an aisle between the first two."""
    _, outer = plan.pavement_t(side)
    cars = []
    for t in (outer + 3.2, outer + 14.5, outer + 19.8):
        for s in np.arange(-40, 80, 2.7):
            if rng.random() < plan.parked:
                yaw = rng.choice((-1, 1)) * math.pi / 2 + rng.gauss(0, 0.03)
                cars.append(
                    CarPlace(float(s), side.sign * t + rng.gauss(0, 0.15), yaw, moving=False)
                )
    return cars


def ribbon(  # noqa: PLR0917
    course: Course, s: np.ndarray, t0: float, t1: float, z0_m: float, z1_m: float
) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """A strip along the street between two offsets (t0 < t1) at heights above the centre line."""
    points = []
    for value in s:
        for t, lift in ((t0, z0_m), (t1, z1_m)):
            x, y, z, _ = course.at(float(value), t)
            points.append((x, y, z + lift))
    faces = [(2 * i, 2 * i + 2, 2 * i + 3, 2 * i + 1) for i in range(len(s) - 1)]
    return np.array(points), faces
