"""Compare recoveries of two source trees: every method, 1 to 6,000 anchors, several images.

python scripts/compare_recoveries.py OLD_TREE NEW_TREE --images 8 [--data FOLDER] [--skip field]

Each tree is a checkout whose package lies in src/. The same inputs are recovered by both, each in a
process of its own. Depth and std_log must agree to a relative 1e-6, holes exactly. Images are
generated; with `--data`, a dataset in the folder layout (docs/data.md), half of them are its frames
with their true depth, degraded to a relative map.

Reports are compared as JSON text. Sentences and their codes are left out, because trees may word
them differently: of a rejection its anchor is compared, of fallbacks and warnings their number, of
options those that both trees have. With `--labels METHOD ...` both trees also label a folder of
generated photographs by `scalefield label`. The label files (.npz) must be equal byte for byte, and
the records after the same treatment.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

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


RENAMED = {"spread": "coverage"}
"""Keys of reports and records of older trees, and their present names."""


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
            true_m = np.where(frame.mask, frame.depth_m, np.nan)
            smooth = np.cos(np.linspace(0, 3, frame.mask.shape[1]))
            frames.append((true_m**0.8 * np.exp(0.2 * smooth), true_m))
    frames += [generated(i) for i in range(images - len(frames))]
    cases = []
    for i, (relative, truth) in enumerate(frames):
        rng = np.random.default_rng(1000 + i)
        prediction = (1 / relative if i % 2 else relative).astype(np.float32)
        prediction[rng.random(prediction.shape) < 0.01 * (i % 3)] = np.nan
        finite = np.flatnonzero(np.isfinite(truth))
        for n in COUNTS:
            pixel = rng.choice(finite, min(n, len(finite)), replace=False)
            v, u = np.divmod(pixel, truth.shape[1])
            depth_m = truth[v, u]
            if not np.isfinite(prediction[v, u]).any():
                continue
            sigma = 0.03 * depth_m if i % 4 == 3 else np.zeros(0)
            cases.append({"prediction": prediction, "disparity": np.array(i % 2), "u": u, "v": v,
                          "depth_m": depth_m, "sigma_m": sigma})  # fmt: skip
    return cases


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
    reports: dict[str, Any] = {}
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
            reports[f"{path.stem} {i}-{name}"] = recovery.report.as_dict()
            maps[f"{i}-{name}-depth_m"] = recovery.depth_m
            if recovery.std_log is not None:
                maps[f"{i}-{name}-std_log"] = recovery.std_log
        np.savez(path.with_name(path.name.replace("input", "output")), **maps)
    (folder / "reports.json").write_text(json.dumps(reports, default=str))


def without_sentences(value: Any) -> Any:
    """A report or label record without its sentences and codes; their number stays."""
    if not isinstance(value, dict):
        return value
    plain = {}
    for key, item in value.items():
        if key in ("fallbacks", "warnings", "reasons"):
            plain[key] = len(item)
        elif key == "rejected":
            plain[key] = [rejection["anchor"] for rejection in item]
        else:
            plain[RENAMED.get(key, key)] = without_sentences(item)
    return plain


def report_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Names and keys of the reports or records whose JSON text differs."""
    lines = [f"{name}: only in one tree" for name in sorted(old.keys() ^ new.keys())]
    for name in sorted(old.keys() & new.keys()):
        before, after = (without_sentences(tree[name]) for tree in (old, new))
        if "options" in before and "options" in after:
            shared = before["options"].keys() & after["options"].keys()
            for report in (before, after):
                report["options"] = {key: report["options"][key] for key in sorted(shared)}
        for key in sorted(before.keys() | after.keys()):
            a, b = (json.dumps(report.get(key), sort_keys=True) for report in (before, after))
            if a != b:
                lines.append(f"{name}, {key}: {a[:60]} and {b[:60]}")
    return lines


def write_photographs(folder: Path, count: int) -> None:
    """Photographs with anchors, as `scalefield label` reads them; some anchors are wrong."""
    folder.mkdir()
    for i in range(count):
        truth = generated(i)[1]
        rng = np.random.default_rng(2000 + i)
        shade = 255 * (truth - truth.min()) / np.ptp(truth)
        Image.fromarray(np.stack([shade, 255 - shade, shade / 2], axis=-1).astype(np.uint8)).save(
            folder / f"photo{i}.png"
        )
        v, u = np.divmod(rng.choice(truth.size, 30 if i else 4, replace=False), truth.shape[1])
        depth_m = truth[v, u] * np.where(rng.random(len(u)) < 0.1, 3.0, 1.0)
        rows = [f"{a},{b},{d!r}" for a, b, d in zip(u, v, depth_m.tolist(), strict=True)]
        (folder / f"photo{i}.anchors.csv").write_text("\n".join(["u,v,depth_m", *rows]) + "\n")


def label_differences(trees: list[Path], method: str, scratch: Path) -> tuple[int, list[str]]:
    """Number of compared label files, and the differences between those of two trees."""
    outputs = []
    for name, tree in zip(("old", "new"), trees, strict=True):
        out = scratch / f"labels-{method}-{name}"
        command = [sys.executable, "-m", "scalefield.cli", "label", str(scratch / "photographs")]
        command += ["--out", str(out), "--method", method, "--workers", "1"]
        environment = {**os.environ, "PYTHONPATH": str(tree.resolve() / "src")}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        outputs.append(out)
    files = [{p.relative_to(out): p for p in out.rglob("photo*") if p.is_file()} for out in outputs]
    lines = [f"{method} {name}: only in one tree" for name in sorted(files[0].keys() ^ files[1])]
    for name in sorted(files[0].keys() & files[1].keys()):
        before, after = (tree[name].read_bytes() for tree in files)
        if name.suffix == ".json":
            records = [{f"{method} {name}": json.loads(text)} for text in (before, after)]
            lines += report_differences(*records)
        elif before != after:
            lines.append(f"{method} {name}: other bytes")
    return len(files[0]), lines


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
    """Compare; 1 if a map differs by more than the tolerance, or a report or label differs."""
    parser = argparse.ArgumentParser(description="Compare recoveries of two source trees.")
    parser.add_argument("trees", nargs="*", type=Path)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--skip", nargs="*", default=[])
    parser.add_argument("--labels", nargs="*", default=[], metavar="METHOD")
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
        reports = [json.loads((folder / "reports.json").read_text()) for folder in folders]
        lines = report_differences(*reports)
        print(f"{count} maps compared, largest relative difference {largest:.2g} ({place})")
        print(f"{len(reports[0])} reports compared, {len(lines)} differences")
        if flags.labels:
            write_photographs(Path(scratch, "photographs"), 4)
        for method in flags.labels:
            files, differing = label_differences(flags.trees, method, Path(scratch))
            print(f"labels by {method}: {files} files compared, {len(differing)} differences")
            lines += differing
    for line in lines[:40]:
        print(line)
    return int(largest > TOLERANCE or bool(lines))


if __name__ == "__main__":
    sys.exit(main())
