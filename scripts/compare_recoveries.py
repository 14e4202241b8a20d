"""Compare recoveries of two source trees: every method, 1 to 6,000 anchors, several images.

python scripts/compare_recoveries.py OLD_TREE NEW_TREE --images 8 [--data FOLDER] [--skip field]

Each tree is a checkout whose package lies in src/. The same inputs are recovered by both, each in a
process of its own. Depth and std_log must agree to a relative 1e-6, holes exactly. Images are
generated; with `--data`, a dataset in the folder layout (docs/data.md), half of them are its frames
with their true depth, degraded to a relative map.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

TOLERANCE = 1e-6
COUNTS = (1, 2, 3, 5, 12, 100, 1000, 6000)
VARIANTS = (
    ("basis", {}), ("basis", {"k": 8}), ("field", {}), ("global", {}),
    ("global", {"fit": "ransac"}), ("global", {"fit": "median_mad"}), ("piecewise", {}),
    ("piecewise", {"variant": "continuous"}),
    ("lwlr", {}), ("lwlr", {"bandwidth": "adaptive", "drop_outliers": True}), ("grid", {}),
    ("region", {}), ("region", {"strict": True}), ("knn", {}), ("median", {}), ("interpolate", {}),
    ("log_kernel", {}),
)  # fmt: skip
"""Methods with the options that choose another algorithm."""


def generated(index: int) -> tuple[np.ndarray, np.ndarray]:
    """A relative map with boxes, and a metric truth that bends away from it smoothly."""
    rng = np.random.default_rng(index)
    height, width = rng.integers(90, 260), rng.integers(90, 340)
    v, u = np.mgrid[0:height, 0:width]
    depth = 1 + rng.uniform(0.3, 2) * u / width + rng.uniform(0, 1) * v / height
    for _ in range(4):
        top, left = rng.integers(0, height - 20), rng.integers(0, width - 20)
        depth[top : top + rng.integers(10, 60), left : left + rng.integers(10, 80)] *= 0.6
    bend = 0.3 * np.sin(4 * u / width + rng.uniform(0, 6)) + 0.2 * v / height
    return depth, 3 * depth * np.exp(bend) * np.exp(0.02 * rng.standard_normal(depth.shape))


def inputs(images: int, data: Path | None) -> list[dict[str, np.ndarray]]:
    """Maps and anchors of every image; kinds alternate, some maps have holes."""
    frames: list[tuple[np.ndarray, np.ndarray]] = []
    if data is not None:
        from scalefield.datasets import Folder

        dataset = Folder(data, {"*": (0.1, 80.0)})
        names = dataset.names("all")
        for name in names[:: max(1, len(names) // max(1, images // 2))][: images // 2]:
            frame = dataset.load(name)
            known = np.where(frame.mask, frame.depth_m, np.nan)
            smooth = np.cos(np.linspace(0, 3, frame.mask.shape[1]))
            frames.append((known**0.8 * np.exp(0.2 * smooth), known))
    frames += [generated(i) for i in range(images - len(frames))]
    found = []
    for i, (relative, truth) in enumerate(frames):
        rng = np.random.default_rng(1000 + i)
        prediction = (1 / relative if i % 2 else relative).astype(np.float32)
        prediction[rng.random(prediction.shape) < 0.01 * (i % 3)] = np.nan
        known = np.flatnonzero(np.isfinite(truth))
        for n in COUNTS:
            pixel = rng.choice(known, min(n, len(known)), replace=False)
            v, u = np.divmod(pixel, truth.shape[1])
            depth_m = truth[v, u]
            if not np.isfinite(prediction[v, u]).any():
                continue
            sigma = 0.03 * depth_m if i % 4 == 3 else np.zeros(0)
            found.append({"prediction": prediction, "disparity": np.array(i % 2), "u": u, "v": v,
                          "depth_m": depth_m, "sigma_m": sigma})  # fmt: skip
    return found


def recover_all(folder: Path, skip: set[str]) -> None:
    """Recover every input with every variant, in the tree that Python imports."""
    import torch

    from scalefield import Anchors, MDEOutput
    from scalefield.methods import METHODS

    try:
        from scalefield.api import recover_from
    except ImportError:  # trees before the packages
        from scalefield.recovery import recover_from
    torch.set_num_threads(1)
    for path in sorted(folder.glob("input-*.npz")):
        with np.load(path) as file:
            given = dict(file)
        kind = "disparity" if given["disparity"] else "depth"
        output = MDEOutput(torch.from_numpy(given["prediction"]), kind)
        sigma = given["sigma_m"] if len(given["sigma_m"]) else None
        anchors = Anchors(given["u"], given["v"], given["depth_m"], sigma)
        maps = {}
        for i, (name, options) in enumerate(VARIANTS):
            if name in skip:
                continue
            if name == "region" and options.get("strict") is None:
                labels = np.indices(output.shape).sum(axis=0) // 40
                options = {**options, "labels": labels}  # noqa: PLW2901
            elif name == "region":
                options = {**options, "labels": np.zeros(output.shape, int)}  # noqa: PLW2901
            recovery = recover_from(output, anchors, METHODS[name](**options)).numpy()
            maps[f"{i}-{name}-depth_m"] = recovery.depth_m
            if recovery.std_log is not None:
                maps[f"{i}-{name}-std_log"] = recovery.std_log
        np.savez(path.with_name(path.name.replace("input", "output")), **maps)


def differences(old: Path, new: Path) -> tuple[int, float, str]:
    """Number of maps, the largest relative difference, and where it is."""
    count, largest, place = 0, 0.0, "nowhere"
    for path in sorted(old.glob("output-*.npz")):
        with np.load(path) as before, np.load(new / path.name) as after:
            if sorted(before) != sorted(after):
                raise SystemExit(f"{path.name}: other maps: {sorted(before)} and {sorted(after)}")
            for name in before:
                a, b = before[name].astype(np.float64), after[name].astype(np.float64)
                if not np.array_equal(np.isnan(a), np.isnan(b)):
                    raise SystemExit(f"{path.name} {name}: holes differ")
                with np.errstate(invalid="ignore"):
                    relative = np.abs(a - b) / np.maximum(np.abs(a), 1e-12)
                worst = float(np.nanmax(relative, initial=0.0))
                count += 1
                if worst > largest:
                    largest, place = worst, f"{path.name} {name}"
    return count, largest, place


def main() -> int:
    """Compare; 1 if some map differs by more than the tolerance."""
    parser = argparse.ArgumentParser(description="Compare recoveries of two source trees.")
    parser.add_argument("trees", nargs="*", type=Path)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--skip", nargs="*", default=[])
    parser.add_argument("--recover", type=Path, help=argparse.SUPPRESS)  # the child's job
    flags = parser.parse_args()
    if flags.recover:
        recover_all(flags.recover, set(flags.skip))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch, name) for name in ("old", "new")]
        for folder in folders:
            folder.mkdir()
        for i, values in enumerate(inputs(flags.images, flags.data)):
            for folder in folders:
                np.savez(folder / f"input-{i:04d}.npz", **values)
        for tree, folder in zip(flags.trees, folders, strict=True):
            command = [sys.executable, __file__, "--recover", str(folder), "--skip", *flags.skip]
            environment = {**os.environ, "PYTHONPATH": str(tree.resolve() / "src")}
            subprocess.run(command, env=environment, check=True)
        count, largest, place = differences(*folders)
    print(f"{count} maps compared, largest relative difference {largest:.2g} ({place})")
    return int(largest > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
