"""Build and render one scene in this process. Needs bpy; the command starts it for each scene."""

from __future__ import annotations

import json
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from recipes.scenes.dataset import done_path, source_folder
from recipes.scenes.files import write_json
from recipes.scenes.plan import GENERATOR_VERSION, SceneSpec


def make_scene(spec: SceneSpec, views: int, library: Path, out: Path, **render: Any) -> bool:
    """Render a scene into the data set `out`; whether it was worth keeping."""
    from recipes.scenes.render import RenderConfig, render_views
    from recipes.scenes.stage import Library, Stage

    start = time.time()
    config = RenderConfig(**render)
    stage = Stage(Library(library, spec.split), spec.rng("assets"))
    if spec.kind == "indoor":
        from recipes.scenes.indoor import build_indoor as build
        from recipes.scenes.indoor import find_views
    elif spec.kind == "street":
        from recipes.scenes.street import build_street as build
        from recipes.scenes.street import find_views
    elif spec.kind == "tabletop":
        from recipes.scenes.tabletop import build_tabletop as build
        from recipes.scenes.tabletop import find_views
    else:
        from recipes.scenes.passage import build_passage as build
        from recipes.scenes.passage import find_views
    content = build(spec, stage)
    built_s = time.time() - start
    chosen = find_views(content, views, spec.size())
    views_s = time.time() - start - built_s
    print(
        f"{spec.name} {spec.split} {content.settings()} {len(stage.placed)} assets "
        f"{stage.faces()} faces, {len(chosen)} views, {built_s:.1f} s + {views_s:.1f} s",
        flush=True,
    )
    record: dict[str, Any] = {"scene": spec.name, "kind": spec.kind, "seed": spec.seed}
    record |= {
        "split": spec.split,
        "library": {"version": stage.library.version, "hash": stage.library.hash},
        "generator_version": GENERATOR_VERSION,
        "render": vars(config),
        "settings": content.settings(),
        "assets": sorted(stage.used_assets),
        "frames": [],
    }
    if len(chosen) >= min(3, views):
        depths = {}
        for index, view in enumerate(chosen):
            probe = stage.probe(view.camera_to_world, view.fov_deg, spec.size())
            depths[index] = probe.depth_m[probe.hit]
        work = Path(tempfile.mkdtemp(prefix="scene_"))
        try:
            dark = content.settings().get("light") in ("lamps", "night")
            record["frames"], seconds = render_views(
                spec, chosen, config, source_folder(out, spec.kind), work, dark, depths
            )
        finally:
            shutil.rmtree(work)
        record["seconds"] = {"build": round(built_s, 1), "views": round(views_s, 1)}
        record["seconds"]["render"] = seconds
        usage = resource.getrusage(resource.RUSAGE_SELF)
        record["seconds"]["processor"] = round(usage.ru_utime + usage.ru_stime, 1)
    write_json(done_path(out, spec), record)
    return bool(record["frames"])


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    limit = arguments["limit_s"]
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 30))
    make_scene(
        SceneSpec(arguments["kind"], arguments["seed"]),
        arguments["views"],
        Path(arguments["library"]),
        Path(arguments["out"]),
        **arguments["render"],
    )
