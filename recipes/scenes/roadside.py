"""Street furniture: lamps, signs, traffic lights, bins, benches, fences, shelters. Pure code.

Each thing stands on z = 0 at the origin; the road is towards -y unless stated.
"""

from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
from recipes.scenes.mesh import Mesh

SLOTS = ("metal", "sign", "face", "wood", "dark", "lamp", "red", "green", "glass", "white", "stone")
"""Material slots that the things here may have."""


def lamp_post(rng: random.Random) -> Mesh:
    """A lamp on a post with an arm over the road, or with a lantern on top."""
    mesh, height = Mesh(), rng.uniform(3.5, 9.5)
    mesh.tube((0, 0, 0), (0, 0, 0.9), 0.1, 0.09, "metal", sides=10)
    mesh.tube((0, 0, 0.9), (0, 0, height), 0.065, 0.045, "metal", sides=10)
    if height > 5:
        arm = rng.uniform(0.6, 2.2)
        mesh.tube((0, 0, height), (0, -arm, height + 0.15), 0.035, 0.03, "metal", sides=6)
        mesh.box((-0.1, -arm - 0.5, height + 0.1), (0.1, -arm + 0.1, height + 0.22), "metal")
        mesh.box((-0.08, -arm - 0.45, height + 0.08), (0.08, -arm, height + 0.1), "lamp")
    else:
        mesh.tube((0, 0, height), (0, 0, height + 0.45), 0.13, 0.2, "lamp", sides=8)
        mesh.tube((0, 0, height + 0.45), (0, 0, height + 0.6), 0.24, 0.03, "metal", sides=8)
    return mesh


def road_sign(rng: random.Random) -> Mesh:
    """A disc, triangle, octagon or panel on a post, which faces along -x."""
    mesh, height = Mesh(), rng.uniform(2.0, 2.9)
    mesh.tube((0, 0, 0), (0, 0, height), 0.03, 0.03, "metal", sides=8)
    kind = rng.choice(("disc", "triangle", "octagon", "panel", "panel"))
    z, r = height - 0.1, rng.uniform(0.28, 0.4)
    if kind == "panel":
        w, h = rng.uniform(0.2, 0.9), rng.uniform(0.15, 0.45)
        mesh.box((-0.05, -w, z - h), (-0.03, w, z + h), "sign")
        mesh.box((-0.055, -w * 0.9, z - h * 0.85), (-0.045, w * 0.9, z + h * 0.85), "face")
        return mesh
    sides = {"disc": 20, "triangle": 3, "octagon": 8}[kind]
    turn = math.pi / 2 if kind == "triangle" else math.pi / sides
    angle = turn + np.arange(sides) * 2 * math.pi / sides
    for radius, x, slot in ((r, -0.035, "red"), (0.76 * r, -0.045, "face")):
        ring = np.stack(
            [np.full(sides, x), radius * np.cos(angle), z + radius * np.sin(angle)], axis=1
        )
        behind = ring + np.array([0.012, 0, 0])
        rim = [(i, (i + 1) % sides, sides + (i + 1) % sides, sides + i) for i in range(sides)]
        mesh.add(np.concatenate([ring, behind]), rim, slot)
        mesh.add(ring, [tuple(range(sides - 1, -1, -1))], slot)
        mesh.add(behind, [tuple(range(sides))], "metal")
    return mesh


def traffic_light(rng: random.Random) -> Mesh:
    """Three lights on a post, sometimes on an arm over the road; they face -x."""
    mesh, height = Mesh(), rng.uniform(2.8, 3.6)
    mesh.tube((0, 0, 0), (0, 0, height), 0.06, 0.05, "metal", sides=8)
    heads = [(0.0, height - 0.5)]
    if rng.random() < 0.5:
        top, reach = rng.uniform(5, 6), rng.uniform(2, 5)
        mesh.tube((0, 0, height), (0, 0, top), 0.05, 0.05, "metal", sides=8)
        mesh.tube((0, 0, top), (0, -reach, top), 0.05, 0.04, "metal", sides=8)
        heads.append((-reach, top - 0.5))
    for y, z in heads:
        mesh.box((-0.2, y - 0.15, z - 0.45), (-0.02, y + 0.15, z + 0.45), "dark")
        for k, slot in enumerate(("green", "white", "red")):
            c = z - 0.28 + 0.28 * k
            mesh.tube((-0.2, y, c), (-0.225, y, c), 0.1, 0.1, slot if k != 1 else "face", sides=12)
    return mesh


def litter_bin(rng: random.Random) -> Mesh:
    """A round litter bin, or a wheeled bin."""
    mesh = Mesh()
    if rng.random() < 0.5:
        r, h = rng.uniform(0.18, 0.3), rng.uniform(0.7, 1.0)
        mesh.tube(
            (0, 0, 0), (0, 0, h), r * 0.9, r, rng.choice(("metal", "green", "dark")), sides=14
        )
        mesh.tube((0, 0, h), (0, 0, h + 0.12), r * 1.05, r * 0.5, "dark", sides=14)
    else:
        w, d, h = rng.uniform(0.25, 0.6), rng.uniform(0.3, 0.5), rng.uniform(0.95, 1.2)
        slot = rng.choice(("green", "dark", "sign"))
        mesh.box((-w * 0.85, -d * 0.85, 0.1), (w * 0.85, d * 0.85, h * 0.6), slot)
        mesh.box((-w, -d, h * 0.6), (w, d, h), slot)
        mesh.box((-w * 1.05, -d * 1.1, h), (w * 1.05, d * 1.05, h + 0.06), "dark")
        for x in (-w * 0.8, w * 0.8):
            mesh.tube((x - 0.03, d, 0.12), (x + 0.03, d, 0.12), 0.12, 0.12, "dark", sides=10)
    return mesh


def bench(rng: random.Random) -> Mesh:
    """A bench of slats, which faces the road."""
    mesh, length = Mesh(), rng.uniform(1.4, 2.0)
    for k in range(4):
        y = -0.2 + 0.12 * k
        mesh.box((-length / 2, y, 0.42), (length / 2, y + 0.09, 0.46), "wood")
    for k in range(3):
        z = 0.55 + 0.13 * k
        mesh.box((-length / 2, 0.27 + 0.03 * k, z), (length / 2, 0.31 + 0.03 * k, z + 0.1), "wood")
    for x in (-0.4 * length, 0.4 * length):
        mesh.box((x - 0.03, -0.2, 0), (x + 0.03, 0.3, 0.42), "metal")
        mesh.box((x - 0.03, 0.28, 0.42), (x + 0.03, 0.36, 0.9), "metal")
    return mesh


def bollard(rng: random.Random) -> Mesh:
    """A post that keeps cars out."""
    mesh, h = Mesh(), rng.uniform(0.7, 1.1)
    r = rng.uniform(0.05, 0.12)
    mesh.tube((0, 0, 0), (0, 0, h), r, r * 0.9, rng.choice(("metal", "dark", "stone")), sides=12)
    mesh.tube((0, 0, h * 0.82), (0, 0, h * 0.9), r * 1.04, r * 1.03, "white", sides=12)
    return mesh


def cone(rng: random.Random) -> Mesh:
    """A traffic cone."""
    mesh, h = Mesh(), rng.uniform(0.45, 0.75)
    mesh.box((-0.2, -0.2, 0), (0.2, 0.2, 0.04), "red")
    mesh.tube((0, 0, 0.04), (0, 0, h), 0.15, 0.03, "red", sides=12)
    mesh.tube((0, 0, 0.45 * h), (0, 0, 0.65 * h), 0.103, 0.078, "white", sides=12)
    return mesh


def shelter(rng: random.Random) -> Mesh:
    """A bus shelter of panes and a roof, open to the road."""
    mesh, w, d, h = Mesh(), rng.uniform(2.5, 4.5), rng.uniform(1.2, 1.6), rng.uniform(2.3, 2.6)
    for x in (-w / 2, w / 2):
        for y in (0, d):
            mesh.box((x - 0.04, y - 0.04, 0), (x + 0.04, y + 0.04, h), "metal")
        mesh.box((x - 0.008, 0.05, 0.2), (x + 0.008, d - 0.05, h - 0.2), "glass")
    mesh.box((-w / 2, d - 0.01, 0.2), (w / 2, d + 0.01, h - 0.2), "glass")
    mesh.box((-w / 2 - 0.2, -0.3, h), (w / 2 + 0.2, d + 0.1, h + 0.1), "metal")
    mesh.box((-w / 3, d - 0.5, 0.44), (w / 3, d - 0.15, 0.48), "wood")
    mesh.box((w / 2 - 0.06, 0.1, 0.5), (w / 2 + 0.06, d - 0.15, 2.0), "face")
    return mesh


def bicycle(rng: random.Random) -> Mesh:
    """A bicycle along x."""
    mesh, r = Mesh(), rng.uniform(0.3, 0.36)
    for x in (-0.52, 0.52):
        angle = np.linspace(0, 2 * math.pi, 17)
        ring = np.stack([x + r * np.cos(angle), np.zeros(17), r + r * np.sin(angle)], axis=1)
        for a, b in pairwise(ring):
            mesh.tube(a, b, 0.018, 0.018, "dark", sides=5, caps=False)
        for k in range(6):
            mesh.tube((x, 0, r), ring[(3 * k) % 16], 0.004, 0.004, "metal", sides=3, caps=False)
    saddle, steer, pedal = (-0.2, 0, 0.9), (0.36, 0, 0.88), (-0.06, 0, 0.28)
    slot = rng.choice(("red", "green", "sign", "dark", "white"))
    for a, b in (
        (saddle, pedal), (pedal, steer), (saddle, steer), ((-0.52, 0, r), pedal),
        ((-0.52, 0, r), saddle), ((0.52, 0, r), (0.38, 0, 0.98)),
    ):  # fmt: skip
        mesh.tube(a, b, 0.02, 0.02, slot, sides=6)
    mesh.tube((0.38, -0.28, 1.0), (0.38, 0.28, 1.0), 0.015, 0.015, "metal", sides=6)
    mesh.box((-0.34, -0.06, 0.9), (-0.08, 0.06, 0.95), "dark")
    return mesh


def utility_pole(rng: random.Random, span_m: float) -> Mesh:
    """A wooden pole with a cross-arm, and wires to the next one along +x."""
    mesh, h = Mesh(), rng.uniform(7, 9)
    mesh.tube((0, 0, 0), (0, 0, h), 0.14, 0.1, "wood", sides=10)
    mesh.box((-0.06, -0.9, h - 0.6), (0.06, 0.9, h - 0.48), "wood")
    for y in (-0.8, 0.0, 0.8):
        x = np.linspace(0, span_m, 9)
        z = h - 0.45 - 0.9 * (1 - ((x - span_m / 2) / (span_m / 2)) ** 2)
        for i in range(8):
            mesh.tube(
                (x[i], y, z[i]), (x[i + 1], y, z[i + 1]), 0.012, 0.012, "dark", sides=4, caps=False
            )
    return mesh


def fence(length_m: float, rng: random.Random) -> Mesh:
    """A fence or wall along x from 0 to its length."""
    mesh = Mesh()
    kind = rng.choice(("pickets", "rails", "bars", "wall", "panels"))
    h = rng.uniform(0.8, 1.8)
    if kind == "wall":
        mesh.box((0, -0.12, -0.5), (length_m, 0.12, h), "stone")
        mesh.box((0, -0.16, h), (length_m, 0.16, h + 0.06), "white")
        return mesh
    posts = max(1, round(length_m / 2.4))
    for k in range(posts + 1):
        x = length_m * k / posts
        mesh.box((x - 0.05, -0.05, -0.4), (x + 0.05, 0.05, h + 0.05), "wood")
    slot = rng.choice(("wood", "white")) if kind != "bars" else "metal"
    for z in (0.25 * h, 0.85 * h) if kind != "rails" else (0.3 * h, 0.6 * h, 0.92 * h):
        mesh.box((0, -0.03, z - 0.04), (length_m, 0.03, z + 0.04), slot)
    if kind == "panels":
        mesh.box((0, -0.015, 0.05), (length_m, 0.015, h), slot)
    if kind in ("pickets", "bars"):
        pitch, w = (0.13, 0.08) if kind == "pickets" else (0.12, 0.02)
        for k in range(int(length_m / pitch)):
            x = pitch * (k + 0.5)
            mesh.box((x - w / 2, -0.05, 0.05), (x + w / 2, -0.03, h), slot)
    return mesh


THINGS = {
    "sign": road_sign,
    "bin": litter_bin,
    "bench": bench,
    "bollard": bollard,
    "cone": cone,
    "bicycle": bicycle,
    "shelter": shelter,
}
"""Things that stand on pavements, by name."""
