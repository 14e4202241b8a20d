"""The benchmark's first loop: every method on every frame, one file of sums a frame.

The second loop, `scoring`, reads nothing but these files. A frame's file appears whole or not at
all and depends on nothing but the configuration and the frame, so the loop may be killed, started
again, and shared by processes and machines.
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
from tqdm import tqdm

from scalefield.anchor_sampling import DROP_SEQUENCE, REGIMES, drop_anchors, sample_anchors
from scalefield.anchors import Anchors
from scalefield.api import recover_from
from scalefield.benchmark.method_spec import MethodSpec, open_mde
from scalefield.benchmark.metrics import Truth, coverage_sums, sums
from scalefield.datasets import Dataset, Frame
from scalefield.datasets.splits import thin, write_list
from scalefield.errors import InputError
from scalefield.io import read_json, write_atomic, write_json
from scalefield.mde import MDE, MDEOutput
from scalefield.methods import Method
from scalefield.methods.basis import Basis
from scalefield.methods.field import Field
from scalefield.recovery import Recovery
from scalefield.runtime.provenance import commit
from scalefield.runtime.workers import each

FORMAT = 1
"""Of the files in an output folder; another number means that they must not be mixed."""

DISTANCE_EDGES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""Bins of the distance to the nearest anchor, in image diagonals."""


@dataclass(frozen=True)
class Evaluation:
    """What is measured. Two runs whose evaluations are equal may share an output folder."""

    name: str
    """How tables call the data."""
    dataset: str
    """The layout they are read in."""
    split: str
    mde: str
    """How tables call the estimator; its weights' revision is recorded with every frame."""
    methods: tuple[MethodSpec, ...]
    regimes: tuple[str, ...]
    drop: bool
    """Whether the drop-anchor sequence is run as well."""
    seed: int
    """Of the anchors."""
    ranges_m: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Depth ranges given for the folder layout."""
    cached: bool = False
    """Whether the MDE's outputs go through the cache, which rounds features to float16."""

    def __post_init__(self) -> None:
        unknown = [r for r in self.regimes if r not in REGIMES]
        if unknown:
            raise InputError(f"no anchor regime {unknown[0]!r}; there are {', '.join(REGIMES)}")
        if not (set(self.regimes) or self.drop):
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
        """Anchor regimes, then the steps of the drop-anchor sequence."""
        drops = tuple(f"drop-{n}" for n in DROP_SEQUENCE) if self.drop else ()
        return (*self.regimes, *drops)

    @property
    def labels(self) -> tuple[str, ...]:
        """The table's rows."""
        return tuple(dict.fromkeys(m.label for m in self.methods))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return json.loads(json.dumps({"format": FORMAT, **dataclasses.asdict(self)}))


# ---- one frame -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Evaluator:
    """All that a process needs to evaluate frames; methods and MDE are loaded once."""

    dataset: Dataset
    evaluation: Evaluation
    out: Path
    source: MDE | str
    """The estimator, or what `open_mde` is to open."""
    device: str = "cpu"
    cache: Path | None = None

    @cached_property
    def mde(self) -> MDE:
        """The estimator."""
        return open_mde(self.source, self.device, self.cache)

    @cached_property
    def commit(self) -> str | None:
        """The version of the code, written into every frame's file."""
        return commit()

    @cached_property
    def methods(self) -> list[tuple[MethodSpec, Method]]:
        """Each row with its method."""
        return [(spec, spec.make()) for spec in self.evaluation.methods]

    def __call__(self, name: str) -> str | None:
        """Write the frame's files; the value is the reason where the frame has no result."""
        timings: dict[str, float] = {}
        try:
            frame = self.dataset.load(name)
            start = time.perf_counter()
            mde_output = self.mde(frame.image)
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
        cells = []
        for condition, anchors in self.anchor_sets(frame):
            distance = None if condition.startswith("drop") else _distance_bins(anchors, scored)
            for spec, method in self.methods:
                if not spec.applies(condition):
                    continue
                cell = {"method": spec.label, "condition": condition, "anchors": len(anchors)}
                prepared = with_labels(spec, method, frame)
                if prepared is None:
                    cells.append(cell | {"skipped": "the frame has no labels"})
                    continue
                start = time.perf_counter()
                try:
                    recovery = recover_from(mde_output, anchors, prepared)
                    timings[f"{spec.label} / {condition}"] = _milliseconds(start)
                    cell |= _sums(recovery, scored, truth, frame.depth_range_m, distance)
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
        for regime in self.evaluation.regimes:
            drawn = sample_anchors(frame.depth_m, frame.mask, regime, seed=seed, name=frame.name)
            yield regime, drawn
        if self.evaluation.drop:
            sets = drop_anchors(frame.depth_m, frame.mask, seed=seed, name=frame.name)
            for n, anchors in sets.items():
                yield f"drop-{n}", anchors


def frame_file(out: Path, name: str) -> Path:
    """Where the sums of a frame are."""
    return out / "frames" / f"{name}.json"


def with_labels(spec: MethodSpec, method: Method, frame: Frame) -> Method | None:
    """The method with the frame's labels where it wants some; None where there are none."""
    if getattr(method, "labels", 0) is not None or "superpixels" in spec.options:
        return method
    if frame.labels is None:
        return None
    return dataclasses.replace(method, labels=frame.labels)  # type: ignore[type-var]


def _sums(
    recovery: Recovery,
    scored: np.ndarray,
    truth: Truth,
    range_m: tuple[float, float],
    distance: np.ndarray | None,
) -> dict[str, Any]:
    depth_m = torch.as_tensor(recovery.depth_m).cpu().numpy()
    if depth_m.shape != scored.shape:
        raise InputError(f"a map of shape {scored.shape} is wanted, found {depth_m.shape}")
    predicted = depth_m[scored].astype(np.float64)
    clamped = np.clip(predicted, *range_m)
    report = recovery.report
    cell: dict[str, Any] = {
        "fallbacks": list(report.fallbacks),
        "limited_pixels": report.limited_pixels,
        "clamped": sums(clamped, truth),
    }
    if not np.array_equal(clamped, predicted):
        cell["raw"] = sums(predicted, truth)  # else it is the same
    if recovery.std_log is not None:
        std_log = torch.as_tensor(recovery.std_log).cpu().numpy()[scored]
        # The interval is around what the method said, not around what clamping made of it.
        cell["coverage"] = coverage_sums(predicted, std_log, truth)
    if distance is not None:
        relative = np.abs(clamped - truth.depth_m) * truth.inverse
        cell["by_distance"] = {
            "pixels": np.bincount(distance, minlength=len(DISTANCE_EDGES) + 1).tolist(),
            "relative": np.bincount(distance, relative, minlength=len(DISTANCE_EDGES) + 1).tolist(),
        }
    return cell


def _spectrum(recovery: Recovery, mde_output: MDEOutput, anchors: Anchors) -> dict[str, Any]:
    """K and the spectral statistics of a recovery with basis maps."""
    if recovery.basis_maps is None or recovery.gating is None:
        return {}
    from scalefield.basis.cues import sample
    from scalefield.basis.spectral import spectral_statistics
    from scalefield.basis.targets import targets

    # Small matrices, which a CPU decomposes sooner than a GPU.
    maps, gating = (
        torch.as_tensor(m).double().cpu() for m in (recovery.basis_maps, recovery.gating)
    )
    pixels = torch.from_numpy(np.stack([anchors.u, anchors.v], axis=1)).to(maps)
    embeddings = sample(maps[None], pixels[None], mde_output.shape)[0]
    y = torch.from_numpy(targets(mde_output, anchors)).to(embeddings)
    found = spectral_statistics(embeddings, gating, y)
    names = ("eta1", "similarity", "g0_mean", "g0_var", "alpha1_share")
    values = {name: getattr(found, name) for name in names}
    # A share of images, once it is averaged: JSON has no infinity for a single anchor's ratio.
    values["alpha1_first"] = float((found.alpha1_dominance or 0.0) > 1)
    return {"k": len(maps), "spectral": values}


def _distance_bins(anchors: Anchors, scored: np.ndarray) -> np.ndarray:
    away = np.ones(scored.shape, bool)
    away[anchors.pixels(scored.shape)] = False
    distance = distance_transform_edt(away)[scored] / np.hypot(*scored.shape)
    return np.digitize(distance, DISTANCE_EDGES)


def _milliseconds(start: float) -> float:
    return round(1000 * (time.perf_counter() - start), 3)


# ---- all frames ------------------------------------------------------------------------------


def run(
    evaluator: Evaluator,
    *,
    workers: int = 1,
    shard: tuple[int, int] = (0, 1),
    limit: int | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> list[str]:
    """Evaluate what is not there yet; the value is the names of the frames asked for.

    Frames are spread evenly over the split where there is a `limit`. `shard` (i, n) takes every
    n-th of them, for several machines on one folder. Frames that failed before are tried again.
    """
    dataset, evaluation, out = evaluator.dataset, evaluator.evaluation, evaluator.out
    if workers < 1 or not 0 <= shard[0] < shard[1] or (limit is not None and limit < 1):
        raise InputError(
            "workers and limit must be at least 1 and shard i/n have 0 ≤ i < n, "
            f"found workers {workers}, limit {limit}, shard {shard[0]}/{shard[1]}"
        )
    names = dataset.names(evaluation.split)
    if not names:
        raise InputError(f"the split {evaluation.split} of {dataset.name} has no frame")
    names = names if limit is None else thin(names, limit)
    for spec in evaluation.methods:
        # A misspelt option, or weights that are not there, is better said before all the work.
        method = spec.make()
        if isinstance(method, Basis | Field):
            method.load()
    claim(out, evaluation, overwrite=overwrite)
    write_list(out / "frames.txt", names)
    pending = [n for n in names[shard[0] :: shard[1]] if not _done(frame_file(out, n))]
    _ = evaluator.commit  # one for all workers, whatever happens to the source tree meanwhile
    bar = tqdm(total=len(names[shard[0] :: shard[1]]), unit="frame", disable=not progress)
    bar.update(bar.total - len(pending))
    with bar:
        for name, error in each(evaluator, pending, workers):
            if error:
                bar.write(f"no result for {name}: {error}", file=sys.stderr)
            bar.update()
    return names


def claim(out: Path, evaluation: Evaluation, *, overwrite: bool) -> None:
    """Make the folder this evaluation's own; one that holds another's results is refused."""
    path, wanted = out / "config.json", evaluation.as_dict()
    if path.exists():
        found = read_json(path)
        if not isinstance(found, dict):
            raise InputError(f"{path}: not a configuration of evaluate")
        differing = [k for k in wanted if found.get(k) != wanted[k]]
        if not differing:
            return
        if not overwrite:
            raise InputError(
                f"{out} holds results of another configuration ({', '.join(differing)} differ); "
                "choose another --out, or discard them with --overwrite"
            )
        for old in ("frames", "timings", "gallery"):
            for file in sorted((out / old).rglob("*.*")):
                file.unlink()
    write_json(path, wanted)


def _done(path: Path) -> bool:
    return path.exists() and "error" not in read_json(path)
