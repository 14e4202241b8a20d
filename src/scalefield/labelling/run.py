"""A labelling run from beginning to end: what is done stays, the rest is done, all is told."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from scalefield.errors import InputError
from scalefield.io import read_json, write_atomic, write_json
from scalefield.labelling.labeller import (
    LabelConfig,
    Labeller,
    Record,
    failed_records,
    is_done,
    read_records,
    written,
)
from scalefield.labelling.runners import DEAD, run_here, run_pool, run_ray
from scalefield.labelling.samples import Job, in_batches
from scalefield.runtime.provenance import provenance

CONFIG, MANIFEST = "label.json", "labels.jsonl"
"""The folder's configuration, and one record a line for all its labels, by key."""
RAY_BLOCKS = 10_000
"""Ray keeps account of every block; single images are joined so that there are no more."""


@dataclass
class Summary:
    """What came of a run."""

    kept: int = 0
    rejected: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Why, by key."""
    reasons: Counter[str] = field(default_factory=Counter)
    """The rules that labels broke, by how often."""
    found_done: int = 0
    """Labels that an earlier run had left."""
    seconds: float = 0.0

    def add(self, record: Record) -> None:
        """Count one label."""
        if "failed" in record:
            self.failed[record["key"]] = record["failed"]
        elif record["keep"]:
            self.kept += 1
        else:
            self.rejected += 1
            self.reasons.update({reason.split()[0].rstrip(":") for reason in record["reasons"]})

    @property
    def images_per_second(self) -> float:
        """Throughput of this run alone."""
        made = self.kept + self.rejected + len(self.failed) - self.found_done
        return made / self.seconds if self.seconds > 0 else 0.0


def label(
    jobs: Sequence[Job],
    config: LabelConfig,
    out: Path,
    *,
    workers: int = 1,
    cluster: Literal["local", "ray"] = "local",
    progress: Callable[[int], object] = lambda images: None,
) -> Summary:
    """Label what is not labelled yet; then write the manifest of all. `progress` counts images."""
    _claim(out, config, jobs)
    summary, started = Summary(), time.monotonic()
    todo = [job for job in jobs if not is_done(out, job)]
    summary.found_done = sum(len(j.samples) for j in jobs) - sum(len(j.samples) for j in todo)
    progress(summary.found_done)
    make = partial(Labeller.of, config, out)
    for _, records in _run(todo, config, make, workers, cluster):
        progress(len(records))
    summary.seconds = time.monotonic() - started
    lines = []
    for job in jobs:
        for record in _records(out, job):
            summary.add(record)
            named = {"shard": job.name, **record} if job.shard else record
            lines.append(json.dumps(named) + "\n")
    write_atomic(out / MANIFEST, "".join(lines).encode())
    return summary


def _run(
    jobs: Sequence[Job], config: LabelConfig, make: partial[Labeller], workers: int, cluster: str
) -> Iterator[tuple[Job, list[Record]]]:
    if not jobs:
        return iter(())
    if cluster == "ray":
        jobs = in_batches(jobs, max(config.batch, -(-len(jobs) // RAY_BLOCKS)))
        return run_ray(jobs, make, workers, gpus=float(config.device.startswith("cuda")))
    jobs = in_batches(jobs, config.batch)
    workers = min(workers, len(jobs))
    return run_here(jobs, make) if workers == 1 else run_pool(jobs, make, workers)


def _claim(out: Path, config: LabelConfig, jobs: Sequence[Job]) -> None:
    """Labels of two configurations are never mixed in one folder, nor with files of others."""
    path, wanted = out / CONFIG, json.loads(json.dumps(config.identity()))
    if path.is_file():
        record = read_json(path)
        found = record.get("config") if isinstance(record, dict) else None
        if found != wanted:
            known = found if isinstance(found, dict) else {}
            differ = sorted(k for k in wanted if known.get(k) != wanted[k])
            raise InputError(
                f"{out} has labels of another configuration ({', '.join(differ)} differ); "
                "give another folder"
            )
        return
    for target in (target for job in jobs for target in written(out, job)):
        if target in (path, out / MANIFEST):
            raise InputError(f"{target} is the run's own; no image or shard can be called that")
        if target.exists():
            raise InputError(f"{target} exists and is no label; give a folder of their own")
    write_json(path, {"config": wanted, "provenance": provenance()})


def _records(out: Path, job: Job) -> list[Record]:
    if not is_done(out, job):
        return failed_records(job, DEAD)  # told now, tried again by the next run
    return read_records(out, job)
