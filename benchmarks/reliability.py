"""Actual and nominal coverage of the intervals of `field`: a plot and its numbers.

    python benchmarks/reliability.py --root DATA --mde lite fastdepth.onnx --out results/reliability

DATA is a folder in the layout of `scalefield.datasets.Folder`; figures are of its split "test".
Writes results.json, reliability.svg and README.md, a table of the same numbers.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scalefield.anchor_sampling import REGIMES, sample_anchors
from scalefield.api import recover_from
from scalefield.benchmark.metrics import LEVELS, Truth, coverage, coverage_sums
from scalefield.benchmark.report.figures import COLOURS, MARKERS, Figure, encode, pyplot
from scalefield.datasets import Folder
from scalefield.io import write_atomic, write_json
from scalefield.mde import load_mde
from scalefield.methods.field import Field
from scalefield.runtime.provenance import provenance

RANGES_M = {"kitti": (0.1, 80.0), "*": (0.1, 10.0)}
CONDITIONS: tuple[str | int, ...] = (1, 3, *REGIMES)
EVERYWHERE = "all"


def covered(dataset: Folder, names: list[str], mde_name: str) -> dict[str, Any]:
    """By condition and place: the mean over images of what each interval covers, in per cent."""
    mde = load_mde(mde_name)
    found: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for name in names:
        frame = dataset.load(name)
        output = mde(frame.image)
        truth = Truth.of(frame.depth_m[frame.mask])
        for condition in CONDITIONS:
            anchors = sample_anchors(frame.depth_m, frame.mask, condition, seed=0, name=name)
            recovery = recover_from(output, anchors, Field()).numpy()
            depth_m, std_log = recovery.depth_m[frame.mask], recovery.std_log[frame.mask]
            shares = coverage(coverage_sums(depth_m, std_log, truth))
            row = [100 * shares[f"coverage_{level}"] for level in LEVELS]
            for group in (EVERYWHERE, frame.group):
                found[str(condition)][group].append(row)
    return {
        condition: {
            group: [round(float(value), 1) for value in np.mean(rows, axis=0)]
            for group, rows in groups.items()
        }
        for condition, groups in found.items()
    }


def plot(estimators: dict[str, Any]) -> Figure:
    """Covered over promised, one panel an estimator; thin lines are single places."""
    plt = pyplot()
    figure, axes = plt.subplots(
        1, len(estimators), figsize=(3.6 * len(estimators) + 1.2, 3.6), sharey=True, squeeze=False
    )
    for axis, (name, conditions) in zip(axes[0], estimators.items(), strict=True):
        axis.plot([0, 100], [0, 100], color="#999999", lw=0.8)
        for i, (condition, groups) in enumerate(conditions.items()):
            for group, values in groups.items():
                if group != EVERYWHERE:
                    axis.plot(LEVELS, values, color=COLOURS[i], lw=0.5, alpha=0.4)
            style = {"color": COLOURS[i], "marker": MARKERS[i], "label": title(condition)}
            axis.plot(LEVELS, groups[EVERYWHERE], lw=1.5, ms=4.5, **style)
        axis.set(xlim=(47, 98), ylim=(40, 101), xlabel="promised [%]")
        axis.set_xticks(LEVELS, [str(level) for level in LEVELS])
        axis.set_title(name)
    axes[0][0].set_ylabel("covered [%]")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8)
    return figure


def title(condition: str) -> str:
    """How many anchors there are."""
    if condition in REGIMES:
        return "{}–{} anchors".format(*REGIMES[condition])
    return f"{condition} anchor" + ("s" if condition != "1" else "")


def markdown(results: dict[str, Any]) -> str:
    """The same as a table."""
    frames, every = (results["config"][name] for name in ("frames", "every"))
    lines = ["# What the intervals of `field` cover", ""]
    lines += [
        f"Per cent of the pixels, mean over {frames} images of the test split "
        f"(every {every}th frame); in brackets the least and the most of any place. By "
        "`benchmarks/reliability.py`.",
        "",
        "![covered over promised](reliability.svg)",
        "",
        "| estimator | anchors | " + " | ".join(f"{level} %" for level in LEVELS) + " |",
        "|---|---" + "|---" * len(LEVELS) + "|",
    ]
    for name, conditions in results["estimators"].items():
        for condition, groups in conditions.items():
            places = np.array([v for group, v in groups.items() if group != EVERYWHERE])
            cells = [
                f"{mean:.0f} ({low:.0f}–{high:.0f})"
                for mean, low, high in zip(
                    groups[EVERYWHERE], places.min(axis=0), places.max(axis=0), strict=True
                )
            ]
            count = title(condition).split()[0]
            lines.append(f"| {name} | {count} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Parse, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mde", nargs="+", default=["lite"])
    parser.add_argument("--every", type=int, default=5, help="take only every n-th frame")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dataset = Folder(args.root, RANGES_M)
    names = dataset.names("test")[:: args.every]
    results: dict[str, Any] = {
        "provenance": provenance(),
        "config": {"every": args.every, "frames": len(names), "seed": 0, "levels": LEVELS},
        "estimators": {Path(mde).stem: covered(dataset, names, mde) for mde in args.mde},
    }
    write_json(args.out / "results.json", results)
    write_atomic(args.out / "reliability.svg", encode(plot(results["estimators"]), "svg"))
    write_atomic(args.out / "README.md", markdown(results).encode())


if __name__ == "__main__":
    main()
