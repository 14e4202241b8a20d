"""The data set on disk: folders, records of finished scenes, meta.json and split lists. Pure code.

    OUT/train.txt, OUT/val.txt              lines `scenes/KIND/NAME`
    OUT/scenes/KIND/rgb/NAME.jpg            8-bit sRGB
    OUT/scenes/KIND/depth/NAME.png          16-bit planar z, 0 = no surface
    OUT/scenes/KIND/label/NAME.png          8-bit ids
    OUT/scenes/KIND/meta.json               scale, range, labels, and every frame
    OUT/scenes/KIND/done/SCENE.json         record of a finished scene

which is the layout that `scalefield.datasets.Folder` reads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recipes.scenes.files import write_json, write_text
from recipes.scenes.labels import LABELS
from recipes.scenes.plan import DEPTH_RANGE_M, DEPTH_SCALE_PER_METRE, KINDS, SceneSpec

DATASET = "scenes"


def source_folder(out: Path, kind: str) -> Path:
    """The folder of all frames of a kind."""
    return out / DATASET / kind


def done_path(out: Path, spec: SceneSpec) -> Path:
    """The record of a finished scene; a scene without one is rendered again."""
    return source_folder(out, spec.kind) / "done" / f"{spec.name}.json"


def collect(out: Path) -> dict[str, int]:
    """Write meta.json of each kind and the split lists; the number of frames of each list."""
    lists: dict[str, list[str]] = {"train": [], "val": []}
    for kind in KINDS:
        folder = source_folder(out, kind)
        records = [
            json.loads(path.read_text()) for path in sorted((folder / "done").glob("*.json"))
        ]
        if not records:
            continue
        write_json(folder / "meta.json", meta(kind, records))
        for record in records:
            names = [f"{DATASET}/{kind}/{frame['name']}" for frame in record["frames"]]
            lists[record["split"]] += names
    for split, names in lists.items():
        write_text(out / f"{split}.txt", "".join(f"{name}\n" for name in names))
    return {split: len(names) for split, names in lists.items()}


def meta(kind: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """The content of a kind's meta.json."""
    scenes = {
        record["scene"]: {key: value for key, value in record.items() if key != "frames"}
        for record in records
    }
    return {
        "dataset": DATASET,
        "source": kind,
        "licence": "CC0-1.0",
        "depth": "planar z along the optical axis; 0 = no surface or beyond 16 bits",
        "depth_scale_per_metre": DEPTH_SCALE_PER_METRE[kind],
        "depth_range_m": list(DEPTH_RANGE_M[kind]),
        "pixel_centres": "integers",
        "camera_axes": "x right, y down, z forward",
        "labels": LABELS,
        "sky_label": LABELS["sky"],
        "glass_label": LABELS["glass"],
        "scenes": scenes,
        "frames": [frame for record in records for frame in record["frames"]],
    }
