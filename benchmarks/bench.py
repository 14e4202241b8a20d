"""Times of each step, compared with the estimator and with other implementations.

    python benchmarks/bench.py --out results/bench                    # CPU, 1 and 2 threads
    python benchmarks/bench.py --out results/bench-cuda --device cuda # and the roofline

All times of a run are taken on the same inputs, turn by turn, and given as ratios: medians with
quartiles over the rounds. Absolute times mean little on a processor, so they are written down for
CUDA only. `bench.json` is written anew after every section, so a run that is cut short leaves
what it had. `--quick` looks at less.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import cases
import numpy as np
import processes
import torch
from table import markdown
from timing import Times, Work, exponent, spread, turn_by_turn

from scalefield.io import write_atomic, write_json
from scalefield.runtime.provenance import provenance

SHAPES = ((240, 320), (480, 640), (720, 1280), (1080, 1920))
MIDDLE = (480, 640)
SQUARE = (504, 504)


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
        write_json(self.out / "bench.json", self.record)
        write_atomic(self.out / "README.md", markdown(self.record).encode())

    def say(self, what: str) -> None:
        """Progress, with the time since the start."""
        print(f"{time.perf_counter() - self.began:6.0f} s  {what}", flush=True)


def sizes(run: Run, threads: int) -> None:
    """Every case at every size, as shares of DA3-BASE's forward pass on the same image."""
    torch.set_num_threads(threads)
    times_by_size: dict[tuple[int, int], Times] = {}
    with tempfile.TemporaryDirectory() as cache:
        for shape in run.shapes if threads == 2 else SHAPES[1::2]:
            times_by_size[shape] = run.times(cases.by_size(shape, run.device, Path(cache)))
            run.say(f"{name_of(shape)}, {threads} threads")
            setting = {"size": name_of(shape), "n": cases.N, "threads": threads}
            run.add("ratios", *shares(times_by_size[shape], run, setting))
            run.add("beside", *beside(times_by_size[shape], setting))
    pixels = [h * w for h, w in times_by_size]
    run.add(
        "growth", *growth(times_by_size.values(), pixels, {"along": "pixels", "threads": threads})
    )
    in_k = {
        step: [times_by_size[MIDDLE].seconds[f"{step}, K = {k}"] for k in cases.KS]
        for step in ("generator", "ridge solve", "dense field", "basis: solve and apply")
    }
    run.add("growth", *(
        {"name": step, "along": "K", "threads": threads, "exponent": exponent([*cases.KS], seconds)}
        for step, seconds in in_k.items()
    ))  # fmt: skip


def anchors(run: Run, threads: int) -> None:
    """The same at one size for 1 to 10,000 anchors."""
    torch.set_num_threads(threads)
    reference = cases.reference(MIDDLE, run.device)
    times_by_count: dict[int, Times] = {}
    for n in cases.NS[1:4] if run.quick else cases.NS:
        times_by_count[n] = run.times({**reference, **cases.by_anchors(MIDDLE, run.device, n)})
        run.say(f"N = {n}, {threads} threads")
        setting = {"size": name_of(MIDDLE), "n": n, "threads": threads}
        run.add("anchors", *shares(times_by_count[n], run, setting))
        run.add("beside", *beside(times_by_count[n], setting))
    many = {n: times for n, times in times_by_count.items() if n >= 100}
    run.add("growth", *growth(many.values(), [*many], {"along": "N ≥ 100", "threads": threads}))


def batches(run: Run, threads: int) -> None:
    """Generator, solve and apply for 1 to 64 images at once, each beside one image alone."""
    torch.set_num_threads(threads)
    sizes = cases.BATCHES[:3] if run.quick else cases.BATCHES
    work = {}
    for size in sizes:
        ((name, one),) = cases.by_batch(SQUARE, run.device, size).items()
        work[f"{size}"] = one
    times = run.times(work)
    for size in (s for s in sizes if f"{s}" in times.seconds):
        a_picture = times.seconds[f"{size}"] / size
        entry = {"name": name, "batch": size, "threads": threads, "size": name_of(SQUARE)}
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
    with subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).with_name("roofline.py")),
            str(run.repeats),
            str(run.compiled),
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
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


def growth(measured: Iterable[Times], along: list[float], setting: dict) -> list[dict]:
    """The exponent of every case that ran at all sizes."""
    measured = [*measured]
    names = [n for n in measured[0].seconds if all(n in times.seconds for times in measured)]
    return [
        {
            "name": n,
            **setting,
            "exponent": exponent(along, [times.seconds[n] for times in measured]),
        }
        for n in names
    ]


def redrawn(run: Run) -> None:
    """An added anchor at 480×640 on two threads, against the 16 ms of a screen's frame."""
    torch.set_num_threads(2)
    world = cases.World.make(MIDDLE, run.device)
    work: dict[str, Work] = {}
    for n in (12, cases.N):
        work |= {
            f"{name}, N = {n}": step
            for name, step in (cases.solve_steps(world, n) | cases.field_steps(world, n)).items()
            if name in ("basis: solve and apply, K = 50", "field: an added anchor")
        }
    times = run.times(work, 2 * run.repeats)
    run.add("redrawn", *(
        {"name": name, "of_16_ms": spread(seconds / 0.016)}
        for name, seconds in times.seconds.items()
    ))  # fmt: skip
    run.say("an added anchor")


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
    """Measure, and write bench.json and README.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit", type=float, default=600, help="begin no section after so long")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    parser.add_argument(
        "--compile", action="store_true", help="the roofline through torch.compile too: minutes"
    )
    args = parser.parse_args()
    repeats = 2 if args.quick else args.repeats
    run = Run(args.out, args.device, repeats, args.quick, args.compile)
    run.record |= {
        "config": {"device": run.device, "repeats": run.repeats, "quick": run.quick},
        "provenance": provenance(),
        "missing": {},
    }
    sections: dict[str, Callable[[], None]] = {
        "by size": lambda: sizes(run, 2),
        "batches": lambda: batches(run, 2),
        "an added anchor": lambda: redrawn(run),
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
        if time.perf_counter() - run.began < args.limit:
            section()
        else:
            run.record["missing"][name] = f"not begun within {args.limit:g} s"
    run.record["seconds"] = round(time.perf_counter() - run.began)
    run.add("ratios")


if __name__ == "__main__":
    main()
