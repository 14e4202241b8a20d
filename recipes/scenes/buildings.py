"""Buildings with windows, doors, shops, balconies and roofs. Pure code.

A building's front lies in the plane y = 0 and faces -y; it reaches from x = 0 to its width and
from z = 0 upwards. A style number gives its proportions.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
from recipes.scenes.mesh import Mesh, pose

SLOTS = ("wall", "base", "frame", "glass", "lit", "door", "roof", "metal", "sign", "stone")
"""Material slots that a building may have."""


@dataclass(frozen=True)
class BuildingStyle:
    """Proportions of a building, in metres."""

    floors: int
    floor_m: float
    ground_floor_m: float
    bay_m: float
    """Distance between windows."""
    window_width: float
    """Share of the bay."""
    window_m: float
    """Height of a window."""
    sill_m: float
    """Height of the sill above the floor."""
    reveal_m: float
    """Depth of the window behind the wall."""
    mullions: tuple[int, int]
    """Panes across and upwards."""
    ground: str
    """`shops`, `doors` or `garage`."""
    balconies: float
    """Share of the bays with a balcony."""
    roof: str
    """`flat`, `gable` or `hip`."""
    roof_m: float
    """Height of the roof."""
    bands: bool
    """Whether ledges mark the floors."""
    surrounds: bool
    """Whether stone surrounds the windows."""


def draw_style(style: int, house: bool = False, hall: bool = False) -> BuildingStyle:
    """The proportions of a style number: a block of flats or offices, a house, or a hall."""
    rng = random.Random(f"building {style} {house} {hall}")
    u = rng.uniform
    if hall:
        return BuildingStyle(
            rng.randint(1, 2), u(3, 4.5), u(4, 6), u(4, 8), u(0.4, 0.85), u(0.8, 1.6), u(1.6, 2.2),
            u(0.03, 0.1), (rng.randint(2, 4), 1), "garage", 0.0, rng.choice(("flat", "gable")),
            u(0.8, 2), False, False,
        )  # fmt: skip
    floors = rng.randint(1, 3) if house else rng.choice((2, 3, 3, 4, 4, 5, 6, 8))
    offices = not house and rng.random() < 0.25
    return BuildingStyle(
        floors=floors,
        floor_m=u(2.6, 3.4),
        ground_floor_m=u(2.7, 3.2) if house else u(3.0, 4.4),
        bay_m=u(2.0, 3.6),
        window_width=u(0.75, 0.92) if offices else u(0.32, 0.6),
        window_m=u(1.5, 2.0) if offices else u(1.1, 1.9),
        sill_m=u(0.5, 0.9) if offices else u(0.6, 1.0),
        reveal_m=u(0.06, 0.3),
        mullions=rng.choice(((1, 1), (2, 1), (2, 2), (2, 3), (3, 1), (1, 2))),
        ground="doors" if house else rng.choice(("shops", "shops", "doors", "garage")),
        balconies=0.0 if offices else rng.choice((0.0, 0.0, 0.2, 0.5)),
        roof=rng.choice(("gable", "gable", "hip", "flat") if house else ("flat", "flat", "gable")),
        roof_m=u(1.6, 3.4),
        bands=rng.random() < 0.4,
        surrounds=rng.random() < 0.4,
    )  # fmt: skip


def building(
    style: BuildingStyle, width_m: float, depth_m: float, seed: int, sink_m: float = 2.0
) -> Mesh:
    """A building with façades on three sides; its walls reach `sink_m` below the ground."""
    rng = random.Random(seed)
    mesh = Mesh()
    height = style.ground_floor_m + (style.floors - 1) * style.floor_m
    mesh.merge(_facade(style, width_m, rng, front=True))
    left = pose(0, depth_m, 0, -math.pi / 2)
    right = pose(width_m, 0, 0, math.pi / 2)
    mesh.merge(_facade(style, depth_m, rng, front=False), left)
    mesh.merge(_facade(style, depth_m, rng, front=False), right)
    back = [
        (width_m, depth_m, 0),
        (0, depth_m, 0),
        (0, depth_m, height),
        (width_m, depth_m, height),
    ]
    mesh.add(np.array(back), [(0, 1, 2, 3)], "wall")
    mesh.box((0.01, 0.01, -sink_m), (width_m - 0.01, depth_m - 0.01, 0.0), "base")
    _add_roof(mesh, style, width_m, depth_m, height, rng)
    return mesh


def _quad(  # noqa: PLR0917
    mesh: Mesh, u0: float, u1: float, z0: float, z1: float, y: float, slot: str
) -> None:
    """A rectangle in a plane of constant y that faces -y."""
    if u1 - u0 > 1e-4 and z1 - z0 > 1e-4:
        mesh.add(
            np.array([(u0, y, z0), (u1, y, z0), (u1, y, z1), (u0, y, z1)]), [(0, 1, 2, 3)], slot
        )


def _facade(style: BuildingStyle, width_m: float, rng: random.Random, front: bool) -> Mesh:
    """One side of a building as a grid of bays and floors."""
    mesh = Mesh()
    bays = max(1, round(width_m / style.bay_m))
    bay = width_m / bays
    blank = not front and rng.random() < 0.35
    door_bay = rng.randrange(bays)
    balcony_bays = {b for b in range(bays) if front and rng.random() < style.balconies}
    z = 0.0
    for floor in range(style.floors):
        tall = style.ground_floor_m if floor == 0 else style.floor_m
        for b in range(bays):
            u0, u1 = b * bay, (b + 1) * bay
            if blank and rng.random() < 0.85:
                _quad(mesh, u0, u1, z, z + tall, 0, "wall")
            elif floor == 0 and front:
                _add_ground_bay(mesh, style, (u0, u1, tall), b == door_bay, rng)
            else:
                balcony = floor > 0 and b in balcony_bays
                _add_window_bay(mesh, style, (u0, u1, z, z + tall), balcony, rng)
        z += tall
        if style.bands and floor < style.floors - 1:
            mesh.box((-0.02, -0.08, z - 0.09), (width_m + 0.02, 0, z + 0.09), "stone")
    if front and rng.random() < 0.5:
        u = rng.choice((0.15, width_m - 0.15))
        mesh.tube((u, -0.07, 0), (u, -0.07, z), 0.05, 0.05, "metal", sides=6, caps=False)
    return mesh


def _add_opening(
    mesh: Mesh, cell: tuple[float, float, float, float], hole: tuple[float, float, float, float],
    reveal_m: float, wall: str = "wall",
) -> None:  # fmt: skip
    """The wall of a cell around a hole, and the hole's four reveals."""
    u0, u1, z0, z1 = cell
    a, b, c, d = hole
    _quad(mesh, u0, u1, z0, c, 0, wall)
    _quad(mesh, u0, u1, d, z1, 0, wall)
    _quad(mesh, u0, a, c, d, 0, wall)
    _quad(mesh, b, u1, c, d, 0, wall)
    r = reveal_m
    for corners in (
        [(a, 0, c), (a, r, c), (a, r, d), (a, 0, d)][::-1],
        [(b, 0, c), (b, r, c), (b, r, d), (b, 0, d)],
        [(a, 0, c), (b, 0, c), (b, r, c), (a, r, c)],
        [(a, 0, d), (b, 0, d), (b, r, d), (a, r, d)][::-1],
    ):
        mesh.add(np.array(corners), [(0, 1, 2, 3)], wall)


def _add_pane(
    mesh: Mesh, hole: tuple[float, float, float, float], y: float, panes: tuple[int, int], slot: str
) -> None:
    """Glass with a frame and glazing bars at a depth y."""
    a, b, c, d = hole
    _quad(mesh, a, b, c, d, y, slot)
    w, y0, y1 = 0.05, y - 0.05, y - 0.002
    bars = [(a, a + w, c, d), (b - w, b, c, d), (a, b, c, c + w), (a, b, d - w, d)]
    across, up = panes
    bars += [(a + (b - a) * k / across - w / 2, a + (b - a) * k / across + w / 2, c, d)
             for k in range(1, across)]  # fmt: skip
    bars += [(a, b, c + (d - c) * k / up - w / 2, c + (d - c) * k / up + w / 2)
             for k in range(1, up)]  # fmt: skip
    for u0, u1, z0, z1 in bars:
        mesh.box((u0, y0, z0), (u1, y1, z1), "frame")


def _add_window_bay(
    mesh: Mesh,
    style: BuildingStyle,
    cell: tuple[float, float, float, float],
    balcony: bool,
    rng: random.Random,
) -> None:
    u0, u1, z0, z1 = cell
    half = (u1 - u0) * style.window_width / 2
    middle = (u0 + u1) / 2
    sill = 0.08 if balcony else style.sill_m
    top = min(z0 + style.sill_m + style.window_m, z1 - 0.25)
    hole = (middle - half, middle + half, z0 + sill, top)
    _add_opening(mesh, cell, hole, style.reveal_m)
    lit = rng.random() < 0.3
    _add_pane(mesh, hole, style.reveal_m, style.mullions, "lit" if lit else "glass")
    a, b, c, d = hole
    if not balcony and style.reveal_m > 0.05:
        mesh.box((a - 0.06, -0.08, c - 0.05), (b + 0.06, style.reveal_m * 0.5, c), "stone")
    if style.surrounds:
        mesh.box((a - 0.12, -0.03, d), (b + 0.12, 0.0, d + 0.14), "stone")
        mesh.box((a - 0.12, -0.03, c), (a, 0.0, d), "stone")
        mesh.box((b, -0.03, c), (b + 0.12, 0.0, d), "stone")
    if rng.random() < 0.12:  # a blind behind the glass line
        share = rng.uniform(0.2, 0.8)
        _quad(mesh, a + 0.05, b - 0.05, d - share * (d - c), d, style.reveal_m - 0.02, "sign")
    if balcony:
        _add_balcony(mesh, (u0 + 0.1, u1 - 0.1, z0), rng)


def _add_balcony(mesh: Mesh, place: tuple[float, float, float], rng: random.Random) -> None:
    u0, u1, z = place
    out = rng.uniform(0.8, 1.4)
    mesh.box((u0, -out, z - 0.15), (u1, 0, z), "stone")
    if rng.random() < 0.35:
        mesh.box((u0, -out, z), (u1, -out + 0.06, z + 1.0), "wall")
    else:
        mesh.box((u0, -out, z + 0.98), (u1, -out + 0.05, z + 1.03), "metal")
        bars = int((u1 - u0) / 0.14)
        for k in range(bars + 1):
            u = u0 + (u1 - u0 - 0.02) * k / max(1, bars)
            mesh.box((u, -out + 0.01, z), (u + 0.02, -out + 0.03, z + 0.98), "metal")
    for u in (u0, u1 - 0.04):
        mesh.box((u, -out, z + 0.98), (u + 0.04, 0, z + 1.03), "metal")


def _add_ground_bay(
    mesh: Mesh,
    style: BuildingStyle,
    cell: tuple[float, float, float],
    door: bool,
    rng: random.Random,
) -> None:
    """A bay of the front's ground floor: a door, a shop window, a gate or a window."""
    u0, u1, tall = cell
    middle, reveal = (u0 + u1) / 2, max(0.1, style.reveal_m)
    full = (u0, u1, 0.0, tall)
    if door:
        hole = (middle - 0.55, middle + 0.55, 0.0, 2.2)
        hole = (max(u0 + 0.1, hole[0]), min(u1 - 0.1, hole[1]), 0.0, 2.2)
        _add_opening(mesh, full, hole, reveal + 0.1)
        _quad(mesh, *hole, reveal + 0.1, "door")
        mesh.box((hole[1] - 0.2, reveal + 0.03, 1.0), (hole[1] - 0.15, reveal + 0.1, 1.12), "metal")
        mesh.box((hole[0] - 0.1, -0.35, 0.0), (hole[1] + 0.1, 0.0, 0.14), "stone")
        if rng.random() < 0.4:
            mesh.box((hole[0] - 0.2, -0.9, 2.4), (hole[1] + 0.2, 0.0, 2.48), "metal")
    elif style.ground == "shops":
        hole = (u0 + 0.15, u1 - 0.15, 0.35, min(tall - 0.7, 2.9))
        _add_opening(mesh, full, hole, reveal, "base")
        _add_pane(mesh, hole, reveal, (rng.choice((1, 1, 2)), 1), "glass")
        mesh.box((u0, -0.06, hole[3] + 0.05), (u1, 0, hole[3] + 0.5), "sign")
        if rng.random() < 0.3:
            _add_awning(mesh, u0 + 0.1, u1 - 0.1, hole[3])
    elif style.ground == "garage" and rng.random() < 0.6:
        top = min(tall - 0.4, rng.uniform(2.2, 4.0))
        hole = (u0 + 0.2, u1 - 0.2, 0.0, top)
        _add_opening(mesh, full, hole, reveal, "base")
        for k in range(int(top / 0.28) + 1):
            z0, z1 = 0.28 * k, min(top, 0.28 * (k + 1))
            _quad(mesh, hole[0], hole[1], z0, z1, reveal - 0.015 * (k % 2), "door")
    else:
        _add_window_bay(mesh, style, full, False, rng)


def _add_awning(mesh: Mesh, u0: float, u1: float, z: float) -> None:
    corners = [(u0, -0.05, z), (u1, -0.05, z), (u1, -1.1, z - 0.45), (u0, -1.1, z - 0.45)]
    lower = [(x, y, h - 0.03) for x, y, h in corners]
    mesh.add(np.array(corners + lower), [(3, 2, 1, 0), (4, 5, 6, 7), (2, 3, 7, 6)], "sign")


def _add_roof(  # noqa: PLR0917
    mesh: Mesh, style: BuildingStyle, width: float, depth: float, z: float, rng: random.Random
) -> None:
    out, top = 0.35, z + style.roof_m
    if style.roof == "flat":
        mesh.box((0, 0, z), (width, depth, z + 0.05), "roof")
        parapet = rng.uniform(0.25, 0.9)
        t = 0.22
        for lo, hi in (
            ((-0.1, -0.1), (width + 0.1, t)), ((-0.1, depth - t), (width + 0.1, depth)),
            ((-0.1, t), (t, depth - t)), ((width - t, t), (width + 0.1, depth - t)),
        ):  # fmt: skip
            mesh.box((*lo, z), (*hi, z + parapet), "stone")
        for _ in range(rng.randint(0, 3)):
            x, y = rng.uniform(1, max(1.1, width - 2)), rng.uniform(1, max(1.1, depth - 2))
            mesh.box(
                (x, y, z), (x + rng.uniform(0.6, 2), y + 1.0, z + rng.uniform(0.6, 1.8)), "metal"
            )
        return
    inset = min(depth, width) * 0.45 if style.roof == "hip" else 0.0
    y = depth / 2
    ridge = [
        (inset - (0 if inset else out), y, top),
        (width - inset + (0 if inset else out), y, top),
    ]
    low = z - 0.1
    corners = ((-out, -out), (width + out, -out), (width + out, depth + out), (-out, depth + out))
    eaves = [(x, y_, low) for x, y_ in corners]
    points = np.array([*eaves, *ridge])
    mesh.add(points, [(0, 1, 5, 4), (2, 3, 4, 5)], "roof")
    mesh.add(points, [(3, 0, 4), (1, 2, 5)], "roof" if inset else "wall")
    mesh.add(np.array(eaves), [(3, 2, 1, 0)], "frame")
    mesh.tube((-out, -out, z - 0.08), (width + out, -out, z - 0.08), 0.06, 0.06, "metal", sides=6)
    if rng.random() < 0.7:
        x = rng.uniform(0.2, 0.8) * width
        mesh.box((x, y - 0.9, z), (x + 0.6, y - 0.4, top + rng.uniform(0.3, 1.0)), "base")
