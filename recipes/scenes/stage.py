"""The Blender scene under construction: library, placement, meshes, rays and light. Needs bpy."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bpy
import numpy as np
from mathutils import Matrix, Vector
from recipes.scenes.cameras import Probe, rays
from recipes.scenes.labels import LABELS, label_of
from recipes.scenes.mesh import Mesh, box_mesh, box_uv


@dataclass(frozen=True)
class Asset:
    """An entry of the library's manifest."""

    cls: str
    path: Path
    lo_m: np.ndarray
    hi_m: np.ndarray

    @property
    def size_m(self) -> np.ndarray:
        """Extent along x (front to back), y (width) and z (height)."""
        return self.hi_m - self.lo_m


@dataclass(eq=False)
class Placed:
    """An asset in the scene."""

    cls: str
    objects: list[Any]
    size_m: np.ndarray
    matrix: Any
    yaw_rad: float
    wall: Any = None
    along_m: float = 0.0

    center_xy: tuple[float, float] = (0.0, 0.0)
    """x and y of the centre, in metres."""

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest corner in world coordinates."""
        corners = [
            o.matrix_world @ Vector(c)
            for o in self.objects
            if o.type == "MESH"
            for c in o.bound_box
        ]
        points = np.array(corners)
        return points.min(0), points.max(0)


class Library:
    """The frozen library, restricted to what scenes of a split may use."""

    def __init__(self, root: Path, split: str) -> None:
        manifest = json.loads((root / "manifest.json").read_text())
        self.version: str = manifest["version"]
        self.hash: str = manifest["hash"]
        self.assets: dict[str, list[Asset]] = {}
        self.materials: dict[str, list[tuple[str, Path]]] = {}
        for item in manifest["assets"]:
            if item["held_out"] == (split == "val"):
                asset = Asset(
                    item["cls"],
                    root / item["file"],
                    np.array(item["lo_m"]),
                    np.array(item["hi_m"]),
                )
                self.assets.setdefault(item["cls"], []).append(asset)
        for item in manifest["materials"]:
            if item["held_out"] == (split == "val"):
                entry = (item["cls"], root / item["file"])
                self.materials.setdefault(item["category"], []).append(entry)


@dataclass
class Stage:
    """An empty Blender scene, and what is put into it."""

    library: Library
    rng: random.Random
    placed: list[Placed] = field(default_factory=list)
    used_assets: set[str] = field(default_factory=set)
    _materials: dict[Path, Any] = field(default_factory=dict)
    _prototypes: dict[Path, list[Any]] = field(default_factory=dict)
    _depsgraph: Any = None

    def __post_init__(self) -> None:
        bpy.ops.wm.read_factory_settings(use_empty=True)
        self.scene = bpy.context.scene

    # Library

    def material(self, category: str, cls: str = "") -> Any:
        """A random material of a category, of classes whose names begin with `cls` if any are."""
        entries = self.library.materials[category]
        matching = [path for name, path in entries if name.startswith(cls)]
        path = self.rng.choice(matching or [path for _, path in entries])
        if path not in self._materials:
            with bpy.data.libraries.load(str(path), link=False) as (source, target):
                target.materials = list(source.materials)
            self._materials[path] = target.materials[0]
        self.used_assets.add(path.stem)
        return self._materials[path]

    def draw(self, cls: str) -> Asset | None:
        """A random asset of a class, or none where the split has none."""
        assets = self.library.assets.get(cls)
        return self.rng.choice(assets) if assets else None

    def place(  # noqa: PLR0917
        self,
        asset: Asset,
        position: tuple[float, float, float],
        yaw_rad: float,
        scale: float = 1.0,
        anchor: str = "bottom",
        tilt: Any = None,
    ) -> Placed:
        """Put an asset down: the bottom, top or middle of its bounds at `position`.

        `tilt` is a rotation (Matrix) about the middle of the asset, before the yaw.
        """
        if asset.path not in self._prototypes:
            with bpy.data.libraries.load(str(asset.path), link=False) as (source, target):
                target.objects = list(source.objects)
            self._prototypes[asset.path] = [o for o in target.objects if o is not None]
        center = (asset.lo_m + asset.hi_m) / 2
        if anchor != "middle":
            center[2] = asset.lo_m[2] if anchor == "bottom" else asset.hi_m[2]
        matrix = Matrix.Translation(position) @ Matrix.Rotation(yaw_rad, 4, "Z")
        if tilt is not None:
            matrix = matrix @ tilt
        full = matrix @ Matrix.Scale(scale, 4) @ Matrix.Translation(-Vector(center))
        objects = []
        for prototype in self._prototypes[asset.path]:
            copy = prototype.copy()
            self.scene.collection.objects.link(copy)
            copy.matrix_world = full @ prototype.matrix_world
            copy["cls"] = asset.cls
            copy.pass_index = label_of(asset.cls)
            if copy.type == "LIGHT":
                copy.hide_render = True
            objects.append(copy)
        placed = Placed(
            asset.cls, objects, asset.size_m * scale, full, yaw_rad, center_xy=position[:2]
        )
        self.placed.append(placed)
        self.used_assets.add(asset.path.stem)
        self._depsgraph = None
        return placed

    def remove(self, placed: Placed) -> None:
        """Take an asset out of the scene again."""
        for item in placed.objects:
            bpy.data.objects.remove(item)
        self.placed.remove(placed)
        self.changed()

    def changed(self) -> None:
        """Forget what rays are cast against, after objects were moved."""
        self._depsgraph = None

    # Meshes

    def add_mesh(
        self, name: str, mesh: Mesh, materials: dict[str, Any], cls: str | None = None
    ) -> Any:
        """An object of a mesh; `materials` gives the material of each slot."""
        points = mesh.arrays()
        data = bpy.data.meshes.new(name)
        data.from_pydata(points.tolist(), [], mesh.faces)
        order = sorted(set(mesh.slots))
        for slot in order:
            data.materials.append(materials[slot])
        index = {slot: i for i, slot in enumerate(order)}
        data.polygons.foreach_set("material_index", [index[slot] for slot in mesh.slots])
        data.polygons.foreach_set("use_smooth", mesh.smooth)
        data.uv_layers.new(name="UVMap").data.foreach_set("uv", box_uv(points, mesh.faces).ravel())
        return self.add_object(name, data, cls or name)

    def add_object(self, name: str, data: Any, cls: str, matrix: np.ndarray | None = None) -> Any:
        """An object of Blender data, labelled by its class."""
        item = bpy.data.objects.new(name, data)
        self.scene.collection.objects.link(item)
        item["cls"] = cls
        item.pass_index = label_of(cls)
        if matrix is not None:
            item.matrix_world = Matrix(matrix.tolist())
        self._depsgraph = None
        return item

    def add_box(
        self,
        name: str,
        lo: tuple[float, ...],
        hi: tuple[float, ...],
        material: Any,
        cls: str | None = None,
    ) -> Any:
        """An axis-aligned box of one material."""
        return self.add_mesh(name, box_mesh(lo, hi, "all"), {"all": material}, cls)

    # Rays

    def cast(
        self, origin: Any, direction: Any, farthest_m: float = 30.0
    ) -> tuple[bool, Vector, Vector, Any]:
        """Whether a ray hits a surface, and its point, normal and object."""
        if self._depsgraph is None:
            bpy.context.view_layer.update()
            self._depsgraph = bpy.context.evaluated_depsgraph_get()
        hit, point, normal, _, item, _ = self.scene.ray_cast(
            self._depsgraph, Vector(origin), Vector(direction), distance=farthest_m
        )
        return hit, point, normal, item

    def clearance_m(self, position: np.ndarray, farthest_m: float = 3.0) -> float:
        """Distance to the nearest surface in ten directions."""
        d = math.sqrt(0.5)
        directions = [
            (1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1),
            (d, d, 0), (-d, d, 0), (d, -d, 0), (-d, -d, 0),
        ]  # fmt: skip
        nearest = farthest_m
        for direction in directions:
            hit, point, _, _ = self.cast(position, direction, farthest_m)
            if hit:
                nearest = min(nearest, (point - Vector(position)).length)
        return nearest

    def probe(
        self,
        camera_to_world: np.ndarray,
        fov_deg: float,
        size: tuple[int, int],
        farthest_m: float = 80.0,
    ) -> Probe:
        """Hits of a grid of 16 × 12 rays of a camera."""
        local = rays(*size, fov_deg, 16, 12)
        directions = local @ camera_to_world[:3, :3].T
        depth, classes, objects = [], [], []
        origin = camera_to_world[:3, 3]
        for direction in directions:
            length = float(np.linalg.norm(direction))
            hit, point, _, item = self.cast(origin, direction / length, farthest_m)
            depth.append((point - Vector(origin)).length / length if hit else math.inf)
            classes.append(item.get("cls", "other") if hit else "sky")
            objects.append(item.name if hit else "")
        return Probe(np.array(depth), tuple(classes), tuple(objects))

    # Light

    def add_light(
        self, kind: str, position: tuple[float, ...], energy_w: float, **settings: Any
    ) -> Any:
        """A lamp of a Blender kind (AREA, POINT, SUN) with settings of its data block."""
        light = bpy.data.lights.new(kind.lower(), kind)
        light.energy = energy_w
        for key, value in settings.items():
            setattr(light, key, value)
        item = bpy.data.objects.new(kind.lower(), light)
        self.scene.collection.objects.link(item)
        item.location = position
        item.pass_index = LABELS["light"]
        return item

    def faces(self) -> int:
        """Number of polygons in the scene."""
        return sum(len(o.data.polygons) for o in self.scene.objects if o.type == "MESH")
