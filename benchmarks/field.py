"""Properties of `field` other than accuracy: wrong anchors, placement, video.

    python -m benchmarks.field --root FRAMES --out results/field

FRAMES is a folder in the layout of `scalefield.datasets.Folder`; figures are of its split "test".
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.record import RANGES_M, new_record, parser, write_record
from jaxtyping import Int64

from scalefield.anchor_sampling import REGIMES, sample_anchors
from scalefield.anchors import Anchors
from scalefield.api import Stream, recover_from
from scalefield.datasets import Folder, Frame
from scalefield.field.placement import suggest_from
from scalefield.mde import MDE, MDEOutput, load_mde
from scalefield.methods.field import Field
from scalefield.methods.median import Median
from scalefield.seeding import seeded_rng


def absrel(method: Any, mde_output: MDEOutput, anchors: Anchors, frame: Frame) -> float:
    """Mean |D̂ − D| / D over the known pixels; holes of the relative depth are not scored."""
    depth_m = recover_from(mde_output, anchors, method).depth_m.numpy()
    scored = frame.mask & np.isfinite(depth_m)
    return float(np.mean(np.abs(depth_m[scored] / frame.depth_m[scored] - 1)))


def means(found: dict[Any, list[float]]) -> dict[str, float]:
    """The mean of each list, to five digits."""
    return {str(name): round(float(np.mean(values)), 5) for name, values in found.items()}


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


def wrong_anchors(frames: list[Frame], mde: MDE) -> dict[str, dict[str, float]]:
    """AbsRel with a share of the anchors spoilt, and with the correct ones alone, by regime."""
    robust, plain = Field(), Field(robust=False)
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for frame in frames:
        output = mde(frame.image)
        for regime in REGIMES:
            errors = found[regime]
            anchors = sample_anchors(frame.depth_m, frame.mask, regime, seed=0, name=frame.name)
            errors["clean, robust"].append(absrel(robust, output, anchors, frame))
            errors["clean, not robust"].append(absrel(plain, output, anchors, frame))
            for share in (0.1, 0.3):
                given, wrong = spoil(anchors, frame, share)
                correct = anchors[np.setdiff1d(np.arange(len(anchors)), wrong)]
                named = f"{share:.0%} wrong"
                errors[f"{named}, robust"].append(absrel(robust, output, given, frame))
                errors[f"{named}, not robust"].append(absrel(plain, output, given, frame))
                errors[f"{named}, left out"].append(absrel(plain, output, correct, frame))
    return {regime: means(errors) for regime, errors in found.items()}


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


def where_to_measure(frames: list[Frame], mde: MDE) -> dict[str, dict[str, float]]:
    """AbsRel of `field` with n anchors placed by four rules, or chosen among a medium set."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for frame in frames:
        output = mde(frame.image)
        # A pixel can be measured where its cell's middle is known.
        spots = suggest_from(output, None, 20, reachable=frame.mask)
        given = sample_anchors(frame.depth_m, frame.mask, "medium", seed=0, name=frame.name)
        best = [spot.anchor for spot in suggest_from(output, None, 20, among=given)]
        shuffled = seeded_rng(0, frame.name, "subset").permutation(len(given))
        suggested = np.array([[spot.v, spot.u] for spot in spots])
        spread = np.stack(farthest(frame.mask, 20), axis=1)
        known = np.argwhere(frame.mask)
        for n in (3, 5, 10, 20):
            grid = sample_anchors(frame.depth_m, frame.mask, n, seed=0, name=frame.name)
            found["grid"][n].append(absrel(Field(), output, grid, frame))
            chosen = known[seeded_rng(0, frame.name, str(n)).choice(len(known), n, replace=False)]
            rules = {"random": chosen, "suggest": suggested[:n], "farthest": spread[:n]}
            for name, pixels in rules.items():
                v, u = pixels.T
                anchors = Anchors(u, v, frame.depth_m[v, u])
                found[name][n].append(absrel(Field(), output, anchors, frame))
            for name, order in (("of 110, suggest", best), ("of 110, random", shuffled)):
                found[name][n].append(absrel(Field(), output, given[order[:n]], frame))
    return {rule: means(counts) for rule, counts in found.items()}


def video(dataset: Folder, mde: MDE, per_frame: int, limit: int | None = None) -> dict[str, Any]:
    """The test split's sequences with few anchors a frame: error, and flicker of the scale."""
    sequences: dict[str, list[str]] = defaultdict(list)
    for name in dataset.names("test"):
        if "taskonomy" not in name:
            sequences[name.rsplit("/", 1)[0]].append(name)
    found = {}
    for place, names in sequences.items():
        errors: dict[str, list[float]] = defaultdict(list)
        scales: dict[str, list[float]] = defaultdict(list)
        methods = {"median": Median(), "field": Field(), "stream": Stream()}
        for name in sorted(names)[:limit]:
            frame = dataset.load(name)
            output = mde(frame.image)
            anchors = sample_anchors(frame.depth_m, frame.mask, 12, seed=0, name=name)
            rng = seeded_rng(0, name, "video")
            anchors = anchors[np.sort(rng.permutation(len(anchors))[:per_frame])]
            for label, method in methods.items():
                ratio = np.log(method(output, anchors).depth_m.numpy() / frame.depth_m)[frame.mask]
                errors[label].append(float(np.mean(np.abs(np.expm1(ratio)))))
                scales[label].append(float(np.median(ratio)))
        changes = {label: list(np.abs(np.diff(values))) for label, values in scales.items()}
        found[place] = {
            "frames": len(errors["field"]),
            "absrel": means(errors),
            "flicker": means(changes),
        }
    return found


def main() -> None:
    """Read the flags, measure, write after every part."""
    flags = parser(__doc__)
    flags.add_argument("--root", type=Path, required=True)
    flags.add_argument("--mde", default="lite")
    flags.add_argument("--every", type=int, default=12, help="take every n-th frame")
    flags.add_argument(
        "--every-wrong", type=int, default=3, help="the same of the part with wrong anchors"
    )
    flags.add_argument("--limit", type=int, help="at most so many frames of each part")
    given = flags.parse_args()
    torch.set_num_threads(1)
    dataset, mde = Folder(given.root, RANGES_M), load_mde(given.mde)
    names = dataset.names("test")
    placed, spoilt = (
        [dataset.load(name) for name in names[::every][: given.limit]]
        for every in (given.every, given.every_wrong)
    )
    record = new_record(
        {
            "mde": Path(given.mde).stem,
            "every": given.every,
            "every, wrong anchors": given.every_wrong,
            "split": "test",
            "limit": given.limit,
            "seed": 0,
        }
    )
    parts: dict[str, Callable[[], Any]] = {
        "wrong anchors": lambda: wrong_anchors(spoilt, mde),
        "where to measure": lambda: where_to_measure(placed, mde),
        # A change from frame to frame needs two frames.
        "video": lambda: {"3": video(dataset, mde, 3, given.limit and max(2, given.limit))},
    }
    for name, part in parts.items():
        record[name] = part()
        print(name, record[name], flush=True)
        write_record(given.out, record)


if __name__ == "__main__":
    main()
