"""Compares trained weights with the shipped ones on a few frames, in minutes on two cores.

    python recipes/compare_weights.py shape --mde lite RUNS/lite/model RUNS/small/model \
        --places DATA --rendered SCENES --out shape.json
    python recipes/compare_weights.py field --model field RUNS/field-s0/model \
        --mde lite fastdepth.onnx --places DATA --split val --out field-val.json
    python recipes/compare_weights.py strong --model field RUNS/field-s0/model \
        --strong STRONG --out strong.json

`shape` scores estimators alone: AbsRel after median scaling, AbsRel after the best affine fit in
disparity, and boundary scores on rendered frames. `field` scores field and basis models with
anchors of the benchmark's protocol. `strong` does so on saved outputs of other estimators (folders
with rgb.jpg, pred.npz, gt.npz and meta.json), beside classic aligners in both spaces. Choices are
made on val and strong; test is for the final figures only.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import scalefield as sf
from scalefield.anchor_sampling import sample_anchors
from scalefield.benchmark.boundaries import boundary_scores
from scalefield.datasets import Folder
from scalefield.io import read_image, write_json
from scalefield.mde import load_mde
from scalefield.methods import make_method
from scalefield.recovery import Method
from scalefield.training.mde import aligned_absrel

RANGES_M = {"kitti": (0.1, 80.0), "*": (0.1, 10.0)}
MOST_ABSREL = 2.0
"""Larger errors count as this, so that no single frame decides."""


def some_names(dataset: Folder, split: str, per_group: int) -> list[str]:
    """Up to so many frames of each group, evenly spaced over the split."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in dataset.names(split):
        groups[name.rpartition("/")[0]].append(name)
    chosen = []
    for names in groups.values():
        count = min(per_group, len(names))
        chosen += [names[(2 * i + 1) * len(names) // (2 * count)] for i in range(count)]
    return chosen


def absrel(depth: np.ndarray, truth: np.ndarray) -> float:
    """Mean of |D − D_gt| / D_gt, at most `MOST_ABSREL`."""
    return min(float(np.nanmean(np.abs(depth - truth) / truth)), MOST_ABSREL)


def shape(args: argparse.Namespace) -> dict:
    """Estimators by themselves."""
    sets = [("places", Folder(args.places, RANGES_M), s) for s in args.splits if args.places]
    sets += [("rendered", Folder(root, RANGES_M), "val") for root in args.rendered]
    found: dict = {}
    for source in args.mde:
        mde, rows = load_mde(source), defaultdict(list)
        for kind, dataset, split in sets:
            for name in some_names(dataset, split, args.per_group):
                frame = dataset.load(name)
                depth = mde(frame.image).mde_depth.numpy()
                ratio = depth[frame.mask] / frame.depth_m[frame.mask]
                scores = {
                    "median_scaled": min(np.abs(ratio / np.median(ratio) - 1).mean(), MOST_ABSREL),
                    "aligned": aligned_absrel(mde, frame),
                }
                if kind == "rendered":
                    edges = boundary_scores(depth, frame.depth_m, frame.mask)
                    scores |= {f"boundary_{k}": v for k, v in edges._asdict().items()}
                rows[f"{kind} {dataset.root.name} {split}", frame.group].append(scores)
        found[source] = summary(rows)
        print(source, json.dumps(found[source], indent=1), flush=True)
    return found


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
    dataset, found = Folder(args.places, RANGES_M), {}
    chosen = methods(args.model)
    for source in args.mde:
        mde, rows = load_mde(source), defaultdict(list)
        for name in some_names(dataset, args.split, args.per_group):
            frame = dataset.load(name)
            output = mde(frame.image)
            for n in args.anchors:
                anchors = sample_anchors(frame.depth_m, frame.mask, n, seed=0, name=frame.name)
                for label, method in chosen.items():
                    depth = np.asarray(method(output, anchors).depth_m)
                    score = absrel(depth[frame.mask], frame.depth_m[frame.mask])
                    rows[label, str(n), frame.group].append(score)
        found[source] = ratios(rows, args.model[0])
        print(source, json.dumps(found[source], indent=1), flush=True)
    return found


def ratios(rows: dict, first: str) -> dict:
    """Mean of groups for every label and number of anchors, and its ratio to the first label's."""
    table: dict = defaultdict(dict)
    for label, n, _ in rows:
        groups = {g: np.mean(v) for (a, b, g), v in rows.items() if (a, b) == (label, n)}
        base = {g: np.mean(v) for (a, b, g), v in rows.items() if (a, b) == (first, n)}
        table[n][label] = {
            "absrel": round(float(np.mean(list(groups.values()))), 4),
            "ratio": round(float(np.mean(list(groups.values())) / np.mean(list(base.values()))), 4),
        }
    return dict(table)


CLASSIC = {
    f"{name}, {space}": (name, {"space": space})
    for name in ("global", "lwlr", "piecewise")
    for space in ("depth", "disparity")
}


def strong(args: argparse.Namespace) -> dict:
    """Models on saved outputs of strong estimators, beside classic aligners in both spaces."""
    chosen = methods(args.model) | {k: make_method(n, **o) for k, (n, o) in CLASSIC.items()}
    rows = defaultdict(list)
    for path in sorted(args.strong.glob("*/meta.json")):
        folder, meta = path.parent, json.loads(path.read_text())
        prediction = np.load(folder / "pred.npz")["pred"].astype(np.float32)
        truth = np.load(folder / "gt.npz")["gt"].astype(np.float32)
        known = (truth > 0) & np.isfinite(truth) & np.isfinite(prediction) & (prediction > 0)
        image = read_image(folder / "rgb.jpg")
        image = image if image.shape[:2] == prediction.shape else None
        truth = truth / np.median(truth[known]) * 3
        v, u = np.nonzero(known)
        family = folder.name.split("_")[0]
        for n in args.anchors:
            for seed in range(args.draws):
                order = np.random.default_rng(seed).permutation(len(v))
                anchor, scored = order[: int(n)], order[int(n) : int(n) + 20_000]
                anchors = sf.Anchors(u[anchor], v[anchor], truth[v[anchor], u[anchor]])
                for label, method in chosen.items():
                    result = sf.recover(
                        image, anchors, mde_depth=prediction, kind=meta["kind"], method=method
                    )
                    depth = np.asarray(result.depth_m)[v[scored], u[scored]]
                    rows[label, str(n), family].append(absrel(depth, truth[v[scored], u[scored]]))
    table: dict = defaultdict(dict)
    families = sorted({family for _, _, family in rows})
    for n in map(str, args.anchors):
        best = {f: min(float(np.mean(rows[label, n, f])) for label in CLASSIC) for f in families}
        for label in chosen:
            means = {f: float(np.mean(rows[label, n, f])) for f in families}
            table[n][label] = {f: round(means[f], 4) for f in families}
            relative = [means[f] / best[f] for f in families]
            table[n][label]["ratio to the best aligner"] = [round(r, 3) for r in relative]
            table[n][label]["mean ratio"] = round(float(np.mean(relative)), 3)
    print(json.dumps(table, indent=1))
    return dict(table)


def main() -> None:
    """Parse, measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = {"shape": shape, "field": field, "strong": strong}
    parser.add_argument("what", choices=commands)
    parser.add_argument("--mde", nargs="+", default=[])
    parser.add_argument("--model", nargs="+", default=["field"])
    parser.add_argument("--places", type=Path)
    parser.add_argument("--rendered", type=Path, nargs="*", default=[])
    parser.add_argument("--strong", type=Path)
    parser.add_argument("--split", default="val")
    parser.add_argument("--splits", nargs="+", default=["val", "test"])
    parser.add_argument("--per-group", type=int, default=4)
    parser.add_argument("--anchors", nargs="+", type=lambda s: int(s) if s.isdigit() else s)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.anchors = args.anchors or ([3, 5, 12, 104] if args.what == "strong" else [3, 12, 104])
    torch.set_num_threads(1)
    began = time.time()
    found = commands[args.what](args)
    options = {k: str(v) for k, v in vars(args).items()}
    write_json(args.out, {"options": options, "seconds": round(time.time() - began), **found})
    print(f"{time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
