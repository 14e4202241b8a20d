"""The first loop of the benchmark: every method on every frame, with one file of sums per frame.

The second loop, `score`, reads only these files. A frame's file is written atomically and depends
only on the configuration and the frame, so that the loop can be killed, continued, and divided
among processes and machines.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.ndimage import distance_transform_edt

from scalefield.anchor_sampling import DROP_SEQUENCE, REGIMES, drop_anchors, sample_anchors
from scalefield.anchors import Anchors
from scalefield.api import recover_from
from scalefield.benchmark.method_spec import MethodSpec
from scalefield.benchmark.metrics import Structure, Truth, coverage_sums, sums
from scalefield.benchmark.protocols import PROTOCOLS, protocol_anchors, protocol_named
from scalefield.datasets import Frame
from scalefield.datasets.source import FrameSource
from scalefield.datasets.splits import write_list
from scalefield.errors import InputError
from scalefield.io import as_json, config_differences, read_json, write_atomic, write_json
from scalefield.mde import MDEOutput
from scalefield.recovery import Method, Recovery, Solver
from scalefield.runtime.progress import progress as progress_bar
from scalefield.runtime.provenance import commit
from scalefield.runtime.workers import map_frames

FORMAT = 2
"""Version of the files in an output folder; files of different versions are not mixed."""

DISTANCE_EDGES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""Bins of the distance to the nearest anchor, in image diagonals."""


@dataclass(frozen=True)
class Evaluation:
    """Configuration of an evaluation. Runs with equal ones may share an output folder."""

    name: str
    """Name of the data in tables."""
    dataset: str
    """Layout of the dataset."""
    split: str
    mde: str
    """Label of the estimator in tables; the revision of its weights is recorded with every frame.
    """
    methods: tuple[MethodSpec, ...]
    regimes: tuple[str, ...]
    drop: bool
    """Whether the drop-anchor sequence is run as well."""
    seed: int
    """Seed of the anchors."""
    ranges_m: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Depth ranges by source, for the folder layout."""
    protocol: str = ""
    """The public benchmark whose patterns of anchors replace the regimes; see `protocols`."""
    cached: bool = False
    """Whether the MDE's outputs go through the cache, which rounds features to float16."""
    source: str = ""
    """What the estimator was opened from: a name of `MODELS`, a file's stem, module:object."""

    def __post_init__(self) -> None:
        unknown = [r for r in self.regimes if r not in REGIMES]
        if unknown:
            raise InputError(f"no anchor regime {unknown[0]!r}; there are {', '.join(REGIMES)}")
        if self.protocol:
            protocol_named(self.protocol, self.dataset)
        if not self.conditions:
            raise InputError("nothing to evaluate: no anchor regime and no drop-anchor sequence")
        rows = [(m.label, c) for m in self.methods for c in self.conditions if m.applies(c)]
        twice = [row for row in rows if rows.count(row) > 1]
        if twice:
            label, condition = twice[0]
            raise InputError(f"two methods are called {label!r} under {condition}; name them apart")
        if not rows:
            raise InputError("nothing to evaluate: no method applies under any condition")

    @property
    def conditions(self) -> tuple[str, ...]:
        """Anchor regimes, then the steps of the drop-anchor sequence; or those of the protocol."""
        if self.protocol:
            return PROTOCOLS[self.protocol].patterns
        drops = tuple(f"drop-{n}" for n in DROP_SEQUENCE) if self.drop else ()
        return (*self.regimes, *drops)

    @property
    def labels(self) -> tuple[str, ...]:
        """The table's rows."""
        return tuple(dict.fromkeys(m.label for m in self.methods))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return as_json({"format": FORMAT, **dataclasses.asdict(self)})


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Evaluates frames; methods and MDE are loaded once per process."""

    source: FrameSource
    """Frames and their relative depth."""
    evaluation: Evaluation
    """The configuration."""
    out: Path
    """Output folder."""

    @cached_property
    def commit(self) -> str | None:
        """The version of the code, written into every frame's file."""
        return commit()

    @cached_property
    def methods(self) -> list[tuple[MethodSpec, Method]]:
        """Each row with its method."""
        return [(spec, spec.make()) for spec in self.evaluation.methods]

    def __call__(self, name: str) -> str | None:
        """Write the frame's files; returns the error if the frame has no result."""
        timings: dict[str, float] = {}
        try:
            frame = self.source.dataset.load(name)
            start = time.perf_counter()
            mde_output = self.source.output(frame)
            timings["mde"] = _milliseconds(start)
            record = self.evaluate(frame, mde_output, timings)
        except InputError as e:
            record = {"name": name, "error": str(e)}
        write_json(self.out / "timings" / f"{name}.json", timings)
        write_atomic(frame_file(self.out, name), json.dumps(record, allow_nan=False).encode())
        return record.get("error")

    def evaluate(
        self, frame: Frame, mde_output: MDEOutput, timings: dict[str, float]
    ) -> dict[str, Any]:
        """The sums of every method under every condition, as written to the frame's file."""
        scored = frame.mask & mde_output.valid.cpu().numpy()
        if not scored.any():
            near, far = frame.depth_range_m
            raise InputError(f"{frame.name}: no pixel has a true depth of {near:g} … {far:g} m")
        truth = Truth.of(frame.depth_m[scored])
        structure = Structure.of(frame.depth_m, scored, frame.intrinsics)
        cells = []
        methods = [(spec, with_labels(spec, method, frame)) for spec, method in self.methods]
        # By position: rows of one label may have another generator under each condition.
        solvers: dict[int, Solver] = {}
        for condition, anchors in self.anchor_sets(frame):
            distance = None if condition.startswith("drop") else _distance_bins(anchors, scored)
            for i, (spec, method) in enumerate(methods):
                if not spec.applies(condition):
                    continue
                cell = {"method": spec.label, "condition": condition, "anchors": len(anchors)}
                if method is None:
                    cells.append(cell | {"skipped": "the frame has no labels"})
                    continue
                start = time.perf_counter()
                try:
                    if i not in solvers:
                        solvers[i] = method.solver(mde_output)
                    recovery = recover_from(mde_output, anchors, method, solver=solvers[i])
                    timings[f"{spec.label} / {condition}"] = _milliseconds(start)
                    cell |= _sums(recovery, scored, truth, frame.depth_range_m, distance)
                    clamped = np.clip(_numpy(recovery.depth_m), *frame.depth_range_m)
                    rows, columns = anchors.pixels(scored.shape)
                    cell["structure"] = structure.measure(clamped, (rows, columns))
                    cell |= _spectrum(recovery, mde_output, anchors)
                except InputError as e:
                    cell["error"] = str(e)
                cells.append(cell)
        return {
            "name": frame.name,
            "group": frame.group,
            "scene": frame.scene,
            "sha256": frame.sha256(),
            "pixels": int(np.count_nonzero(scored)),
            "holes": int(np.count_nonzero(frame.mask & ~scored)),
            "mde": {"model": mde_output.model, "revision": mde_output.revision},
            "commit": self.commit,
            "cells": cells,
        }

    def anchor_sets(self, frame: Frame) -> Iterator[tuple[str, Anchors]]:
        """The frame's anchors under each condition."""
        seed = self.evaluation.seed
        if self.evaluation.protocol:
            for pattern in self.evaluation.conditions:
                yield pattern, protocol_anchors(frame, pattern, seed)
            return
        for regime in self.evaluation.regimes:
            drawn = sample_anchors(frame.depth_m, frame.mask, regime, seed=seed, name=frame.name)
            yield regime, drawn
        if self.evaluation.drop:
            sets = drop_anchors(frame.depth_m, frame.mask, seed=seed, name=frame.name)
            for n, anchors in sets.items():
                yield f"drop-{n}", anchors


def frame_file(out: Path, name: str) -> Path:
    """The file with the sums of a frame."""
    return out / "frames" / f"{name}.json"


def with_labels(spec: MethodSpec, method: Method, frame: Frame) -> Method | None:
    """The method with the frame's labels if it wants labels; None if the frame has none.

    A row that sets `superpixels` asks for superpixels instead of labels.
    """
    if not method.wants_labels or "superpixels" in spec.options:
        return method
    return None if frame.labels is None else method.with_labels(frame.labels)


def _sums(
    recovery: Recovery,
    scored: np.ndarray,
    truth: Truth,
    range_m: tuple[float, float],
    distance: np.ndarray | None,
) -> dict[str, Any]:
    depth_m = _numpy(recovery.depth_m)
    if depth_m.shape != scored.shape:
        raise InputError(f"a map of shape {scored.shape} is wanted, found {depth_m.shape}")
    predicted = depth_m[scored].astype(np.float64)
    clamped = np.clip(predicted, *range_m)
    report = recovery.report
    cell: dict[str, Any] = {
        "fallbacks": [dataclasses.asdict(each) for each in report.fallbacks],
        "limited_pixels": report.limited_pixels,
        "clamped": sums(clamped, truth),
    }
    if not np.array_equal(clamped, predicted):
        cell["raw"] = sums(predicted, truth)  # otherwise equal to clamped
    if recovery.std_log is not None:
        std_log = _numpy(recovery.std_log)[scored]
        # The interval is around the prediction of the method, before clamping.
        cell["coverage"] = coverage_sums(predicted, std_log, truth)
    if distance is not None:
        relative = np.abs(clamped - truth.depth_m) * truth.inverse
        cell["by_distance"] = {
            "pixels": np.bincount(distance, minlength=len(DISTANCE_EDGES) + 1).tolist(),
            "relative": np.bincount(distance, relative, minlength=len(DISTANCE_EDGES) + 1).tolist(),
        }
    return cell


def _numpy(values: Any) -> np.ndarray:
    return torch.as_tensor(values).cpu().numpy()


def _spectrum(recovery: Recovery, mde_output: MDEOutput, anchors: Anchors) -> dict[str, Any]:
    """K and the spectral statistics of a recovery with basis maps."""
    if recovery.basis_maps is None or recovery.gating is None:
        return {}
    from scalefield.basis.grids import sample
    from scalefield.basis.ridge import targets
    from scalefield.basis.spectral import spectral_statistics

    # Small matrices, which a CPU decomposes sooner than a GPU.
    maps, gating = (
        torch.as_tensor(m).double().cpu() for m in (recovery.basis_maps, recovery.gating)
    )
    pixels = torch.from_numpy(np.stack([anchors.u, anchors.v], axis=1)).to(maps)
    embeddings = sample(maps[None], pixels[None], mde_output.shape)[0]
    y = torch.from_numpy(targets(mde_output, anchors)).to(embeddings)
    statistics = spectral_statistics(embeddings, gating, y)
    names = ("eta1", "similarity", "g0_mean", "g0_var", "alpha1_share")
    values = {name: getattr(statistics, name) for name in names}
    # A share of images, once it is averaged: JSON has no infinity for a single anchor's ratio.
    values["alpha1_first"] = float((statistics.alpha1_dominance or 0.0) > 1)
    return {"k": len(maps), "spectral": values}


def _distance_bins(anchors: Anchors, scored: np.ndarray) -> np.ndarray:
    not_anchor = np.ones(scored.shape, bool)
    not_anchor[anchors.pixels(scored.shape)] = False
    distance = distance_transform_edt(not_anchor)[scored] / np.hypot(*scored.shape)
    return np.digitize(distance, DISTANCE_EDGES)


def _milliseconds(start: float) -> float:
    return round(1000 * (time.perf_counter() - start), 3)


def run(
    evaluator: Evaluator,
    *,
    workers: int = 1,
    shard: tuple[int, int] = (0, 1),
    limit: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> list[str]:
    """Evaluate the frames without a result; returns the names of all frames that were asked for.

    `limit` takes evenly spaced frames of the split. `shard` (i, n) takes every n-th of them, for
    several machines on one folder. Frames that failed before are tried again.
    """
    source, evaluation, out = evaluator.source, evaluator.evaluation, evaluator.out
    if workers < 1 or not 0 <= shard[0] < shard[1] or (limit is not None and limit < 1):
        raise InputError(
            "workers and limit must be at least 1 and shard i/n have 0 ≤ i < n, "
            f"found workers {workers}, limit {limit}, shard {shard[0]}/{shard[1]}"
        )
    names = source.names(evaluation.split, limit=limit)
    if not names:
        raise InputError(f"the split {evaluation.split} of {source.dataset.name} has no frame")
    for spec in evaluation.methods:
        spec.make().prepare()  # wrong options and missing weights fail before the work starts
    claim(out, evaluation, overwrite=overwrite)
    write_list(out / "frames.txt", names)
    own_names = names[shard[0] :: shard[1]]
    files = {name: frame_file(out, name) for name in own_names}
    pending = [n for n, file in files.items() if not file.exists() or "error" in read_json(file)]
    _ = evaluator.commit  # read once, before the source tree can change
    done = len(own_names) - len(pending)
    with progress_bar(len(own_names), unit="frame", initial=done, show=progress) as bar:
        for name, error in map_frames(evaluator, pending, workers):
            if error:
                bar.write(f"no result for {name}: {error}", file=sys.stderr)
            bar.update()
    return names


def claim(out: Path, evaluation: Evaluation, *, overwrite: bool) -> None:
    """Record the configuration in the folder; results of another configuration are refused."""
    path = out / "config.json"
    differing = config_differences(path, evaluation.as_dict())
    if differing == []:
        return
    if differing and not overwrite:
        raise InputError(
            f"{out} holds results of another configuration ({', '.join(differing)} differ); "
            "choose another --out, or discard them with --overwrite"
        )
    if differing:
        for folder in ("frames", "timings", "gallery"):
            for file in sorted((out / folder).rglob("*.*")):
                file.unlink()
    write_json(path, evaluation.as_dict())
