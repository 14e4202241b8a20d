"""A labelling run: keep complete labels, make the missing ones, write the manifest."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from scalefield.errors import InputError
from scalefield.io import as_json, continues, write_atomic, write_json
from scalefield.labelling.labeller import (
    LabelConfig,
    Record,
    failed_records,
    is_done,
    label_files,
    make_labeller,
    read_records,
)
from scalefield.labelling.ray_runner import Log, run_ray
from scalefield.labelling.runners import DEAD, run_here, run_pool
from scalefield.labelling.samples import Job, in_batches
from scalefield.runtime.provenance import provenance

CONFIG, MANIFEST = "label.json", "labels.jsonl"
"""Names of the configuration and of the manifest, which has one record per line."""


@dataclass
class Summary:
    """Counts of a run."""

    kept: int = 0
    rejected: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Messages of failed samples by key."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Number of labels that broke each rule."""
    found_done: int = 0
    """Labels that were complete before the run."""
    seconds: float = 0.0

    def add(self, record: Record) -> None:
        """Count one label."""
        if "failed" in record:
            self.failed[record["key"]] = record["failed"]
        elif record["keep"]:
            self.kept += 1
        else:
            self.rejected += 1
            self.reasons.update({reason["rule"] for reason in record["reasons"]})

    @property
    def images_per_second(self) -> float:
        """Throughput of this run."""
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
    log: Log = lambda sentence: None,
) -> Summary:
    """Make the labels that are missing, then write the manifest.

    `progress` is called with numbers of images that are done, `log` with sentences about what a
    cluster does and what the run waits for.
    """
    claim(out, config, jobs)
    summary, started = Summary(), time.monotonic()
    todo = [job for job in jobs if not is_done(out, job)]
    summary.found_done = sum(len(j.samples) for j in jobs) - sum(len(j.samples) for j in todo)
    progress(summary.found_done)
    batches = in_batches(todo, config.batch)
    workers, make = min(workers, len(batches)), partial(make_labeller, config, out)
    if cluster == "ray" and batches:
        results = run_ray(batches, make, workers, float(config.device.startswith("cuda")), log)
    elif workers > 1:
        results = run_pool(batches, make, workers)
    else:
        results = run_here(batches, make)
    for _, records in results:
        progress(len(records))
    summary.seconds = time.monotonic() - started
    lines = []
    for job in jobs:
        # What is missing is reported now, and tried again by the next run.
        for record in read_records(out, job) if is_done(out, job) else failed_records(job, DEAD):
            summary.add(record)
            named = {"shard": job.name, **record} if job.shard else record
            lines.append(json.dumps(named) + "\n")
    write_atomic(out / MANIFEST, "".join(lines).encode())
    return summary


def claim(out: Path, config: LabelConfig, jobs: Sequence[Job]) -> None:
    """Record the configuration; a folder of another one, or with other files, is refused."""
    path = out / CONFIG
    if continues(path, config.identity(), "labels"):
        return
    for target in (path for job in jobs for pair in label_files(out, job) for path in pair):
        if target in (path, out / MANIFEST):
            raise InputError(
                f"{target} is a file of the run; an image or shard cannot have this name"
            )
        if target.exists():
            raise InputError(f"{target} exists and is not a label; give another folder")
    write_json(path, {"config": as_json(config.identity()), "provenance": provenance()})
