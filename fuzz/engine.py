"""Runs cases of one target and classifies their results.

A case is a file that was valid before it was mutated. Cases that reach a line of the package which
none has reached before are kept, and mutated further. All randomness comes from (seed, target), so
a run is repeatable; a failing case is saved as a file.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from fuzz.mutate import mutate
from scalefield.errors import InputError, MissingExtra

PACKAGE = str(Path(sys.modules["scalefield"].__file__ or "").parent)
MOST_SECONDS = 20.0
"""A case that takes longer hangs; the slowest valid one takes a tenth of it on a busy machine."""
MOST_MEMORY = 2 << 30
"""Address space that a case may ask for beyond what the process had: files are a few kilobytes."""
LONGEST_MESSAGE = 1000
SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Folder of the cases: in memory, because writing to a disk takes longer than reading the file."""
WRAPPED = 0.7
"""Share of the cases whose checksums and lengths are repaired after the damage."""


@dataclass(frozen=True)
class Target:
    """A reader, and valid files for it."""

    name: str
    seeds: Callable[[Path], Sequence[bytes]]
    """Puts what else the reader needs into a folder; gives valid contents of the file."""
    read: Callable[[Path], object]
    """Reads the file and checks the value; an AssertionError is a failure."""
    file: str = ""
    """Name of the file in the folder; by default the name of the target."""
    wrap: Callable[[bytes], bytes] = bytes
    """Makes a seed into the file: checksums and lengths, so that damage gets past them."""
    share: float = 1.0
    """Number of its cases relative to other targets."""


@dataclass
class Tally:
    """Results of the cases of a target."""

    cases: int = 0
    accepted: int = 0
    refused: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    """By kind and line of the failure: the file of the first case, and its message."""
    failed: int = 0
    lines: int = 0
    """Lines of the package that were reached."""
    kept: int = 0
    """Cases that reached a new one."""
    slowest_s: float = 0.0
    memory_mb: int = 0
    """Growth of the process's peak memory."""


@contextmanager
def reached(lines: set[tuple[CodeType, int]]) -> Iterator[None]:
    """Collects the package's lines that run within the block."""

    def local(frame: FrameType, event: str, arg: Any) -> Any:
        lines.add((frame.f_code, frame.f_lineno))
        return local

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        return local if frame.f_code.co_filename.startswith(PACKAGE) else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)


@dataclass(frozen=True)
class Outcome:
    """The result of a case: "accepted", "refused", or the kind and the line of a failure."""

    kind: str
    message: str = ""


def outcome_of(target: Target, path: Path) -> Outcome:
    """Read the file and classify the result."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.read(path)
    except (InputError, MissingExtra) as e:
        message = str(e)
        if not message.strip() or "\n" in message or len(message) > LONGEST_MESSAGE:
            return Outcome(f"no sentence from {_place(e)}", message[:300])
        return Outcome("refused", message)
    except (Exception, SystemExit) as e:
        return Outcome(f"{type(e).__name__} from {_place(e)}", str(e)[:300])
    return Outcome("accepted")


def _place(error: BaseException) -> str:
    """The deepest line of the package in a traceback, which distinguishes failures."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if f.filename.startswith(PACKAGE)] or frames
    path = Path(ours[-1].filename)
    named = path.relative_to(PACKAGE) if path.is_relative_to(PACKAGE) else path.name
    return f"{named}:{ours[-1].lineno}"


class Cases:
    """The endless list of a target's cases, the same for the same seed."""

    def __init__(self, target: Target, seed: int | str, folder: Path) -> None:
        self.target, self.folder = target, folder
        self.path = folder / (target.file or target.name)
        self.rng = random.Random(f"{seed} {target.name}")
        self.corpus = list(target.seeds(folder))
        self.lines: set[tuple[CodeType, int]] = set()
        self.seeds = len(self.corpus)
        for content in self.corpus:  # what valid files reach is nothing new
            self.run(target.wrap(content))

    def run(self, data: bytes) -> tuple[Outcome, bool]:
        """The outcome, and whether a new line was reached."""
        self.path.write_bytes(data)
        before = len(self.lines)
        with reached(self.lines):
            outcome = outcome_of(self.target, self.path)
        return outcome, len(self.lines) > before

    def next(self) -> tuple[bytes, bytes | None]:
        """A case, and the content to keep if it is a good one."""
        base = self.rng.choice(self.corpus)
        if self.target.wrap is not bytes and self.rng.random() > WRAPPED:
            return mutate(self.target.wrap(base), self.rng, self.corpus), None
        content = mutate(base, self.rng, self.corpus)
        return self.target.wrap(content), content


def run_cases(
    target: Target,
    cases: int,
    seed: int,
    *,
    save: Path | None = None,
    first: int = 0,
    clock: Any = None,
    current: Path | None = None,
    tally: Tally | None = None,
) -> Tally:
    """Run cases in this process. `clock` gets the time when each begins, `current` its data."""
    tally = tally or Tally()
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        work = Cases(target, f"{seed} {first}" if first else seed, Path(folder))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for i in range(first, cases):
            data, content = work.next()
            began = time.monotonic()
            if clock is not None and current is not None:
                current.write_bytes(data)
                clock[0], clock[1] = i, began
            outcome, new = work.run(data)
            tally.slowest_s = max(tally.slowest_s, round(time.monotonic() - began, 3))
            count(tally, outcome, data, save)
            if new and content:
                work.corpus.append(content)
        tally.lines, tally.kept = len(work.lines), len(work.corpus) - work.seeds
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
        tally.memory_mb = max(tally.memory_mb, grown // 1024)
    return tally


def count(tally: Tally, outcome: Outcome, data: bytes, save: Path | None) -> None:
    """Add an outcome; the first case of each failure is saved."""
    tally.cases += 1
    if outcome.kind in ("accepted", "refused"):
        setattr(tally, outcome.kind, getattr(tally, outcome.kind) + 1)
        return
    tally.failed += 1
    if outcome.kind in tally.failures:
        return
    name = hashlib.sha256(data).hexdigest()[:16]
    tally.failures[outcome.kind] = f"{name}: {outcome.message}"
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
        (save / name).write_bytes(data)


def overdue(seconds: float) -> bool:
    """Whether a case that has run for this long hangs."""
    return seconds > MOST_SECONDS


def run_guarded(
    target: Target,
    cases: int,
    seed: int,
    save: Path,
    hangs: Callable[[float], bool] = overdue,
) -> Tally:
    """`run_cases` in child processes; a child that dies or hangs is a failed case.

    `hangs` decides from the running time of a case, in seconds, whether its child is killed.
    """
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        return _guard(target, cases, seed, save, folder=Path(folder), hangs=hangs)


def _guard(
    target: Target,
    cases: int,
    seed: int,
    save: Path,
    *,
    folder: Path,
    hangs: Callable[[float], bool],
) -> Tally:
    context = multiprocessing.get_context("fork")
    report, current = folder / "tally.json", folder / "current"
    clock = context.Array("d", [0, time.monotonic()], lock=False)
    tally, first = Tally(), 0
    while first < cases:
        clock[0], clock[1] = first, time.monotonic() + MOST_SECONDS  # to make its seeds
        more = {"first": first, "clock": clock, "current": current, "tally": tally}
        work = partial(run_cases, target, cases, seed, save=save, **more)
        child = context.Process(target=_child, args=(work, report))
        child.start()
        killed = False
        while child.is_alive():
            child.join(0.2)
            killed = child.is_alive() and hangs(time.monotonic() - clock[1])
            if killed:
                child.kill()
                child.join()
        if report.exists():
            tally = Tally(**json.loads(report.read_text()))
            first = cases
        else:
            died = Outcome("hang" if killed else f"the process died ({child.exitcode})")
            # The counts of the child are lost with it, but its cases were run.
            done = int(clock[0]) - first
            tally.cases += done
            count(tally, died, current.read_bytes() if current.exists() else b"", save)
            first += done + 1
    return tally


def _child(work: Callable[[], Tally], report: Path) -> None:
    """Do the work under limits and write its tally."""
    import torch

    torch.set_num_threads(1)
    tempfile.tempdir = SCRATCH  # readers that need a file make it there as well
    held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (held + MOST_MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Libraries print what they refuse, a hundred thousand times.
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    report.write_text(json.dumps(work().__dict__))
