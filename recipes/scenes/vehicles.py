"""Cars, vans and lorries composed of parts. Pure code: a style number gives a mesh.

A vehicle stands on z = 0 with its front towards +x, centred in x and y.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
from recipes.scenes.mesh import Mesh

SLOTS = ("paint", "glass", "tyre", "rim", "lamp", "rear_lamp", "dark", "plate", "chrome")
"""Material slots that a vehicle may have."""


@dataclass(frozen=True)
class Body:
    """Proportions of a vehicle; lengths in metres, and shares of its length from the front."""

    length_m: float
    width_m: float
    height_m: float
    bonnet_m: float
    """Height of the bonnet's rear end, which is the belt line's front end."""
    nose_m: float
    """Height of the bonnet's front end."""
    tail_m: float
    """Height of the boot or the belt line's rear end."""
    windscreen: float
    """Share at which the windscreen begins."""
    roof_front: float
    roof_rear: float
    rear: float
    """Share at which the rear window ends."""
    clearance_m: float
    wheel_m: float
    """Radius of the wheels."""
    box_m: float = 0.0
    """Height of a cargo box behind the cab, 0 for none."""


def draw_body(rng: random.Random) -> Body:
    """A random hatchback, saloon, estate, sport utility vehicle, van or box lorry."""
    u = rng.uniform
    kind = rng.choices(
        ("hatchback", "saloon", "estate", "suv", "van", "lorry"), (30, 22, 14, 22, 9, 4)
    )[0]
    width = u(1.66, 1.88)
    if kind == "hatchback":
        return Body(
            u(3.6, 4.3), width, u(1.42, 1.56), u(0.92, 1.02), u(0.62, 0.75), u(0.95, 1.05),
            u(0.22, 0.28), u(0.40, 0.46), u(0.80, 0.88), u(0.95, 0.985), u(0.15, 0.2),
            u(0.28, 0.32),
        )  # fmt: skip
    if kind == "saloon":
        return Body(
            u(4.4, 5.0), width, u(1.40, 1.48), u(0.90, 0.98), u(0.62, 0.72), u(0.98, 1.08),
            u(0.26, 0.31), u(0.41, 0.46), u(0.66, 0.72), u(0.82, 0.88), u(0.14, 0.18), u(0.3, 0.34),
        )  # fmt: skip
    if kind == "estate":
        return Body(
            u(4.4, 4.9), width, u(1.44, 1.56), u(0.90, 1.0), u(0.62, 0.75), u(1.0, 1.1),
            u(0.24, 0.29), u(0.39, 0.44), u(0.86, 0.92), u(0.965, 0.99), u(0.15, 0.2), u(0.3, 0.34),
        )  # fmt: skip
    if kind == "suv":
        return Body(
            u(4.2, 4.9), u(1.8, 1.98), u(1.6, 1.85), u(1.05, 1.18), u(0.82, 1.0), u(1.1, 1.25),
            u(0.22, 0.28), u(0.37, 0.43), u(0.86, 0.93), u(0.96, 0.99), u(0.2, 0.28), u(0.34, 0.4),
        )  # fmt: skip
    if kind == "van":
        return Body(
            u(4.6, 6.2), u(1.9, 2.1), u(1.9, 2.6), u(1.1, 1.3), u(0.85, 1.05), u(1.2, 1.4),
            u(0.10, 0.16), u(0.24, 0.30), u(0.975, 0.985), u(0.99, 0.995), u(0.18, 0.25),
            u(0.33, 0.37),
        )  # fmt: skip
    return Body(
        u(6.2, 8.5), u(2.2, 2.45), u(2.2, 2.5), u(1.3, 1.5), u(1.1, 1.3), u(1.3, 1.5),
        u(0.02, 0.04), u(0.06, 0.08), u(0.22, 0.24), u(0.25, 0.27), u(0.35, 0.5), u(0.4, 0.48),
        box_m=u(2.0, 2.7),
    )  # fmt: skip


def vehicle(style: int) -> tuple[Mesh, Body]:
    """The vehicle of a style number."""
    rng = random.Random(f"vehicle {style}")
    body = draw_body(rng)
    mesh = Mesh()
    _add_lower_body(mesh, body)
    _add_cabin(mesh, body, rng)
    _add_wheels(mesh, body, rng)
    _add_details(mesh, body, rng)
    if body.box_m:
        _add_cargo_box(mesh, body)
    return mesh, body


def _x(body: Body, share: float) -> float:
    """x of a share of the length from the front."""
    return body.length_m * (0.5 - share)


def _belt_profile(body: Body) -> np.ndarray:
    """Upper outline of the lower body as (share, height, half width), front to rear."""
    half = body.width_m / 2
    mid = (body.nose_m + body.bonnet_m) / 2
    return np.array([
        (0.0, body.nose_m * 0.62, 0.80 * half),
        (0.012, body.nose_m * 0.93, 0.86 * half),
        (0.05, body.nose_m, 0.93 * half),
        (body.windscreen * 0.5, mid + 0.03, 0.98 * half),
        (body.windscreen, body.bonnet_m, half),
        (body.roof_front, body.bonnet_m + 0.02, half),
        ((body.roof_front + body.roof_rear) / 2, (body.bonnet_m + body.tail_m) / 2 + 0.02, half),
        (min(body.roof_rear, 0.9), body.tail_m, half),
        (max(body.rear, 0.93), body.tail_m, 0.96 * half),
        (0.985, body.tail_m * 0.96, 0.90 * half),
        (1.0, body.tail_m * 0.72, 0.86 * half),
    ])  # fmt: skip


def _add_lower_body(mesh: Mesh, body: Body) -> None:
    """A loft of cross-sections: sill, widest line, shoulder and centre at each station."""
    rows = []
    for share, height, half in _belt_profile(body):
        x, low = _x(body, share), body.clearance_m
        waist = low + 0.45 * (height - low)
        section = [
            (x, -half * 0.93, low), (x, -half, low + 0.3 * (height - low)), (x, -half, waist),
            (x, -half * 0.95, height - 0.04), (x, -half * 0.80, height), (x, 0, height + 0.02),
        ]  # fmt: skip
        section += [(px, -py, pz) for px, py, pz in section[-2::-1]]
        rows.append(section)
    points = np.array(rows)
    n, m = points.shape[:2]
    faces = [
        (i * m + j, (i + 1) * m + j, (i + 1) * m + j + 1, i * m + j + 1)
        for i in range(n - 1)
        for j in range(m - 1)
    ]
    mesh.add(points.reshape(-1, 3), faces, "paint", smooth=True)
    for row, order in ((points[0], range(m)), (points[-1], range(m - 1, -1, -1))):
        mesh.add(row, [tuple(order)], "paint")
    x0, x1, half = _x(body, 0.97), _x(body, 0.03), 0.42 * body.width_m
    mesh.box((x0, -half, body.clearance_m * 0.75), (x1, half, body.clearance_m + 0.12), "dark")


def _add_cabin(mesh: Mesh, body: Body, rng: random.Random) -> None:
    """Roof, pillars and panes above the belt line."""
    half, lean = body.width_m / 2, rng.uniform(0.76, 0.84)
    top = body.height_m
    stations = [
        (body.windscreen, body.bonnet_m, 0.93),
        (body.roof_front, top - 0.03, lean),
        ((body.roof_front + body.roof_rear) / 2, top, lean),
        (body.roof_rear, top - 0.04, lean * 0.98),
        (body.rear, body.tail_m, 0.90),
    ]
    left = np.array([(_x(body, s), -half * w, z) for s, z, w in stations])
    right = left * np.array([1, -1, 1])
    roof = [(i, i + 1, len(left) + i + 1, len(left) + i) for i in (1, 2)]
    mesh.add(np.concatenate([left, right]), roof, "paint", smooth=True)
    _add_pane(mesh, left[0], right[0], right[1], left[1])
    if body.box_m == 0:
        _add_pane(mesh, left[3], right[3], right[4], left[4])
    else:
        mesh.add(np.array([left[3], right[3], right[4], left[4]]), [(3, 2, 1, 0)], "paint")
    belt = [(s, body.bonnet_m + (body.tail_m - body.bonnet_m) * k, 0.955)
            for s, k in ((body.windscreen, 0.0), (body.roof_front, 0.2),
                         ((body.roof_front + body.roof_rear) / 2, 0.5), (body.roof_rear, 0.9),
                         (body.rear, 1.0))]  # fmt: skip
    panel_van = body.height_m > 1.88 and rng.random() < 0.7
    for side in (1, -1):
        low = np.array([(_x(body, s), -side * half * w, z) for s, z, w in belt])
        high = left if side == 1 else right
        for i in range(len(low) - 1):
            corners = np.array([low[i], low[i + 1], high[i + 1], high[i]])
            if side == -1:
                corners = corners[::-1]
            blank = panel_van and i >= 2
            if blank:
                mesh.add(corners, [(0, 1, 2, 3)], "paint")
            else:
                _add_pane(mesh, *corners)


def _add_pane(mesh: Mesh, *corners: np.ndarray) -> None:
    """A pane with a painted rim around it."""
    outer = np.array(corners)
    center = outer.mean(0)
    inner = center + 0.86 * (outer - center)
    n = len(outer)
    rim = [(i, (i + 1) % n, n + (i + 1) % n, n + i) for i in range(n)]
    mesh.add(np.concatenate([outer, inner]), rim, "paint")
    mesh.add(inner, [tuple(range(n))], "glass")


def _add_wheels(mesh: Mesh, body: Body, rng: random.Random) -> None:
    """Four wheels with dark arches."""
    radius, half = body.wheel_m, body.width_m / 2
    axles = (rng.uniform(0.17, 0.2), rng.uniform(0.8, 0.84))
    spokes = rng.choice((0, 5, 5, 6, 7))
    for share in axles:
        x = _x(body, share)
        for side in (1, -1):
            out, inside = side * (half + 0.012), side * (half - 0.22)
            z = radius * 1.2
            start, end = (x, side * (half - 0.3), z), (x, side * (half + 0.004), z)
            mesh.tube(start, end, radius * 1.17, radius * 1.17, "dark", sides=20)
            mesh.tube((x, inside, radius), (x, out, radius), radius, radius, "tyre", sides=20)
            mesh.tube((x, out - side * 0.02, radius), (x, out + side * 0.006, radius),
                      radius * 0.66, radius * 0.62, "rim", sides=16)  # fmt: skip
            for k in range(spokes):
                angle = 2 * math.pi * k / spokes
                dx, dz = math.cos(angle) * radius * 0.5, math.sin(angle) * radius * 0.5
                mesh.tube((x + 0.6 * dx, out, radius + 0.6 * dz), (x + dx, out, radius + dz),
                          radius * 0.09, radius * 0.13, "dark", sides=6)  # fmt: skip


def _add_details(mesh: Mesh, body: Body, rng: random.Random) -> None:
    """Lamps, grille, number plates, bumpers, mirrors and door handles."""
    half, front, back = body.width_m / 2, body.length_m / 2, -body.length_m / 2
    lamp = body.nose_m * 0.78
    tall = rng.uniform(0.08, 0.16)
    for side in (1, -1):
        a, b = side * half * 0.82, side * half * rng.uniform(0.45, 0.58)
        mesh.box((front - 0.14, a, lamp - tall / 2), (front + 0.005, b, lamp + tall / 2), "lamp")
        a, b, z = side * half * 0.86, side * half * 0.62, body.tail_m * 0.78
        mesh.box((back - 0.005, a, z - 0.1), (back + 0.1, b, z + 0.09), "rear_lamp")
        x, y = _x(body, body.windscreen + 0.04), side * (half + 0.02)
        low, high = body.bonnet_m + 0.02, body.bonnet_m + 0.14
        slot = rng.choice(("paint", "dark"))
        mesh.box((x - 0.1, y, low), (x + 0.04, y + side * 0.17, high), slot)
        for share in (0.5, 0.68):
            x = _x(body, share)
            z = body.bonnet_m - 0.12
            mesh.box(
                (x - 0.1, side * half * 0.99, z),
                (x + 0.08, side * (half + 0.015), z + 0.03),
                "chrome",
            )
    low = body.clearance_m
    mesh.box(
        (front - 0.1, -half * 0.5, low + 0.12), (front + 0.012, half * 0.5, lamp - 0.08), "dark"
    )
    mesh.box((front, -0.26, low + 0.16), (front + 0.025, 0.26, low + 0.27), "plate")
    mesh.box(
        (back - 0.02, -0.26, body.tail_m * 0.6),
        (back + 0.03, 0.26, body.tail_m * 0.6 + 0.11),
        "plate",
    )
    mesh.box((front - 0.2, -half * 0.84, low), (front + 0.03, half * 0.84, low + 0.14), "dark")
    mesh.box((back - 0.04, -half * 0.88, low), (back + 0.2, half * 0.88, low + 0.2), "dark")
    if rng.random() < 0.25 and not body.box_m:
        for side in (1, -1):
            y = side * half * 0.7
            x0, x1 = _x(body, body.roof_rear - 0.03), _x(body, body.roof_front + 0.03)
            mesh.tube(
                (x0, y, body.height_m + 0.03),
                (x1, y, body.height_m + 0.03),
                0.02,
                0.02,
                "chrome",
                sides=6,
            )


def _add_cargo_box(mesh: Mesh, body: Body) -> None:
    """The box of a lorry behind its cab."""
    half = body.width_m / 2 + 0.04
    z0 = body.clearance_m + 0.35
    x0, x1 = -body.length_m / 2 - 0.05, _x(body, body.rear + 0.02)
    mesh.box((x0, -half, z0), (x1, half, z0 + body.box_m), "plate")
    mesh.box((x0, -half * 0.7, z0 - 0.3), (x1, half * 0.7, z0), "dark")
