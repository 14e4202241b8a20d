"""Streets: road, kerbs, buildings, cars, plants, street furniture, sky and cameras. Needs bpy."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

import bpy
import numpy as np
from recipes.scenes import buildings, plants, roadside, shaders, vehicles
from recipes.scenes.cameras import View, aim, choose
from recipes.scenes.mesh import Mesh
from recipes.scenes.plan import SceneSpec, draw_style
from recipes.scenes.stage import Stage
from recipes.scenes.streetplan import (
    Lot,
    Side,
    StreetPlan,
    plan_cars,
    plan_lots,
    plan_street,
    ribbon,
)
from recipes.scenes.world import Sky, draw_sky, set_night, set_sky

PAINTS = (
    (0.75, 0.75, 0.75), (0.75, 0.75, 0.75), (0.02, 0.02, 0.02), (0.02, 0.02, 0.025),
    (0.25, 0.26, 0.28), (0.4, 0.41, 0.42), (0.1, 0.11, 0.12), (0.35, 0.02, 0.02),
    (0.02, 0.05, 0.22), (0.03, 0.1, 0.3), (0.03, 0.12, 0.06), (0.4, 0.3, 0.2),
    (0.55, 0.35, 0.02), (0.1, 0.03, 0.02), (0.2, 0.35, 0.45),
)  # fmt: skip
"""Linear colours of cars, about as frequent as in streets."""

DOORS = (
    (0.12, 0.06, 0.03), (0.25, 0.13, 0.06), (0.6, 0.6, 0.58), (0.03, 0.03, 0.03),
    (0.02, 0.05, 0.12), (0.02, 0.08, 0.04), (0.2, 0.02, 0.02), (0.3, 0.31, 0.32),
)  # fmt: skip
"""Linear colours of doors and gates."""


@dataclass
class Street:
    """A street that is being built."""

    spec: SceneSpec
    stage: Stage
    rng: random.Random
    plan: StreetPlan
    light: str = ""
    sky: dict[str, float] = field(default_factory=dict)
    materials: dict[str, Any] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """The entries of meta.json for the scene."""
        return {
            "style": self.plan.style,
            "light": self.light,
            "sky": {key: round(value, 3) for key, value in self.sky.items()},
            "uses": [side.use for side in self.plan.sides],
        }


def build_street(spec: SceneSpec, stage: Stage) -> Street:
    """A street with everything in it."""
    street = Street(spec, stage, spec.rng("layout"), plan_street(spec.rng("street")))
    _make_materials(street)
    _build_ground(street)
    lots = plan_lots(spec.rng("lots"), street.plan)
    _build_buildings(street, lots)
    _build_gardens(street, lots)
    _build_backdrop(street)
    _place_cars(street)
    _place_plants(street)
    _place_things(street)
    _light(street, spec.rng("light"))
    return street


# Ground


def _make_materials(street: Street) -> None:
    rng, m = street.rng, street.materials
    grey = rng.uniform(0.035, 0.14)
    m["asphalt"] = shaders.mottled(
        "asphalt",
        (grey, grey, grey * 1.03),
        0.25,
        0.35,
        0.75,
        grain=45,
        cracks=rng.choice((0, 0.25, 0.6)),
    )
    m["patch"] = shaders.mottled("patch", (0.6 * grey,) * 3, 0.5, 0.3, 0.8, grain=45)
    m["paint"] = shaders.mottled("line", (0.65, 0.65, 0.62), 3.0, 0.3, 0.6)
    m["kerb"] = shaders.bricks("kerb", (0.3, 0.29, 0.27), (0.1, 0.1, 0.1), (1.0, 0.5), 0.12)
    slab = rng.choice(((0.3, 0.3), (0.6, 0.4), (0.2, 0.1), (0.5, 0.5), (0.1, 0.1)))
    tone = rng.uniform(0.15, 0.4)
    colour = rng.choice(
        [(tone, tone, tone * 0.95), (tone, tone * 0.85, tone * 0.7), (0.3, 0.14, 0.1)]
    )
    m["pavement"] = shaders.bricks(
        "slabs", colour, (0.08, 0.08, 0.07), slab, 0.15, rng.choice((0, 0.5))
    )
    if rng.random() < 0.5:
        m["path"] = shaders.mottled("gravel", (0.33, 0.28, 0.2), 0.6, 0.2, 0.9, grain=30)
    else:
        m["path"] = m["pavement"]
    green = rng.choice([(0.06, 0.13, 0.02), (0.09, 0.14, 0.03), (0.16, 0.15, 0.05)])
    m["grass"] = shaders.mottled("grass", green, 0.4, 0.45, 0.9, grain=25)
    m["soil"] = shaders.mottled("soil", (0.16, 0.12, 0.08), 0.5, 0.4, 0.9, grain=12)
    m["blade"] = shaders.foliage("blade", tuple(1.2 * c for c in green), 2.0)
    m["bark"] = shaders.mottled("bark", (0.11, 0.08, 0.06), 6.0, 0.5, 0.9)


def _stations(plan: StreetPlan) -> np.ndarray:
    """Positions along the street at which strips are cut."""
    near = np.arange(plan.extent_m[0] - 30, plan.extent_m[1] + 30, 4.0)
    return np.concatenate([[-260, -180, -130], near, [200, 260, 340]])


def _build_ground(street: Street) -> None:
    plan, stage, m = street.plan, street.stage, street.materials
    s = _stations(plan)
    left, right = plan.sides
    road = Mesh()
    road.add(*ribbon(plan.course, s, -plan.kerb_t(right), plan.kerb_t(left), 0, 0), "asphalt")
    if plan.crossing_m:
        cut = np.linspace(*plan.crossing_m, 4)
        for side in plan.sides:
            _strip(road, street, cut, (plan.kerb_t(side), 220, 0, 0, side.sign), "asphalt")
            for at in plan.crossing_m:
                _add_kerb_end(road, street, at, side)
    path = plan.style == "park"
    stage.add_mesh(
        "road",
        road,
        {"asphalt": m["path"] if path else m["asphalt"], "kerb": m["kerb"]},
        "pavement" if path else "road",
    )
    if not path:
        _build_markings(street, s)
    for side in plan.sides:
        for part in _outside_crossing(plan, s):
            _build_side(street, side, part)


def _outside_crossing(plan: StreetPlan, s: np.ndarray) -> list[np.ndarray]:
    """The stations before and after the crossing road, or all if there is none."""
    if plan.crossing_m is None:
        return [s]
    begin, end = plan.crossing_m
    return [np.append(s[s < begin - 0.1], begin), np.insert(s[s > end + 0.1], 0, end)]


def _add_kerb_end(mesh: Mesh, street: Street, s: float, side: Side) -> None:
    """The step from the crossing road up to the ground beside it."""
    course, high = street.plan.course, street.plan.kerb_m
    t0, t1 = side.sign * street.plan.kerb_t(side), side.sign * 220.0
    points = [(*course.at(s, t)[:2], course.at(s, t)[2] + z) for t in (t0, t1) for z in (0.0, high)]
    mesh.add(np.array(points), [(0, 2, 3, 1)], "kerb")


def _strip(mesh: Mesh, street: Street, s: np.ndarray, edges: tuple[float, ...], slot: str) -> None:
    """Append a strip of one side: unsigned offsets and heights (t0, t1, z0, z1), and the sign."""
    t0, t1, z0, z1, sign = edges
    if sign < 0:
        t0, t1, z0, z1 = -t1, -t0, z1, z0
    mesh.add(*ribbon(street.plan.course, s, t0, t1, z0, z1), slot)


def _build_side(street: Street, side: Side, s: np.ndarray) -> None:
    plan, stage, m = street.plan, street.stage, street.materials
    kerb, high, sign = plan.kerb_t(side), plan.kerb_m, side.sign
    inner, outer = plan.pavement_t(side)
    mesh = Mesh()
    if not plan.soft:
        _strip(mesh, street, s, (kerb, kerb + 0.01, 0, high, sign), "kerb")
        _strip(mesh, street, s, (kerb + 0.01, kerb + 0.15, high, high, sign), "kerb")
        stage.add_mesh("kerb", mesh, {"kerb": m["kerb"]}, "pavement")
        mesh = Mesh()
        _strip(mesh, street, s, (inner, outer, high, high, sign), "slabs")
        stage.add_mesh("pavement", mesh, {"slabs": m["pavement"]})
        mesh = Mesh()
        if side.verge_m:
            _strip(mesh, street, s, (kerb + 0.15, inner, high, high, sign), "grass")
    else:
        _strip(mesh, street, s, (kerb, outer, 0, 0, sign), "grass")
    paved = side.use in ("blocks", "halls", "cars")
    _strip(mesh, street, s, (outer, outer + 40, high, high, sign), "lot" if paved else "grass")
    _strip(mesh, street, s, (outer + 40, outer + 200, high, high, sign), "grass")
    lot = m["pavement"] if side.use == "blocks" else m["asphalt"]
    stage.add_mesh("verge", mesh, {"grass": m["grass"], "lot": lot}, "terrain")
    if side.use == "cars":
        bays = Mesh()
        for t in (outer + 0.6, outer + 11.9, outer + 17.2):
            for at in np.arange(-41.35, 80, 2.7):
                edges = (t, t + 5.2, high + 0.004, high + 0.004, sign)
                _strip(bays, street, np.array([at, at + 0.1]), edges, "paint")
        stage.add_mesh("bays", bays, {"paint": m["paint"]}, "road")


def _build_markings(street: Street, s: np.ndarray) -> None:
    """Lines, a zebra crossing, patches and manholes, a few millimetres above the road."""
    plan, rng, m = street.plan, street.spec.rng("markings"), street.materials
    lift, mesh, course = 0.004, Mesh(), plan.course
    low, high = plan.extent_m

    def line(t: float, dash: tuple[float, float] | None, width: float = 0.12) -> None:
        if dash is None:
            mesh.add(*ribbon(course, s, t - width / 2, t + width / 2, lift, lift), "paint")
            return
        at = low - 20
        while at < high + 40:
            cut = np.linspace(at, at + dash[0], 3)
            mesh.add(*ribbon(course, cut, t - width / 2, t + width / 2, lift, lift), "paint")
            at += sum(dash)

    if rng.random() < 0.8 or plan.lanes > 1:
        line(0.0, rng.choice(((3, 6), (1.5, 3), (4, 2), None)))
    for side in plan.sides:
        for lane in range(1, plan.lanes):
            line(side.sign * lane * plan.lane_m, (3, 6))
        if rng.random() < 0.5:
            line(side.sign * (plan.half_road_m - 0.15), rng.choice((None, (1, 1))))
        if side.parking_m and rng.random() < 0.4:
            for at in np.arange(low, high, 6.0):
                edges = (plan.half_road_m, plan.half_road_m + side.parking_m, lift, lift, side.sign)
                _strip(mesh, street, np.array([at, at + 0.1]), edges, "paint")
    if rng.random() < 0.45:
        at, t = rng.uniform(0, 50), -plan.half_road_m + 0.3
        while t < plan.half_road_m - 0.4:
            mesh.add(*ribbon(course, np.array([at, at + 3.2]), t, t + 0.5, lift, lift), "paint")
            t += 1.0
    for _ in range(rng.randint(0, 8)):
        at, t = rng.uniform(low, high), rng.uniform(-0.8, 0.8) * plan.half_road_m
        long, wide = rng.uniform(0.6, 9), rng.uniform(0.4, 1.6)
        cut = np.linspace(at, at + long, 4)
        mesh.add(*ribbon(course, cut, t, t + wide, 0.002, 0.002), "patch")
    if mesh.count:
        slots = {"paint": m["paint"], "patch": m["patch"]}
        street.stage.add_mesh("markings", mesh, slots, "road")
    lids = Mesh()
    for _ in range(rng.randint(0, 6)):
        x, y, z, _ = course.at(rng.uniform(low, high), rng.uniform(-0.9, 0.9) * plan.half_road_m)
        lids.tube((x, y, z - 0.02), (x, y, z + 0.006), 0.32, 0.31, "iron", sides=18)
    if lids.count:
        iron = shaders.plain("iron", (0.06, 0.055, 0.05), 0.5, 0.8)
        street.stage.add_mesh("lids", lids, {"iron": iron}, "road")


# Buildings


def _wall_material(street: Street, rng: random.Random, use: str) -> Any:
    """A library material or one of ours, in a colour of façades."""
    if rng.random() < 0.45:
        cls = rng.choice(("Brick", "Plaster", "Plaster", "Concrete"))
        return street.stage.material("wall", cls)
    tone = rng.uniform(0.25, 0.75)
    tint = rng.choice([
        (1, 1, 0.96), (1, 0.88, 0.68), (1, 0.75, 0.6), (0.75, 0.85, 1), (1, 0.6, 0.45),
        (0.8, 1, 0.8),
    ])  # fmt: skip
    colour = tuple(tone * factor for factor in tint)
    if use == "halls" or rng.random() < 0.15:
        size = (rng.uniform(0.3, 1.2), rng.uniform(1.5, 4))
        return shaders.bricks("panels", colour, (0.1, 0.1, 0.1), size, 0.05, 0.0, 0.5)
    if rng.random() < 0.5:
        red = rng.choice(
            [(0.32, 0.11, 0.06), (0.4, 0.22, 0.12), (0.25, 0.12, 0.09), (0.5, 0.42, 0.3)]
        )
        mortar = rng.choice([(0.35, 0.33, 0.3), (0.12, 0.11, 0.1)])
        return shaders.bricks("bricks", red, mortar, (0.24, 0.075), 0.3)
    return shaders.mottled("plaster", colour, rng.uniform(0.1, 0.6), rng.uniform(0.05, 0.25), 0.85)


def _building_materials(street: Street, rng: random.Random, use: str) -> dict[str, Any]:
    wall = _wall_material(street, rng, use)
    frame = rng.choice([(0.8, 0.8, 0.78), (0.8, 0.8, 0.78), (0.06, 0.06, 0.07), (0.2, 0.1, 0.05)])
    roof = rng.choice([(0.25, 0.08, 0.05), (0.12, 0.1, 0.1), (0.06, 0.06, 0.07), (0.3, 0.16, 0.1)])
    stone = rng.uniform(0.3, 0.65)
    return {
        "wall": wall,
        "base": wall if rng.random() < 0.4 else _wall_material(street, rng, use),
        "frame": shaders.plain("frame", frame, 0.4),
        "glass": shaders.pane("pane", tuple(rng.uniform(0.01, 0.05) for _ in range(3))),
        "lit": shaders.pane(
            "lit pane", (0.4, 0.32, 0.2) if street.light == "night" else (0.12, 0.11, 0.1),
            rng.uniform(1, 4) if street.light == "night" else 0.0,
        ),
        "door": shaders.plain("door", rng.choice(DOORS), 0.4),
        "roof": shaders.bricks("tiles", roof, _dark(roof), (0.3, 0.25), 0.25),
        "metal": shaders.plain("metal", (0.25, 0.26, 0.27), 0.4, 0.7),
        "sign": shaders.painted("sign", rng),
        "stone": shaders.mottled("stone", (stone, stone * 0.97, stone * 0.9), 0.8, 0.15, 0.8),
    }  # fmt: skip


def _dark(colour: tuple[float, ...]) -> tuple[float, float, float]:
    return tuple(0.4 * c for c in colour)  # type: ignore[return-value]


def _build_buildings(street: Street, lots: list[Lot]) -> None:
    rng = street.spec.rng("buildings")
    split = street.spec.split
    street.light = "night" if street.spec.rng("night").random() < 0.1 else "day"
    palettes: dict[str, list[dict[str, Any]]] = {}
    for lot in lots:
        use = lot.side.use
        if use not in palettes:
            palettes[use] = [_building_materials(street, rng, use) for _ in range(5)]
        house, hall = use == "houses", use == "halls"
        style = buildings.draw_style(draw_style(rng, split), house, hall)
        width = lot.s1 - lot.s0
        mesh = buildings.building(style, width, lot.depth_m, rng.randrange(1 << 30))
        if lot.side.sign > 0:
            matrix = street.plan.course.upright(
                (lot.s0 + lot.s1) / 2, lot.t, lift_m=street.plan.kerb_m
            )
        else:
            middle = (lot.s0 + lot.s1) / 2
            matrix = street.plan.course.upright(middle, -lot.t, math.pi, street.plan.kerb_m)
        matrix = matrix @ _shift(-width / 2)
        item = street.stage.add_mesh("building", mesh, rng.choice(palettes[use]))
        item.matrix_world = _blender(matrix)


def _shift(x: float) -> np.ndarray:
    matrix = np.eye(4)
    matrix[0, 3] = x
    return matrix


def _blender(matrix: np.ndarray) -> Any:
    from mathutils import Matrix

    return Matrix(matrix.tolist())


def _build_gardens(street: Street, lots: list[Lot]) -> None:
    """Fences, walls, hedges and shrubs between pavement and houses; paths to their doors."""
    rng, plan = street.spec.rng("gardens"), street.plan
    slots = _thing_materials(street)
    for lot in lots:
        if lot.side.use not in ("houses", "halls") or lot.side.setback_m < 2:
            continue
        _, outer = plan.pavement_t(lot.side)
        sign, width = lot.side.sign, lot.s1 - lot.s0
        if rng.random() < 0.75:
            gate = rng.uniform(1.2, 3.5)
            for s0, s1 in (
                (lot.s0, lot.s0 + (width - gate) / 2),
                (lot.s1 - (width - gate) / 2, lot.s1),
            ):
                start = s0 if sign > 0 else s1
                matrix = plan.course.upright(
                    start, sign * (outer + 0.2), 0 if sign > 0 else math.pi, plan.kerb_m
                )
                if rng.random() < 0.45:
                    mesh = plants.hedge(
                        s1 - s0,
                        rng.uniform(0.5, 0.9),
                        rng.uniform(0.7, 2.0),
                        rng.randrange(1 << 20),
                    )
                    leaf = _leaf_material(rng)
                    materials, cls = {"leaf": leaf, "core": leaf}, "vegetation"
                else:
                    mesh, materials, cls = roadside.fence(s1 - s0, rng), slots, "fence"
                street.stage.add_mesh("front", mesh, materials, cls).matrix_world = _blender(matrix)
        for _ in range(rng.randint(0, 4)):
            t = outer + rng.uniform(0.8, max(0.9, lot.side.setback_m - 0.5))
            seed = rng.randrange(1 << 20)
            mesh = plants.shrub(rng.uniform(0.3, 0.9), rng.uniform(0.5, 1.6), seed)
            matrix = plan.course.upright(rng.uniform(lot.s0, lot.s1), sign * t, 0, plan.kerb_m)
            materials = {"leaf": _leaf_material(rng), "bark": street.materials["bark"]}
            street.stage.add_mesh("shrub", mesh, materials, "vegetation").matrix_world = _blender(
                matrix
            )


def _build_backdrop(street: Street) -> None:
    """Blocks and tree-coloured mounds at 90 to 250 m, so that the horizon is not empty."""
    rng, plan = street.spec.rng("backdrop"), street.plan
    leaf = shaders.foliage("far leaves", (0.05, 0.09, 0.03), 0.3)
    walls = [_wall_material(street, rng, "blocks") for _ in range(3)]
    for _ in range(rng.randint(12, 30)):
        end = rng.random() < 0.5
        s = (
            rng.choice((rng.uniform(150, 300), rng.uniform(-240, -95)))
            if end
            else rng.uniform(-80, 150)
        )
        t = rng.uniform(-70, 70) if end else rng.choice((-1, 1)) * rng.uniform(45, 160)
        x, y, z, _ = plan.course.at(s, t)
        if abs(t) < 12:
            continue
        w, d = rng.uniform(5, 16), rng.uniform(5, 12)
        if rng.random() < (0.4 if plan.style in ("urban", "industrial") else 0.75):
            mesh = _mound(w, d, rng.uniform(4, 12), rng)
            item = street.stage.add_mesh("far trees", mesh, {"leaf": leaf}, "vegetation")
            item.location = (x, y, z)
        else:
            top = z + rng.uniform(5, 22)
            street.stage.add_box(
                "far building",
                (x - w, y - d, z - 3),
                (x + w, y + d, top),
                rng.choice(walls),
                "building",
            )


def _mound(w: float, d: float, h: float, rng: random.Random) -> Mesh:
    """A lumpy half ball, which stands for a group of far trees."""
    generator = np.random.default_rng(rng.randrange(1 << 20))
    mesh, rows, columns = Mesh(), 7, 20
    lumps = generator.normal(size=(4, 2)) * 3
    points = []
    for i in range(rows):
        up = math.pi / 2 * i / (rows - 1)
        for j in range(columns):
            a = 2 * math.pi * j / columns
            bump = 1 + 0.18 * sum(math.sin(k * a + p * up * 3) for k, p in lumps.round()) / 2
            flat = math.cos(up) * bump
            height = h * math.sin(up) * bump - 0.5
            points.append((w * math.cos(a) * flat, d * math.sin(a) * flat, height))
    faces = [
        (i * columns + j, i * columns + (j + 1) % columns, (i + 1) * columns + (j + 1) % columns,
         (i + 1) * columns + j)
        for i in range(rows - 1) for j in range(columns)
    ]  # fmt: skip
    mesh.add(np.array(points), faces, "leaf", smooth=True)
    return mesh


# Cars, plants, things


def _vehicle_materials(rng: random.Random) -> dict[str, Any]:
    paint = rng.choice(PAINTS)
    return {
        "paint": shaders.plain(
            "car paint", paint, rng.uniform(0.2, 0.45), rng.choice((0, 0, 0.5)), coat=0.8
        ),
        "glass": shaders.pane("car pane", (0.015, 0.018, 0.02)),
        "tyre": shaders.plain("tyre", (0.02, 0.02, 0.02), 0.85),
        "rim": shaders.plain("rim", (0.45, 0.45, 0.46), 0.3, 0.9),
        "lamp": shaders.plain("lamp", (0.7, 0.72, 0.75), 0.1, 0.2, coat=1.0),
        "rear_lamp": shaders.plain("rear lamp", (0.35, 0.01, 0.01), 0.15, coat=1.0),
        "dark": shaders.plain("trim", (0.025, 0.025, 0.027), 0.6),
        "plate": shaders.plain("plate", (0.75, 0.75, 0.7), 0.4),
        "chrome": shaders.plain("chrome", (0.6, 0.6, 0.6), 0.2, 1.0),
    }


def _off_road(plan: StreetPlan, s: float, t: float) -> bool:
    """Whether a point is beyond the kerb and not on the crossing road."""
    side = plan.sides[0 if t > 0 else 1]
    return abs(t) > plan.kerb_t(side) and not plan.in_crossing(s, pad_m=0)


def _place_cars(street: Street) -> None:
    rng, plan = street.spec.rng("cars"), street.plan
    prototypes = []
    for _ in range(9):
        mesh, body = vehicles.vehicle(draw_style(rng, street.spec.split))
        item = street.stage.add_mesh("car", mesh, _vehicle_materials(rng), "vehicle")
        prototypes.append((item.data, body))
        bpy.data.objects.remove(item)
    for place in plan_cars(rng, plan):
        data, body = rng.choice(prototypes)
        if body.length_m > 6 and not place.moving:
            data, body = prototypes[0]
            if body.length_m > 6:
                continue
        lift = plan.kerb_m if _off_road(plan, place.s, place.t) else 0.0
        matrix = plan.course.matrix(place.s, place.t, place.yaw_rad, lift)
        street.stage.add_object("car", data, "vehicle", matrix)
    if rng.random() < 0.3:  # cars on a forecourt
        for side in plan.sides:
            if side.use in ("halls", "open") and plan.style != "rural":
                _, outer = plan.pavement_t(side)
                s = rng.uniform(-10, 30)
                for k in range(rng.randint(3, 9)):
                    data, body = rng.choice(prototypes)
                    if body.length_m < 6 and rng.random() < 0.8:
                        matrix = plan.course.matrix(
                            s + 2.7 * k,
                            side.sign * (outer + 3.4),
                            rng.choice((-1, 1)) * math.pi / 2,
                            plan.kerb_m,
                        )
                        street.stage.add_object("car", data, "vehicle", matrix)


def _leaf_material(rng: random.Random) -> Any:
    green = rng.choice([
        (0.05, 0.11, 0.02), (0.04, 0.08, 0.02), (0.09, 0.14, 0.03), (0.03, 0.07, 0.03),
        (0.2, 0.13, 0.03), (0.28, 0.09, 0.03),
    ])  # fmt: skip
    return shaders.foliage(
        "leaves", tuple(c * rng.uniform(0.8, 1.5) for c in green), rng.uniform(1, 4)
    )


def _place_plants(street: Street) -> None:
    """Trees in rows along the kerb and groups on open ground; grass tufts on verges."""
    rng, plan = street.spec.rng("plants"), street.plan
    prototypes = []
    for _ in range(4):
        mesh = plants.tree(draw_style(rng, street.spec.split), rng.choice((6000, 11000)))
        materials = {"leaf": _leaf_material(rng), "bark": street.materials["bark"]}
        item = street.stage.add_mesh(
            "tree", mesh, {k: materials[k] for k in set(mesh.slots)}, "vegetation"
        )
        prototypes.append(item.data)
        bpy.data.objects.remove(item)
    low, high = plan.extent_m

    def put(s: float, t: float) -> None:
        if plan.in_crossing(s):
            return
        data = rng.choice(prototypes)
        matrix = plan.course.upright(s, t, rng.uniform(0, 6.28), plan.kerb_m)
        matrix[:3, :3] *= rng.uniform(0.65, 1.2)
        street.stage.add_object("tree", data, "vegetation", matrix)

    for side in plan.sides:
        kerb, (_, outer) = plan.kerb_t(side), plan.pavement_t(side)
        if rng.random() < (0.45 if plan.style != "rural" else 0.3) and side.pavement_m > 1.3:
            pitch = rng.uniform(7, 16)
            for s in np.arange(low, high, pitch):
                if rng.random() < 0.85:
                    put(
                        s + rng.uniform(-0.5, 0.5),
                        side.sign * (kerb + 0.15 + rng.uniform(0.5, 0.8)),
                    )
        if side.use == "open":
            for _ in range(rng.randint(10, 45)):
                put(
                    rng.uniform(low, high + 20), side.sign * (outer + 1.5 + rng.expovariate(1 / 14))
                )
            if plan.soft:
                _place_shrubs(street, side, rng)
        elif side.use == "houses":
            for _ in range(rng.randint(3, 12)):
                put(
                    rng.uniform(low, high),
                    side.sign * (outer + side.setback_m * rng.uniform(0.3, 0.6)),
                )
        if side.use == "open" or side.verge_m:
            _place_tufts(street, side, rng)


def _place_tufts(street: Street, side: Side, rng: random.Random) -> None:
    """Grass tufts on a verge or on open ground."""
    plan = street.plan
    kerb, (_, outer) = plan.kerb_t(side), plan.pavement_t(side)
    points = []
    for _ in range(900):
        s = rng.uniform(-30, 60)
        if plan.in_crossing(s, pad_m=0):
            continue
        t = (
            kerb + 0.25 + rng.uniform(0, side.verge_m)
            if side.verge_m
            else outer + rng.uniform(0, 8)
        )
        x, y, z, _ = plan.course.at(s, side.sign * t)
        points.append((x, y, z + plan.kerb_m))
    mesh = plants.grass_tufts(np.array(points), rng.randrange(1 << 20), rng.uniform(0.08, 0.3))
    street.stage.add_mesh("tufts", mesh, {"leaf": street.materials["blade"]}, "terrain")


def _place_shrubs(street: Street, side: Side, rng: random.Random) -> None:
    """Shrubs in groups on open ground, from a few shapes."""
    plan = street.plan
    _, outer = plan.pavement_t(side)
    prototypes = []
    for _ in range(3):
        mesh = plants.shrub(
            rng.uniform(0.4, 1.3), rng.uniform(0.6, 2.0), rng.randrange(1 << 20), 1500
        )
        materials = {"leaf": _leaf_material(rng), "bark": street.materials["bark"]}
        item = street.stage.add_mesh("shrub", mesh, materials, "vegetation")
        prototypes.append(item.data)
        bpy.data.objects.remove(item)
    for _ in range(rng.randint(4, 40)):
        s, t = rng.uniform(-50, 100), outer + 0.5 + rng.expovariate(1 / 8)
        matrix = plan.course.upright(s, side.sign * t, rng.uniform(0, 6.28), plan.kerb_m)
        street.stage.add_object("shrub", rng.choice(prototypes), "vegetation", matrix)


def _thing_materials(street: Street) -> dict[str, Any]:
    """Materials of street furniture, made once a scene."""
    if "things" not in street.materials:
        rng = street.spec.rng("things")
        night = street.light == "night"
        sign = rng.choice([(0.02, 0.08, 0.35), (0.05, 0.2, 0.08), (0.4, 0.3, 0.02)])
        face = shaders.plain("face", (0.75, 0.75, 0.73), 0.4)
        street.materials["things"] = {
            "metal": shaders.plain("metal", (rng.uniform(0.05, 0.35),) * 3, 0.45, 0.6),
            "sign": shaders.plain("sign", sign, 0.4),
            "face": shaders.painted("face", rng) if rng.random() < 0.4 else face,
            "wood": shaders.mottled("wood", (0.22, 0.13, 0.07), 5, 0.35, 0.7),
            "dark": shaders.plain("dark", (0.03, 0.03, 0.03), 0.6),
            "lamp": shaders.plain("lamp", (0.8, 0.78, 0.7), 0.4, emission=8 * night),
            "red": shaders.plain("red", (0.5, 0.03, 0.02), 0.5),
            "green": shaders.plain("green", (0.03, 0.16, 0.06), 0.5),
            "glass": shaders.pane("shelter pane", (0.06, 0.07, 0.07)),
            "white": shaders.plain("white", (0.7, 0.7, 0.68), 0.5),
            "stone": _wall_material(street, rng, "blocks"),
        }  # fmt: skip
    return street.materials["things"]


def _place_things(street: Street) -> None:
    """Lamp posts, signs, traffic lights, poles with wires and things on the pavement."""
    rng, plan, stage = street.spec.rng("place things"), street.plan, street.stage
    materials = _thing_materials(street)
    low, high = plan.extent_m

    def put(  # noqa: PLR0917
        name: str, mesh: Mesh, s: float, side: Side, t: float, yaw: float = 0.0
    ) -> None:
        if plan.in_crossing(s):
            return
        turn = 0.0 if side.sign > 0 else math.pi
        matrix = plan.course.upright(s, side.sign * t, turn + yaw, plan.kerb_m)
        stage.add_mesh(name, mesh, materials, "pole").matrix_world = _blender(matrix)

    for side in plan.sides:
        kerb = plan.kerb_t(side)
        _, outer = plan.pavement_t(side)
        post = random.Random(rng.randrange(1 << 20))
        if rng.random() < 0.75:
            mesh, pitch, start = roadside.lamp_post(post), rng.uniform(16, 34), rng.uniform(0, 15)
            for s in np.arange(low + start, high, pitch):
                put("lamp", mesh, s, side, kerb + 0.45)
                if street.light == "night" and -40 < s < 80:
                    _add_street_light(street, s, side.sign * (kerb - 0.6), mesh.bounds()[1][2])
        elif plan.style in ("rural", "suburban") and rng.random() < 0.8:
            mesh = roadside.utility_pole(post, 32.0)
            for s in np.arange(low, high, 32.0):
                put("pole", mesh, s, side, outer + 0.6)
        for _ in range(0 if plan.style == "park" else rng.randint(1, 8)):
            yaw = rng.choice((0, math.pi)) + rng.gauss(0, 0.15)
            put("sign", roadside.road_sign(rng), rng.uniform(low, high), side, kerb + 0.5, yaw)
        if plan.crossing_m and rng.random() < 0.6:
            at = plan.crossing_m[0] - 1.7 if side.sign < 0 else plan.crossing_m[1] + 1.7
            put("traffic light", roadside.traffic_light(rng), at, side, kerb + 0.4)
        elif plan.style == "urban" and rng.random() < 0.35:
            yaw = rng.choice((0, math.pi))
            put(
                "traffic light",
                roadside.traffic_light(rng),
                rng.uniform(5, 50),
                side,
                kerb + 0.4,
                yaw,
            )
        if plan.style != "rural":  # parks have benches, bins and bicycles too
            _clutter(street, side, put)
        if side.use == "open" and rng.random() < 0.5:
            _place_fences(street, side, rng, post)


def _place_fences(street: Street, side: Side, rng: random.Random, post: random.Random) -> None:
    """Fences of one or more kinds along open ground."""
    plan, materials = street.plan, _thing_materials(street)
    low, high = plan.extent_m
    _, outer = plan.pavement_t(side)
    for s in np.arange(low, high, 12.0):
        if rng.random() < 0.85 and not plan.in_crossing(s, s + 12.0):
            turn = 12.0 if side.sign < 0 else 0.0
            matrix = plan.course.upright(
                s + turn,
                side.sign * (outer + 0.3),
                0 if side.sign > 0 else math.pi,
                plan.kerb_m,
            )
            fence = roadside.fence(12.0, post)
            street.stage.add_mesh("fence", fence, materials, "fence").matrix_world = _blender(
                matrix
            )
        post = random.Random(post.random())


def _clutter(street: Street, side: Side, put: Any) -> None:
    """Bins, benches, bollards, bicycles, shelters and cones on a pavement."""
    rng, plan = street.spec.rng(f"clutter {side.sign}"), street.plan
    kerb, (inner, outer) = plan.kerb_t(side), plan.pavement_t(side)
    if rng.random() < 0.25:
        mesh, start = roadside.bollard(rng), rng.uniform(-20, 30)
        for k in range(rng.randint(5, 25)):
            put("bollard", mesh, start + 1.6 * k, side, kerb + 0.35)
    for _ in range(rng.randint(3, 16)):
        name = rng.choice(
            ("bin", "bin", "bench", "bollard", "bicycle", "bicycle", "cone", "sign", "shelter")
        )
        if name == "shelter" and side.pavement_m < 2.5:
            continue
        t = rng.choice((kerb + 0.6, outer - 0.5)) if name != "shelter" else inner + 0.4
        yaw = (
            rng.uniform(-0.3, 0.3)
            if name != "bicycle"
            else rng.choice((0, 1.57)) + rng.gauss(0, 0.2)
        )
        put(name, roadside.THINGS[name](rng), rng.uniform(-40, 90), side, t, yaw)


# Light


def _add_street_light(street: Street, s: float, t: float, height_m: float) -> None:
    x, y, z, _ = street.plan.course.at(s, t)
    street.stage.add_light(
        "SPOT", (x, y, z + height_m - 0.3), 900.0, spot_size=2.4, spot_blend=0.5,
        color=(1.0, 0.75, 0.45), shadow_soft_size=0.15,
    )  # fmt: skip


def _light(street: Street, rng: random.Random) -> None:
    if street.light == "night":
        set_night(street.stage.scene, rng.uniform(1.0, 4.0))
        return
    sky: Sky = draw_sky(rng)
    street.light = "overcast" if sky.sun_intensity == 0 else "sun"
    street.sky = set_sky(street.stage.scene, sky)


# Cameras


PARK_CAMERAS = ("pedestrian", "pedestrian", "pedestrian", "robot", "drone")
CAMERAS = ("car", "car", "car", "car", "pedestrian", "pedestrian", "pedestrian", "robot", "drone")
GROUND = {"road", "pavement", "terrain", "sky"}


def find_views(street: Street, views: int, size: tuple[int, int]) -> list[View]:
    """Views of a street that show buildings, cars or plants near and far."""
    bpy.context.view_layer.update()
    rng = street.spec.rng("cameras")
    candidates: list[View] = []
    wide = size[0] / size[1] > 2
    for _ in range(views * 40):
        if len(candidates) >= views * 4:
            break
        if street.plan.style == "park":
            kind = rng.choice(PARK_CAMERAS)
        else:
            kind = rng.choice(CAMERAS if not wide else ("car", "car", "car", "pedestrian"))
        fov = rng.uniform(65, 100) if wide else rng.uniform(45, 95)
        matrix = _draw_pose(street, rng, kind)
        score = _score(street.stage, kind, matrix, fov, size)
        if score is not None:
            candidates.append(View(kind, matrix, fov, score + rng.uniform(0, 0.8)))
    return choose(candidates, views, apart_m=3.0, apart_deg=35)


def _draw_pose(street: Street, rng: random.Random, kind: str) -> np.ndarray:
    plan = street.plan
    s, side = rng.uniform(-45, 90), rng.choice(plan.sides)
    inner, outer = plan.pavement_t(side)
    roll = math.radians(rng.gauss(0, 1.5 if kind == "car" else 3))
    if kind == "car":
        t = side.sign * (rng.randrange(plan.lanes) + 0.5) * plan.lane_m + rng.gauss(0, 0.4)
        z, pitch = rng.uniform(1.1, 2.2), rng.gauss(-2, 3)
        yaw = (0 if side.sign < 0 else math.pi) + rng.gauss(0, 0.12)
        if rng.random() < 0.15:
            yaw += rng.choice((-1, 1)) * rng.uniform(0.5, 1.6)
    elif kind == "pedestrian":
        t = (
            side.sign * rng.uniform(inner, outer)
            if rng.random() < 0.75
            else rng.uniform(-1, 1) * inner
        )
        z, pitch = rng.uniform(1.3, 1.8), rng.gauss(-3, 7)
        yaw = rng.choice((0, math.pi)) + rng.gauss(0, 0.55)
        if rng.random() < 0.25:
            yaw = rng.uniform(0, 2 * math.pi)
    elif kind == "robot":
        t, z = side.sign * rng.uniform(inner, outer), rng.uniform(0.25, 0.9)
        pitch, yaw = rng.gauss(2, 4), rng.choice((0, math.pi)) + rng.gauss(0, 0.4)
    else:
        t, z = rng.uniform(-1, 1) * outer, rng.uniform(3, 14)
        pitch, yaw = rng.uniform(-55, -8), rng.uniform(0, 2 * math.pi)
    x, y, ground, heading = plan.course.at(s, t)
    return aim((x, y, ground + plan.kerb_m + z), heading + yaw, math.radians(pitch), roll)


def _score(
    stage: Stage, kind: str, matrix: np.ndarray, fov_deg: float, size: tuple[int, int]
) -> float | None:
    """The score of a view; None if it is not worth rendering."""
    if stage.clearance_m(matrix[:3, 3], 2.0) < (0.2 if kind == "robot" else 0.6):
        return None
    probe = stage.probe(matrix, fov_deg, size, farthest_m=130.0)
    if probe.hit.mean() < 0.45:
        return None
    depth = probe.depth_m[probe.hit]
    objects, spread = probe.count_objects(GROUND), probe.log_spread()
    ground = probe.share(GROUND)
    if np.percentile(depth, 2) < 0.5 or np.median(depth) < 2.0 or objects < 4:
        return None
    if kind == "car" and np.percentile(depth, 8) < 2.0:
        return None
    if ground > 0.85 or probe.largest_share(GROUND) > 0.55 or spread < 0.35:
        return None
    return spread + 0.06 * min(objects, 16) - 0.8 * max(0.0, ground - 0.6)
