"""The benchmark's second loop: frame files in, `images.csv` and `results.json` out."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import combinations, compress
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from scalefield.anchor_sampling import REGIMES
from scalefield.benchmark.bootstrap import Resampling, blocks, paired_test
from scalefield.benchmark.metrics import COVERAGE, METRICS, STRUCTURE, coverage, metrics
from scalefield.benchmark.run import DISTANCE_EDGES, frame_file
from scalefield.errors import InputError
from scalefield.io import read_bytes, read_json, write_atomic, write_json
from scalefield.runtime.provenance import provenance

EVERYWHERE = "all"
"""Name of the group of all images, in which every image has the same weight."""

CLAMPING = ("clamped", "raw")
COLUMNS = {
    **{(clamping, metric): f"{clamping}:{metric}" for clamping in CLAMPING for metric in METRICS},
    **{("coverage", name): name for name in COVERAGE},
    **{("structure", name): name for name in STRUCTURE},
}
"""Columns of images.csv by kind and name of the metric."""
KEYS = ("name", "group", "block", "method", "condition", "anchors")


@dataclass(frozen=True)
class ImageScore:
    """One row of images.csv: a method on an image under a condition."""

    name: str
    group: str
    block: str
    method: str
    condition: str
    anchors: int
    values: dict[tuple[str, str], float]
    """By the keys of `COLUMNS`; without coverage if the method has no std_log, and without the
    structure that sparse truth does not determine."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Per-image metrics as one array, with the images' blocks for resampling."""

    images: tuple[tuple[str, str, str], ...]
    """Name, group and block of each."""
    methods: tuple[str, ...]
    conditions: tuple[str, ...]
    values: dict[tuple[str, str], Float64[np.ndarray, "images methods conditions"]]
    """By the keys of `COLUMNS`; NaN where there is no result."""
    anchors: Float64[np.ndarray, "images conditions"]

    @classmethod
    def of(cls, rows: Sequence[ImageScore], labels: Sequence[str]) -> Scores:
        """The rows as arrays, methods in the order of the labels."""
        images = tuple(dict.fromkeys((r.name, r.group, r.block) for r in rows))
        present = {r.method for r in rows}
        methods = tuple(label for label in dict.fromkeys(labels) if label in present)
        conditions = tuple(dict.fromkeys(r.condition for r in rows))
        positions = [{x: i for i, x in enumerate(xs)} for xs in (images, methods, conditions)]
        shape = (len(images), len(methods), len(conditions))
        values = {key: np.full(shape, np.nan) for key in COLUMNS}
        anchors = np.full((shape[0], shape[2]), np.nan)
        for row in rows:
            image = positions[0][row.name, row.group, row.block]
            method, condition = positions[1][row.method], positions[2][row.condition]
            anchors[image, condition] = row.anchors
            for key, value in row.values.items():
                values[key][image, method, condition] = value
        return cls(images, methods, conditions, values, anchors)

    @property
    def group_of(self) -> list[str]:
        """The place group of each image."""
        return [group for _, group, _ in self.images]

    @property
    def block_of(self) -> list[str]:
        """The block of each image; two groups may have scenes of one name."""
        return [f"{group}/{block}" for _, group, block in self.images]

    @property
    def groups(self) -> tuple[str, ...]:
        """The place groups, in order of appearance."""
        return tuple(dict.fromkeys(self.group_of))

    def within(self, group: str) -> np.ndarray:
        """Which images belong to the group."""
        return np.array([group in (EVERYWHERE, own) for own in self.group_of], bool)

    def resampling(self, chosen: np.ndarray) -> Resampling:
        """Bootstrap draws over the chosen images' blocks, within their groups."""
        blocks, groups = (list(compress(each, chosen)) for each in (self.block_of, self.group_of))
        return Resampling.make(blocks, groups)

    def abs_rel(self, method: str, condition: str) -> Float64[np.ndarray, " images"]:
        """AbsRel of one method over all images, clamped."""
        index = self.methods.index(method), self.conditions.index(condition)
        return self.values["clamped", "abs_rel"][:, index[0], index[1]]


def aggregate(scores: Scores, group: str) -> list[dict[str, Any]]:
    """The mean over images with its interval, for each method, condition and metric."""
    chosen = scores.within(group)
    resampling = scores.resampling(chosen)
    cells = []
    for m, method in enumerate(scores.methods):
        for c, condition in enumerate(scores.conditions):
            count = int(np.isfinite(scores.values["clamped", "abs_rel"][chosen, m, c]).sum())
            if not count:
                continue
            cell: dict[str, Any] = {
                "group": group,
                "condition": condition,
                "method": method,
                "images": count,
                "anchors": _round(np.nanmean(scores.anchors[chosen, c])),
            }
            for kind, metric in COLUMNS:
                values = scores.values[kind, metric][chosen, m, c]
                if np.isfinite(values).any():  # not every method has a std_log
                    mean, interval = float(np.nanmean(values)), resampling.interval(values)
                    cell.setdefault(kind, {})[metric] = _triple(mean, interval)
            cells.append(cell)
    return cells


def compare(scores: Scores, condition: str) -> list[dict[str, Any]]:
    """The paired test of every two methods in AbsRel over all images, clamped."""
    rows = []
    for a, b in combinations(scores.methods, 2):
        first, second = (scores.abs_rel(method, condition) for method in (a, b))
        if not np.isfinite(first - second).any():
            continue
        test = paired_test(first, second, scores.block_of, scores.group_of)
        rows.append(
            {
                "condition": condition,
                "metric": "abs_rel",
                "a": a,
                "b": b,
                "images": test.images,
                "difference": _triple(test.difference, test.interval),
                "p": _round(test.p_value),
            }
        )
    return rows


def score_files(out: str | Path, names: Sequence[str]) -> dict[str, Any]:
    """Score the files of these frames; writes and returns what results.json holds."""
    out = Path(out)
    records = [read_json(frame_file(out, name)) for name in names]
    good = [record for record in records if "error" not in record]
    if not good:
        first = records[0]["error"] if records else "there is no frame"
        raise InputError(f"no frame could be evaluated; the first: {first}")
    rows = image_scores(good)
    if not rows:
        first = next((c["error"] for r in good for c in r["cells"] if "error" in c), "no labels")
        raise InputError(f"no method gave a result on any frame; the first reason: {first}")
    write_scores(out / "images.csv", rows)
    config = read_json(out / "config.json")
    scores = Scores.of(rows, [method["label"] for method in config["methods"]])
    results = {
        "provenance": provenance(),
        "config": config,
        "data": _data(records, good),
        "failures": _failures(good),
        "cells": [c for g in (EVERYWHERE, *scores.groups) for c in aggregate(scores, g)],
        "distance": _by_distance(good),
        "spectral": _spectral(good),
        "paired": [row for c in scores.conditions if c in REGIMES for row in compare(scores, c)],
    }
    write_atomic(out / "results.json", readable(results).encode())
    _write_timings(out, names)
    return results


def image_scores(records: Sequence[dict[str, Any]]) -> list[ImageScore]:
    """Per-image metrics of every cell that has a result."""
    named = blocks([record["scene"] for record in records])
    rows = []
    for record, block in zip(records, named, strict=True):
        for cell in record["cells"]:
            if "clamped" not in cell:
                continue
            kinds = {kind: metrics(cell.get(kind, cell["clamped"])) for kind in CLAMPING}
            if "coverage" in cell:
                kinds["coverage"] = coverage(cell["coverage"])
            if "structure" in cell:
                kinds["structure"] = cell["structure"]
            values = {(kind, m): _round(x) for kind, each in kinds.items() for m, x in each.items()}
            about = {**record, **cell, "block": block}
            rows.append(ImageScore(**{key: about[key] for key in KEYS}, values=values))
    return rows


def write_scores(path: Path, rows: Iterable[ImageScore]) -> None:
    """Write images.csv: one line an image, method and condition."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*KEYS, *COLUMNS.values()])
    for row in rows:
        values = (row.values.get(key, "") for key in COLUMNS)
        writer.writerow([*(getattr(row, key) for key in KEYS), *values])
    write_atomic(path, text.getvalue().encode())


def read_scores(path: Path) -> list[ImageScore]:
    """Read images.csv back."""
    lines = list(csv.DictReader(io.StringIO(read_bytes(path).decode())))
    try:
        return [_parsed(line) for line in lines]
    except (KeyError, ValueError, TypeError) as e:
        raise InputError(f"{path}: not a table that scalefield evaluate wrote ({e!r})") from None


def _parsed(line: dict[str, Any]) -> ImageScore:
    """One line of images.csv; coverage and structure may be blank, and older files lack them."""
    about = {key: line[key] for key in KEYS} | {"anchors": int(line["anchors"])}
    given = {key: c for key, c in COLUMNS.items() if key[0] in CLAMPING or line.get(c)}
    return ImageScore(**about, values={key: float(line[c]) for key, c in given.items()})


def _data(records: list[dict[str, Any]], good: list[dict[str, Any]]) -> dict[str, Any]:
    hashes = "".join(f"{r['name']} {r['sha256']}\n" for r in good)
    models = {f"{r['mde']['model']} {r['mde']['revision']}".strip() for r in good}
    return {
        "frames": len(records),
        "evaluated": len(good),
        "missing": [{"name": r["name"], "error": r["error"]} for r in records if "error" in r],
        "pixels": sum(r["pixels"] for r in good),
        "pixels_without_mde": sum(r["holes"] for r in good),
        "sha256": sha256(hashes.encode()).hexdigest(),
        "mde": sorted(models),
        # More than one means that the code changed between frames.
        "commits": sorted({str(r["commit"]) for r in good}),
    }


def _failures(good: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Methods without a result on evaluated frames: how often, and the first reason."""
    failures: dict[tuple[str, str, str], list[str]] = {}
    for record in good:
        for cell in record["cells"]:
            for kind in ("error", "skipped"):
                if kind in cell:
                    key = (cell["method"], cell["condition"], kind)
                    failures.setdefault(key, []).append(f"{record['name']}: {cell[kind]}")
    return [
        {"method": m, "condition": c, "kind": kind, "images": len(why), "first": why[0]}
        for (m, c, kind), why in failures.items()
    ]


def _by_distance(good: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """AbsRel over the distance to the nearest anchor: within each image, then over images."""
    curves_by_row: dict[tuple[str, str], list[np.ndarray]] = {}
    for record in good:
        for cell in record["cells"]:
            if "by_distance" in cell:
                pixels = np.array(cell["by_distance"]["pixels"], np.float64)
                pixels[pixels == 0] = np.nan
                relative = np.array(cell["by_distance"]["relative"]) / pixels
                curves_by_row.setdefault((cell["condition"], cell["method"]), []).append(relative)
    rows = []
    for (condition, method), curves in curves_by_row.items():
        counts = np.isfinite(curves).sum(axis=0)
        means = np.nansum(curves, axis=0) / np.maximum(counts, 1)
        rows.append(
            {
                "condition": condition,
                "method": method,
                "edges": list(DISTANCE_EDGES),
                "images": counts.tolist(),
                "abs_rel": [_round(x) if n else None for x, n in zip(means, counts, strict=True)],
            }
        )
    return rows


def _spectral(good: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Spectral statistics by group, condition and method: medians over images.

    Of `alpha1_first`, which is yes or no, it is the share of images with yes.
    """

    def typical(name: str) -> Callable[[list[float]], Any]:
        return np.mean if name == "alpha1_first" else np.median

    by_row: dict[tuple[str, str, str, int], list[dict[str, float]]] = {}
    for record in good:
        for cell in record["cells"]:
            if "spectral" in cell:
                for group in (EVERYWHERE, record["group"]):
                    key = (group, cell["condition"], cell["method"], cell["k"])
                    by_row.setdefault(key, []).append(cell["spectral"])
    return [
        {
            "group": group,
            "condition": condition,
            "method": method,
            "k": k,
            "images": len(each),
            **{name: _round(typical(name)([e[name] for e in each])) for name in each[0]},
        }
        for (group, condition, method, k), each in by_row.items()
    ]


def _write_timings(out: Path, names: Sequence[str]) -> None:
    """Medians of the milliseconds, in a file of their own because they vary between runs."""
    by_step: dict[str, list[float]] = {}
    for name in names:
        for step, milliseconds in read_json(out / "timings" / f"{name}.json").items():
            by_step.setdefault(step, []).append(milliseconds)
    medians = {step: _round(np.median(each)) for step, each in by_step.items()}
    write_json(out / "timings.json", medians)


def _triple(mean: float, interval: tuple[float, float] | None) -> list[float | None]:
    """A mean with the ends of its interval, which are None where there is none."""
    return [_round(mean), *((None, None) if interval is None else map(_round, interval))]


def _round(x: Any) -> float:
    """Six significant digits: more than any table shows, few enough to read."""
    return float(f"{x:.6g}")


def readable(results: dict[str, Any]) -> str:
    """JSON with one line for each element of each list: a reader can diff it."""
    parts = []
    for key, value in results.items():
        if isinstance(value, list):
            body = ",\n".join(json.dumps(v, allow_nan=False, ensure_ascii=False) for v in value)
            text = f"[\n{body}\n]" if value else "[]"
        else:
            text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)
        parts.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
