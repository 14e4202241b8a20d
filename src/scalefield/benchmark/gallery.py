"""Pictures for the report: the worst, median and best image of each method, recovered again.

They contain images of the dataset, so they stay in the output folder; share them only if the
dataset's licence allows it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, UInt8

from scalefield.api import recover_from
from scalefield.benchmark.run import Evaluator, with_labels
from scalefield.benchmark.score import Scores, read_scores
from scalefield.datasets import Frame
from scalefield.errors import InputError
from scalefield.export.explanation import jpeg
from scalefield.io import read_json, read_npz, write_atomic, write_json, write_npz
from scalefield.mde import MDEOutput

WIDTH = 420
"""Largest width of a picture in pixels."""
RANKS = ("worst", "median", "best")
PREFERRED = ("medium", "low", "high", "drop-9")
"""The condition that is shown: the first of these that was run."""


@dataclass(frozen=True)
class Entry:
    """A picture: one method on one image."""

    method: str
    rank: str
    """worst, median or best."""
    condition: str
    name: str
    abs_rel: float
    image_file: str
    depth_file: str
    explanation_file: str = ""
    """Picture of what the log-scale field is made of, of each method's median image."""


@dataclass(frozen=True, eq=False)
class Picture:
    """The maps of one image, reduced in size."""

    image: UInt8[np.ndarray, "h w 3"]
    true_m: Float[np.ndarray, "h w"]
    """NaN where unknown."""
    mde_depth: Float[np.ndarray, "h w"]
    log_scale: Float[np.ndarray, "h w"]
    """The true log-scale field, log depth_m − log D_MDE."""
    feature: Float[np.ndarray, "h w"]
    """First principal component of F; all NaN where the MDE has no features."""
    anchors: Float[np.ndarray, "n 2"]
    """u, v in pixels of this picture."""


def write_gallery(evaluator: Evaluator) -> list[Entry]:
    """Recover and keep the images that images.csv names worst, median and best."""
    dataset, out = evaluator.source.dataset, evaluator.out
    scores = Scores.of(read_scores(out / "images.csv"), evaluator.evaluation.labels)
    condition = next(c for c in PREFERRED if c in scores.conditions)
    wanted: dict[str, list[tuple[str, str, float]]] = {}
    for method in scores.methods:
        for rank, name, abs_rel in ranked(scores, method, condition):
            wanted.setdefault(name, []).append((method, rank, abs_rel))
    rows = {s.label: (s, m) for s, m in evaluator.methods if s.applies(condition)}
    entries: list[Entry] = []
    for i, (name, shown) in enumerate(sorted(wanted.items())):
        frame = dataset.load(name)
        mde_output = evaluator.source.output(frame)
        anchors = dict(evaluator.anchor_sets(frame))[condition]
        factor = -(-frame.image.shape[1] // WIDTH)
        points = np.stack([anchors.u, anchors.v], axis=1) / factor
        image_file = f"image-{i:03d}.npz"
        write_npz(out / "gallery" / image_file, **_picture(frame, mde_output, factor, points))
        for method, rank, abs_rel in shown:
            prepared = with_labels(*rows[method], frame)
            if prepared is None:
                raise InputError(f"{name}: {method} needs labels, and the frame no longer has them")
            recovery = recover_from(mde_output, anchors, prepared, image=frame.image).numpy()
            depth_file, explained = f"depth-{len(entries):03d}.npz", ""
            reduced = reduce(np.clip(recovery.depth_m, *frame.depth_range_m), factor)
            write_npz(out / "gallery" / depth_file, depth_m=reduced.astype(np.float16))
            if rank == "median" and recovery.explainer is not None:
                explained = f"explanation-{len(entries):03d}.jpg"
                write_atomic(out / "gallery" / explained, jpeg(recovery.explain().picture()))
            entries.append(
                Entry(method, rank, condition, name, abs_rel, image_file, depth_file, explained)
            )
    entries.sort(key=lambda e: (scores.methods.index(e.method), RANKS.index(e.rank)))
    write_json(out / "gallery" / "index.json", [asdict(entry) for entry in entries])
    return entries


def ranked(scores: Scores, method: str, condition: str) -> list[tuple[str, str, float]]:
    """Rank, image name and AbsRel of the method's worst, median and best image."""
    values = scores.abs_rel(method, condition)
    order = np.argsort(values, kind="stable")[: np.isfinite(values).sum()]
    if not len(order):
        return []
    chosen = (order[-1], order[len(order) // 2], order[0])
    return [
        (rank, scores.images[i][0], float(values[i])) for rank, i in zip(RANKS, chosen, strict=True)
    ]


def read_gallery(out: Path) -> list[tuple[Entry, Picture, np.ndarray]]:
    """Each entry with its picture and the recovered depth; empty where none was kept."""
    index = out / "gallery" / "index.json"
    if not index.exists():
        return []
    pictures: dict[str, Picture] = {}
    entries = []
    for line in read_json(index):
        entry = Entry(**line)
        if entry.image_file not in pictures:
            path = out / "gallery" / entry.image_file
            names = tuple(Picture.__dataclass_fields__)
            pictures[entry.image_file] = Picture(**read_npz(path, required=names))
        depth = read_npz(out / "gallery" / entry.depth_file, required=("depth_m",))["depth_m"]
        entries.append((entry, pictures[entry.image_file], depth.astype(np.float32)))
    return entries


def reduce(values: Float[np.ndarray, "h w"], factor: int) -> Float32[np.ndarray, "h2 w2"]:
    """Means of factor × factor pixels, over those that are known."""
    height, width = (size // factor * factor for size in values.shape)
    tiles = values[:height, :width].reshape(height // factor, factor, width // factor, factor)
    finite = np.isfinite(tiles)
    count = finite.sum(axis=(1, 3))
    total = np.where(finite, tiles, 0).sum(axis=(1, 3))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan).astype(np.float32)


def _picture(
    frame: Frame, mde_output: MDEOutput, factor: int, points: np.ndarray
) -> dict[str, np.ndarray]:
    true_m = np.where(frame.mask, frame.depth_m, np.nan)
    mde_depth = mde_output.mde_depth.float().cpu().numpy()
    image = np.stack(
        [reduce(frame.image[..., c].astype(np.float32), factor) for c in range(3)], axis=2
    )
    maps = {
        "true_m": reduce(true_m, factor),
        "mde_depth": reduce(mde_depth, factor),
        "log_scale": reduce(np.log(true_m) - np.log(mde_depth), factor),
        "feature": reduce(first_component(mde_output), factor),
    }
    small: dict[str, Any] = {k: v.astype(np.float16) for k, v in maps.items()}
    return {"image": image.round().astype(np.uint8), "anchors": points, **small}


def first_component(mde_output: MDEOutput) -> Float32[np.ndarray, "h w"]:
    """First principal component of F over the image, at the image's size, in deviations."""
    height, width = mde_output.shape
    if mde_output.features is None:
        return np.full((height, width), np.nan, np.float32)
    features = mde_output.features.double().cpu()
    flat = features.flatten(1) - features.flatten(1).mean(dim=1, keepdim=True)
    _, vectors = torch.linalg.eigh(flat @ flat.T)
    component = (vectors[:, -1] @ flat).reshape(1, 1, *features.shape[1:])
    component = component / component.std().clamp(min=1e-12)
    large = torch.nn.functional.interpolate(component, size=(height, width), mode="bilinear")
    return large[0, 0].float().numpy()
