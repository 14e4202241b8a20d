"""Properties of `field` other than accuracy: wrong anchors, placement, many anchors, video.

    python benchmarks/field.py --root DATA --out results/field

DATA is a folder in the layout of `scalefield.datasets.Folder`; figures are of its split "test",
or of another to choose by.
Writes results.json and README.md, a table of the same numbers.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from scalefield.anchor_sampling import sample_anchors
from scalefield.anchors import Anchors
from scalefield.api import recover_from
from scalefield.datasets import Folder, Frame
from scalefield.field.config import InferenceConfig
from scalefield.field.exact import ExactPosterior
from scalefield.field.kalman import FieldFilter
from scalefield.field.model import load_field
from scalefield.field.observations import Readings
from scalefield.field.placement import suggest_from
from scalefield.io import read_json, write_atomic, write_json
from scalefield.mde import MDE, MDEOutput, load_mde
from scalefield.methods.field import Field
from scalefield.methods.median import Median
from scalefield.recovery import Recovery
from scalefield.runtime.provenance import provenance
from scalefield.seeding import seeded_rng

RANGES_M = {"kitti": (0.1, 80.0), "*": (0.1, 10.0)}


def frames(
    dataset: Folder, mde: MDE, every: int, split: str = "test"
) -> Iterator[tuple[Frame, MDEOutput]]:
    """Every n-th frame of the split, as the MDE sees it."""
    for name in dataset.names(split)[::every]:
        frame = dataset.load(name)
        yield frame, mde(frame.image)


def absrel(method: Any, mde_output: MDEOutput, anchors: Anchors, frame: Frame) -> float:
    """Mean |D̂ − D| / D over the known pixels."""
    return off(recover_from(mde_output, anchors, method), frame)


def off(recovery: Recovery, frame: Frame) -> float:
    """The same of what was recovered; holes of the relative depth are not scored."""
    scored = frame.mask & np.isfinite(recovery.depth_m.numpy())
    depth_m, truth = recovery.depth_m.numpy()[scored], frame.depth_m[scored]
    return float(np.mean(np.abs(depth_m - truth) / truth))


def spoil(anchors: Anchors, frame: Frame, share: float) -> tuple[Anchors, np.ndarray]:
    """A share of the anchors made wrong: by a factor of 1.5 to 4, by the most different depth
    within 3 % of the image (a mixed return), or by that of a pixel up to 10 % away."""
    rng = seeded_rng(0, frame.name, "spoil", str(share))
    count = len(anchors)
    wrong = rng.permutation(count)[: round(share * count)]
    depth_m = anchors.depth_m.copy()
    rows, columns = anchors.pixels(frame.mask.shape)
    size = max(frame.mask.shape)
    for i, kind in zip(wrong, rng.integers(3, size=len(wrong)), strict=True):
        if kind == 0:
            depth_m[i] *= rng.uniform(1.5, 4) ** rng.choice([-1, 1])
            continue
        reach = max(2, round((0.03 if kind == 1 else 0.1) * size))
        window = tuple(slice(max(0, at - reach), at + reach + 1) for at in (rows[i], columns[i]))
        near = frame.depth_m[window][frame.mask[window]]
        if kind == 1:
            depth_m[i] = near[np.abs(np.log(near / depth_m[i])).argmax()]
        else:
            depth_m[i] = rng.choice(near)
    return dataclasses.replace(anchors, depth_m=depth_m), wrong


def wrong_anchors(
    dataset: Folder, mde: MDE, every: int, split: str, regime: str
) -> dict[str, float]:
    """A share of the anchors of a regime spoiled, against the correct ones alone."""
    found: dict[str, list[float]] = defaultdict(list)
    for frame, output in frames(dataset, mde, every, split):
        anchors = sample_anchors(frame.depth_m, frame.mask, regime, seed=0, name=frame.name)
        found["clean, robust"].append(absrel(Field(), output, anchors, frame))
        found["clean, not robust"].append(absrel(Field(robust=False), output, anchors, frame))
        for share in (0.1, 0.3):
            given, wrong = spoil(anchors, frame, share)
            correct = anchors[np.setdiff1d(np.arange(len(anchors)), wrong)]
            named = f"{share:.0%} wrong"
            found[f"{named}, robust"].append(absrel(Field(), output, given, frame))
            found[f"{named}, not robust"].append(absrel(Field(robust=False), output, given, frame))
            found[f"{named}, left out"].append(absrel(Field(robust=False), output, correct, frame))
    return {name: round(float(np.mean(values)), 5) for name, values in found.items()}


def farthest(mask: np.ndarray, n: int) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """Known pixels, each farthest from those before it; the first is nearest to the middle."""
    pixels = np.argwhere(mask)
    pixels = pixels[:: max(1, len(pixels) // 4000)]
    distance = ((pixels - np.array(mask.shape) / 2) ** 2).sum(axis=1).astype(float)
    chosen = [int(distance.argmin())]
    nearest = np.full(len(pixels), np.inf)
    while len(chosen) < n:
        nearest = np.minimum(nearest, ((pixels - pixels[chosen[-1]]) ** 2).sum(axis=1))
        chosen.append(int(nearest.argmax()))
    return pixels[chosen, 0], pixels[chosen, 1]


def where_to_measure(dataset: Folder, mde: MDE, every: int, split: str) -> dict[str, Any]:
    """AbsRel of `field` with n anchors placed by four rules, or chosen among a medium set."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for frame, output in frames(dataset, mde, every, split):
        # A pixel can be measured where its cell's middle is known.
        spots = suggest_from(output, None, 20, reachable=frame.mask)
        given = sample_anchors(frame.depth_m, frame.mask, "medium", seed=0, name=frame.name)
        best = [spot.anchor for spot in suggest_from(output, None, 20, among=given)]
        shuffled = seeded_rng(0, frame.name, "subset").permutation(len(given))
        rules: dict[str, Callable[[int], tuple[np.ndarray, np.ndarray]]] = {
            "suggest": lambda n: (
                np.array([spot.v for spot in spots[:n]]),  # noqa: B023
                np.array([spot.u for spot in spots[:n]]),  # noqa: B023
            ),
            "farthest": lambda n: farthest(frame.mask, n),  # noqa: B023
        }
        for n in (3, 5, 10, 20):
            grid = sample_anchors(frame.depth_m, frame.mask, n, seed=0, name=frame.name)
            found["grid"][n].append(absrel(Field(), output, grid, frame))
            known = np.argwhere(frame.mask)
            chosen = known[seeded_rng(0, frame.name, str(n)).choice(len(known), n, replace=False)]
            for name, (v, u) in {
                "random": chosen.T,
                **{name: rule(n) for name, rule in rules.items()},
            }.items():
                anchors = Anchors(u, v, frame.depth_m[v, u])
                found[name][n].append(absrel(Field(), output, anchors, frame))
            for name, order in (("of 110, suggest", best), ("of 110, random", shuffled)):
                found[name][n].append(absrel(Field(), output, given[order[:n]], frame))
    return {
        rule: {str(n): round(float(np.mean(values)), 5) for n, values in counts.items()}
        for rule, counts in found.items()
    }


def exact_absrel(mde_output: MDEOutput, anchors: Anchors, frame: Frame, every: int = 16) -> float:
    """AbsRel of the exact Gaussian process given all anchors, at every n-th known pixel."""
    model = load_field("field")
    image = model.image_inputs(mde_output)
    inputs, y, noise, _ = image.observe(
        Readings.of(anchors, image.shape, float(model.kernel.noise_std))
    )
    posterior = ExactPosterior.fit(model.kernel, inputs, y, noise)
    rows, columns = np.nonzero(frame.mask & mde_output.valid.cpu().numpy())
    ratios = []
    for start in range(0, len(rows), every * 1000):
        v, u = (index[start : start + every * 1000 : every] for index in (rows, columns))
        log_scale = posterior.mean(image.pixels(image.tensor(v), image.tensor(u))).cpu().numpy()
        depth_m = mde_output.mde_depth[v, u].cpu().numpy() * np.exp(log_scale)
        ratios.append(np.abs(depth_m / frame.depth_m[v, u] - 1))
    return float(np.mean(np.concatenate(ratios)))


def many_anchors(dataset: Folder, mde: MDE) -> dict[str, Any]:
    """Thousands of anchors as shipped, with other numbers of neighbours, and solved exactly."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    groups = {
        "dense depth": [n for n in dataset.names("test") if "icl" in n or "taskonomy" in n],
        "LiDAR": [name for name in dataset.names("test") if "kitti" in name],
    }
    for group, names in groups.items():
        for name in names[:: max(1, len(names) // 2)][:2]:
            frame = dataset.load(name)
            output = mde(frame.image)
            for n in (2000, 6000, 10_000):
                anchors = sample_anchors(frame.depth_m, frame.mask, n, seed=0, name=name)
                found[group][f"{n}, as shipped"].append(absrel(Field(), output, anchors, frame))
            anchors = sample_anchors(frame.depth_m, frame.mask, 6000, seed=0, name=name)
            for neighbours in (8, 16, 64):
                method = Field(robust=False, inference=InferenceConfig(neighbours=neighbours))
                began = time.perf_counter()
                error = absrel(method, output, anchors, frame)
                row = found[group]
                row[f"6000, {neighbours} neighbours"].append(error)
                row[f"6000, {neighbours} neighbours, s"].append(time.perf_counter() - began)
            found[group]["6000, exact"].append(exact_absrel(output, anchors, frame))
    return {
        group: {label: round(float(np.mean(values)), 5) for label, values in row.items()}
        for group, row in found.items()
    }


def video(dataset: Folder, mde: MDE, per_frame: int) -> dict[str, Any]:
    """The test split's sequences with few anchors a frame: error, and flicker of the scale."""
    sequences: dict[str, list[str]] = defaultdict(list)
    for name in dataset.names("test"):
        if "taskonomy" not in name:
            sequences[name.rsplit("/", 1)[0]].append(name)
    table = {}
    for place, names in sequences.items():
        errors: dict[str, list[float]] = defaultdict(list)
        scales: dict[str, list[float]] = defaultdict(list)
        stream = FieldFilter()
        for name in sorted(names):
            frame = dataset.load(name)
            output = mde(frame.image)
            anchors = sample_anchors(frame.depth_m, frame.mask, 12, seed=0, name=name)
            rng = seeded_rng(0, name, "video")
            anchors = anchors[np.sort(rng.permutation(len(anchors))[:per_frame])]
            methods = {"median": Median(), "field": Field(), "stream": stream}
            for label, method in methods.items():
                ratio = np.log(method(output, anchors).depth_m.numpy() / frame.depth_m)[frame.mask]
                errors[label].append(float(np.mean(np.abs(np.expm1(ratio)))))
                scales[label].append(float(np.median(ratio)))
        table[place] = {
            "frames": len(names),
            "absrel": {label: round(float(np.mean(v)), 5) for label, v in errors.items()},
            "flicker": {
                label: round(float(np.mean(np.abs(np.diff(v)))), 5) for label, v in scales.items()
            },
        }
    return table


def markdown(results: dict[str, Any]) -> str:
    """The same as tables, of the parts that were measured."""
    config = results["config"]
    split, mde = config.get("split", "test"), config["mde"]
    lines = ["# What `field` does with wrong, well-placed, many and few anchors", ""]
    lines += [f"AbsRel on the split {split}, with `{mde}`; by `benchmarks/field.py`."]
    for regime, wrong in results.get("wrong anchors", {}).items():
        lines += [
            "",
            f"| wrong anchors, {regime} | robust | not robust | wrong ones left out |",
            "|---|---|---|---|",
        ]
        for share in ("clean", "10% wrong", "30% wrong"):
            cells = [wrong.get(f"{share}, {kind}") for kind in ("robust", "not robust", "left out")]
            lines.append(
                f"| {share} | " + " | ".join("–" if c is None else f"{c:.4f}" for c in cells) + " |"
            )
    if placed := results.get("where to measure"):
        lines += ["", "| anchors placed by | 3 | 5 | 10 | 20 |", "|---|---|---|---|---|"]
        for rule, counts in placed.items():
            lines.append(f"| {rule} | " + " | ".join(f"{v:.4f}" for v in counts.values()) + " |")
    if rows := results.get("many anchors"):
        labels = [*next(iter(rows.values()))]
        lines += ["", "| many anchors | " + " | ".join(labels) + " |"]
        lines += ["|---" * (len(labels) + 1) + "|"]
        for name, row in rows.items():
            lines.append(f"| {name} | " + " | ".join(f"{v:.5f}" for v in row.values()) + " |")
    if videos := results.get("video"):
        head = "| video, anchors a frame | place | AbsRel median / field / stream | flicker |"
        lines += ["", head, "|---|---|---|---|"]
        for count, places in videos.items():
            for place, row in places.items():
                pair = (
                    " / ".join(f"{v:.4f}" for v in row[key].values())
                    for key in ("absrel", "flicker")
                )
                lines.append(f"| {count} | {place.split('/')[-1]} | " + " | ".join(pair) + " |")
        note = "Flicker is the mean change of the median log error from one frame to the next."
        lines += ["", note]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Parse, measure, write after every part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mde", default="lite")
    parser.add_argument("--parts", nargs="+", help="measure only these again")
    parser.add_argument("--split", default="test", help="of the first two parts")
    parser.add_argument(
        "--every",
        type=int,
        default=12,
        help="take only every n-th frame, and of wrong anchors every n/4-th",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    dataset, mde = Folder(args.root, RANGES_M), load_mde(args.mde)
    every_wrong = max(1, args.every // 4)  # a few frames decide what is lost, so it takes many
    made = provenance()
    results: dict[str, Any] = {
        "provenance": made,
        "config": {
            "mde": Path(args.mde).stem,
            "every": args.every,
            "every, wrong anchors": every_wrong,
            "split": args.split,
            "seed": 0,
        },
    }
    parts: dict[str, Callable[[], Any]] = {
        "wrong anchors": lambda: {
            regime: wrong_anchors(dataset, mde, every_wrong, args.split, regime)
            for regime in ("low", "medium", "high")
        },
        "where to measure": lambda: where_to_measure(dataset, mde, args.every, args.split),
        "video": lambda: {str(n): video(dataset, mde, n) for n in (3,)},
        "many anchors": lambda: many_anchors(dataset, mde),
    }
    earlier = args.out / "results.json"
    if args.parts and earlier.exists():
        results = read_json(earlier) | results
    results["commits"] = dict(results.get("commits", {}))
    for name, part in parts.items():
        if args.parts and name not in args.parts:
            continue
        results[name] = part()
        results["commits"][name] = made["commit"]
        print(name, results[name], flush=True)
        write_json(args.out / "results.json", results)
    write_atomic(args.out / "README.md", markdown(results).encode())


if __name__ == "__main__":
    main()
