"""Records of measurements: results.json with command, commit, versions, weights and configuration.

    python -m benchmarks.record out/runs/places results/places --command "make results-places"

condenses the results of an evaluation to what tables and comparisons need.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from scalefield.benchmark.score import EVERYWHERE, readable
from scalefield.io import read_json, write_atomic, write_json
from scalefield.io.weights import WEIGHTS, read_sums
from scalefield.runtime.provenance import provenance

RANGES_M = {"kitti": (0.1, 80.0), "*": (0.1, 10.0)}
"""Range of depth by the beginning of a frame's name."""
MODEL = "/model.safetensors"
OF_PLACES = {"clamped": ("abs_rel", "delta1"), "coverage": ("coverage_90",)}
"""Metrics that are kept of a single place; those of all images are kept whole."""


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The parser of a benchmark's flags, with the folder of its record."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--out", type=Path, required=True, help="folder of the record")
    return made


def new_record(config: dict[str, Any]) -> dict[str, Any]:
    """The beginning of a record: its origin, and what was asked for."""
    words = ["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]
    return {
        "command": shlex.join(words),
        "provenance": provenance(),
        "weights": shipped_weights(),
        "config": config,
    }


def write_record(out: Path, record: dict[str, Any]) -> None:
    """Write results.json of a record's folder."""
    write_json(out / "results.json", record)


def shipped_weights() -> dict[str, str]:
    """SHA-256 of the shipped weights by model."""
    files = read_sums(WEIGHTS).items()
    return {name.removesuffix(MODEL): digest for name, digest in files if name.endswith(MODEL)}


def condensed(results: dict[str, Any]) -> dict[str, Any]:
    """Results of an evaluation without the spectra and most metrics of single places."""
    cells = [cell if cell["group"] == EVERYWHERE else of_place(cell) for cell in results["cells"]]
    spectral = [entry for entry in results["spectral"] if entry["group"] == EVERYWHERE]
    return {**results, "cells": cells, "spectral": spectral}


def of_place(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell with the metrics that are kept of a single place."""
    values = {key: value for key, value in cell.items() if not isinstance(value, dict)}
    kept = {
        kind: {metric: cell[kind][metric] for metric in metrics if metric in cell[kind]}
        for kind, metrics in OF_PLACES.items()
        if kind in cell
    }
    return {**values, **kept}


def keep(run: Path, out: Path, command: str) -> None:
    """Write the record of an evaluation."""
    results = read_json(run / "results.json")
    # Command, origin and weights are at the head of the file, as in every record.
    head = {"command": command, "provenance": results["provenance"], "weights": shipped_weights()}
    write_atomic(out / "results.json", readable({**head, **condensed(results)}).encode())


def main() -> None:
    """Read the two folders and keep the record."""
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("run", type=Path, help="folder that `scalefield evaluate` wrote")
    flags.add_argument("out", type=Path, help="folder of the record")
    flags.add_argument("--command", required=True, help="the command that made the run")
    given = flags.parse_args()
    keep(given.run, given.out, given.command)


if __name__ == "__main__":
    main()
