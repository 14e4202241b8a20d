"""`python -m fuzz`: run cases of all targets and write their results.

python -m fuzz --cases 100000 --out results/fuzz
python -m fuzz --target "points.ply" --replay out/fuzz/points.ply/0123456789abcdef
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from fuzz.engine import Tally, Target, outcome_of, run_guarded
from fuzz.targets import TARGETS
from scalefield.io import write_json
from scalefield.runtime.provenance import provenance


def shares(cases: int, targets: list[Target]) -> list[int]:
    """Cases of each target, which sum to all."""
    total = sum(target.share for target in targets)
    ends, reached = [], 0.0
    for target in targets:
        reached += target.share
        ends.append(round(cases * reached / total))
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def main() -> int:
    """Exit code 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m fuzz")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--target", action="append", help="only these; all by default")
    parser.add_argument("--out", type=Path, help="folder for results.json")
    parser.add_argument("--failures", type=Path, default=Path("out/fuzz"))
    parser.add_argument("--replay", type=Path, help="run this one file through the target")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    targets = [t for t in TARGETS if not flags.target or t.name in flags.target]
    if not targets:
        parser.error(f"no such target; there are {', '.join(t.name for t in TARGETS)}")
    if flags.replay:
        return replay(targets[0], flags.replay)

    began = time.monotonic()
    with ThreadPoolExecutor(flags.workers) as pool:
        counts = shares(flags.cases, targets)
        jobs = [
            pool.submit(run_guarded, t, n, flags.seed, folder_of(t, flags.failures))
            for t, n in zip(targets, counts, strict=True)
        ]
        tallies = {}
        for target, job in zip(targets, jobs, strict=True):
            tallies[target.name] = job.result()
            print_tally(target, tallies[target.name], flags.failures)
    failed = sum(t.failed for t in tallies.values())
    total = sum(t.cases for t in tallies.values())
    print(f"{total} cases in {time.monotonic() - began:.0f} s, {failed} failures")
    if flags.out:
        record = {
            "cases": total,
            "failures": failed,
            "seed": flags.seed,
            "provenance": provenance(),
            "targets": {name: dataclasses.asdict(t) for name, t in tallies.items()},
        }
        write_json(flags.out / "results.json", record)
    return 1 if failed else 0


def folder_of(target: Target, failures: Path) -> Path:
    """Folder of the failing cases of a target."""
    return failures / target.name.replace(" ", "-")


def print_tally(target: Target, tally: Tally, failures: Path) -> None:
    """Print a line for the target, and one for each failure."""
    print(
        f"{target.name:32} {tally.cases:6} cases: {tally.accepted} accepted, {tally.refused} "
        f"refused, {tally.failed} failed; slowest {tally.slowest_s:.2f} s, {tally.memory_mb} MB",
        flush=True,
    )
    for what, file in tally.failures.items():
        print(f"    {what}: {folder_of(target, failures) / file}", flush=True)


def replay(target: Target, file: Path) -> int:
    """Run one saved case here, where a debugger can see it."""
    with tempfile.TemporaryDirectory() as folder:
        path = target.path(Path(folder))
        target.seeds(path.parent)
        path.write_bytes(file.read_bytes())
        outcome = outcome_of(target, path)
    print(outcome.kind, outcome.message)
    return 0 if outcome.kind in ("accepted", "refused") else 1


if __name__ == "__main__":
    sys.exit(main())
