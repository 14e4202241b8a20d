"""Rooms: shell, furniture, small objects, light and cameras. Needs bpy."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import bpy
import numpy as np
from mathutils import Vector
from recipes.scenes import shaders
from recipes.scenes.cameras import View, aim, choose, look_at
from recipes.scenes.mesh import Mesh
from recipes.scenes.photo import kelvin_rgb
from recipes.scenes.plan import SceneSpec
from recipes.scenes.rooms import (
    WALL_THICKNESS_M,
    Opening,
    Room,
    Wall,
    plan_room,
    turned_extent,
)
from recipes.scenes.stage import Asset, Placed, Stage
from recipes.scenes.world import draw_sky, set_night, set_sky

WALL_FURNITURE = (
    "SimpleBookcaseFactory", "CellShelfFactory", "LargeShelfFactory", "SingleCabinetFactory",
    "TVStandFactory", "SimpleDeskFactory", "KitchenCabinetFactory", "SidetableDeskFactory",
)  # fmt: skip
CHAIRS = ("ChairFactory", "BarChairFactory", "OfficeChairFactory", "ArmChairFactory")
TABLES = ("TableDiningFactory", "CoffeeTableFactory", "SideTableFactory", "TableCocktailFactory")
BIG_THINGS: dict[str, tuple[str, ...]] = {
    "living": (
        "SofaFactory", "SofaFactory", "TVStandFactory", "LargeShelfFactory", "ArmChairFactory",
    ),
    "bedroom": (
        "BedFrameFactory", "SingleCabinetFactory", "SidetableDeskFactory", "SidetableDeskFactory",
        "SimpleDeskFactory",
    ),
    "dining": ("CellShelfFactory", "SingleCabinetFactory", "LargeShelfFactory"),
    "office": (
        "SimpleDeskFactory", "SimpleDeskFactory", "SimpleDeskFactory", "SimpleBookcaseFactory",
        "LargeShelfFactory", "CellShelfFactory",
    ),
    "kitchen": (
        "KitchenCabinetFactory", "KitchenCabinetFactory", "OvenFactory", "BeverageFridgeFactory",
        "DishwasherFactory",
    ),
    "bath": ("BathtubFactory", "ToiletFactory", "StandingSinkFactory", "SingleCabinetFactory"),
    "store": (
        "RackFactory", "LargeShelfFactory", "LargeShelfFactory", "SimpleBookcaseFactory",
        "CellShelfFactory", "RackFactory",
    ),
    "mixed": (),
}  # fmt: skip
"""Furniture that stands at the walls, by style; `mixed` draws six of all."""
FLOOR_THINGS = (
    "FloorLampFactory", "LargePlantContainerFactory", "LargePlantContainerFactory",
    "ArmChairFactory", "ChairFactory", "SideTableFactory", "BarChairFactory",
    "TableCocktailFactory",
)  # fmt: skip
FLOOR_CLUTTER = (
    "BasketBaseFactory", "VaseFactory", "BookStackFactory", "FoodBoxFactory", "PalletFactory",
    "PillowFactory", "FoodBagFactory", "PotFactory", "BottleFactory", "TowelFactory",
)  # fmt: skip
SMALL_THINGS = (
    "BottleFactory", "BowlFactory", "CanFactory", "CupFactory", "JarFactory", "PanFactory",
    "PlateFactory", "PotFactory", "FoodBagFactory", "PlantContainerFactory", "WineglassFactory",
    "BookColumnFactory", "BookStackFactory", "FoodBoxFactory", "VaseFactory", "DeskLampFactory",
    "ToasterFactory", "MicrowaveFactory", "MonitorFactory", "FruitFactoryApple",
    "SucculentFactory", "SnakePlantFactory", "SpiderPlantFactory", "FruitFactoryPineapple",
)  # fmt: skip
DESK_THINGS = ("MonitorFactory", "BookStackFactory", "DeskLampFactory", "CupFactory")
SUPPORTS = (
    "Table", "Desk", "Shelf", "Bookcase", "Cabinet", "TVStand", "Rack", "Oven", "Fridge",
    "Dishwasher",
)  # fmt: skip
SHELVES = ("Shelf", "Bookcase", "Rack", "TVStand")
FACING = ("MonitorFactory", "MicrowaveFactory", "BookColumnFactory", "ToasterFactory")
SHELL = {"floor", "wall", "ceiling", "opening", "building", "terrain"}
"""Classes of objects that do not count as content of a view."""
OUTSIDE = {"building", "terrain", "sky"}


@dataclass
class Indoor:
    """A room that is being furnished."""

    spec: SceneSpec
    stage: Stage
    rng: random.Random
    room: Room
    light: str = ""

    def settings(self) -> dict[str, Any]:
        """The entries of meta.json for the scene."""
        return {
            "style": self.room.style,
            "light": self.light,
            "size_m": [round(v, 3) for v in self.room.size_m],
        }


def build_indoor(spec: SceneSpec, stage: Stage) -> Indoor:
    """A furnished and lit room."""
    indoor = Indoor(spec, stage, spec.rng("layout"), plan_room(spec.rng("room")))
    build_shell(indoor)
    _place_furniture(indoor)
    place_small_things(indoor)
    hang_wall_art(indoor)
    light_room(indoor, spec.rng("light"))
    return indoor


# Shell


def build_shell(indoor: Indoor, builders: Mapping[str, OpeningBuilder] | None = None) -> None:
    """Floor, ceiling and walls; `builders` are the functions for kinds of openings besides windows
    and closed doors."""
    stage, rng, room = indoor.stage, indoor.rng, indoor.room
    lx, ly, lz = room.size_m
    wet = room.style in ("bath", "kitchen")
    cls = rng.choices(["Plaster", "Tile", "Brick", "Concrete"], [10, 10 if wet else 2, 1.5, 1])[0]
    materials = [stage.material("wall", cls)] * 4
    if rng.random() < 0.3:
        other = rng.choice([("wall", "Plaster"), ("wall", "Brick"), ("art", ""), ("wood", "")])
        materials[rng.randrange(4)] = stage.material(*other)
    floor = stage.material("floor", "Tile" if room.style == "bath" else "")
    stage.add_box("floor", (-0.2, -0.2, -0.1), (lx + 0.2, ly + 0.2, 0), floor)
    stage.add_box(
        "ceiling", (-0.2, -0.2, lz), (lx + 0.2, ly + 0.2, lz + 0.1), stage.material("ceiling")
    )
    colour = rng.choice(
        [(0.85, 0.85, 0.83), (0.85, 0.85, 0.83), (0.05, 0.05, 0.05), (0.3, 0.2, 0.1)]
    )
    frame = shaders.plain("frame", colour, 0.4)
    for wall in room.walls:
        _build_wall(indoor, wall, materials[wall.index], frame, OPENINGS | dict(builders or {}))


def wall_box(mesh: Mesh, wall: Wall, span: tuple[float, ...], slot: str) -> None:
    """Append a box on a wall: (s0, s1, d0, d1, z0, z1)."""
    s0, s1, d0, d1, z0, z1 = span
    x0, y0, x1, y1 = wall.rect(s0, s1, d0, d1)
    mesh.box((x0, y0, z0), (x1, y1, z1), slot)


def _build_wall(
    indoor: Indoor,
    wall: Wall,
    material: Any,
    frame: Any,
    builders: Mapping[str, OpeningBuilder],
) -> None:
    stage, rng, height = indoor.stage, indoor.rng, indoor.room.size_m[2]
    thick = WALL_THICKNESS_M
    mesh, at = Mesh(), -thick if wall.index < 2 else 0.0
    end = wall.length_m + thick if wall.index < 2 else wall.length_m
    for o in sorted(wall.openings, key=lambda o: o.s0):
        wall_box(mesh, wall, (at, o.s0, -thick, 0, 0, height), "wall")
        if o.z0 > 0.03:
            wall_box(mesh, wall, (o.s0, o.s1, -thick, 0, 0, o.z0), "wall")
        wall_box(mesh, wall, (o.s0, o.s1, -thick, 0, o.z1, height), "wall")
        at = o.s1
        builders[o.kind](indoor, wall, o, frame)
    wall_box(mesh, wall, (at, end, -thick, 0, 0, height), "wall")
    stage.add_mesh("wall", mesh, {"wall": material})
    if rng.random() < 0.75:
        skirting, at, high = Mesh(), 0.0, rng.uniform(0.05, 0.13)
        for o in sorted(wall.openings, key=lambda o: o.s0):
            if o.z0 < 0.2:
                wall_box(skirting, wall, (at, o.s0, 0, 0.015, 0, high), "frame")
                at = o.s1
        wall_box(skirting, wall, (at, wall.length_m, 0, 0.015, 0, high), "frame")
        stage.add_mesh("skirting", skirting, {"frame": frame}, "wall")


def _build_window(indoor: Indoor, wall: Wall, o: Opening, frame: Any) -> None:
    stage, rng = indoor.stage, indoor.rng
    mesh, w = Mesh(), rng.uniform(0.04, 0.08)
    bars = [
        (o.s0, o.s0 + w, o.z0, o.z1),
        (o.s1 - w, o.s1, o.z0, o.z1),
        (o.s0, o.s1, o.z0, o.z0 + w),
        (o.s0, o.s1, o.z1 - w, o.z1),
    ]
    for share in rng.choice([(), (0.5,), (0.5,), (0.333, 0.667)]):
        s = o.s0 + share * (o.s1 - o.s0)
        bars.append((s - w / 2, s + w / 2, o.z0, o.z1))
    if rng.random() < 0.3:
        middle = (o.z0 + o.z1) / 2
        bars.append((o.s0, o.s1, middle - w / 2, middle + w / 2))
    for s0, s1, z0, z1 in bars:
        jitter = rng.uniform(0, 0.012)
        wall_box(mesh, wall, (s0, s1, -0.11 - jitter, -0.05 - jitter, z0, z1), "frame")
    if o.z0 > 0.3:
        depth = rng.uniform(0.03, 0.12)
        wall_box(
            mesh, wall, (o.s0 - 0.05, o.s1 + 0.05, -0.05, depth, o.z0 - 0.03, o.z0 + 0.004), "frame"
        )
    stage.add_mesh("window", mesh, {"frame": frame}, "opening")
    if rng.random() < 0.5:
        _hang_curtains(indoor, wall, o)
    elif rng.random() < 0.25:
        _hang_blind(indoor, wall, o)


def _hang_curtains(indoor: Indoor, wall: Wall, o: Opening) -> None:
    rng, height = indoor.rng, indoor.room.size_m[2]
    material = indoor.stage.material(*rng.choice([("fabric", ""), ("fabric", ""), ("art", "ArtF")]))
    width = (o.s1 - o.s0) * rng.uniform(0.15, 0.45)
    top = min(height - 0.05, o.z1 + 0.15)
    low = rng.random() < 0.6 or o.z0 < 0.3
    bottom = rng.uniform(0.02, 0.2) if low else o.z0 - 0.1
    columns = 60
    for s0 in (o.s0 - 0.15, o.s1 + 0.15 - width):
        s = np.linspace(s0, s0 + width, columns)
        wave = np.sin(s / rng.uniform(0.08, 0.14) * 2 * math.pi + rng.uniform(0, 6))
        d = 0.09 + 0.035 * wave
        points = [(*wall.at(a, b), z) for z in (bottom, top) for a, b in zip(s, d, strict=True)]
        faces = [(k, k + 1, columns + k + 1, columns + k) for k in range(columns - 1)]
        mesh = Mesh()
        mesh.add(np.array(points), faces, "cloth", smooth=True)
        indoor.stage.add_mesh("curtain", mesh, {"cloth": material}, "object")


def _hang_blind(indoor: Indoor, wall: Wall, o: Opening) -> None:
    """Slats over the upper part of a window."""
    rng, mesh = indoor.rng, Mesh()
    bottom = o.z0 + (o.z1 - o.z0) * rng.uniform(0.0, 0.7)
    pitch = rng.uniform(0.04, 0.07)
    for k in range(int((o.z1 - bottom) / pitch)):
        z = o.z1 - k * pitch
        wall_box(mesh, wall, (o.s0 + 0.01, o.s1 - 0.01, -0.045, -0.01, z - 0.006, z), "slat")
    colour = rng.choice([(0.8, 0.8, 0.78), (0.5, 0.35, 0.2), (0.3, 0.3, 0.32)])
    if mesh.count:
        indoor.stage.add_mesh("blind", mesh, {"slat": shaders.plain("slat", colour)}, "object")


def door_frame(mesh: Mesh, wall: Wall, o: Opening, width_m: float) -> None:
    """Append the frame of a door: two jambs and a head."""
    d0, d1, e = -WALL_THICKNESS_M - 0.004, 0.015, 0.004  # faces in one plane would flicker
    wall_box(mesh, wall, (o.s0 - width_m, o.s0 + e, d0, d1, 0, o.z1 + width_m), "frame")
    wall_box(mesh, wall, (o.s1 - e, o.s1 + width_m, d0, d1, 0, o.z1 + width_m), "frame")
    wall_box(mesh, wall, (o.s0, o.s1, d0, d1, o.z1 - e, o.z1 + width_m), "frame")


def _build_door(indoor: Indoor, wall: Wall, o: Opening, frame: Any) -> None:
    stage, rng = indoor.stage, indoor.rng
    mesh, w, width = Mesh(), rng.uniform(0.04, 0.08), o.s1 - o.s0
    door_frame(mesh, wall, o, w)
    wall_box(mesh, wall, (o.s0, o.s1, -0.09, -0.05, 0, o.z1), "leaf")
    if rng.random() < 0.6:
        for low, high in ((0.1, 0.45), (0.52, 0.93)):
            a, b = o.s0 + 0.12 * width, o.s0 + 0.88 * width
            wall_box(mesh, wall, (a, b, -0.05, -0.035, o.z1 * low, o.z1 * high), "leaf")
    wall_box(mesh, wall, (o.s1 - 0.12, o.s1 - 0.06, -0.05, 0.03, 0.98, 1.03), "knob")
    leaf = stage.material("wood") if rng.random() < 0.6 else frame
    knob = shaders.plain("knob", (0.6, 0.6, 0.6), 0.25, 1.0)
    stage.add_mesh("door", mesh, {"frame": frame, "leaf": leaf, "knob": knob}, "opening")


OpeningBuilder = Callable[[Indoor, Wall, Opening, Any], None]
OPENINGS: dict[str, OpeningBuilder] = {"window": _build_window, "door": _build_door}


# Furniture


def against_wall(indoor: Indoor, cls: str, tries: int = 14) -> Placed | None:
    """Put an asset of a class at a free place of a wall; None if none was found."""
    stage, rng, room = indoor.stage, indoor.rng, indoor.room
    asset = stage.draw(cls)
    if asset is None:
        return None
    size, scale = asset.size_m, 1.0
    if size[2] > room.size_m[2] - 0.1:
        scale = (room.size_m[2] - 0.2) / size[2]
        size = size * scale
    for _ in range(tries):
        wall = rng.choice(room.walls)
        if size[1] > wall.length_m - 0.1:
            continue
        s = rng.uniform(size[1] / 2 + 0.05, wall.length_m - size[1] / 2 - 0.05)
        gap = rng.uniform(0.03, 0.08)
        s0, s1 = s - size[1] / 2, s + size[1] / 2
        rect = wall.rect(s0, s1, gap, gap + size[0])
        if wall.covers(s0, s1, 0, size[2] - 0.05) or not room.free(rect):
            continue
        room.taken.append(rect)
        wall.blocked.append((s0, s1, 0, size[2]))
        x, y = wall.at(s, gap + size[0] / 2)
        placed = stage.place(asset, (x, y, 0), wall.yaw_rad, scale)
        placed.wall, placed.along_m = wall, s
        return placed
    return None


def on_floor(
    indoor: Indoor,
    cls: str,
    tries: int = 14,
    yaw_rad: float | None = None,
    near: tuple[float, float, float] | None = None,
) -> Placed | None:
    """Put an asset on free floor; `near` is x, y and the greatest deviation from them."""
    stage, rng, room = indoor.stage, indoor.rng, indoor.room
    asset = stage.draw(cls)
    if asset is None:
        return None
    for _ in range(tries):
        yaw = rng.uniform(-math.pi, math.pi) if yaw_rad is None else yaw_rad
        ex, ey = turned_extent(tuple(asset.size_m[:2]), yaw)
        if near is None:
            x = rng.uniform(ex, max(ex, room.size_m[0] - ex))
            y = rng.uniform(ey, max(ey, room.size_m[1] - ey))
        else:
            x = near[0] + rng.uniform(-near[2], near[2])
            y = near[1] + rng.uniform(-near[2], near[2])
        rect = (x - ex, y - ey, x + ex, y + ey)
        if room.free(rect, 0.01):
            room.taken.append(rect)
            return stage.place(asset, (x, y, 0), yaw)
    return None


def _table_with_chairs(indoor: Indoor, table_cls: str, chair_cls: str, chairs: int) -> None:
    stage, rng, room = indoor.stage, indoor.rng, indoor.room
    turn = rng.uniform(-0.3, 0.3) if rng.random() < 0.2 else 0.0
    table = on_floor(indoor, table_cls, 20, rng.choice([0, math.pi / 2]) + turn)
    chair = stage.draw(chair_cls)
    if table is None or chair is None:
        return
    table_rect = room.taken[-1]
    slots = [(0, 1), (0, -1), (1, 0), (-1, 0), (0.5, 1), (-0.5, 1), (0.5, -1), (-0.5, -1)]
    rng.shuffle(slots)
    c, s = math.cos(table.yaw_rad), math.sin(table.yaw_rad)
    tx, ty = table.center_xy
    half = max(chair.size_m[:2]) / 2
    for ux, uy in slots[:chairs]:
        out = chair.size_m[0] / 2 + rng.uniform(-0.1, 0.25)
        x = ux * table.size_m[0] / 2 + (math.copysign(out, ux) if uy == 0 else 0)
        y = uy * table.size_m[1] / 2 + (math.copysign(out, uy) if uy else 0)
        wx, wy = tx + c * x - s * y, ty + s * x + c * y
        reach = 0.7 * half
        rect = (wx - reach, wy - reach, wx + reach, wy + reach)
        others = Room(room.style, room.size_m, [], [r for r in room.taken if r != table_rect])
        if others.free(rect, 0):
            yaw = math.atan2(ty - wy, tx - wx) + rng.uniform(-0.35, 0.35)
            stage.place(chair, (wx, wy, 0), yaw)
            room.taken.append(rect)


def _place_furniture(indoor: Indoor) -> None:
    rng, room = indoor.rng, indoor.room
    style = room.style
    if style in ("living", "dining", "bedroom", "mixed", "office") and rng.random() < 0.6:
        _lay_rug(indoor)
    big = BIG_THINGS[style] or rng.choices(
        (*WALL_FURNITURE, "SofaFactory", "OvenFactory", "RackFactory", "BeverageFridgeFactory"), k=6
    )
    for cls in big:
        placed = against_wall(indoor, cls, 25)
        if placed is None:
            continue
        if cls == "BedFrameFactory":
            _make_bed(indoor, placed)
        elif cls == "SimpleDeskFactory":
            _add_desk_chair(indoor, placed)
        elif cls == "SofaFactory" and rng.random() < 0.7:
            wall = placed.wall
            x, y = wall.at(placed.along_m, placed.size_m[0] + rng.uniform(0.5, 0.9))
            on_floor(indoor, "CoffeeTableFactory", 6, wall.yaw_rad, (x, y, 0.15))
    if style in ("dining", "kitchen", "mixed") or rng.random() < 0.3:
        _table_with_chairs(indoor, "TableDiningFactory", rng.choice(CHAIRS[:3]), rng.randint(2, 6))
    if style in ("living", "office", "store", "mixed") and rng.random() < 0.5:
        _table_with_chairs(indoor, rng.choice(TABLES), rng.choice(CHAIRS), rng.randint(0, 3))
    _fill_floor(indoor)


def _fill_floor(indoor: Indoor) -> None:
    """More furniture by the size of the room, and clutter on the floor."""
    rng, room = indoor.rng, indoor.room
    area_m2 = room.size_m[0] * room.size_m[1]
    for _ in range(rng.randint(1, 3) + int(area_m2 / 12)):
        against_wall(indoor, rng.choice(WALL_FURNITURE), 8)
    for _ in range(rng.randint(1, 3) + int(area_m2 / 10)):
        on_floor(indoor, rng.choice(FLOOR_THINGS), 8)
    if area_m2 > 35:
        _table_with_chairs(indoor, rng.choice(TABLES), rng.choice(CHAIRS), rng.randint(2, 5))
    for _ in range(rng.choice([1, 2, 4, 8, 14])):
        on_floor(indoor, rng.choice(FLOOR_CLUTTER), 6)
    for _ in range(rng.choice([0, 1, 2, 4])):
        add_carton(indoor)


def _lay_rug(indoor: Indoor) -> None:
    rng, room = indoor.rng, indoor.room
    asset = indoor.stage.draw("RugFactory")
    if asset is not None:
        longest = max(asset.size_m[:2])
        scale = min(1, (room.size_m[0] - 0.4) / longest, (room.size_m[1] - 0.4) / longest)
        x, y = rng.uniform(0.3, 0.7) * room.size_m[0], rng.uniform(0.3, 0.7) * room.size_m[1]
        indoor.stage.place(asset, (x, y, 0.002), rng.choice([0, math.pi / 2]), scale)


def _make_bed(indoor: Indoor, bed: Placed) -> None:
    """Put a mattress of the frame's size and pillows on a bed frame."""
    rng, wall = indoor.rng, bed.wall
    base = min(0.35, 0.35 * bed.size_m[2])
    thick = rng.uniform(0.16, 0.26)
    material = indoor.stage.material("fabric")
    half_s = 0.46 * bed.size_m[1]
    x0, y0, x1, y1 = wall.rect(
        bed.along_m - half_s, bed.along_m + half_s, 0.1, 0.05 + 0.96 * bed.size_m[0]
    )
    item = indoor.stage.add_box(
        "mattress", (x0, y0, base), (x1, y1, base + thick), material, "furniture"
    )
    bevel = item.modifiers.new("bevel", "BEVEL")
    bevel.width, bevel.segments = 0.05, 3
    pillow = indoor.stage.draw("PillowFactory")
    if pillow is not None:
        for _ in range(rng.randint(1, 3)):
            s = bed.along_m + rng.uniform(-0.35, 0.35) * bed.size_m[1]
            x, y = wall.at(s, 0.4)
            z = base + thick
            indoor.stage.place(pillow, (x, y, z), wall.yaw_rad + rng.uniform(-0.5, 0.5))


def _add_desk_chair(indoor: Indoor, desk: Placed) -> None:
    rng = indoor.rng
    asset = indoor.stage.draw(
        rng.choice(("OfficeChairFactory", "OfficeChairFactory", "ChairFactory"))
    )
    if asset is None:
        return
    x, y = desk.wall.at(
        desk.along_m + rng.uniform(-0.2, 0.2), desk.size_m[0] + rng.uniform(0.25, 0.6)
    )
    if 0.3 < x < indoor.room.size_m[0] - 0.3 and 0.3 < y < indoor.room.size_m[1] - 0.3:
        indoor.stage.place(asset, (x, y, 0), desk.wall.yaw_rad + math.pi + rng.uniform(-0.6, 0.6))
        indoor.room.taken.append((x - 0.3, y - 0.3, x + 0.3, y + 0.3))


def add_carton(indoor: Indoor) -> None:
    """Put a box of random size and print on the floor, where there is room."""
    rng, room, stage = indoor.rng, indoor.room, indoor.stage
    size = (rng.uniform(0.12, 0.6), rng.uniform(0.12, 0.6), rng.uniform(0.1, 0.5))
    x, y = rng.uniform(0.4, room.size_m[0] - 0.4), rng.uniform(0.4, room.size_m[1] - 0.4)
    rect = (x - size[0] / 2, y - size[1] / 2, x + size[0] / 2, y + size[1] / 2)
    if not room.free(rect):
        return
    room.taken.append(rect)
    material = rng.choice([
        lambda: shaders.plain("card", (0.45, 0.3, 0.17), 0.8),
        lambda: stage.material("wood"),
        lambda: shaders.painted("print", rng),
    ])()  # fmt: skip
    half = (size[0] / 2, size[1] / 2)
    item = stage.add_box("carton", (-half[0], -half[1], 0), (*half, size[2]), material, "object")
    item.location = (x, y, 0)
    item.rotation_euler[2] = rng.uniform(-3, 3)


# Small things


def _rest_height(  # noqa: PLR0917
    stage: Stage, support: Placed, x: float, y: float, z: float, radius_m: float
) -> float | None:
    """Height of a flat part of a support below (x, y, z) and around it, if there is one."""
    heights = []
    r = 0.9 * radius_m
    for dx, dy in ((0, 0), (r, 0), (-r, 0), (0, r), (0, -r)):
        hit, point, normal, item = stage.cast((x + dx, y + dy, z), (0, 0, -1), 3)
        if not hit or item not in support.objects or normal.z < 0.9:
            return None
        heights.append(point.z)
    return max(heights) if max(heights) - min(heights) < 0.006 else None


def place_small_things(indoor: Indoor) -> None:
    """Put small objects on and into furniture, and screens on their stands."""
    stage, rng = indoor.stage, indoor.rng
    supports = [p for p in stage.placed if any(word in p.cls for word in SUPPORTS)]
    todo: list[tuple[Asset, tuple[float, float, float], float, float]] = []
    for support in supports:
        todo += _plan_small_things(indoor, support)
    for asset, position, yaw, scale in todo:
        stage.place(asset, position, yaw, scale)
    for placed in [p for p in stage.placed if p.cls == "TVStandFactory" and p.wall]:
        asset = stage.draw("TVFactory")
        if asset is not None and asset.size_m[1] < 1.9 and rng.random() < 0.8:
            position = (*placed.center_xy, placed.size_m[2] + 0.01)
            stage.place(asset, position, placed.wall.yaw_rad)


def _plan_small_things(
    indoor: Indoor, support: Placed
) -> list[tuple[Asset, tuple[float, float, float], float, float]]:
    """Assets with position, yaw and scale that rest on a support and do not touch."""
    stage, rng = indoor.stage, indoor.rng
    lo, hi = support.bounds()
    shelf = any(word in support.cls for word in SHELVES)
    wanted = rng.randint(6, 22) if shelf else rng.choice([2, 6, 9, 12, 18])
    spots: list[tuple[float, float, float, float]] = []
    out = []
    for _ in range(wanted * 9):
        if len(spots) >= wanted:
            break
        desk = "Desk" in support.cls and rng.random() < 0.4
        asset = stage.draw(rng.choice(DESK_THINGS if desk else SMALL_THINGS))
        if asset is None:
            continue
        scale = rng.uniform(0.85, 1.15)
        size = asset.size_m * scale
        if max(size) > 0.75:
            continue
        facing = asset.cls in FACING
        yaw = support.yaw_rad + rng.uniform(-0.3, 0.3) if facing else rng.uniform(-3.1, 3.1)
        radius = 0.4 * math.hypot(size[0], size[1])
        if hi[0] - lo[0] < 2 * radius or hi[1] - lo[1] < 2 * radius:
            continue
        x = rng.uniform(lo[0] + radius, hi[0] - radius)
        y = rng.uniform(lo[1] + radius, hi[1] - radius)
        on_top = not shelf or rng.random() < 0.25
        z = _rest_height(
            stage, support, x, y, hi[2] + 0.3 if on_top else rng.uniform(lo[2] + 0.1, hi[2]), radius
        )
        if z is None:
            continue
        hit, point, _, _ = stage.cast((x, y, z + 0.003), (0, 0, 1), 3)
        room_above = point.z - z if hit else 3.0
        touches = any(
            math.hypot(x - a, y - b) < radius + r + 0.005 and abs(c - z) < max(size[2], 0.25)
            for a, b, r, c in spots
        )
        if room_above >= size[2] + 0.01 and not touches:
            spots.append((x, y, radius, z))
            out.append((asset, (x, y, z), yaw, scale))
    return out


def hang_wall_art(indoor: Indoor) -> None:
    """Hang pictures on free parts of the walls."""
    stage, rng, room = indoor.stage, indoor.rng, indoor.room
    for _ in range(rng.randint(2, 9)):
        asset, wall = stage.draw("WallArtFactory"), rng.choice(room.walls)
        if asset is None:
            return
        half, tall = asset.size_m[1] / 2, asset.size_m[2] / 2
        if wall.length_m < 2 * half + 0.2:
            continue
        s, z = rng.uniform(half + 0.1, wall.length_m - half - 0.1), rng.uniform(1.2, 1.9)
        if z + tall > room.size_m[2] - 0.1 or wall.covers(s - half, s + half, z - tall, z + tall):
            continue
        x, y = wall.at(s, asset.size_m[0] / 2 + 0.004)
        stage.place(asset, (x, y, z), wall.yaw_rad, anchor="middle")
        wall.blocked.append((s - half, s + half, z - tall, z + tall))


# Light


def light_room(indoor: Indoor, rng: random.Random) -> None:
    """Daylight through the windows, lamps, or both."""
    stage, room = indoor.stage, indoor.room
    weights = [4, 3, 5] if room.windows else [0, 1, 0]
    indoor.light = rng.choices(["day", "lamps", "both"], weights)[0]
    if indoor.light == "lamps":
        set_night(stage.scene, rng.uniform(0.05, 0.5))
    else:
        set_sky(stage.scene, draw_sky(rng))
        _build_outside(indoor, rng)
    for wall, o in room.windows:
        _add_portal(stage, wall, o)
    if indoor.light != "day":
        _add_lamps(indoor, rng)


def _build_outside(indoor: Indoor, rng: random.Random) -> None:
    """Ground and blocks of buildings or trees before the windows."""
    stage, room = indoor.stage, indoor.room
    lx, ly, _ = room.size_m
    floor_m = rng.choice((-0.3, -0.3, -3.5, -9.0))
    colour = rng.choice([(0.1, 0.16, 0.05), (0.2, 0.19, 0.17), (0.25, 0.2, 0.13)])
    ground = shaders.mottled("ground", colour, 0.5, grain=6)
    lo, hi = (-400, -400, floor_m - 1), (400 + lx, 400 + ly, floor_m)
    stage.add_box("ground", lo, hi, ground, "terrain")
    for wall, _ in room.windows:
        for _ in range(rng.randint(0, 4)):
            x, y = wall.at(wall.length_m / 2 + rng.uniform(-12, 12), -rng.uniform(11, 38))
            sx, sy, top = rng.uniform(1, 3), rng.uniform(1, 3), floor_m + rng.uniform(2, 14)
            if rng.random() < 0.5:
                material, cls = stage.material("wall", rng.choice(("Brick", "Plaster"))), "building"
            else:
                material, cls = shaders.foliage("leaves", (0.07, 0.13, 0.04)), "vegetation"
            stage.add_box(
                "outside", (x - sx, y - sy, floor_m), (x + sx, y + sy, top), material, cls
            )


def _add_portal(stage: Stage, wall: Wall, o: Opening) -> None:
    """Tell Cycles that daylight comes through a window."""
    x, y = wall.at((o.s0 + o.s1) / 2, -0.12)
    item = stage.add_light(
        "AREA",
        (x, y, (o.z0 + o.z1) / 2),
        1.0,
        shape="RECTANGLE",
        size=o.s1 - o.s0,
        size_y=o.z1 - o.z0,
    )
    item.data.cycles.is_portal = True
    inward = Vector((math.cos(wall.yaw_rad), math.sin(wall.yaw_rad), 0))
    item.rotation_euler = (-inward).to_track_quat("Z", "Y").to_euler()


def _add_lamps(indoor: Indoor, rng: random.Random) -> None:
    stage = indoor.stage
    lx, ly, lz = indoor.room.size_m
    columns, rows = (1, 1) if lx * ly < 14 else rng.choice([(2, 1), (1, 2), (2, 2), (3, 2)])
    if lx > 2.5 * ly:  # a row of lamps along a corridor
        columns, rows = round(lx / rng.uniform(2.2, 4.5)), 1
    colour = kelvin_rgb(rng.uniform(2700, 6500))
    power = lx * ly * rng.uniform(7, 16) / (columns * rows)
    kind = rng.choice(["panel", "library", "library", "spot"])
    for i in range(columns):
        for j in range(rows):
            x = (i + 0.5) * lx / columns + rng.uniform(-0.2, 0.2)
            y = (j + 0.5) * ly / rows + rng.uniform(-0.2, 0.2)
            z = lz - 0.03
            if kind == "library":
                asset = stage.draw(rng.choice(("CeilingLightFactory", "CeilingClassicLampFactory")))
                if asset is not None:
                    stage.place(asset, (x, y, lz - 0.002), rng.uniform(-3, 3), anchor="top")
                    z = lz - asset.size_m[2] - 0.05
            elif kind == "panel":
                half = rng.uniform(0.3, 0.6)
                glow = shaders.plain("glow", (1, 1, 0.97), emission=3)
                lo, hi = (x - half, y - half / 2, lz - 0.02), (x + half, y + half / 2, lz - 0.001)
                stage.add_box("panel", lo, hi, glow, "light")
            spread = math.radians(rng.uniform(140, 180))
            size = rng.uniform(0.25, 0.8)
            stage.add_light("AREA", (x, y, z), power, size=size, color=colour, spread=spread)
            stage.add_light(
                "POINT", (x, y, z - 0.25), 0.15 * power, shadow_soft_size=0.25, color=colour
            )


# Cameras


CAMERAS = (
    "hand", "hand", "hand", "robot", "robot", "closeup", "above", "ceiling", "tilted",
)  # fmt: skip
CLOSE = ("closeup", "above")
"""Cameras near the top of a table, desk or cabinet."""


def find_views(indoor: Indoor, views: int, size: tuple[int, int]) -> list[View]:
    """Views of a room that show several objects at several depths."""
    bpy.context.view_layer.update()
    rng = indoor.spec.rng("cameras")
    tops = [
        p for p in indoor.stage.placed
        if any(word in p.cls for word in ("Table", "Desk", "Cabinet")) and p.size_m[2] < 1.2
    ]  # fmt: skip
    candidates: list[View] = []
    for _ in range(views * 60):
        if len(candidates) >= views * 5:
            break
        kind = rng.choice(CAMERAS)
        fov = rng.uniform(45, 80 if kind in CLOSE else 100)
        matrix = _draw_pose(indoor, rng, kind, tops)
        if matrix is None:
            continue
        score = _score(indoor.stage, kind, matrix, fov, size)
        if score is not None:
            candidates.append(View(kind, matrix, fov, score + rng.uniform(0, 0.6)))
    return choose(candidates, views, apart_m=0.35)


def _draw_pose(
    indoor: Indoor, rng: random.Random, kind: str, tops: list[Placed]
) -> np.ndarray | None:
    lx, ly, lz = indoor.room.size_m
    roll = math.radians(rng.gauss(0, 2.5))
    if kind in CLOSE:
        if not tops:
            return None
        lo, hi = rng.choice(tops).bounds()
        x, y = rng.uniform(lo[0], hi[0]), rng.uniform(lo[1], hi[1])
        target = np.array([x, y, hi[2] + rng.uniform(-0.1, 0.1)])
        azimuth, up = (
            rng.uniform(0, 2 * math.pi),
            math.radians(rng.uniform(15, 70) if kind == "closeup" else rng.uniform(65, 89)),
        )
        flat = math.cos(up)
        offset = np.array([math.cos(azimuth) * flat, math.sin(azimuth) * flat, math.sin(up)])
        matrix = look_at(target + rng.uniform(0.4, 1.5) * offset, target, roll)
    else:
        z, pitch = {
            "hand": (rng.uniform(1.0, 1.75), rng.gauss(-12, 11)),
            "robot": (rng.uniform(0.12, 0.6), rng.gauss(0, 8)),
            "ceiling": (lz - rng.uniform(0.12, 0.4), rng.gauss(-33, 10)),
            "tilted": (rng.uniform(0.8, 2.0), rng.uniform(-55, 25)),
        }[kind]
        if kind == "tilted":
            roll = math.radians(rng.uniform(-35, 35))
        position = (rng.uniform(0.2, lx - 0.2), rng.uniform(0.2, ly - 0.2), z)
        matrix = aim(position, rng.uniform(-math.pi, math.pi), math.radians(pitch), roll)
    x, y, z = matrix[:3, 3]
    inside = 0.1 < x < lx - 0.1 and 0.1 < y < ly - 0.1 and 0.08 < z < lz - 0.1
    return matrix if inside else None


def _score(
    stage: Stage, kind: str, matrix: np.ndarray, fov_deg: float, size: tuple[int, int]
) -> float | None:
    """The score of a view; None if it is not worth rendering."""
    if stage.clearance_m(matrix[:3, 3]) < (0.08 if kind == "robot" else 0.12):
        return None
    probe = stage.probe(matrix, fov_deg, size)
    if probe.share(OUTSIDE) > 0.2:
        return None
    depth = probe.depth_m[probe.hit]
    close = kind in CLOSE
    spread, shell = float(np.log(np.minimum(depth, 12.0)).std()), probe.share(SHELL)
    objects = probe.count_objects(SHELL)
    if np.percentile(depth, 2) < 0.2 or np.median(depth) < (0.35 if close else 0.8):
        return None
    above = kind == "above"  # a table may fill such a view
    if spread < (0.08 if above else 0.2) or objects < 4 or shell > 0.82:
        return None
    largest = probe.largest_share(SHELL)
    if (np.percentile(depth, 30) < 0.5 and not close) or largest > (0.85 if above else 0.7):
        return None
    return spread + 0.05 * min(objects, 12) - 0.5 * max(0.0, shell - 0.6)
