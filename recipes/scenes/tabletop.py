"""Tabletops and bins: objects arranged or piled at close range. Needs bpy."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import bpy
import numpy as np
from mathutils import Euler, Vector
from recipes.scenes import shaders
from recipes.scenes.cameras import View, choose, look_at
from recipes.scenes.mesh import Mesh
from recipes.scenes.photo import kelvin_rgb
from recipes.scenes.plan import SceneSpec
from recipes.scenes.stage import Placed, Stage
from recipes.scenes.world import draw_sky, set_night, set_sky

OBJECTS = (
    "BottleFactory", "BowlFactory", "CanFactory", "CupFactory", "JarFactory", "PanFactory",
    "PlateFactory", "PotFactory", "FoodBagFactory", "FoodBoxFactory", "WineglassFactory",
    "BookStackFactory", "BookColumnFactory", "VaseFactory", "ToasterFactory", "DeskLampFactory",
    "FruitFactoryApple", "FruitFactoryApple", "FruitFactoryStarfruit", "FruitFactoryCoconutgreen",
    "FruitFactoryPineapple", "ForkFactory", "KnifeFactory", "SpoonFactory", "SucculentFactory",
    "SnakePlantFactory", "TowelFactory", "MonitorFactory", "PlantContainerFactory",
)  # fmt: skip
PILE_OBJECTS = (
    "BottleFactory", "CanFactory", "CupFactory", "JarFactory", "BowlFactory", "FoodBagFactory",
    "FoodBoxFactory", "FruitFactoryApple", "FruitFactoryStarfruit", "FruitFactoryCoconutgreen",
    "PotFactory", "SpoonFactory",
)  # fmt: skip
GROUND = {"floor", "wall", "ceiling", "opening"}


@dataclass
class Tabletop:
    """A table or a bin with objects."""

    spec: SceneSpec
    stage: Stage
    rng: random.Random
    style: str
    """`table`, `shelf` or `bin`."""
    light: str = ""
    top_m: float = 0.75
    """Height of the surface."""
    half_m: tuple[float, float] = (0.6, 0.4)
    """Half the extent of the surface."""

    def settings(self) -> dict[str, Any]:
        """The entries of meta.json for the scene."""
        extent = [round(2 * v, 3) for v in self.half_m]
        return {"style": self.style, "light": self.light, "extent_m": extent}


def build_tabletop(spec: SceneSpec, stage: Stage) -> Tabletop:
    """A surface with objects in the corner of a room."""
    rng = spec.rng("layout")
    scene = Tabletop(spec, stage, rng, rng.choices(("table", "bin", "shelf"), (6, 3, 2))[0])
    _build_room(scene)
    if scene.style == "bin":
        _build_bin(scene)
        _pile(scene)
    else:
        _build_table(scene)
        _arrange(scene)
    _light(scene, spec.rng("light"))
    return scene


def _build_room(scene: Tabletop) -> None:
    """Floor and two or three walls at random distances, and large things in the background."""
    stage, rng = scene.stage, scene.rng
    floor = stage.material("floor")
    stage.add_box("floor", (-6, -6, -0.1), (6, 6, 0), floor)
    back, left = rng.uniform(0.75, 3.5), rng.uniform(1.0, 3.5)
    wall = stage.material("wall", rng.choice(("Plaster", "Plaster", "Tile", "Brick", "Concrete")))
    stage.add_box("wall", (-6, back, 0), (6, back + 0.1, 3), wall)
    stage.add_box("wall", (-left - 0.1, -6, 0), (-left, back, 3), wall)
    right = rng.uniform(1.0, 4.0)
    stage.add_box("wall", (right, -6, 0), (right + 0.1, back, 3), wall)
    for _ in range(rng.randint(0, 3)):
        names = ("ChairFactory", "CellShelfFactory", "OfficeChairFactory", "LargeShelfFactory")
        asset = stage.draw(rng.choice(names))
        if asset is not None:
            x = rng.choice((-1, 1)) * rng.uniform(1.2, 2.5)
            y = back - 0.1 - asset.size_m[0] / 2
            reach = max(asset.size_m[:2]) / 2
            if abs(x) - reach > 0.8 and -left < x - reach and x + reach < right:
                stage.place(asset, (x, y, 0), -math.pi / 2)
    for _ in range(rng.randint(0, 3)):
        art = stage.draw("WallArtFactory")
        if art is not None:
            position = (
                rng.uniform(-1.2, 1.2),
                back - art.size_m[0] / 2 - 0.004,
                rng.uniform(1.2, 2.0),
            )
            stage.place(art, position, -math.pi / 2, anchor="middle")


def _surface_material(scene: Tabletop) -> Any:
    stage, rng = scene.stage, scene.rng
    choice = rng.choice(("wood", "wood", "floor", "marble", "metal", "fabric", "plastic", "print"))
    return shaders.painted("cloth", rng) if choice == "print" else stage.material(choice)


def _build_table(scene: Tabletop) -> None:
    """A table of the library if it is large enough, else a board on legs or a shelf board."""
    stage, rng = scene.stage, scene.rng
    scene.half_m = (rng.uniform(0.4, 0.9), rng.uniform(0.3, 0.5))
    scene.top_m = rng.uniform(0.65, 0.95)
    hx, hy = scene.half_m
    top, thick = scene.top_m, rng.uniform(0.018, 0.05)
    mesh = Mesh()
    mesh.box((-hx, -hy, top - thick), (hx, hy, top), "top")
    if scene.style == "shelf":
        for x in (-hx, hx - 0.02):
            mesh.box((x, -hy, top - 0.5), (x + 0.02, hy, top + 0.7), "side")
        mesh.box((-hx, hy - 0.01, top - 0.5), (hx, hy, top + 0.7), "side")
        mesh.box((-hx, -hy, top + 0.45), (hx, hy, top + 0.47), "top")
        mesh.box((-hx, -hy, top - 0.5), (hx, hy, top - 0.48), "side")
    else:
        for x in (-hx + 0.06, hx - 0.06):
            for y in (-hy + 0.06, hy - 0.06):
                mesh.box((x - 0.03, y - 0.03, 0), (x + 0.03, y + 0.03, top - thick), "side")
    materials = {
        "top": _surface_material(scene),
        "side": stage.material(rng.choice(("wood", "metal"))),
    }
    stage.add_mesh("table", mesh, materials, "furniture")
    if rng.random() < 0.25 and scene.style == "table":
        cloth = shaders.painted("mat", rng)
        x, y = rng.uniform(-0.3, 0.3) * hx, rng.uniform(-0.3, 0.3) * hy
        lo, hi = (x - 0.22, y - 0.16, top), (x + 0.22, y + 0.16, top + 0.004)
        stage.add_box("mat", lo, hi, cloth, "object")


def _arrange(scene: Tabletop) -> None:
    """Objects that stand or lie beside each other, some on top of others."""
    stage, rng = scene.stage, scene.rng
    spots: list[tuple[float, float, float]] = []
    hx, hy = scene.half_m
    wanted = rng.randint(6, 26)
    kinds = rng.sample(OBJECTS, rng.randint(5, 12))
    for _ in range(wanted * 12):
        if len(spots) >= wanted:
            break
        asset = stage.draw(rng.choice(kinds))
        if asset is None:
            continue
        scale = rng.uniform(0.85, 1.15)
        size = asset.size_m * scale
        if max(size) > 0.7 or (scene.style == "shelf" and size[2] > 0.42):
            continue
        radius = 0.42 * math.hypot(size[0], size[1])
        if radius > hy - 0.02:
            continue
        x, y = rng.uniform(-hx + radius, hx - radius), rng.uniform(-hy + radius, hy - radius)
        if any(math.hypot(x - a, y - b) < radius + r for a, b, r in spots):
            continue
        spots.append((x, y, radius))
        placed = stage.place(asset, (x, y, scene.top_m), rng.uniform(-math.pi, math.pi), scale)
        flat = placed.size_m[2] < 0.25 and asset.cls in (
            "BookStackFactory",
            "FoodBoxFactory",
            "PlateFactory",
        )
        if flat and rng.random() < 0.5:
            other = stage.draw(
                rng.choice(("CupFactory", "CanFactory", "FruitFactoryApple", "BowlFactory"))
            )
            if other is not None and max(other.size_m[:2]) < min(size[:2]):
                z = scene.top_m + size[2]
                if asset.cls == "PlateFactory":
                    z = scene.top_m + 0.012
                stage.place(other, (x, y, z), rng.uniform(-math.pi, math.pi))
    for _ in range(rng.randint(0, 6)):
        _add_block(scene, rng)


def _add_block(scene: Tabletop, rng: random.Random) -> None:
    """A printed box or a stack of them anywhere on the surface that is free."""
    hx, hy = scene.half_m
    size = (rng.uniform(0.04, 0.2), rng.uniform(0.03, 0.15), rng.uniform(0.02, 0.2))
    x, y = rng.uniform(-hx + 0.1, hx - 0.1), rng.uniform(-hy + 0.1, hy - 0.1)
    hit, point, _, _ = scene.stage.cast((x, y, scene.top_m + 0.4), (0, 0, -1), 1.0)
    if not hit or abs(point.z - scene.top_m) > 0.005:
        return
    lo = (-size[0] / 2, -size[1] / 2, 0)
    hi = (size[0] / 2, size[1] / 2, size[2])
    item = scene.stage.add_box("block", lo, hi, shaders.painted("print", rng), "object")
    item.location = (x, y, scene.top_m)
    item.rotation_euler[2] = rng.uniform(-3, 3)


def _build_bin(scene: Tabletop) -> None:
    """An open box on a table or on the floor."""
    stage, rng = scene.stage, scene.rng
    scene.half_m = (rng.uniform(0.2, 0.4), rng.uniform(0.16, 0.3))
    scene.top_m = rng.choice((0.02, 0.02, rng.uniform(0.6, 0.9)))
    hx, hy = scene.half_m
    z, t, high = scene.top_m, rng.uniform(0.006, 0.02), rng.uniform(0.12, 0.35)
    mesh = Mesh()
    mesh.box((-hx - t, -hy - t, z - 0.01), (hx + t, hy + t, z), "bin")
    for lo, hi in (
        ((-hx - t, -hy - t), (hx + t, -hy)), ((-hx - t, hy), (hx + t, hy + t)),
        ((-hx - t, -hy), (-hx, hy)), ((hx, -hy), (hx + t, hy)),
    ):  # fmt: skip
        mesh.box((*lo, z), (*hi, z + high), "bin")
    colour = rng.choice(
        [(0.02, 0.1, 0.4), (0.4, 0.03, 0.03), (0.3, 0.3, 0.3), (0.45, 0.32, 0.2), (0.05, 0.2, 0.08)]
    )
    material = shaders.plain("bin", colour, 0.5) if rng.random() < 0.6 else stage.material("wood")
    stage.add_mesh("bin", mesh, {"bin": material}, "object")
    if scene.top_m > 0.1:
        table = Mesh()
        table.box((-1.0, -0.5, z - 0.05), (1.0, 0.5, z - 0.011), "top")
        for x in (-0.9, 0.9):
            for y in (-0.42, 0.42):
                table.box((x - 0.03, y - 0.03, 0), (x + 0.03, y + 0.03, z - 0.05), "top")
        stage.add_mesh("table", table, {"top": _surface_material(scene)}, "furniture")


def _pile(scene: Tabletop) -> None:
    """Objects dropped into the bin one above the other, settled by Blender's rigid bodies."""
    stage, rng = scene.stage, scene.rng
    hx, hy = scene.half_m
    kinds = rng.sample(PILE_OBJECTS, rng.randint(3, 8))
    dropped, z = [], scene.top_m + 0.1
    for _ in range(rng.randint(12, 36)):
        asset = stage.draw(rng.choice(kinds))
        if asset is None:
            continue
        scale = min(1.0, rng.uniform(0.5, 1.3) * hy / max(asset.size_m))
        half = 0.5 * float(np.linalg.norm(asset.size_m * scale))
        if half > hy or half < 0.02:
            continue
        tilt = Euler([rng.uniform(0, 2 * math.pi) for _ in range(3)]).to_matrix().to_4x4()
        x = rng.uniform(-1, 1) * max(0.0, hx - half)
        y = rng.uniform(-1, 1) * max(0.0, hy - half)
        placed = stage.place(asset, (x, y, z + half), 0.0, scale, anchor="middle", tilt=tilt)
        if len([o for o in placed.objects if o.type == "MESH"]) == 1:
            dropped.append(placed)
            z += 0.9 * half
        else:
            stage.remove(placed)
    solid = [o for o in stage.scene.objects if o.get("cls") in ("object", "furniture", "floor")]
    for placed in settle(stage, dropped, solid):
        stage.remove(placed)


def settle(
    stage: Stage, dropped: list[Placed], solid: list[Any], frames: int = 110
) -> list[Placed]:
    """Let objects fall on solid ones and rest; those that fell out of the scene."""
    scene = stage.scene
    items = [o for placed in dropped for o in placed.objects if o.type == "MESH"]
    for item, kind, shape in [
        *((o, "PASSIVE", "MESH") for o in solid if o not in items),
        *((o, "ACTIVE", "CONVEX_HULL") for o in items),
    ]:
        bpy.context.view_layer.objects.active = item
        bpy.ops.rigidbody.object_add(type=kind)
        body = item.rigid_body
        body.collision_shape = shape
        body.friction, body.restitution, body.collision_margin = 0.7, 0.05, 0.001
        body.linear_damping, body.angular_damping = 0.2, 0.4
    scene.rigidbody_world.substeps_per_frame = 10
    scene.rigidbody_world.point_cache.frame_end = frames
    for frame in range(1, frames + 1):
        scene.frame_set(frame)
    graph = bpy.context.evaluated_depsgraph_get()
    rest = {item.name: item.evaluated_get(graph).matrix_world.copy() for item in items}
    bpy.ops.rigidbody.world_remove()
    scene.frame_set(1)
    for item in items:
        item.matrix_world = rest[item.name]
    stage.changed()
    bpy.context.view_layer.update()
    return [p for p in dropped if p.bounds()[1][2] < 0.0 or abs(p.bounds()[0]).max() > 4]


def _light(scene: Tabletop, rng: random.Random) -> None:
    """Lamps above, a window's sky from the open side, or both."""
    scene.light = rng.choice(("day", "lamps", "both"))
    if scene.light == "lamps":
        set_night(scene.stage.scene, rng.uniform(0.1, 1.0))
    else:
        set_sky(scene.stage.scene, draw_sky(rng))
    if scene.light != "day":
        colour = kelvin_rgb(rng.uniform(2700, 6500))
        for _ in range(rng.randint(1, 3)):
            position = (rng.uniform(-1.2, 1.2), rng.uniform(-1.5, 0.4), rng.uniform(1.8, 2.8))
            power = rng.uniform(20, 90)
            item = scene.stage.add_light(
                "AREA", position, power, size=rng.uniform(0.1, 0.9), color=colour
            )
            aim = Vector((0, 0, scene.top_m)) - Vector(position)
            item.rotation_euler = aim.to_track_quat("-Z", "Y").to_euler()
    if rng.random() < 0.6:
        ceiling = scene.stage.material("ceiling")
        scene.stage.add_box("ceiling", (-6, -2.5, 3.0), (6, 6, 3.1), ceiling)


def find_views(scene: Tabletop, views: int, size: tuple[int, int]) -> list[View]:
    """Views of the surface from the front, from above, and grazing."""
    bpy.context.view_layer.update()
    rng = scene.spec.rng("cameras")
    hx, hy = scene.half_m
    candidates: list[View] = []
    for _ in range(views * 60):
        if len(candidates) >= views * 4:
            break
        kind = rng.choice(("front", "front", "above", "grazing"))
        if scene.style == "bin" and kind == "grazing":
            kind = "above"
        low, high = {"front": (18, 50), "above": (50, 88), "grazing": (3, 18)}[kind]
        if scene.style == "bin" and kind == "front":
            low, high = 30, 60
        up = math.radians(rng.uniform(low, high))
        if scene.style == "shelf":
            up *= 0.4
        azimuth = -math.pi / 2 + rng.gauss(0, 0.6 if scene.style == "shelf" else 0.9)
        target = np.array(
            [
                rng.uniform(-0.6, 0.6) * hx,
                rng.uniform(-0.6, 0.6) * hy,
                scene.top_m + rng.uniform(0, 0.1),
            ]
        )
        distance = rng.uniform(0.3, 1.3)
        flat = math.cos(up)
        offset = np.array([math.cos(azimuth) * flat, math.sin(azimuth) * flat, math.sin(up)])
        roll = math.radians(rng.gauss(0, 4) if rng.random() < 0.8 else rng.uniform(-30, 30))
        matrix = look_at(target + distance * offset, target, roll)
        fov = rng.uniform(45, 80)
        score = _score(scene, matrix, fov, size)
        if score is not None:
            candidates.append(View(kind, matrix, fov, score + rng.uniform(0, 0.5)))
    return choose(candidates, views, apart_m=0.12, apart_deg=15)


def _score(
    scene: Tabletop, matrix: np.ndarray, fov_deg: float, size: tuple[int, int]
) -> float | None:
    """The score of a view; None if it is not worth rendering."""
    if scene.stage.clearance_m(matrix[:3, 3]) < 0.06:
        return None
    probe = scene.stage.probe(matrix, fov_deg, size, 20.0)
    if probe.hit.mean() < 0.85:
        return None
    depth = probe.depth_m[probe.hit]
    objects = probe.count_objects(GROUND | {"furniture"})
    if np.percentile(depth, 2) < 0.12 or np.percentile(depth, 30) > 2.0 or objects < 4:
        return None
    if probe.largest_share(GROUND | {"furniture"}) > 0.5 or probe.log_spread() < 0.1:
        return None
    return min(probe.log_spread(), 0.6) + 0.06 * min(objects, 14)
