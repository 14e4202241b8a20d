"""Checks: depth on a known plane, reprojection between finished views, and held-out assets."""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
from recipes.scenes.dataset import DATASET, source_folder
from recipes.scenes.plan import KINDS

PLANE_TOLERANCE = 1e-5
"""Greatest relative error of z on the plane."""
REPROJECTION_TOLERANCE = 0.005
"""Greatest median relative difference of reprojected depth."""


def check_all(out: Path | None, scenes: int) -> int:
    """Print the results of the checks; 0 if all are within tolerance."""
    worst = plane_error()
    print(f"plane: greatest relative error of z {worst:.1e} (tolerance {PLANE_TOLERANCE:.0e})")
    failed = worst > PLANE_TOLERANCE
    if out:
        shared = shared_assets(out)
        print(f"hold-out: {len(shared)} assets are in train and val scenes {sorted(shared)[:5]}")
        failed |= bool(shared)
    for kind in KINDS if out else ():
        meta_path = source_folder(out, kind) / "meta.json"
        if not meta_path.exists():
            continue
        medians, shares, views = reprojection(meta_path, scenes)
        if not views:
            continue
        median = float(np.median(medians))
        print(
            f"{kind}: {views} pairs of views, median relative difference {median:.2%}, "
            f"{np.mean(shares):.0%} of the shared pixels within 2 %"
        )
        failed |= median > REPROJECTION_TOLERANCE
    return int(failed)


def plane_error() -> float:
    """Greatest relative error of rendered z on a tilted plane, with the renderer's own settings."""
    import bpy
    from recipes.scenes.cameras import View, aim, intrinsics
    from recipes.scenes.photo import Photo
    from recipes.scenes.render import RenderConfig, Renderer

    bpy.ops.wm.read_factory_settings(use_empty=True)
    bpy.ops.mesh.primitive_plane_add(size=60)
    size, fov_deg, height_m = (384, 288), 90.0, 3.0
    view = View("check", aim((0.3, -0.2, height_m), 0.4, -0.9, 0.1), fov_deg)
    photo = Photo(0.18, 0, (1, 1, 1), False, 0, 0, 0, 95, 1.4, 0.5)
    with tempfile.TemporaryDirectory() as work:
        renderer = Renderer(RenderConfig(samples=2), size, 0, Path(work))
        depth = renderer.render(view, photo, 2.0).depth_m
    fx, fy, cx, cy = intrinsics(*size, fov_deg)
    u, v = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
    rays = np.stack([(u - cx) / fx, (v - cy) / fy, np.ones_like(u, float)], axis=-1)
    down = -(rays @ view.camera_to_world[:3, :3].T)[..., 2]
    near = down > height_m / 15  # nearer than 15 m
    truth = height_m / np.where(near, down, 1)
    return float(np.abs(depth / truth - 1)[near].max())


def shared_assets(out: Path) -> set[str]:
    """Names of library files that scenes of both splits use, which must be none."""
    used: dict[str, set[str]] = {"train": set(), "val": set()}
    for path in (out / DATASET).glob("*/done/*.json"):
        record = json.loads(path.read_text())
        used[record["split"]].update(record["assets"])
    return used["train"] & used["val"]


def reprojection(meta_path: Path, scenes: int) -> tuple[list[float], list[float], int]:
    """Median difference and share within 2 % of each pair of views of a scene, and the pairs.

    Points of one view are projected into the other, and their z is compared with the depth stored
    there. Points more than 5 % behind or before it are hidden or seen past an edge, and are left
    out.
    """
    meta = json.loads(meta_path.read_text())
    folder, scale = meta_path.parent, meta["depth_scale_per_metre"]
    by_scene: dict[str, list[dict]] = {}
    for frame in meta["frames"]:
        by_scene.setdefault(frame["scene"], []).append(frame)
    medians, shares = [], []
    for frames in list(by_scene.values())[:scenes]:
        for a, b in pairwise(frames):
            paths = [folder / "depth" / f"{frame['name']}.png" for frame in (a, b)]
            depths = [cv2.imread(str(path), cv2.IMREAD_UNCHANGED) / scale for path in paths]
            difference = _compare(a, b, *depths)
            if len(difference) > 500:
                medians.append(float(np.median(difference)))
                shares.append(float((difference < 0.02).mean()))
    return medians, shares, len(medians)


def _compare(a: dict, b: dict, depth_a: np.ndarray, depth_b: np.ndarray) -> np.ndarray:
    """Relative differences of the points that both views see."""
    fx, fy, cx, cy = a["K"]
    v, u = np.nonzero(depth_a > 0)
    z = depth_a[v, u]
    points = np.stack([(u - cx) / fx * z, (v - cy) / fy * z, z, np.ones_like(z)])
    moved = np.linalg.inv(np.array(b["camera_to_world"])) @ np.array(a["camera_to_world"]) @ points
    fx, fy, cx, cy = b["K"]
    front = moved[2] > 0.05
    moved = moved[:, front]
    uu = fx * moved[0] / moved[2] + cx
    vv = fy * moved[1] / moved[2] + cy
    h, w = depth_b.shape
    inside = (uu >= 0) & (uu < w - 1) & (vv >= 0) & (vv < h - 1)
    seen = _interpolate(depth_b, uu[inside], vv[inside])
    has_depth = seen > 0
    difference = np.abs(moved[2][inside][has_depth] / seen[has_depth] - 1)
    return difference[difference < 0.05]


def _interpolate(depth: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Depth between pixels, bilinear in 1/z (exact on planes); 0 next to holes and edges."""
    u0, v0 = np.floor(u).astype(int), np.floor(v).astype(int)
    corners = np.stack([depth[v0 + j, u0 + i] for j in (0, 1) for i in (0, 1)])
    valid = (corners > 0).all(0) & (corners.max(0) < 1.1 * corners.min(0))
    inverse = 1 / np.where(corners > 0, corners, 1)
    a, b = u - u0, v - v0
    weights = np.stack([(1 - a) * (1 - b), a * (1 - b), (1 - a) * b, a * b])
    return np.where(valid, 1 / (weights * inverse).sum(0), 0)
