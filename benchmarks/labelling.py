"""Costs of `scalefield label`: images per second by runner, time to the first label, disk space.

    python -m benchmarks.labelling --out results/labelling

Labels copies of the bundled room at 640×480 with noise of their own and 100 anchors each, in one
process, in a pool of processes and on a local Ray cluster, in turns. A rate is that of all images
after the first one of every worker, so that the start is not in it. Run it on an idle machine.
Writes results.json.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.record import new_record, parser, write_record
from PIL import Image

from scalefield import samples
from scalefield.anchors import Anchors
from scalefield.defaults import MDE_NAME, METHOD_NAME
from scalefield.labelling.labeller import LabelConfig
from scalefield.labelling.rules import Rules
from scalefield.labelling.run import label
from scalefield.labelling.samples import Job, find_jobs


@dataclass
class Clock:
    """Times at which images were done, in seconds after the start."""

    began: float = field(default_factory=time.monotonic)
    done: list[float] = field(default_factory=list)

    def __call__(self, images: int) -> None:
        """Count images that are done now."""
        self.done += [time.monotonic() - self.began] * images

    def figures(self, workers: int) -> dict[str, float]:
        """Seconds to the first image, and the rate after the first of every worker."""
        measured = self.done[workers - 1 :]
        rate = (len(measured) - 1) / (measured[-1] - measured[0])
        return {"first_s": self.done[0], "images_per_s": rate}


def write_images(folder: Path, images: int, anchors: int) -> None:
    """Copies of the bundled room with noise, and anchors with an error of 1 %."""
    room, rng = samples.load(), np.random.default_rng(0)
    folder.mkdir()
    for i in range(images):
        noisy = room.image + rng.normal(0, 4, room.image.shape)
        picture = Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))
        picture.save(folder / f"{i:05}.jpg", quality=90)
        v, u = (rng.integers(0, size, anchors) for size in room.depth_m.shape)
        depth_m = room.depth_m[v, u] * np.exp(rng.normal(0, 0.01, anchors))
        known = np.isfinite(depth_m)
        Anchors(u[known], v[known], depth_m[known]).write(folder / f"{i:05}.anchors.npz")


def measure(jobs: list[Job], config: LabelConfig, workers: int, cluster: Any) -> dict[str, float]:
    """One labelling run into an empty folder."""
    with tempfile.TemporaryDirectory() as out:
        clock = Clock()
        label(jobs, config, Path(out), workers=workers, cluster=cluster, progress=clock)
        made = [path for path in Path(out).rglob("*") if path.suffix in (".npz", ".json")]
        labels = sum(path.suffix == ".npz" for path in made)
        megabytes = sum(path.stat().st_size for path in made) / 1e6 / max(1, labels)
        figures = clock.figures(workers)
    assert labels == len(jobs), f"{len(jobs) - labels} images failed"
    return {**figures, "mb_per_label": megabytes}


def run(images: int, anchors: int, workers: int, rounds: int) -> dict[str, list]:
    """Figures of every round for every runner."""
    config = LabelConfig(MDE_NAME, METHOD_NAME, rules=Rules())
    runners = {
        "one process": (1, "local"),
        f"pool of {workers} processes": (workers, "local"),
        f"Ray, {workers} actors": (workers, "ray"),
    }
    figures: dict[str, list] = {name: [] for name in runners}
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder, "source"), images, anchors)
        jobs = find_jobs(Path(folder, "source"))[0]
        for turn in range(rounds):
            for name, (count, cluster) in runners.items():
                figures[name].append(measure(jobs, config, count, cluster))
                print(f"round {turn + 1} of {rounds}, {name}: {figures[name][-1]}")
    return figures


def main() -> None:
    """Read the flags, measure, write."""
    flags = parser(__doc__)
    flags.add_argument("--images", type=int, default=200)
    flags.add_argument("--anchors", type=int, default=100)
    flags.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    flags.add_argument("--rounds", type=int, default=3)
    given = flags.parse_args()
    if given.images < 4 * given.workers:
        flags.error(f"--images must be at least 4 for each worker, found {given.images}")
    record = new_record(
        {
            "images": given.images,
            "shape": list(samples.load().image.shape[:2]),
            "anchors": given.anchors,
            "workers": given.workers,
            "cores": os.cpu_count(),
            "mde": MDE_NAME,
            "method": METHOD_NAME,
            "load_before": os.getloadavg()[0],
            "seed": 0,
        }
    )
    record["rounds"] = run(given.images, given.anchors, given.workers, given.rounds)
    write_record(given.out, record)


if __name__ == "__main__":
    main()
