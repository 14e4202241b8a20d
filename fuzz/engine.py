"""Runs cases of one target and classifies their results.

A case is a valid file after `mutate`. Case i depends on (seed, target, i) alone, so that a run can
be repeated and continued anywhere. The first case of each failure is saved as a file.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fuzz.mutate import mutate
from scalefield.errors import InputError, MissingExtra

PACKAGE = str(Path(sys.modules["scalefield"].__file__ or "").parent)
MOST_SECONDS = 20
"""A case that takes longer hangs; the slowest valid one takes a tenth of it on a busy machine."""
MOST_MEMORY = 2 << 30
"""Address space that a case may ask for beyond what the process had: files are a few kilobytes."""
LONGEST_MESSAGE = 1000
SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Folder of the cases: in memory, because writing to a disk takes longer than reading the file."""
WRAPPED = 0.7
"""Share of the cases whose checksums and lengths are repaired after the damage."""


def always(value: Any) -> bool:
    """True."""
    return True


@dataclass(frozen=True)
class Target:
    """A reader, and valid files for it."""

    name: str
    seeds: Callable[[Path], Sequence[bytes]]
    """Puts what else the reader needs into a folder; gives valid contents of the file."""
    read: Callable[[Path], Any]
    """Reads the file."""
    promise: Callable[[Any], bool] = always
    """Whether the value is as the reader promises."""
    file: str = ""
    """Name of the file in the folder; by default the name of the target."""
    wrap: Callable[[bytes], bytes] = bytes
    """Makes a seed into the file: checksums and lengths, so that damage gets past them."""
    damage: Callable[[bytes, random.Random, Sequence[bytes]], bytes] = mutate
    """A seed after random damage; it may take pieces of the other seeds."""
    share: float = 1.0
    """Number of its cases relative to other targets."""

    def path(self, folder: Path) -> Path:
        """The file in a folder."""
        return folder / (self.file or self.name)

    def case(self, seeds: Sequence[bytes], seed: int, index: int) -> bytes:
        """The file of one case, from the target's valid contents."""
        rng = random.Random(f"{seed} {self.name} {index}")
        content = rng.choice(seeds)
        if rng.random() < WRAPPED:
            return self.wrap(self.damage(content, rng, seeds))
        return self.damage(self.wrap(content), rng, seeds)


class Outcome(NamedTuple):
    """The result of a case: "accepted", "refused", or the kind and the line of a failure."""

    kind: str
    message: str = ""


@dataclass
class Tally:
    """Results of the cases of a target."""

    cases: int = 0
    accepted: int = 0
    refused: int = 0
    failed: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    """By kind and line of the failure: the file of the first case, and its message."""
    slowest_s: float = 0.0
    memory_mb: int = 0
    """Growth of the process's peak memory."""

    def add(self, outcome: Outcome, file: Path, save: Path | None) -> None:
        """Count an outcome; `file` is kept in the folder `save` if its failure is new."""
        self.cases += 1
        if outcome.kind in ("accepted", "refused"):
            setattr(self, outcome.kind, getattr(self, outcome.kind) + 1)
            return
        self.failed += 1
        if outcome.kind in self.failures:
            return
        data = file.read_bytes() if file.exists() else b""
        name = hashlib.sha256(data).hexdigest()[:16]
        self.failures[outcome.kind] = f"{name}: {outcome.message}"
        if save is not None:
            save.mkdir(parents=True, exist_ok=True)
            (save / name).write_bytes(data)


def outcome_of(target: Target, path: Path) -> Outcome:
    """Read the file and classify the result."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = target.read(path)
            kept = target.promise(value)
    except (InputError, MissingExtra) as e:
        message = str(e)
        if not message.strip() or "\n" in message or len(message) > LONGEST_MESSAGE:
            return Outcome(f"no sentence from {_place(e)}", message[:300])
        return Outcome("refused", message)
    except (Exception, SystemExit) as e:
        return Outcome(f"{type(e).__name__} from {_place(e)}", str(e)[:300])
    return Outcome("accepted") if kept else Outcome("broken promise", repr(value)[:300])


def _place(error: BaseException) -> str:
    """The deepest line of the package in a traceback, which distinguishes failures."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if f.filename.startswith(PACKAGE)] or frames
    path = Path(ours[-1].filename)
    named = path.relative_to(PACKAGE) if path.is_relative_to(PACKAGE) else path.name
    return f"{named}:{ours[-1].lineno}"


def run_cases(target: Target, cases: int, seed: int, save: Path | None = None) -> Tally:
    """Run cases in this process."""
    tally = Tally()
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        for _ in each_case(target, cases, seed, Path(folder), save, tally):
            pass
    return tally


def each_case(  # noqa: PLR0917
    target: Target, cases: int, seed: int, folder: Path, save: Path | None, tally: Tally
) -> Iterator[None]:
    """Run the cases that are not in the tally yet and add them; yields before and after each."""
    path, seeds = target.path(folder), target.seeds(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    for index in range(tally.cases, cases):
        path.write_bytes(target.case(seeds, seed, index))
        began = time.monotonic()
        outcome = outcome_of(target, path)
        tally.slowest_s = max(tally.slowest_s, round(time.monotonic() - began, 3))
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        tally.memory_mb = max(tally.memory_mb, grown // 1024)
        tally.add(outcome, path, save)
        yield


def run_guarded(target: Target, cases: int, seed: int, save: Path) -> Tally:
    """`run_cases` in child processes; a child that dies or hangs is a failed case."""
    tally = Tally()
    while tally.cases < cases:
        with tempfile.TemporaryDirectory(dir=SCRATCH) as folder, \
                tempfile.NamedTemporaryFile("r", dir=SCRATCH) as report:  # fmt: skip
            arguments = target, cases, seed, Path(folder), save, tally, Path(report.name)
            child = multiprocessing.get_context("fork").Process(target=_child, args=arguments)
            child.start()
            child.join()
            text = report.read()
            tally = Tally(**json.loads(text)) if text else tally
            if tally.cases < cases:
                hung = child.exitcode == -signal.SIGALRM
                died = Outcome("hang" if hung else f"the process died ({child.exitcode})")
                tally.add(died, target.path(Path(folder)), save)
    return tally


def _child(  # noqa: PLR0917
    target: Target, cases: int, seed: int, folder: Path, save: Path, tally: Tally, report: Path
) -> None:
    """Run cases under limits, with the tally written after each."""
    torch.set_num_threads(1)
    tempfile.tempdir = SCRATCH  # readers that need a file make it there as well
    held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (held + MOST_MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Libraries print what they refuse, a hundred thousand times.
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    signal.alarm(10 * MOST_SECONDS)  # to make the seeds
    for _ in each_case(target, cases, seed, folder, save, tally):
        signal.alarm(0)
        report.write_text(json.dumps(tally.__dict__))
        signal.alarm(MOST_SECONDS)  # ends the process, in native code as well
