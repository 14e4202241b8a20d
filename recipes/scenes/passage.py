"""Corridors, halls and stairwells, with rooms behind their doors. Needs bpy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import bpy
import numpy as np
from recipes.scenes import shaders
from recipes.scenes.cameras import View, aim, choose
from recipes.scenes.indoor import (
    OUTSIDE,
    SHELL,
    Indoor,
    add_carton,
    against_wall,
    build_shell,
    door_frame,
    hang_wall_art,
    light_room,
    on_floor,
    place_small_things,
    wall_box,
)
from recipes.scenes.mesh import Mesh
from recipes.scenes.passages import Passage, SideRoom, Stairs, plan_passage
from recipes.scenes.photo import kelvin_rgb
from recipes.scenes.plan import SceneSpec
from recipes.scenes.rooms import WALL_THICKNESS_M, Opening, Wall
from recipes.scenes.stage import Stage

AT_WALLS = (
    "SingleCabinetFactory", "SimpleBookcaseFactory", "LargeShelfFactory", "CellShelfFactory",
    "SidetableDeskFactory", "BeverageFridgeFactory", "SofaFactory",
)  # fmt: skip
ON_FLOOR = (
    "LargePlantContainerFactory", "LargePlantContainerFactory", "ChairFactory", "BarChairFactory",
    "ArmChairFactory", "SideTableFactory", "BasketBaseFactory", "VaseFactory", "PalletFactory",
)  # fmt: skip
IN_SIDE_ROOMS = (
    "SimpleDeskFactory", "SimpleBookcaseFactory", "OfficeChairFactory", "SofaFactory",
    "SingleCabinetFactory", "LargeShelfFactory", "ChairFactory", "LargePlantContainerFactory",
    "KitchenCabinetFactory", "TableDiningFactory", "BedFrameFactory", "RackFactory",
)  # fmt: skip
TURN_DEG = (-35, 35)
"""Deviation of a camera's direction from that of the passage, for most of the views."""


@dataclass
class BuiltPassage:
    """A passage in Blender."""

    indoor: Indoor
    plan: Passage

    def settings(self) -> dict[str, Any]:
        """The entries of meta.json for the scene."""
        openings = [o.kind for wall in self.plan.room.walls for o in wall.openings]
        counts = {kind: openings.count(kind) for kind in sorted(set(openings))}
        return self.indoor.settings() | {
            "openings": counts,
            "mirrors": len(self.plan.mirrors),
            "steps": self.plan.stairs.steps if self.plan.stairs else 0,
        }


def build_passage(spec: SceneSpec, stage: Stage) -> BuiltPassage:
    """A lit passage with furniture, and the rooms that are seen from it."""
    plan = plan_passage(spec.rng("room"))
    indoor = Indoor(spec, stage, spec.rng("layout"), plan.room)
    build_shell(indoor, {"doorway": _build_doorway, "glass": _build_glass_door})
    for side in plan.sides:
        _build_side_room(indoor, side)
    if plan.stairs:
        _build_stairs(indoor, plan.stairs)
    _hang_mirrors(indoor, plan)
    _furnish(indoor)
    place_small_things(indoor)
    hang_wall_art(indoor)
    light_room(indoor, spec.rng("light"))
    return BuiltPassage(indoor, plan)


def _build_doorway(indoor: Indoor, wall: Wall, o: Opening, frame: Any) -> None:
    """A frame whose leaf is open into the room behind, or missing."""
    stage, rng = indoor.stage, indoor.rng
    mesh = Mesh()
    door_frame(mesh, wall, o, rng.uniform(0.04, 0.08))
    stage.add_mesh("door", mesh, {"frame": frame}, "opening")
    if rng.random() < 0.25:
        return
    leaf, width = Mesh(), o.s1 - o.s0 - 0.02
    leaf.box((0, -0.02, 0.01), (width, 0.02, o.z1 - 0.01), "leaf")
    leaf.box((width - 0.12, -0.06, 0.98), (width - 0.06, 0.06, 1.03), "knob")
    material = stage.material("wood") if rng.random() < 0.6 else frame
    knob = shaders.plain("knob", (0.6, 0.6, 0.6), 0.25, 1.0)
    item = stage.add_mesh("leaf", leaf, {"leaf": material, "knob": knob}, "opening")
    hinge_at_s0 = rng.random() < 0.5
    x, y = wall.at(o.s0 + 0.01 if hinge_at_s0 else o.s1 - 0.01, -WALL_THICKNESS_M - 0.04)
    (ax, ay), (bx, by) = wall.at(o.s0, 0), wall.at(o.s1, 0)
    closed = math.atan2(by - ay, bx - ax) if hinge_at_s0 else math.atan2(ay - by, ax - bx)
    away = wall.yaw_rad + math.pi
    side = math.copysign(1.0, math.sin(away - closed))
    item.location = (x, y, 0)
    item.rotation_euler[2] = closed + side * math.radians(rng.uniform(25, 110))


def _build_glass_door(indoor: Indoor, wall: Wall, o: Opening, frame: Any) -> None:
    """One pane, or two leaves, in a frame of metal."""
    rng, width = indoor.rng, indoor.rng.uniform(0.03, 0.09)
    mesh, pane = Mesh(), Mesh()
    door_frame(mesh, wall, o, width)
    bars = [o.s0, o.s1] if o.s1 - o.s0 < 1.1 else [o.s0, (o.s0 + o.s1) / 2, o.s1]
    for s in bars:
        wall_box(mesh, wall, (s - width / 2, s + width / 2, -0.11, -0.07, 0, o.z1), "frame")
    for z in (0.0, o.z1 - width, *((1.0,) if rng.random() < 0.4 else ())):
        wall_box(mesh, wall, (o.s0, o.s1, -0.105, -0.075, z, z + width), "frame")
    if rng.random() < 0.5:  # a vertical handle
        s = (o.s0 + o.s1) / 2 + 0.1
        wall_box(mesh, wall, (s, s + 0.03, -0.06, -0.02, 0.8, 1.3), "frame")
    wall_box(pane, wall, (o.s0, o.s1, -0.094, -0.086, 0, o.z1), "pane")
    colour = rng.choice([(0.6, 0.6, 0.62), (0.05, 0.05, 0.05), (0.8, 0.8, 0.8)])
    metal = shaders.plain("metal", colour, 0.35, rng.choice((0.0, 1.0)))
    indoor.stage.add_mesh("door", mesh, {"frame": metal}, "opening")
    indoor.stage.add_mesh("pane", pane, {"pane": shaders.glass("pane")}, "glass")


def _build_side_room(indoor: Indoor, side: SideRoom) -> None:
    """Floor, ceiling and three walls behind a door, some furniture, and mostly a lamp."""
    stage, rng, wall = indoor.stage, indoor.rng, side.wall
    s0, s1, far, high = side.s0, side.s1, -WALL_THICKNESS_M - side.depth_m, side.height_m
    near, thick = -WALL_THICKNESS_M, 0.1
    shell = Mesh()
    for span in (
        (s0 - thick, s0, far, near, 0, high),
        (s1, s1 + thick, far, near, 0, high),
        (s0 - thick, s1 + thick, far - thick, far, 0, high),
    ):
        wall_box(shell, wall, span, "wall")
    stage.add_mesh("wall", shell, {"wall": stage.material("wall", "Plaster")})
    for name, span in (
        ("floor", (s0 - thick, s1 + thick, far - thick, near - 0.02, -0.1, -0.001)),
        ("ceiling", (s0 - thick, s1 + thick, far - thick, near, high, high + 0.1)),
    ):
        mesh = Mesh()
        wall_box(mesh, wall, span, name)
        stage.add_mesh(name, mesh, {name: stage.material(name)})
    taken: list[tuple[float, float, float]] = []
    for _ in range(rng.randint(1, 6)):
        asset = stage.draw(rng.choice(IN_SIDE_ROOMS))
        if asset is None or asset.size_m[2] > high - 0.1:
            continue
        reach = float(np.hypot(*asset.size_m[:2])) / 2
        if s1 - s0 < 2 * reach or side.depth_m < 2 * reach + 0.7:
            continue
        s, d = rng.uniform(s0 + reach, s1 - reach), rng.uniform(far + reach, near - 0.7 - reach)
        if all(math.hypot(s - a, d - b) > reach + r for a, b, r in taken):
            taken.append((s, d, reach))
            stage.place(asset, (*wall.at(s, d), 0), wall.yaw_rad + rng.choice((0, 0, 1.57, -1.57)))
    if rng.random() < 0.8:
        x, y = wall.at((s0 + s1) / 2, (far + near) / 2)
        colour, power = kelvin_rgb(rng.uniform(2700, 6500)), (s1 - s0) * side.depth_m
        stage.add_light(
            "AREA", (x, y, high - 0.05), power * rng.uniform(5, 16), size=0.6, color=colour
        )


def _build_stairs(indoor: Indoor, stairs: Stairs) -> None:
    """Solid steps, a landing up to the end of the passage, and a rail on the open side."""
    stage, rng = indoor.stage, indoor.rng
    length, top = stairs.steps * stairs.going_m, stairs.steps * stairs.rise_m
    mesh, rail = Mesh(), Mesh()
    for k in range(stairs.steps):
        x = stairs.x0 + k * stairs.going_m
        z = (k + 1) * stairs.rise_m
        mesh.box((x, stairs.y0, 0), (x + stairs.going_m, stairs.y1, z), "side")
        lo, hi = (x - 0.02, stairs.y0, z - 0.03), (x + stairs.going_m, stairs.y1 + 0.01, z + 0.002)
        mesh.box(lo, hi, "tread")
    end = indoor.room.size_m[0]
    mesh.box((stairs.x0 + length + 0.001, stairs.y0, top - 0.2), (end, stairs.y1, top), "side")
    y = stairs.y1 - 0.04
    start = np.array([stairs.x0, y, stairs.rise_m + 0.9])
    finish = np.array([stairs.x0 + length, y, top + 0.9])
    rail.tube(start, finish, 0.025, 0.025, "rail")
    every = rng.choice((1, 2, stairs.steps))
    for k in range(0, stairs.steps + 1, every):
        x, z = stairs.x0 + k * stairs.going_m, min(stairs.steps, k + 1) * stairs.rise_m
        share = (x - stairs.x0) / length
        rail.tube((x, y, z), (x, y, start[2] + share * (finish[2] - start[2])), 0.012, 0.012,
                  "rail", sides=6)  # fmt: skip
    slots = {"side": stage.material("wall", "Concrete"), "tread": stage.material("floor")}
    stage.add_mesh("stairs", mesh, slots, "floor")
    metal = shaders.plain("rail", rng.choice([(0.05, 0.05, 0.05), (0.6, 0.6, 0.6)]), 0.35, 0.8)
    stage.add_mesh("rail", rail, {"rail": metal}, "object")


def _hang_mirrors(indoor: Indoor, plan: Passage) -> None:
    for mirror in plan.mirrors:
        span = (mirror.s0, mirror.s1, 0.001, 0.02, mirror.z0, mirror.z1)
        mesh = Mesh()
        wall_box(mesh, mirror.wall, span, "mirror")
        indoor.stage.add_mesh("mirror", mesh, {"mirror": shaders.mirror("mirror")})


def _furnish(indoor: Indoor) -> None:
    rng, (lx, ly, _) = indoor.rng, indoor.room.size_m
    count = round(lx * ly / rng.uniform(8, 25))
    for _ in range(count):
        against_wall(indoor, rng.choice(AT_WALLS), 8)
    for _ in range(rng.randint(0, 2) + count):
        on_floor(indoor, rng.choice(ON_FLOOR), 8)
    for _ in range(rng.choice((0, 0, 1, 3))):
        add_carton(indoor)


# Cameras


def find_views(built: BuiltPassage, views: int, size: tuple[int, int]) -> list[View]:
    """Views along the passage and through its doors."""
    bpy.context.view_layer.update()
    indoor = built.indoor
    stage, rng, (lx, ly, lz) = indoor.stage, indoor.spec.rng("cameras"), indoor.room.size_m
    candidates: list[View] = []
    for _ in range(views * 60):
        if len(candidates) >= views * 5:
            break
        kind = rng.choice(("hand", "hand", "hand", "robot", "ceiling"))
        z, pitch = {
            "hand": (rng.uniform(1.0, 1.75), rng.gauss(-6, 8)),
            "robot": (rng.uniform(0.12, 0.6), rng.gauss(0, 6)),
            "ceiling": (lz - rng.uniform(0.15, 0.5), rng.gauss(-25, 9)),
        }[kind]
        along = rng.random() < 0.75
        turn = math.radians(rng.uniform(*TURN_DEG)) if along else rng.uniform(-3.1, 3.1)
        yaw = rng.choice((0.0, math.pi)) + turn
        position = (rng.uniform(0.3, lx - 0.3), rng.uniform(0.25, ly - 0.25), z)
        roll = math.radians(rng.gauss(0, 2.5))
        matrix = aim(position, yaw, math.radians(pitch), roll)
        fov = rng.uniform(50, 100)
        if stage.clearance_m(matrix[:3, 3]) < (0.08 if kind == "robot" else 0.2):
            continue
        probe = stage.probe(matrix, fov, size)
        depth, shell = probe.depth_m[probe.hit], probe.share(SHELL)
        if probe.share(OUTSIDE) > 0.2 or len(depth) < 100:
            continue
        if np.percentile(depth, 2) < 0.2 or np.median(depth) < 0.8 or probe.log_spread() < 0.3:
            continue
        score = probe.log_spread() + 0.06 * min(probe.count_objects(SHELL), 10) - 0.3 * shell
        candidates.append(View(kind, matrix, fov, score + rng.uniform(0, 0.5)))
    return choose(candidates, views, apart_m=0.6)
