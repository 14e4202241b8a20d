"""Compares trained weights with the shipped ones on a few frames, in minutes on two cores.

    python recipes/compare_weights.py shape --mde lite RUNS/lite/model RUNS/small/model \
        --places DATA --rendered SCENES --out shape.json
    python recipes/compare_weights.py field --model field RUNS/field-s0/model \
        --mde lite fastdepth.onnx --places DATA --split val --out field-val.json
    python recipes/compare_weights.py strong --model field RUNS/field-s0/model \
        --strong STRONG --out strong.json
    python recipes/compare_weights.py strong --affine --model field RUNS/field-s0/model \
        --strong STRONG --out strong-affine.json
    python recipes/compare_weights.py room --mde lite RUNS/lite/model \
        --model field RUNS/field-s0/model --out room.json

`shape` scores estimators alone: AbsRel after median scaling, AbsRel after the best affine fit in
disparity, boundary scores on rendered frames, and the processor time of a forward pass relative to
the first estimator's. `field` scores field and basis models with anchors of the benchmark's
protocol. `strong` does so on saved outputs of other estimators (folders with rgb.jpg, pred.npz,
gt.npz and meta.json), beside classic aligners in both spaces; with `--affine` each map is first
normalised to disparity of unknown scale and shift. `room` scores every pair of estimator and model
on the bundled sample image with its six anchors. `recipes/evaluate_permissive.sh` runs all of them.
`coverage_90` is the share of pixels in the 90 %
intervals of a method that has them. Choices are made on val and strong; test is for the final
figures only.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

import scalefield as sf
from scalefield import samples
from scalefield.anchor_sampling import sample_anchors
from scalefield.api import recover_from
from scalefield.benchmark.boundaries import boundary_scores
from scalefield.benchmark.metrics import WIDTHS
from scalefield.datasets import Folder
from scalefield.defaults import MDE_NAME
from scalefield.inputs import relative_depth
from scalefield.io import read_image, write_json
from scalefield.mde import load_mde
from scalefield.mde.affine import Normalisation
from scalefield.methods import make_method
from scalefield.recovery import Method, Recovery
from scalefield.runtime.provenance import provenance
from scalefield.training.mde import aligned_absrel

T = TypeVar("T")
RANGES_M = {"kitti": (0.1, 80.0), "*": (0.1, 10.0)}
MOST_ABSREL = 2.0
"""Larger errors count as this, so that no single frame decides."""


def some_names(dataset: Folder, split: str, per_group: int) -> list[str]:
    """Up to so many frames of each group, evenly spaced over the split."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in dataset.names(split):
        groups[name.rpartition("/")[0]].append(name)
    return [name for names in groups.values() for name in evenly(names, per_group)]


def evenly(items: Sequence[T], most: int | None) -> list[T]:
    """Up to `most` of the items, evenly spaced; all if it is None."""
    count = len(items) if most is None else min(most, len(items))
    return [items[(2 * i + 1) * len(items) // (2 * count)] for i in range(count)]


def absrel(depth: np.ndarray, truth: np.ndarray) -> float:
    """Mean of |D − D_gt| / D_gt, at most `MOST_ABSREL`."""
    return min(float(np.nanmean(np.abs(depth - truth) / truth)), MOST_ABSREL)


def covered(recovery: Recovery, rows: np.ndarray, columns: np.ndarray, truth: np.ndarray) -> float:
    """Share of the pixels whose true depth is in the 90 % interval; NaN if there is no std_log."""
    if recovery.std_log is None:
        return float("nan")
    depth, std_log = (np.asarray(m)[rows, columns] for m in (recovery.depth_m, recovery.std_log))
    return float(np.mean(np.abs(np.log(depth / truth)) <= WIDTHS[90] * std_log))


def shape(args: argparse.Namespace) -> dict:
    """Estimators by themselves."""
    sets = [("places", Folder(args.places, RANGES_M), s) for s in args.splits if args.places]
    sets += [("rendered", Folder(root, RANGES_M), "val") for root in args.rendered]
    results: dict = {}
    first_s = None
    for source in args.mde:
        mde, rows, seconds = load_mde(source), defaultdict(list), []
        for kind, dataset, split in sets:
            each = args.per_rendered if kind == "rendered" else args.per_group
            for name in some_names(dataset, split, each):
                frame = dataset.load(name)
                began = time.process_time()
                depth = mde(frame.image).mde_depth.numpy()
                seconds.append(time.process_time() - began)
                ratio = depth[frame.mask] / frame.depth_m[frame.mask]
                scores = {
                    "median_scaled": min(np.abs(ratio / np.median(ratio) - 1).mean(), MOST_ABSREL),
                    "aligned": aligned_absrel(mde, frame),
                }
                if kind == "rendered":
                    edges = boundary_scores(depth, frame.depth_m, frame.mask)
                    scores |= {f"boundary_{k}": v for k, v in edges._asdict().items()}
                rows[f"{kind} {dataset.root.name} {split}", frame.group].append(scores)
        median_s = float(np.median(seconds))
        first_s = first_s or median_s
        relative = {"relative_processor_time": round(median_s / first_s, 2), "frames": len(seconds)}
        results[source] = summary(rows) | relative
        print(source, json.dumps(results[source], indent=1), flush=True)
    return results


def summary(rows: dict) -> dict:
    """Means over frames of a group, and over groups of a set."""
    table: dict = defaultdict(dict)
    for (kind, group), scores in rows.items():
        means = {k: round(float(np.mean([s[k] for s in scores])), 4) for k in scores[0]}
        table[kind][group] = means
    for groups in table.values():
        keys = next(iter(groups.values()))
        groups["mean"] = {
            k: round(float(np.mean([g[k] for g in groups.values()])), 4) for k in keys
        }
    return dict(table)


def methods(models: Sequence[str]) -> dict[str, Method]:
    """Field and basis models by name or folder."""
    made = {}
    for source in models:
        if Path(source).parent.name.startswith("basis") or source.startswith("basis"):
            made[source] = make_method("basis", generator=source)
        else:
            made[source] = make_method("field", model=source)
    return made


def field(args: argparse.Namespace) -> dict:
    """Models on frames of places or scenes, with the protocol's anchors."""
    dataset, results = Folder(args.places, RANGES_M), {}
    chosen = methods(args.model)
    for source in args.mde:
        mde, rows = load_mde(source), defaultdict(list)
        for name in some_names(dataset, args.split, args.per_group):
            frame = dataset.load(name)
            output = mde(frame.image)
            solvers = {label: method.solver(output) for label, method in chosen.items()}
            v, u = np.nonzero(frame.mask)
            truth = frame.depth_m[frame.mask]
            for n in args.anchors:
                anchors = sample_anchors(frame.depth_m, frame.mask, n, seed=0, name=frame.name)
                for label, method in chosen.items():
                    result = recover_from(output, anchors, method, solver=solvers[label])
                    score = absrel(np.asarray(result.depth_m)[frame.mask], truth)
                    share = covered(result, v, u, truth)
                    rows[label, str(n), frame.group].append((score, share))
        results[source] = ratios(rows, args.model[0])
        print(source, json.dumps(results[source], indent=1), flush=True)
    return results


def ratios(rows: dict, first: str) -> dict:
    """Mean of groups for every label and number of anchors, and its ratio to the first label's."""
    table: dict = defaultdict(dict)
    means = {key: np.mean(values, axis=0) for key, values in rows.items()}
    for label, n in dict.fromkeys((label, n) for label, n, _ in rows):
        groups = {g: m for (a, b, g), m in means.items() if (a, b) == (label, n)}
        base = [m for (a, b, _), m in means.items() if (a, b) == (first, n)]
        score, share = np.mean(list(groups.values()), axis=0)
        table[n][label] = {
            "absrel": round(float(score), 4),
            "ratio": round(float(score / np.mean(base, axis=0)[0]), 4),
            "coverage_90": round(float(share), 3),
            "groups": {g: round(float(m[0]), 4) for g, m in groups.items()},
        }
    return dict(table)


def room(args: argparse.Namespace) -> dict:
    """AbsRel on the bundled sample image with its six anchors."""
    sample, results = samples.load("room"), {}
    has_truth = np.isfinite(sample.depth_m) & (sample.depth_m > 0)
    for source in args.mde:
        output = load_mde(source)(sample.image)
        depths = {
            label: np.asarray(recover_from(output, sample.anchors, method).depth_m)
            for label, method in methods(args.model).items()
        }
        results[source] = {
            label: round(absrel(depth[has_truth], sample.depth_m[has_truth]), 4)
            for label, depth in depths.items()
        }
        print(source, json.dumps(results[source]), flush=True)
    return results


CLASSIC = {
    f"{name}, {space}": (name, {"space": space})
    for name in ("global", "lwlr", "piecewise")
    for space in ("depth", "disparity")
}


def strong(args: argparse.Namespace) -> dict:
    """Models on saved outputs of strong estimators, beside classic aligners in both spaces."""
    chosen = methods(args.model) | {k: make_method(n, **o) for k, (n, o) in CLASSIC.items()}
    rows = defaultdict(list)
    by_family: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(args.strong.glob("*/meta.json")):
        by_family[path.parent.name.split("_")[0]].append(path)
    for path in (p for paths in by_family.values() for p in evenly(paths, args.per_family)):
        folder, meta = path.parent, json.loads(path.read_text())
        prediction = np.load(folder / "pred.npz")["pred"].astype(np.float32)
        truth = np.load(folder / "gt.npz")["gt"].astype(np.float32)
        valid = (truth > 0) & np.isfinite(truth) & np.isfinite(prediction) & (prediction > 0)
        image = read_image(folder / "rgb.jpg")
        image = image if image.shape[:2] == prediction.shape else None
        output = relative_depth(image, MDE_NAME, prediction, meta["kind"], resize=False)
        if args.affine:
            output = Normalisation()(output)
        solvers = {label: method.solver(output) for label, method in chosen.items()}
        truth = truth / np.median(truth[valid]) * 3
        v, u = np.nonzero(valid)
        family = folder.name.split("_")[0]
        for n in args.anchors:
            for seed in range(args.draws):
                order = np.random.default_rng(seed).permutation(len(v))
                anchor, scored = order[: int(n)], order[int(n) : int(n) + 20_000]
                anchors = sf.Anchors(u[anchor], v[anchor], truth[v[anchor], u[anchor]])
                rest = truth[v[scored], u[scored]]
                for label, method in chosen.items():
                    result = recover_from(output, anchors, method, solver=solvers[label])
                    score = absrel(np.asarray(result.depth_m)[v[scored], u[scored]], rest)
                    share = covered(result, v[scored], u[scored], rest)
                    rows[label, str(n), family].append((score, share))
        print(folder.name, file=sys.stderr, flush=True)
    means = {key: np.mean(values, axis=0) for key, values in rows.items()}
    table: dict = defaultdict(dict)
    families = sorted({family for _, _, family in rows})
    for n in map(str, args.anchors):
        best = {f: min(float(means[label, n, f][0]) for label in CLASSIC) for f in families}
        for label in chosen:
            scores = {f: float(means[label, n, f][0]) for f in families}
            relative = {f: scores[f] / best[f] for f in families}
            table[n][label] = {
                "absrel": {f: round(x, 4) for f, x in scores.items()},
                "ratio to the best aligner": {f: round(x, 3) for f, x in relative.items()},
                "mean ratio": round(float(np.mean(list(relative.values()))), 3),
            }
            if label in args.model:
                shares = {f: round(float(means[label, n, f][1]), 3) for f in families}
                table[n][label]["coverage_90"] = shares
    print(json.dumps(table, indent=1))
    return dict(table)


def main() -> None:
    """Parse, measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = {"shape": shape, "field": field, "strong": strong, "room": room}
    parser.add_argument("what", choices=commands)
    parser.add_argument("--mde", nargs="+", default=[])
    parser.add_argument("--model", nargs="+", default=["field"])
    parser.add_argument("--places", type=Path)
    parser.add_argument("--rendered", type=Path, nargs="*", default=[])
    parser.add_argument("--strong", type=Path)
    parser.add_argument("--split", default="val")
    parser.add_argument("--splits", nargs="+", default=["val", "test"])
    parser.add_argument("--per-group", type=int, default=4, help="frames of each place")
    parser.add_argument("--per-rendered", type=int, default=12, help="frames of each rendered kind")
    parser.add_argument("--anchors", nargs="+", type=lambda s: int(s) if s.isdigit() else s)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--per-family", type=int, help="strong: images of each estimator")
    parser.add_argument("--affine", action="store_true", help="strong: maps of unknown shift")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.anchors = args.anchors or ([3, 5, 12, 104] if args.what == "strong" else [3, 12, 104])
    torch.set_num_threads(1)
    began = time.time()
    record = {"command": " ".join(sys.argv), "provenance": provenance()}
    results = commands[args.what](args)
    write_json(args.out, {**record, "processor_s": round(time.process_time()), **results})
    print(f"{time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
