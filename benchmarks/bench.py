"""Times of each step, compared with the estimator and with other implementations.

    python -m benchmarks.bench --out results/bench                     # CPU, 1 and 2 threads
    python -m benchmarks.bench --out results/bench-cuda --device cuda  # and the roofline

All times of a run are taken on the same inputs, turn by turn, and given as ratios: medians with
quartiles over the rounds. Absolute times mean little on a processor, so they are recorded for CUDA
only. The record is written after every section, so a run that is cut short leaves what it had.
`--quick` measures fewer sizes and rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from benchmarks import cases, processes
from benchmarks.record import new_record, parser, write_record
from benchmarks.timing import Times, Work, spread, turn_by_turn

SHAPES = ((240, 320), (480, 640), (720, 1280), (1080, 1920))
MIDDLE = (480, 640)


@dataclass
class Run:
    """One run's settings, and what was measured so far."""

    out: Path
    device: str
    repeats: int
    quick: bool
    compiled: bool
    record: dict = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """From a webcam's to full HD."""
        if self.device == "cuda":
            return SHAPES[1::2]
        return SHAPES[:2] if self.quick else SHAPES

    def times(self, work: dict[str, Work], repeats: int | None = None) -> Times:
        """Measured turn by turn; what could not run is noted."""
        times = turn_by_turn(work, repeats or self.repeats, self.device)
        self.record["missing"].update(times.missing)
        return times

    def add(self, section: str, *entries: dict) -> None:
        """Put entries into the record, and the record on the disk."""
        self.record.setdefault(section, []).extend(entries)
        write_record(self.out, self.record)

    def say(self, what: str) -> None:
        """Progress, with the time since the start."""
        print(f"{time.perf_counter() - self.began:6.0f} s  {what}", flush=True)


def sizes(run: Run, threads: int) -> None:
    """Every case at every size, as shares of DA3-BASE's forward pass on the same image."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as cache:
        for shape in run.shapes if threads == 2 else SHAPES[1::2]:
            times = run.times(cases.by_size(shape, run.device, Path(cache)))
            run.say(f"{name_of(shape)}, {threads} threads")
            setting = {"size": name_of(shape), "n": cases.N, "threads": threads}
            run.add("ratios", *shares(times, run, setting))
            run.add("beside", *beside(times, setting))


def anchors(run: Run, threads: int) -> None:
    """The same at one size for 1 to 10,000 anchors."""
    torch.set_num_threads(threads)
    reference = cases.reference(MIDDLE, run.device)
    for n in cases.NS[1:4] if run.quick else cases.NS:
        times = run.times({**reference, **cases.by_anchors(MIDDLE, run.device, n)})
        run.say(f"N = {n}, {threads} threads")
        setting = {"size": name_of(MIDDLE), "n": n, "threads": threads}
        run.add("anchors", *shares(times, run, setting))
        run.add("beside", *beside(times, setting))


def batches(run: Run, threads: int) -> None:
    """Generator, solve and apply for 1 to 64 images at once, each beside one image alone."""
    torch.set_num_threads(threads)
    sizes = cases.BATCHES[:3] if run.quick else cases.BATCHES
    times = run.times({f"{size}": cases.by_batch(run.device, size) for size in sizes})
    for size in (s for s in sizes if f"{s}" in times.seconds):
        a_picture = times.seconds[f"{size}"] / size
        entry = {"name": cases.BATCHED, "batch": size, "threads": threads}
        entry["size"] = name_of(cases.SQUARE)
        entry["beside_batch_1"] = spread(a_picture / times.seconds["1"])
        run.add("batches", entry | absolute(run, times.seconds[f"{size}"]))
    run.say(f"batches, {threads} threads")


def starts(run: Run) -> None:
    """How long commands take to start, in starts of Python itself."""
    work = {name: (lambda a=a: processes.start(a)) for name, a in processes.STARTS.items()}
    times = turn_by_turn(work, run.repeats)
    run.record["missing"].update(times.missing)
    for name in times.seconds:
        run.add("starts", {"name": name, "beside_python": times.ratio(name, "python")})
    run.say("starts")


def memory(run: Run) -> None:
    """Peak megabytes that each method adds at 1080×1920 with 520 anchors."""
    try:
        peaks = processes.memory_peaks(run.device)
    except (RuntimeError, ValueError, OSError) as e:
        run.record["missing"]["memory"] = str(e)
        return
    run.add("memory", *({"name": name, "peak_mb": peak} for name, peak in peaks.items()))
    run.say("memory")


def accelerator(run: Run) -> None:
    """The roofline and captured graphs, as far as they come."""
    words = [sys.executable, "-m", "benchmarks.roofline", str(run.repeats), str(run.compiled)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            entry = json.loads(line)
            run.add("roofline", entry)
            run.say(entry["name"])
    if child.returncode:
        run.record["missing"]["roofline"] = f"the process ended with {child.returncode}"


def shares(times: Times, run: Run, setting: dict) -> list[dict]:
    """Each case as a share of the reference in the same round."""
    return [
        {"name": name, **setting, "share": times.ratio(name, cases.REFERENCE)}
        | absolute(run, seconds)
        for name, seconds in times.seconds.items()
    ]


def absolute(run: Run, seconds: np.ndarray) -> dict:
    """Milliseconds, where they mean something."""
    return {"ms": spread(1e3 * seconds)} if run.device == "cuda" else {}


def beside(times: Times, setting: dict) -> list[dict]:
    """Ours over theirs."""
    return [
        {"ours": ours, "theirs": theirs, **setting, "ratio": times.ratio(ours, theirs)}
        for ours, theirs in cases.BESIDE
        if ours in times.seconds and theirs in times.seconds
    ]


def lidar(run: Run) -> None:
    """Thousands of anchors, as shares of DA3-BASE's forward pass on the same image."""
    torch.set_num_threads(2)
    times = run.times(cases.lidar(run.device))
    run.add("lidar", *shares(times, run, {"size": name_of(cases.SWEEP), "n": cases.NS[-1]}))
    run.say("a LiDAR's sweep")


def name_of(shape: tuple[int, int]) -> str:
    """Height × width."""
    return f"{shape[0]}×{shape[1]}"


def main() -> None:
    """Read the flags, measure, write after every section."""
    flags = parser(__doc__)
    flags.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    flags.add_argument("--repeats", type=int, default=5)
    flags.add_argument("--limit-s", type=float, default=600, help="begin no section after so long")
    flags.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    flags.add_argument(
        "--compile", action="store_true", help="the roofline through torch.compile too: minutes"
    )
    given = flags.parse_args()
    repeats = 2 if given.quick else given.repeats
    run = Run(given.out, given.device, repeats, given.quick, given.compile)
    config = {"device": run.device, "repeats": run.repeats, "quick": run.quick, "seed": 0}
    run.record = new_record(config) | {"missing": {}}
    sections: dict[str, Callable[[], None]] = {
        "by size": lambda: sizes(run, 2),
        "batches": lambda: batches(run, 2),
        "a LiDAR's sweep": lambda: lidar(run),
        "memory": lambda: memory(run),
        "by number of anchors": lambda: anchors(run, 2),
    }
    if run.device == "cuda":
        sections = {"roofline": lambda: accelerator(run), **sections}
    else:
        sections["starts"] = lambda: starts(run)
        if not run.quick:
            sections["by size, 1 thread"] = lambda: sizes(run, 1)
    for name, section in sections.items():
        if time.perf_counter() - run.began < given.limit_s:
            section()
        else:
            run.record["missing"][name] = f"not begun within {given.limit_s:g} s"
    run.record["seconds"] = round(time.perf_counter() - run.began)
    run.add("ratios")


if __name__ == "__main__":
    main()
