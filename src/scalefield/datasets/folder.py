"""A plain folder layout, to use any other data without code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from scalefield.datasets.frame import Frame, read_label_image
from scalefield.datasets.splits import SPLITS, check_split, read_list
from scalefield.errors import InputError, one_line
from scalefield.geometry.camera import Camera
from scalefield.io import read_depth_png, read_image, read_json


@dataclass(frozen=True)
class Folder:
    """Frames of one or more sources, listed in `train.txt`, `val.txt` and `test.txt`.

    A line `<dataset>/<source>/NAME` stands for `<dataset>/<source>/rgb/NAME.jpg` (or .png),
    `depth/NAME.png` (16-bit, 0 = unknown) and optionally `label/NAME.png` (semantic ids).
    `<dataset>/<source>/meta.json` declares

    - `depth_scale_per_metre`: units of the depth files per metre;
    - `depth_range_m`: [nearest, farthest] to be scored; where there is none, `ranges_m` has it;
    - `sky_label`: the label id that is sky, if any;
    - `frames`: for each frame `name`, `scene`, and `K` = [fx, fy, cx, cy] or null.

    A source that is one single scene is reported under the scene's name, so that two recordings
    of one place are one group; any other source is a group of its own.
    """

    root: Path
    ranges_m: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Ranges of sources whose meta.json has none, by `<dataset>/<source>`, `<dataset>` or `*`."""
    name: ClassVar[str] = "folder"

    def names(self, split: str) -> list[str]:
        """The list of that split; `all` joins the lists that are there."""
        check_split(split)
        lists = [Path(self.root) / f"{s}.txt" for s in (SPLITS if split == "all" else (split,))]
        if split == "all":
            lists = [path for path in lists if path.exists()]
        for path in lists:
            if not path.exists():
                wanted = "wanted the frames of the split, a line <dataset>/<source>/NAME for each"
                raise InputError(f"{path}: no such file; {wanted}")
        return [name for path in lists for name in read_list(path)]

    def load(self, name: str) -> Frame:
        """The frame, with the entries of its source's meta.json."""
        source, _, frame = name.rpartition("/")
        folder, meta = Path(self.root) / source, self._source(source)
        scene, intrinsics = meta["frames"].get(frame, ("", None))
        labels = _labels(folder / "label" / f"{frame}.png")
        sky = meta["sky_label"]
        return Frame(
            name=name,
            group=meta["group"],
            scene=f"{source}/{scene}",
            image=read_image(_image_path(folder / "rgb", frame)),
            depth_m=read_depth_png(
                folder / "depth" / f"{frame}.png", meta["depth_scale_per_metre"]
            ).astype(np.float32),
            depth_range_m=self._range_m(source, meta),
            labels=labels,
            sky=None if sky is None or labels is None else labels == sky,
            intrinsics=intrinsics,
        )

    @cached_property
    def _sources(self) -> dict[str, dict[str, Any]]:
        return {}

    def _source(self, source: str) -> dict[str, Any]:
        """`read_meta` of the source, read once."""
        if source not in self._sources:
            self._sources[source] = read_meta(Path(self.root) / source / "meta.json", source)
        return self._sources[source]

    def _range_m(self, source: str, meta: dict[str, Any]) -> tuple[float, float]:
        parts = source.split("/")
        keys = ["/".join(parts[:i]) for i in range(len(parts), 0, -1)] + ["*"]
        declared = [self.ranges_m[key] for key in keys if key in self.ranges_m]
        found = meta["depth_range_m"] or (declared[0] if declared else None)
        if found is None:
            raise InputError(
                f"{source}: no depth range is declared; put depth_range_m into its meta.json or "
                f"give --range {keys[-2]}=NEAREST,FARTHEST (or '*' for every source)"
            )
        nearest, farthest = map(float, found)
        if not 0 < nearest < farthest:
            raise InputError(f"{source}: a depth range must grow from above 0, found {found}")
        return nearest, farthest


def read_meta(path: Path, source: str) -> dict[str, Any]:
    """A source's meta.json, checked: frames by name with scene and intrinsics, and the group."""
    meta = read_json(path)
    try:
        frames = {str(frame["name"]): _about(frame) for frame in meta.get("frames", [])}
        range_m, sky = meta.get("depth_range_m"), meta.get("sky_label")
        checked = {
            "depth_scale_per_metre": float(meta["depth_scale_per_metre"]),
            "depth_range_m": None if range_m is None else tuple(map(float, range_m)),
            "sky_label": None if sky is None else int(sky),
        }
        if range_m is not None and len(range_m) != 2:
            raise ValueError(f"depth_range_m has {len(range_m)} numbers")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as e:
        why = one_line(repr(e))
        raise InputError(
            f"{path}: wanted JSON with depth_scale_per_metre and frames ({why})"
        ) from None
    scenes = {scene for scene, _ in frames.values()} - {""}
    return checked | {"frames": frames, "group": scenes.pop() if len(scenes) == 1 else source}


def _about(frame: dict[str, Any]) -> tuple[str, tuple[float, float, float, float] | None]:
    """Scene and fx, fy, cx, cy of a frame; empty and None if not given."""
    scene = "" if frame.get("scene") is None else str(frame["scene"])
    if not frame.get("K"):
        return scene, None
    fx, fy, cx, cy = map(float, frame["K"])
    return scene, Camera(fx, fy, cx, cy).intrinsics  # which are checked there


def _image_path(folder: Path, frame: str) -> Path:
    for suffix in (".jpg", ".png", ".jpeg"):
        if (folder / f"{frame}{suffix}").exists():
            return folder / f"{frame}{suffix}"
    return folder / f"{frame}.jpg"


def _labels(path: Path) -> np.ndarray | None:
    if not path.exists():
        return None
    labels = read_label_image(path)
    if labels.ndim != 2:
        raise InputError(f"{path}: labels must have one channel, found {labels.shape[2]}")
    return labels
