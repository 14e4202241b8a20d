"""Trees, hedges and grass from branches and leaves. Pure code: a style number gives a mesh."""

from __future__ import annotations

import math
import random

import numpy as np
from recipes.scenes.mesh import Mesh


def leaf_cloud(
    centers: np.ndarray, sizes_m: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """Vertices and faces of one bent leaf (two triangles) at each centre, in random directions."""
    n = len(centers)
    axis = generator.normal(size=(n, 3))
    axis /= np.linalg.norm(axis, axis=1, keepdims=True)
    side = np.cross(axis, generator.normal(size=(n, 3)))
    side /= np.linalg.norm(side, axis=1, keepdims=True) + 1e-9
    normal = np.cross(axis, side)
    s = sizes_m[:, None]
    corners = np.stack(
        [
            centers - s * axis,
            centers + 0.55 * s * side + 0.15 * s * normal,
            centers + s * axis,
            centers - 0.55 * s * side + 0.15 * s * normal,
        ],
        axis=1,
    )
    base = 4 * np.arange(n)[:, None]
    faces = np.concatenate([base + np.array([0, 1, 2]), base + np.array([0, 2, 3])])
    return corners.reshape(-1, 3), [tuple(face) for face in faces.tolist()]


def tree(style: int, max_leaves: int = 9000) -> Mesh:
    """A tree with its foot at the origin: trunk, two levels of branches, leaves in clusters.

    Slots: `bark`, `leaf`. The styles are round crowns, columns, cones (conifers), and bare trees.
    """
    rng = random.Random(f"tree {style}")
    generator = np.random.default_rng(style + 77)
    kind = rng.choices(("round", "wide", "column", "cone", "bare"), (5, 3, 2, 3, 1))[0]
    height = rng.uniform(9, 16) if kind in ("cone", "column") else rng.uniform(4.5, 12)
    crown_low = height * (rng.uniform(0.05, 0.15) if kind == "cone" else rng.uniform(0.3, 0.42))
    radius = height * {
        "round": rng.uniform(0.26, 0.38), "wide": rng.uniform(0.38, 0.5),
        "column": rng.uniform(0.1, 0.15), "cone": rng.uniform(0.16, 0.26),
        "bare": rng.uniform(0.3, 0.4),
    }[kind]  # fmt: skip
    mesh = Mesh()
    foot = height * rng.uniform(0.010, 0.017)
    bend = generator.normal(size=(3, 2)) * 0.03 * height
    bend[0] = 0
    levels = (0.0, 0.45 * height, 0.93 * height)
    joints = [np.array([bend[i][0], bend[i][1], levels[i]]) for i in range(3)]
    widths = (foot * 1.15, foot * 0.7, foot * 0.12)
    for i in range(2):
        mesh.tube(joints[i], joints[i + 1], widths[i], widths[i + 1], "bark", sides=8, caps=False)
    tips = []
    for _ in range(rng.randint(18, 34)):
        share = rng.uniform(0, 1) ** 0.8
        z = crown_low + share * (0.92 * height - crown_low)
        start = joints[0] + (joints[1] - joints[0]) * min(1, z / levels[1])
        if z > levels[1]:
            start = joints[1] + (joints[2] - joints[1]) * (z - levels[1]) / (levels[2] - levels[1])
        reach = radius * _crown_radius(kind, share) * rng.uniform(0.75, 1.1)
        azimuth = rng.uniform(0, 2 * math.pi)
        rise = reach * (rng.uniform(-0.35, 0) if kind == "cone" else rng.uniform(0.3, 0.9))
        tip = start + np.array([reach * math.cos(azimuth), reach * math.sin(azimuth), rise])
        mesh.tube(
            start, tip, foot * 0.35 * (1.15 - share), foot * 0.08, "bark", sides=5, caps=False
        )
        tips += [(start + (tip - start) * t, reach) for t in (0.55, 0.8, 1.0)]
        for _ in range(2 if kind != "bare" else 6):
            t = rng.uniform(0.4, 0.9)
            twig_start = start + (tip - start) * t
            twig = twig_start + generator.normal(size=3) * reach * 0.25
            mesh.tube(twig_start, twig, foot * 0.1, foot * 0.03, "bark", sides=4, caps=False)
            tips.append((twig, reach))
    if kind != "bare":
        centers = np.array([tip for tip, _ in tips])
        spread = np.array([0.15 + 0.15 * reach for _, reach in tips])
        leaves = max_leaves
        pick = generator.integers(len(centers), size=leaves)
        points = centers[pick] + generator.normal(size=(leaves, 3)) * spread[pick, None] * [
            1,
            1,
            0.7,
        ]
        size = rng.uniform(0.1, 0.15) * math.sqrt(5000 / leaves) * math.sqrt(height / 7)
        sizes = size * generator.uniform(0.6, 1.4, size=leaves)
        mesh.add(*leaf_cloud(points, sizes, generator), "leaf")
    return mesh


def _crown_radius(kind: str, share: float) -> float:
    """Relative radius of the crown at a share of its height."""
    if kind == "cone":
        return 1.05 - share
    if kind == "column":
        return 0.75 + 0.5 * math.sin(math.pi * share)
    return 0.45 + 0.75 * math.sin(math.pi * min(1, 0.15 + 0.85 * share))


def hedge(length_m: float, width_m: float, height_m: float, seed: int) -> Mesh:
    """A hedge along x from 0 to its length: a dark core and leaves at its surface."""
    generator = np.random.default_rng(seed)
    mesh = Mesh()
    inset = 0.1
    mesh.box(
        (inset, -width_m / 2 + inset, 0),
        (length_m - inset, width_m / 2 - inset, height_m - inset),
        "core",
    )
    area = 2 * length_m * height_m + length_m * width_m
    n = int(min(7000, 260 * area))
    points = generator.uniform(size=(n, 3)) * [length_m, width_m, height_m] - [0, width_m / 2, 0]
    position = generator.uniform(size=n) * area
    top = position < length_m * width_m
    points[top, 2] = height_m
    side = ~top
    points[side, 1] = np.sign(points[side, 1]) * width_m / 2
    points += generator.normal(size=(n, 3)) * 0.05
    points[:, 2] = np.maximum(points[:, 2], 0.03)
    size = generator.uniform(0.04, 0.08, size=n) * max(1.0, math.sqrt(260 * area / n))
    mesh.add(*leaf_cloud(points, size, generator), "leaf")
    return mesh


def shrub(radius_m: float, height_m: float, seed: int, leaves: int = 900) -> Mesh:
    """A shrub with its foot at the origin: leaves in a flattened ball."""
    generator = np.random.default_rng(seed)
    mesh = Mesh()
    direction = generator.normal(size=(leaves, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    radius = generator.uniform(0.45, 1, size=(leaves, 1))
    bumps = 1 + 0.2 * np.sin(5 * direction @ generator.normal(size=(3, 1)))
    points = direction * radius * bumps * [radius_m, radius_m, height_m / 2]
    points[:, 2] = np.maximum(points[:, 2] + height_m / 2, 0.02)
    sizes = generator.uniform(0.5, 1.3, size=leaves) * 0.11 * math.sqrt(radius_m)
    mesh.add(*leaf_cloud(points, sizes, generator), "leaf")
    for _ in range(4):
        tip = generator.normal(size=3) * 0.4 * radius_m
        mesh.tube(
            (0, 0, 0), (tip[0], tip[1], 0.8 * height_m), 0.03, 0.01, "bark", sides=5, caps=False
        )
    return mesh


def grass_tufts(points: np.ndarray, seed: int, height_m: float = 0.12, blades: int = 7) -> Mesh:
    """Tufts of grass: thin triangles at the given points, (n, 3)."""
    generator = np.random.default_rng(seed)
    n = len(points) * blades
    base = np.repeat(points, blades, axis=0) + generator.normal(size=(n, 3)) * [0.05, 0.05, 0]
    angle = generator.uniform(0, 2 * math.pi, size=n)
    across = np.stack([np.cos(angle), np.sin(angle), np.zeros(n)], axis=1) * 0.008
    lean = generator.normal(size=(n, 3)) * [0.04, 0.04, 0]
    tall = generator.uniform(0.4, 1.3, size=(n, 1)) * [[0, 0, height_m]]
    corners = np.stack([base - across, base + across, base + lean + tall], axis=1)
    mesh = Mesh()
    faces = (3 * np.arange(n)[:, None] + [0, 1, 2]).tolist()
    mesh.add(corners.reshape(-1, 3), [tuple(face) for face in faces], "leaf")
    return mesh
