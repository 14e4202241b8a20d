"""Measures the errors of relative depth: of published estimators, and of the drawn distortions.

    python -m recipes.measure_errors --strong STRONG --rendered SCENES --mde lite --places DATA \
        --out errors.json

The error of a map is y = log(D_gt / D) after the best affine fit of the map in depth or disparity,
whichever leaves less. Its spread is 1.4826 times the median of |y|. For each group of images the
table has medians over images of

    spread        the spread of y
    before        the same after the best scale alone
    plane         share of the variance of y that a plane over the image explains
    slope         that a line over log-depth explains, together with the plane
    smooth        that these and a smooth function with 4×5 knots explain
    fine          that these and a smooth function with 8×10 knots explain
    neighbours    that the six nearest pixels in position and depth explain
    tilt, gradient    the coefficients of (u, v) in −1 … 1 and of log-depth; root mean squares
    tail          98 % quantile of |y| over its median

Shares are of held-out pixels. |y| is cut at six spreads, except for `tail`. `--strengths` are those
of `DistortionConfig`, applied to true depth of rendered frames.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from recipes.permissive import segments_of, spread
from scipy.optimize import least_squares
from scipy.spatial import cKDTree

from scalefield.basis.grids import log_depth_and_level
from scalefield.datasets import Folder
from scalefield.io import write_json
from scalefield.mde import MDEOutput, load_mde
from scalefield.runtime.provenance import provenance
from scalefield.training.data import filled
from scalefield.training.distortion import Distortion, DistortionConfig

RANGES_M = {"kitti": (0.1, 80.0), "*": (0.1, 10.0)}
PIXELS = 4000
"""Pixels of an image that are used."""


class Sample(NamedTuple):
    """Pixels of one image."""

    u: Float[np.ndarray, " n"]
    """From −1 to 1 over the width."""
    v: Float[np.ndarray, " n"]
    """From −1 to 1 over the height."""
    depth: Float[np.ndarray, " n"]
    """What an estimator gives, as depth."""
    truth: Float[np.ndarray, " n"]
    """True depth."""


def sampled(
    depth: Float[np.ndarray, "h w"], truth: Float[np.ndarray, "h w"], valid: np.ndarray
) -> Sample:
    """Random known pixels of a map."""
    v, u = np.nonzero(valid & np.isfinite(depth) & (depth > 0))
    chosen = np.random.default_rng(0).permutation(len(v))[:PIXELS]
    v, u = v[chosen], u[chosen]
    height, width = depth.shape
    return Sample((u + 0.5) * 2 / width - 1, (v + 0.5) * 2 / height - 1, depth[v, u], truth[v, u])


def deviation(y: np.ndarray) -> float:
    """1.4826 times the median of |y|, y around its median."""
    return 1.4826 * float(np.median(np.abs(y - np.median(y))))


def affine_error(sample: Sample, power: int) -> np.ndarray:
    """log(D_gt / D) after the best s · D^power + t, with a robust loss of the logarithm."""
    x, target = sample.depth**power, sample.truth**power
    x, target = x / np.median(x), target / np.median(target)

    def residual(p: np.ndarray) -> np.ndarray:
        return np.log(target) - np.log(np.maximum(p[0] * x + p[1], 1e-3))

    solution = least_squares(residual, [1.0, 0.0], loss="soft_l1", f_scale=0.05)
    return power * residual(solution.x)


def explained(y: np.ndarray, design: np.ndarray, ridge: float = 1e-3) -> float:
    """Share of the variance of held-out y that a ridge regression explains (five folds)."""
    order, predicted = np.random.default_rng(0).permutation(len(y)), np.zeros(len(y))
    for k in range(5):
        test, train = order[k::5], np.delete(order, np.s_[k::5])
        mean, level = design[train].mean(axis=0), y[train].mean()
        x = design[train] - mean
        gram = x.T @ x + ridge * len(train) * np.eye(x.shape[1])
        predicted[test] = level + (design[test] - mean) @ np.linalg.solve(
            gram, x.T @ (y[train] - level)
        )
    return share(y, predicted)


def share(y: np.ndarray, predicted: np.ndarray) -> float:
    """1 − the mean square of the error over the variance."""
    return float(1 - np.mean((y - predicted) ** 2) / max(float(y.var()), 1e-12))


def knots(sample: Sample, rows: int, columns: int) -> np.ndarray:
    """Gaussian bumps around a grid of knots."""
    bumps = []
    for x, count in ((sample.u, columns), (sample.v, rows)):
        width = 1.6 / (count - 1)
        bumps.append(np.exp(-(((x[:, None] - np.linspace(-1, 1, count)) / width) ** 2) / 2))
    return (bumps[0][:, :, None] * bumps[1][:, None, :]).reshape(len(sample.u), -1)


def measured(sample: Sample) -> dict[str, float]:
    """The numbers of one image."""
    before = np.log(sample.truth / sample.depth)
    y = min((affine_error(sample, power) for power in (1, -1)), key=deviation)
    log_depth = np.log(sample.truth) - y
    log_depth = log_depth - log_depth.mean()
    width = max(deviation(y), 1e-6)
    y = y - np.median(y)
    cut = np.clip(y, -6 * width, 6 * width)
    plane = np.stack([sample.u, sample.v], axis=1)
    line = log_depth[:, None] / max(float(log_depth.std()), 1e-6)
    both = np.concatenate([plane, line], axis=1)
    design = np.concatenate([plane, log_depth[:, None], np.ones((len(y), 1))], axis=1)
    tilt_u, tilt_v, gradient, _ = np.linalg.lstsq(design, cut, rcond=None)[0]
    near = np.stack([sample.u, sample.v, 2 * log_depth], axis=1)
    neighbours = cKDTree(near).query(near, k=7)[1][:, 1:]
    return {
        "spread": width,
        "before": deviation(before),
        "plane": explained(cut, plane),
        "slope": explained(cut, both),
        "smooth": explained(cut, np.concatenate([both, knots(sample, 4, 5)], axis=1), 3e-3),
        "fine": explained(cut, np.concatenate([both, knots(sample, 8, 10)], axis=1), 3e-3),
        "neighbours": share(cut, np.median(cut[neighbours], axis=1)),
        "tilt": float(np.hypot(tilt_u, tilt_v)),
        "gradient": float(gradient),
        "tail": float(np.quantile(np.abs(y), 0.98) / max(np.median(np.abs(y)), 1e-6)),
    }


def strong_samples(folder: Path) -> Iterator[tuple[str, Sample]]:
    """Saved outputs of estimators, by the beginning of their folder's name."""
    for path in sorted(folder.glob("*/meta.json")):
        prediction = np.load(path.parent / "pred.npz")["pred"].astype(np.float64)
        truth = np.load(path.parent / "gt.npz")["gt"].astype(np.float64)
        valid = (truth > 0) & np.isfinite(truth) & np.isfinite(prediction) & (prediction > 0)
        disparity = json.loads(path.read_text())["kind"] == "disparity"
        depth = 1 / np.where(valid, prediction, 1) if disparity else prediction
        yield path.parent.name.split("_")[0], sampled(depth, truth, valid)


def estimated_samples(args: argparse.Namespace) -> Iterator[tuple[str, Sample]]:
    """Estimators on val frames of a folder."""
    dataset = Folder(args.places, RANGES_M)
    frames = [dataset.load(name) for name in spread(dataset.names("val"), args.frames)]
    for name in args.mde:
        mde = load_mde(name)
        for frame in frames:
            depth = mde(frame.image).mde_depth.numpy().astype(np.float64)
            yield mde.name, sampled(depth, frame.depth_m.astype(np.float64), frame.mask)


def drawn_samples(args: argparse.Namespace) -> Iterator[tuple[str, Sample]]:
    """True depth of rendered val frames with drawn distortions."""
    dataset, config = Folder(args.rendered, RANGES_M), DistortionConfig()
    for i, name in enumerate(spread(dataset.names("val"), args.frames)):
        frame = dataset.load(name)
        truth = MDEOutput(filled(frame), "depth")
        log_depth, level = log_depth_and_level(truth.mde_depth[None])
        segments = segments_of(frame, truth)[None]
        sample = sampled(frame.depth_m.astype(np.float64), frame.depth_m, frame.mask)
        position = torch.from_numpy(np.stack([sample.u, sample.v], axis=1)).float()[None]
        around = torch.from_numpy(np.log(sample.truth)).float()[None] - level
        for value in args.strengths:
            rng = torch.Generator().manual_seed(i)
            strength = torch.tensor([float(value)])
            distort = Distortion.draw(1, rng, torch.device("cpu"), strength, config)
            distort = distort.with_grid(log_depth.float(), segments, rng, strength, config=config)
            depth = distort(around, position)[0].double().exp().numpy()
            yield f"drawn, strength {value}", sample._replace(depth=depth)


def main() -> None:
    """Parse, measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strong", type=Path)
    parser.add_argument("--rendered", type=Path)
    parser.add_argument("--places", type=Path)
    parser.add_argument("--mde", nargs="*", default=[])
    parser.add_argument("--strengths", nargs="+", type=float, default=[0.005, 0.02, 0.1, 0.4, 0.9])
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = defaultdict(list)
    for group, sample in strong_samples(args.strong) if args.strong else ():
        rows[group].append(measured(sample))
    for group, sample in estimated_samples(args) if args.mde else ():
        rows[group].append(measured(sample))
    for group, sample in drawn_samples(args) if args.rendered else ():
        rows[group].append(measured(sample))
    table: dict[str, dict[str, float]] = {}
    for group, several in rows.items():
        means = {
            key: float(np.sqrt(np.mean([row[key] ** 2 for row in several])))
            if key in ("tilt", "gradient")
            else float(np.median([row[key] for row in several]))
            for key in several[0]
        }
        table[group] = {"images": len(several)} | {k: round(v, 3) for k, v in means.items()}
        print(f"{group:22}", "  ".join(f"{k} {v:g}" for k, v in table[group].items()))
    record = {"command": " ".join(sys.argv), "provenance": provenance()}
    write_json(args.out, {**record, "groups": table})


if __name__ == "__main__":
    main()
