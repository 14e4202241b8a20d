"""Actual and nominal coverage of the intervals of `field`: a plot and its numbers.

    python -m benchmarks.reliability --root FRAMES --mde lite fastdepth.onnx \
        --out results/reliability

FRAMES is a folder in the layout of `scalefield.datasets.Folder`; figures are of its split "test".
Writes results.json and reliability.svg.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.record import RANGES_M, new_record, parser, write_record

from scalefield.anchor_sampling import REGIMES, sample_anchors
from scalefield.api import recover_from
from scalefield.benchmark.metrics import LEVELS, Truth, coverage, coverage_sums
from scalefield.benchmark.report.figures import COLOURS, MARKERS, Figure, encode, pyplot
from scalefield.datasets import Folder
from scalefield.io import write_atomic
from scalefield.mde import load_mde
from scalefield.methods.field import Field

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


def main() -> None:
    """Read the flags, measure, write the record and the plot."""
    flags = parser(__doc__)
    flags.add_argument("--root", type=Path, required=True)
    flags.add_argument("--mde", nargs="+", default=["lite"])
    flags.add_argument("--every", type=int, default=5, help="take every n-th frame")
    flags.add_argument("--limit", type=int, help="at most so many frames")
    given = flags.parse_args()
    torch.set_num_threads(1)
    dataset = Folder(given.root, RANGES_M)
    names = dataset.names("test")[:: given.every][: given.limit]
    config = {"every": given.every, "frames": len(names), "seed": 0, "levels": LEVELS}
    record = new_record(config)
    record["estimators"] = {Path(mde).stem: covered(dataset, names, mde) for mde in given.mde}
    write_record(given.out, record)
    write_atomic(given.out / "reliability.svg", encode(plot(record["estimators"]), "svg"))


if __name__ == "__main__":
    main()
