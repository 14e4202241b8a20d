"""Views of scenes recovered together and one by one: error, disagreement, coverage.

    python -m benchmarks.scenes --rooms ROOMS --out results/scenes

Wide baselines are rendered rooms of --rooms (`rooms/meta.json` with K and poses, as
`python -m recipes.scenes` writes them, or in Blender's axes with --blender); small steps are
sequences of `training.synthetic_rooms`, which need no data.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.record import new_record, parser, write_record
from PIL import Image

from scalefield import Anchors, Camera, Recovery, Scene
from scalefield.io import as_json, read_image
from scalefield.scene.solver import SceneConfig
from scalefield.scene.view import View
from scalefield.seeding import seeded_rng
from scalefield.training.synthetic_rooms import furnish, render, tensor

OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])
"""From axes with y up and z backwards to y down and z forward."""
RANGE_M = (0.2, 10.0)
SAME_SURFACE = 0.02
"""Relative difference of depth within which two views truly see one surface."""
SIGMA = 0.005
"""Relative noise that anchors declare."""
CONDITIONS = ("six", "quarter", "wrong_pose")
"""Six anchors in every view; twelve in every fourth and none in the others; six, and one pose in
twenty, at least one, turned and moved."""


@dataclass(frozen=True, eq=False)
class Truth:
    """A rendered view."""

    name: str
    image: np.ndarray
    depth_m: np.ndarray
    camera: Camera
    camera_to_world: np.ndarray

    @property
    def known(self) -> np.ndarray:
        """Pixels that are scored."""
        return (self.depth_m > RANGE_M[0]) & (self.depth_m < RANGE_M[1])


def wide(
    folder: Path, names: set[str] | None, *, blender: bool
) -> Iterator[tuple[str, list[Truth]]]:
    """The scenes of a folder of rendered views, or those of the frames of a split."""
    scenes: dict[str, list[dict]] = {}
    meta = json.loads((folder / "meta.json").read_text())
    for frame in meta["frames"]:
        if names is None or frame["name"] in names:
            scenes.setdefault(frame["scene"], []).append(frame)
    for scene, frames in scenes.items():
        yield (
            scene,
            [
                Truth(
                    frame["name"],
                    read_image(folder / "rgb" / f"{frame['name']}.jpg"),
                    np.asarray(Image.open(folder / "depth" / f"{frame['name']}.png"))
                    / meta["depth_scale_per_metre"],
                    Camera(*frame["K"]),
                    np.array(frame["cam_to_world"]) @ (OPENGL if blender else np.eye(4)),
                )
                for frame in frames
            ],
        )


def small_steps(
    count: int, views: int = 10, step_m: float = 0.12, size: tuple[int, int] = (240, 320)
) -> Iterator[tuple[str, list[Truth]]]:
    """Sequences of a camera that moves sideways through a synthetic room and turns against it."""
    flip = np.diag([1.0, -1.0, 1.0])  # the room has y up, in a left-handed world
    number = 0
    while count:
        rng = seeded_rng(77, f"sequence {number}")
        number += 1
        room = furnish(rng)
        axes, start = room.camera_axes.double().numpy(), room.camera_position.double().numpy()
        side = rng.choice([-1.0, 1.0])
        along = side * axes[0] + 0.4 * rng.normal() * axes[2]
        along *= [1, 0.3, 1]
        along /= np.linalg.norm(along)
        frames = []
        for k in range(views):
            angle = -side * 0.04 * (k - views / 2)
            cos, sin = np.cos(angle), np.sin(angle)
            turned = axes @ np.array([[cos, 0, sin], [0, 1, 0], [-sin, 0, cos]]).T
            position = start + along * step_m * (k - views / 2)
            moved = dataclasses.replace(
                room, camera_position=tensor(position), camera_axes=tensor(turned)
            )
            image, depth_m = render(moved, size, torch.device("cpu"))
            pose = np.eye(4)
            pose[:3, :3], pose[:3, 3] = (turned @ flip).T, flip @ position
            focal_px = room.focal * size[1]
            camera = Camera(focal_px, focal_px, (size[1] - 1) / 2, (size[0] - 1) / 2)
            frames.append(Truth(f"{k:02d}", image, depth_m.astype(np.float64), camera, pose))
        if min(frame.depth_m.min() for frame in frames) > 0.15:  # the camera hits nothing
            count -= 1
            yield f"sequence {number - 1}", frames


def anchors_of(truth: Truth, count: int) -> Anchors:
    """So many random pixels of the true depth."""
    v, u = np.nonzero(truth.known)
    chosen = seeded_rng(0, truth.name).permutation(len(v))[:count]
    v, u = v[chosen], u[chosen]
    depth_m = truth.depth_m[v, u]
    return Anchors(u, v, depth_m, SIGMA * depth_m)


def disagreement(truths: list[Truth], recoveries: Mapping[str, Recovery]) -> float:
    """Median |log z_j(point of i) − log D_j| where both truly see one surface, mean over pairs."""
    views = {t.name: View(t.name, t.image, t.camera, t.camera_to_world) for t in truths}
    found = []
    for own in truths:
        height, width = own.depth_m.shape
        v, u = (x.ravel() for x in np.mgrid[4:height:8, 4:width:8])
        depth_m = recoveries[own.name].depth_m[v, u].astype(np.float64)
        true_m = own.depth_m[v, u]
        ok = (true_m > 0) & np.isfinite(depth_m)
        u, v, depth_m, true_m = u[ok], v[ok], depth_m[ok], true_m[ok]
        view = views[own.name]
        for other in truths:
            if other is own:
                continue
            truly, found_m = (
                sampled(views[other.name], view.world(u.astype(float), v.astype(float), z), depth)
                for z, depth in (
                    (true_m, other.depth_m),
                    (depth_m, recoveries[other.name].depth_m),
                )
            )
            same = np.abs(truly - 0.0) < SAME_SURFACE
            same &= np.isfinite(found_m)
            if same.sum() > 20:
                found.append(float(np.median(np.abs(found_m[same]))))
    return float(np.mean(found)) if found else np.nan


def sampled(view: View, points: np.ndarray, depth_m: np.ndarray) -> np.ndarray:
    """log of the points' depth in a view over the view's own there; NaN outside."""
    u, v, z = view.project(points)
    height, width = depth_m.shape
    inside = (z > RANGE_M[0]) & (u > 0) & (u < width - 1) & (v > 0) & (v < height - 1)
    column, row = (np.where(inside, np.rint(x), 0).astype(int) for x in (u, v))
    there = depth_m[row, column]
    inside &= there > 0
    return np.where(inside, np.log(np.where(inside, z, 1) / np.where(inside, there, 1)), np.nan)


def abs_rel(truth: Truth, recovery: Recovery) -> float:
    """Mean relative error of a view."""
    error = np.abs(recovery.depth_m - truth.depth_m)[truth.known] / truth.depth_m[truth.known]
    return float(np.nanmean(error))


def coverage(truth: Truth, recovery: Recovery) -> float:
    """Share of a view's pixels within the 90 % interval."""
    error = np.abs(np.log(recovery.depth_m[truth.known] / truth.depth_m[truth.known]))
    assert recovery.std_log is not None
    return float(np.mean(error < 1.645 * recovery.std_log[truth.known]))


def measure(truths: list[Truth], condition: str, config: SceneConfig) -> dict[str, Any]:
    """The figures of one scene under one condition, alone and together."""
    rng = seeded_rng(1, truths[0].name)
    wrong = set(rng.permutation(len(truths))[: max(1, len(truths) // 20)].tolist())
    poses = []
    for i, truth in enumerate(truths):
        pose = truth.camera_to_world.copy()
        if condition == "wrong_pose" and i in wrong:
            angle = 0.35
            turn = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0],
                             [-np.sin(angle), 0, np.cos(angle)]])  # fmt: skip
            pose[:3, :3] = pose[:3, :3] @ turn
            pose[:3, 3] += 0.3 * rng.normal(size=3)
        poses.append(pose)
    scored = [
        i for i in range(len(truths))
        if {"six": True, "quarter": i % 4 > 0, "wrong_pose": i not in wrong}[condition]
    ]  # fmt: skip
    figures: dict[str, Any] = {"views": len(truths), "scored": len(scored)}
    alone = dataclasses.replace(config, stereo=None, ties=None)
    for name, settings in (("alone", alone), ("joint", config)):
        scene = Scene(config=settings)
        for i, (truth, pose) in enumerate(zip(truths, poses, strict=True)):
            count = {"quarter": 12 * (i % 4 == 0)}.get(condition, 6)
            scene.add(
                truth.image, anchors_of(truth, count), camera=truth.camera, camera_to_world=pose,
                name=truth.name,
            )  # fmt: skip
        start = time.process_time()
        found = scene.recover()
        chosen = [truths[i] for i in scored]
        figures[name] = {
            "abs_rel": float(np.mean([abs_rel(t, found[t.name]) for t in chosen])),
            "disagreement": disagreement(chosen, found),
            "coverage": float(np.mean([coverage(t, found[t.name]) for t in chosen])),
            "worst": max(abs_rel(t, found[t.name]) for t in chosen),
            "cpu_s_per_view": (time.process_time() - start) / len(truths),
        }
    return figures


def summary(scenes: Mapping[str, Mapping]) -> dict[str, float]:
    """Geometric mean ratios of joint to alone, the worst scene, and the mean coverage."""

    def ratio(figure: str) -> np.ndarray:
        return np.array([s["joint"][figure] / s["alone"][figure] for s in scenes.values()])

    logs = np.log(ratio("abs_rel"))
    return {
        "scenes": len(scenes),
        "abs_rel_alone": float(np.mean([s["alone"]["abs_rel"] for s in scenes.values()])),
        "abs_rel_joint": float(np.mean([s["joint"]["abs_rel"] for s in scenes.values()])),
        "abs_rel_ratio": float(np.exp(logs.mean())),
        "abs_rel_ratio_log_se": float(logs.std(ddof=1) / np.sqrt(len(logs))),
        "abs_rel_worst_scene": float(np.exp(logs.max())),
        "disagreement_ratio": float(np.exp(np.nanmean(np.log(ratio("disagreement"))))),
        "coverage_alone": float(np.mean([s["alone"]["coverage"] for s in scenes.values()])),
        "coverage_joint": float(np.mean([s["joint"]["coverage"] for s in scenes.values()])),
        "cpu_ratio": float(np.mean(ratio("cpu_s_per_view"))),
    }  # fmt: skip


def main() -> None:
    """Measure and write the record."""
    flags = parser(__doc__)
    flags.add_argument("--rooms", type=Path, help="folder with meta.json, rgb and depth")
    flags.add_argument("--split", type=Path, help="list of the frames to take")
    flags.add_argument("--blender", action="store_true", help="poses in Blender's axes")
    flags.add_argument("--sequences", type=int, default=8)
    flags.add_argument("--limit", type=int, help="scenes of --rooms at most, evenly spaced")
    flags.add_argument("--conditions", nargs="+", default=CONDITIONS, choices=CONDITIONS)
    args = flags.parse_args()
    torch.set_num_threads(1)
    groups: dict[str, list[tuple[str, list[Truth]]]] = {"small": list(small_steps(args.sequences))}
    if args.rooms is not None:
        lines = args.split.read_text().split() if args.split else []
        names = {line.rpartition("/")[2] for line in lines} or None
        rooms = list(wide(args.rooms, names, blender=args.blender))
        groups["wide"] = rooms[:: max(1, len(rooms) // (args.limit or len(rooms)))][: args.limit]
    given = {name: value for name, value in vars(args).items() if name != "out"}
    record = new_record({**as_json(given), **as_json(dataclasses.asdict(SceneConfig()))})
    for group, scenes in groups.items():
        for condition in args.conditions:
            figures = {}
            for name, truths in scenes:
                figures[name] = measure(truths, condition, SceneConfig())
                alone, joint = figures[name]["alone"], figures[name]["joint"]
                print(group, condition, name,
                      *(f"{alone[f]:.3f}→{joint[f]:.3f}" for f in alone), flush=True)  # fmt: skip
            if figures:
                result = {"summary": summary(figures), "scenes": figures}
                record.setdefault("groups", {}).setdefault(group, {})[condition] = result
                print(group, condition, result["summary"], flush=True)
    write_record(args.out, record)


if __name__ == "__main__":
    main()
