"""One folder of results of several evaluations of one estimator, such as those of its seeds.

    python recipes/paper_merge.py --out results/paper/places-fastdepth \
        runs/paper/seed0/results/places-fastdepth runs/paper/seed1/results/places-fastdepth …
    python recipes/paper_merge.py --out results/paper/places-fastdepth-vit \
        --same-depth results/paper/places-fastdepth runs/paper/seed*/results/places-fastdepth-vit

Each folder holds the files of frames that `scalefield evaluate`, `reproduce` or
recipes/paper_run.py wrote. A frame's rows are put together; where two folders have the same row
under the same condition, the later folder's is taken. With --same-depth, aligners, `field` and the
F = 0 rows come from another estimator that has the same D: they do not see F. Every frame must have
every row. Writes the frames' files and scores them again; rows of different seeds are not tested
against each other.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scalefield.benchmark.run import frame_file
from scalefield.benchmark.score import readable, score_files
from scalefield.datasets.splits import write_list
from scalefield.errors import InputError
from scalefield.io import read_json, write_atomic, write_json

Row = tuple[str, str]
"""Label and condition."""


def main() -> None:
    """Read the flags and merge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+", help="folders of results")
    parser.add_argument("--same-depth", type=Path, help="folder whose rows without F are taken")
    parser.add_argument("--out", type=Path, required=True, help="folder to be written")
    args = parser.parse_args()
    try:
        found = merge(args.folders, args.out, same_depth=args.same_depth)
    except InputError as e:
        raise SystemExit(f"paper_merge: {e}") from None
    print(f"{found['data']['evaluated']} frames, {len(found['cells'])} cells in {args.out}")


def merge(folders: Sequence[Path], out: Path, *, same_depth: Path | None = None) -> dict[str, Any]:
    """Write the frames of all folders with all their rows into `out`, and score them."""
    names = list(dict.fromkeys(name for folder in folders for name in frame_names(folder)))
    sources: list[tuple[Path, Callable[[Row], bool]]] = [(folder, _any) for folder in folders]
    if same_depth is not None:
        sources.insert(0, (same_depth, without_features))
    shutil.rmtree(out, ignore_errors=True)
    rows_of: dict[str, set[Row]] = {}
    for name in names:
        record, timings = merged_frame(sources, name)
        rows_of[name] = {(cell["method"], cell["condition"]) for cell in record["cells"]}
        write_atomic(frame_file(out, name), json.dumps(record).encode())
        write_json(out / "timings" / f"{name}.json", timings)
    every = set.union(*rows_of.values())
    lacking = {name: sorted(every - rows) for name, rows in rows_of.items() if rows != every}
    if lacking:
        name, rows = next(iter(lacking.items()))
        raise InputError(
            f"{len(lacking)} of {len(names)} frames lack rows that others have; the first, {name}, "
            f"lacks {' under '.join(rows[0])}"
        )
    methods = [
        method
        for folder, keep in sources
        for method in _config(folder)["methods"]
        if any((method["label"], c) in every and keep((method["label"], c)) for c in _all(every))
    ]
    config = {**_config(folders[0]), "methods": _once(methods)}
    write_json(out / "config.json", config)
    write_list(out / "frames.txt", names)
    found = score_files(out, names)
    found["paired"] = [p for p in found["paired"] if len(seeds(p["a"]) | seeds(p["b"])) < 2]
    found["provenance"] = {
        **found["provenance"],
        "merged": [_about(folder) for folder, _ in sources],
    }
    write_atomic(out / "results.json", readable(found).encode())
    return found


def merged_frame(
    sources: Sequence[tuple[Path, Callable[[Row], bool]]], name: str
) -> tuple[dict[str, Any], dict[str, float]]:
    """The record of a frame with the rows of all folders that have it, and its timings."""
    records = [
        (read_json(frame_file(folder, name)), keep, folder)
        for folder, keep in sources
        if frame_file(folder, name).is_file()
    ]
    failed = next((f"{folder}: {r['error']}" for r, _, folder in records if "error" in r), None)
    if failed is not None:
        raise InputError(f"{name} has no result in {failed}")
    if len({record["sha256"] for record, _, _ in records}) > 1:
        raise InputError(f"{name} is another frame in {records[0][2]} than elsewhere")
    cells: dict[Row, dict[str, Any]] = {}
    timings: dict[str, float] = {}
    for record, keep, folder in records:
        for cell in record["cells"]:
            row = cell["method"], cell["condition"]
            if keep(row):
                cells[row] = cell
        file = folder / "timings" / f"{name}.json"
        timings |= read_json(file) if file.is_file() else {}
    return {**records[-1][0], "cells": list(cells.values())}, timings


def without_features(row: Row) -> bool:
    """Whether a row depends on D and not on F: all but the Basis rows with F.

    >>> without_features(("Basis K=8, F = 0, seed 1", "medium")), without_features(("LWLR", "low"))
    (True, True)
    """
    label = row[0]
    return not label.startswith("Basis") or "F = 0" in label


def seeds(label: str) -> set[str]:
    """The seed of a row's generator; none for rows without a trained one.

    >>> seeds("Basis K=8"), seeds("Basis K=30, F = 0, seed 2"), seeds("LWLR")
    ({'0'}, {'2'}, set())
    """
    if not label.startswith("Basis"):
        return set()
    named = re.search(r"seed (\d+)$", label)
    return {named[1] if named else "0"}


def frame_names(folder: Path) -> list[str]:
    """The frames of a folder, in the order of its list where it has one."""
    home = folder / "frames"
    found = {file.relative_to(home).with_suffix("").as_posix() for file in home.rglob("*.json")}
    if not found:
        raise InputError(f"{folder}: no results of frames")
    listed = folder / "frames.txt"
    order = listed.read_text().split() if listed.is_file() else []
    return [name for name in order if name in found] + sorted(found - set(order))


def _any(_: Row) -> bool:
    return True


def _all(rows: set[Row]) -> set[str]:
    return {condition for _, condition in rows}


def _config(folder: Path) -> dict[str, Any]:
    return (
        read_json(folder / "config.json") if (folder / "config.json").is_file() else {"methods": []}
    )


def _once(methods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each row of the configuration once, the later definition of two."""
    return list({(m["label"], tuple(m["conditions"])): m for m in methods}.values())


def _about(folder: Path) -> dict[str, Any]:
    """Where rows come from: the folder's own provenance."""
    file = folder / "results.json"
    recorded = read_json(file)["provenance"] if file.is_file() else None
    return {"folder": "/".join(folder.parts[-3:]), "provenance": recorded}


if __name__ == "__main__":
    main()
