"""Build the library of procedural assets and materials once, and freeze it.

Each asset is `assets/CLASS_SEED.blend` with `assets/CLASS_SEED.json` (bounds in metres, faces,
seconds); each material is `materials/CATEGORY_CLASS_INDEX.blend`. `manifest.json` freezes the
library: it lists every file with its SHA-256, says which are held out for val scenes, and carries
one hash of the whole. Scenes read the manifest alone, so files that are added later change nothing.
"""

from __future__ import annotations

import faulthandler
import hashlib
import importlib
import importlib.util
import json
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from recipes.scenes.catalogue import (
    FACTORIES,
    LIBRARY_VERSION,
    MATERIALS,
    SLOW_FACTORIES,
    held_out,
)
from recipes.scenes.files import sha256_of, write_json


@dataclass(frozen=True)
class LibraryConfig:
    """Extent and limits of a library build."""

    rounds: int = 8
    """Variants of each factory."""
    seed: int = 7
    """Seed of the first variant."""
    minutes: float = 60.0
    """Time after which no further asset is begun; the library is frozen with what is there."""
    asset_limit_s: int = 60
    """Processor time after which one asset is given up."""
    max_faces: int = 45_000
    """Assets with more faces are decimated to about this number."""
    max_memory_gib: int = 9
    """Address space of the building process."""


class AssetTimeoutError(Exception):
    """An asset took longer than `LibraryConfig.asset_limit_s`."""


def build(config: LibraryConfig, out: Path) -> dict[str, Any]:
    """The manifest of the library in `out`, built if it is not frozen yet.

    The building runs in child processes: one that crashes is started again, and leaves out the
    asset that it was at.
    """
    if (out / "manifest.json").exists():
        return json.loads((out / "manifest.json").read_text())
    end = time.time() + 60 * config.minutes
    command = [sys.executable, "-m", "recipes.scenes.library", str(out), json.dumps(vars(config))]
    while subprocess.run([*command, str(end)], check=False).returncode != 0:
        if time.time() > end:
            break
    return freeze(config, out)


def freeze(config: LibraryConfig, out: Path) -> dict[str, Any]:
    """The manifest of what is in `out`, written to `manifest.json`."""
    records = [json.loads(path.read_text()) for path in sorted((out / "assets").glob("*.json"))]
    by_class: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if record["ok"]:
            by_class.setdefault(record["cls"], []).append(record)
    assets = []
    for cls in sorted(by_class):
        variants = sorted(by_class[cls], key=lambda record: record["seed"])
        for index, record in enumerate(variants):
            file = f"assets/{cls}_{record['seed']}.blend"
            keep = {key: record[key] for key in ("cls", "seed", "lo_m", "hi_m", "faces")}
            held = held_out(index, len(variants))
            assets.append(keep | {"file": file, "sha256": sha256_of(out / file), "held_out": held})
    materials = []
    for category, cls, count in _material_classes():
        existing = [i for i in range(count) if (out / _material_file(category, cls, i)).exists()]
        for index, i in enumerate(existing):
            file = _material_file(category, cls, i)
            record = {"category": category, "cls": cls, "file": file}
            held = held_out(index, len(existing))
            materials.append(record | {"sha256": sha256_of(out / file), "held_out": held})
    sums = "\n".join(item["sha256"] for item in assets + materials)
    manifest = {
        "version": LIBRARY_VERSION,
        "hash": hashlib.sha256(sums.encode()).hexdigest()[:16],
        "config": vars(config),
        "assets": assets,
        "materials": materials,
    }
    write_json(out / "manifest.json", manifest)
    return manifest


def _material_classes() -> Iterator[tuple[str, str, int]]:
    """Category, class with its position in the category, and number of variants."""
    for category, entries in MATERIALS.items():
        for position, (_, cls, _, count) in enumerate(entries):
            yield category, f"{cls}{position}", count


def _material_file(category: str, cls: str, index: int) -> str:
    return f"materials/{category}_{cls}_{index}.blend"


def _start_infinigen() -> None:
    """Register Infinigen's configuration, which it finds from its own folder only."""
    spec = importlib.util.find_spec("infinigen")
    if spec is None or spec.origin is None:
        raise SystemExit("no infinigen: see recipes/scenes/requirements.txt")
    logging.disable(logging.WARNING)
    os.chdir(Path(spec.origin).parent.parent)
    from infinigen.core import init

    importlib.import_module("infinigen_examples.generate_indoors")
    init.apply_gin_configs(
        configs=["base_indoors.gin"],
        overrides=[],
        config_folders=[
            "infinigen_examples/configs_indoor",
            "infinigen_examples/configs_nature",
        ],
        skip_unknown=True,
    )


def _seed_all(seed: int) -> None:
    """Seed the global generators, which Infinigen draws from."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


def _build_materials(out: Path, end: float) -> None:
    """Write each material of the catalogue that is not there yet."""
    import bpy

    for category, entries in MATERIALS.items():
        for position, (module, cls, arguments, count) in enumerate(entries):
            for index in range(count):
                path = out / _material_file(category, f"{cls}{position}", index)
                if path.exists() or time.time() > end:
                    continue
                try:
                    bpy.ops.wm.read_factory_settings(use_empty=True)
                    _seed_all(1000 * position + index + 17 * len(category))
                    shader = getattr(
                        importlib.import_module(f"infinigen.assets.materials.{module}"), cls
                    )
                    material = shader()(**arguments)
                    material.name = path.stem
                    _write_blend(path, {material})
                except Exception as e:
                    print(f"no material {path.stem}: {e!r}"[:200], flush=True)
    print("materials", len(list((out / "materials").glob("*.blend"))), flush=True)


def _write_blend(path: Path, blocks: set[Any]) -> None:
    """Write Blender data blocks to a file of their own, atomically."""
    import bpy

    partial = path.with_suffix(".partial.blend")
    bpy.data.libraries.write(str(partial), blocks, fake_user=True, compress=True)
    os.replace(partial, path)


def _build_assets(config: LibraryConfig, out: Path, end: float) -> None:
    """Write each asset of the catalogue that has no record yet.

    A round builds one variant of each factory; slow factories come in the last rounds alone.
    """
    for round_ in range(config.rounds):
        for cls, module in FACTORIES.items():
            seed = config.seed + 101 * round_
            record_path = out / "assets" / f"{cls}_{seed}.json"
            if record_path.exists() or round_ < config.rounds - SLOW_FACTORIES.get(
                cls, config.rounds
            ):
                continue
            if time.time() > end:
                return
            record: dict[str, Any] = {"cls": cls, "seed": seed, "ok": False, "error": "crashed"}
            write_json(record_path, record)
            faulthandler.dump_traceback_later(20 * config.asset_limit_s, exit=True)
            start = time.time()
            try:
                record = record | _build_asset(config, cls, module, seed, out)
            except AssetTimeoutError:
                record["error"] = "timeout"
            except Exception as e:
                record["error"] = (repr(e)[:200] + traceback.format_exc()[-500:]).strip()
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            record["seconds"] = round(time.time() - start, 1)
            write_json(record_path, record)
            print(cls, seed, record["error"] or "", record["seconds"], flush=True)
    faulthandler.cancel_dump_traceback_later()


def _build_asset(
    config: LibraryConfig, cls: str, module: str, seed: int, out: Path
) -> dict[str, Any]:
    """Spawn one asset, reduce it to plain meshes and lights, write it; its record."""
    import bpy

    bpy.ops.wm.read_factory_settings(use_empty=True)
    _seed_all(seed)
    signal.setitimer(signal.ITIMER_PROF, config.asset_limit_s)
    factory = getattr(importlib.import_module(f"infinigen.assets.objects.{module}"), cls)(seed)
    root = factory.spawn_asset(0)
    try:
        factory.finalize_assets([root])
    except TypeError:
        factory.finalize_assets(root)
    meshes, lights = _flatten(root)
    signal.setitimer(signal.ITIMER_PROF, 0)
    if not meshes:
        raise ValueError("no mesh")
    faces = sum(len(mesh.data.polygons) for mesh in meshes)
    if faces > 4 / 3 * config.max_faces:
        _decimate(meshes, config.max_faces / faces)
    bpy.context.view_layer.update()
    points = np.concatenate([_world_points(mesh) for mesh in meshes])
    _write_blend(out / "assets" / f"{cls}_{seed}.blend", set(meshes + lights))
    return {
        "ok": True,
        "error": None,
        "lo_m": points.min(0).round(5).tolist(),
        "hi_m": points.max(0).round(5).tolist(),
        "faces": sum(len(mesh.data.polygons) for mesh in meshes),
        "faces_before": faces,
        "lights": len(lights),
    }


def _world_points(mesh: Any) -> np.ndarray:
    """Vertices of a mesh object in world coordinates, (n, 3)."""
    local = np.empty(3 * len(mesh.data.vertices), np.float32)
    mesh.data.vertices.foreach_get("co", local)
    matrix = np.array(mesh.matrix_world)
    return local.reshape(-1, 3) @ matrix[:3, :3].T + matrix[:3, 3]


def _flatten(root: Any) -> tuple[list[Any], list[Any]]:
    """Visible meshes (modifiers applied) and lights below `root`, without parents."""
    import bpy

    objects = [root, *root.children_recursive]
    bpy.context.view_layer.update()
    meshes = [o for o in objects if o.type == "MESH" and not o.hide_render]
    lights = [o for o in objects if o.type == "LIGHT"]
    _apply_modifiers(meshes)
    for o in meshes + lights:
        world = o.matrix_world.copy()
        o.parent = None
        o.matrix_world = world
    return [o for o in meshes if len(o.data.polygons)], lights


def _decimate(meshes: list[Any], ratio: float) -> None:
    """Reduce the faces of large meshes to `ratio` of their number."""
    for mesh in meshes:
        if len(mesh.data.polygons) >= 2000:
            mesh.modifiers.new("decimate", "DECIMATE").ratio = ratio
    _apply_modifiers(meshes)


def _apply_modifiers(meshes: list[Any]) -> None:
    """Replace each mesh by what its modifiers make of it."""
    import bpy

    depsgraph = bpy.context.evaluated_depsgraph_get()
    for mesh in meshes:
        if mesh.modifiers:
            data = bpy.data.meshes.new_from_object(
                mesh.evaluated_get(depsgraph), preserve_all_data_layers=True, depsgraph=depsgraph
            )
            mesh.modifiers.clear()
            mesh.data = data


def _raise_timeout(*_: object) -> None:
    raise AssetTimeoutError


def _build_here(config: LibraryConfig, out: Path, end: float) -> None:
    """Build in this process."""
    limit = config.max_memory_gib << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGPROF, _raise_timeout)
    out = out.resolve()
    for folder in ("assets", "materials"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    _start_infinigen()
    _build_materials(out, end)
    _build_assets(config, out, end)


if __name__ == "__main__":
    _build_here(LibraryConfig(**json.loads(sys.argv[2])), Path(sys.argv[1]), float(sys.argv[3]))
