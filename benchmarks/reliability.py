"""Actual and nominal coverage of the intervals of `field`, in the mean and in single frames.

    python -m benchmarks.reliability --root FRAMES --mde lite fastdepth.onnx \
        --out results/reliability

FRAMES is a folder in the layout of `scalefield.datasets.Folder`; figures are of its split "test"
unless --split says otherwise.
Writes results.json and reliability.svg. `estimators` has the mean coverage by place with anchors
on a grid; `frames` has scores of single frames with nested sets of random anchors.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from benchmarks.record import RANGES_M, new_record, parser, write_record
from jaxtyping import Float
from scipy.special import ndtr

from scalefield.anchor_sampling import REGIMES, sample_anchors
from scalefield.anchors import Anchors
from scalefield.api import recover_from
from scalefield.benchmark.metrics import LEVELS, Truth, coverage, coverage_sums
from scalefield.benchmark.report.figures import COLOURS, MARKERS, Figure, encode, pyplot
from scalefield.datasets import Folder
from scalefield.io import write_atomic
from scalefield.mde import load_mde
from scalefield.methods.field import Field
from scalefield.recovery import interval_factor
from scalefield.seeding import seeded_rng

CONDITIONS: tuple[str | int, ...] = (1, 3, *REGIMES)
EVERYWHERE = "all"
NESTED = (0, 1, 2, 3, 5, 8, 12, 16, 20, 25, 32, 40, 50, 64, 80, 104, 520)
"""Numbers of anchors of a frame; each set holds the one before it."""
FIRST_STEP = 8
"""Number of anchors from which the deviations of successive sets are compared."""
BAND = (0.8, 0.97)
"""Coverage of the interval of 90 % that counts as right in a frame."""
SCORED_PIXELS = 2000


class FrameScore(NamedTuple):
    """How the errors of a frame's log-depth agree with their standard deviations."""

    covered: tuple[float, ...]
    """Share of the pixels in the interval of each of `LEVELS`."""
    factor_90: float
    """Factor on the deviations that would make the interval of 90 % right."""
    log_score: float
    """Mean of −log N(error; 0, std²)."""
    crps: float
    """Mean continuous ranked probability score of N(0, std²) in log-depth: Gneiting and Raftery,
    Strictly proper scoring rules, prediction, and estimation, 2007."""
    abs_rel: float
    median_std: float

    @classmethod
    def of(cls, error: Float[np.ndarray, " n"], std: Float[np.ndarray, " n"]) -> FrameScore:
        """The scores, given log D̂ − log D and its standard deviation."""
        z = error / std
        density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
        crps = std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))
        return cls(
            tuple(float(np.mean(np.abs(z) <= interval_factor(level / 100))) for level in LEVELS),
            float(np.quantile(np.abs(z), 0.9) / interval_factor(0.9)),
            float(np.mean(np.log(std * math.sqrt(2 * math.pi)) + 0.5 * z**2)),
            float(crps.mean()),
            float(np.abs(np.expm1(error)).mean()),
            float(np.median(std)),
        )


def frame_scores(dataset: Folder, names: list[str], mde_name: str) -> list[dict[int, FrameScore]]:
    """The scores of each frame by the number of its anchors, at pixels that are no anchors."""
    mde, found = load_mde(mde_name), []
    for name in names:
        frame = dataset.load(name)
        output = mde(frame.image)
        pixels = np.argwhere(frame.mask & output.valid.cpu().numpy())
        pixels = seeded_rng(0, name, "nested").permutation(pixels)
        rows, columns = pixels[: max(NESTED)].T
        every = Anchors(columns, rows, frame.depth_m[rows, columns])
        v, u = pixels[max(NESTED) :][:SCORED_PIXELS].T
        scores = {}
        for n in (n for n in NESTED if n <= len(every) and len(v)):
            recovery = recover_from(output, every[np.arange(n)], Field()).numpy()
            error = np.log(recovery.depth_m[v, u]) - np.log(frame.depth_m[v, u])
            scores[n] = FrameScore.of(error.astype(np.float64), recovery.std_log[v, u])
        found.append(scores)
    return found


def summary(frames: list[dict[int, FrameScore]]) -> dict[str, Any]:
    """Over frames: shares, quantiles and means by the number of anchors; steps between sets."""
    by_anchors = {}
    for n in NESTED:
        scores = [frame[n] for frame in frames if n in frame]
        if not scores:
            continue
        covered = np.array([score.covered for score in scores])
        at_90 = covered[:, LEVELS.index(90)]
        by_anchors[str(n)] = {
            "frames": len(scores),
            "share_right": float(np.mean((at_90 >= BAND[0]) & (at_90 <= BAND[1]))),
            "worst_tenth": float(np.quantile(at_90, 0.1)),
            "covered": covered.mean(axis=0).tolist(),
            **{
                name: float(np.mean([getattr(score, name) for score in scores]))
                for name in ("factor_90", "log_score", "crps", "abs_rel", "median_std")
            },
        }
    steps = np.array(
        [
            frame[after].median_std / frame[before].median_std
            for frame in frames
            for before, after in itertools.pairwise(n for n in frame if n >= FIRST_STEP)
        ]
    )
    over = {f"over_{limit}": float(np.mean(steps > limit)) for limit in (1.25, 1.5)}
    return {"anchors": by_anchors, "steps": {"largest": float(steps.max()), **over}}


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
    flags.add_argument("--split", default="test", choices=["val", "test"])
    flags.add_argument("--every", type=int, default=5, help="take every n-th frame")
    flags.add_argument("--limit", type=int, help="at most so many frames")
    given = flags.parse_args()
    torch.set_num_threads(1)
    dataset = Folder(given.root, RANGES_M)
    names = dataset.names(given.split)[:: given.every][: given.limit]
    config = {
        "split": given.split,
        "every": given.every,
        "frames": len(names),
        "seed": 0,
        "levels": LEVELS,
    }
    record = new_record(config)
    record["estimators"] = {Path(mde).stem: covered(dataset, names, mde) for mde in given.mde}
    record["frames"] = {
        Path(mde).stem: summary(frame_scores(dataset, names, mde)) for mde in given.mde
    }
    write_record(given.out, record)
    write_atomic(given.out / "reliability.svg", encode(plot(record["estimators"]), "svg"))


if __name__ == "__main__":
    main()
