"""Count the source files that one recovery passes through, and how often control changes file.

python scripts/trace_files.py --method field          # a table of the files, and two totals
python scripts/trace_files.py --all                   # the totals of every method
python scripts/trace_files.py --edit                  # a moved anchor on the page, with field

The bundled sample with its six anchors is recovered once to load models, then once under
`sys.setprofile`. Counted are calls of named functions of the package (no lambdas, no
comprehensions). A change of file is a call whose file differs from that of the call before it; the
first call counts as one. torch uses one thread: the profiler sees calls of its own thread only, so
the counts would depend on the number of cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import scalefield
from scalefield import METHODS, Anchors, samples
from scalefield.api import recover_from
from scalefield.defaults import MDE_NAME
from scalefield.mde import load_mde
from scalefield.methods import make_method
from scalefield.web.edits import Edit, apply_edit
from scalefield.web.sessions import Session

PACKAGE = Path(scalefield.__file__).parent


@dataclass
class Trace:
    """Calls of functions of the package, in order."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    """File and qualified name of each called function."""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """The profile function."""
        code = frame.f_code
        if event != "call" or code.co_name.startswith("<"):
            return
        path = Path(code.co_filename)
        if path.is_relative_to(PACKAGE):
            self.calls.append((path.relative_to(PACKAGE).as_posix(), code.co_qualname))

    @property
    def files(self) -> Counter[str]:
        """The number of different functions called in each file."""
        return Counter(name for name, _ in set(self.calls))

    @property
    def changes(self) -> int:
        """How often the file of a call differs from that of the call before it."""
        files = [name for name, _ in self.calls]
        return 1 + sum(a != b for a, b in pairwise(files))


def trace(work: Callable[[], object]) -> Trace:
    """Run the work once for its imports and models, then once under the profiler."""
    work()
    recorded = Trace()
    sys.setprofile(recorded)
    try:
        work()
    finally:
        sys.setprofile(None)
    return recorded


def trace_method(name: str) -> Trace:
    """The trace of `recover_from` with a method, for an output that was not seen before."""
    sample = samples.load()
    output = load_mde(MDE_NAME)(sample.image)
    method = make_method(name)
    return trace(lambda: recover_from(dataclasses.replace(output), sample.anchors, method))


def trace_edit() -> Trace:
    """The trace of an edit on the page: one of the sample's anchors moves."""
    sample = samples.load()
    session = Session("room.jpg", sample.image)
    session.prepare()
    position = iter(range(100, 110))

    def move() -> None:
        u = sample.anchors.u.copy()
        u[0] = next(position)
        anchors = Anchors(u, sample.anchors.v, sample.anchors.depth_m)
        apply_edit(session, Edit(anchors, "field"))

    return trace(move)


def main() -> None:
    """Print the files of one method or of an edit, or the totals of all methods."""
    parser = argparse.ArgumentParser(description="Files that a recovery passes through.")
    parser.add_argument("--method", default="field", choices=list(METHODS))
    parser.add_argument("--all", action="store_true", help="only the totals, for every method")
    parser.add_argument("--edit", action="store_true", help="an edit on the page instead")
    flags = parser.parse_args()
    warnings.simplefilter("ignore")  # the licence of the bundled estimator
    torch.set_num_threads(1)
    for name in METHODS if flags.all else ["edit" if flags.edit else flags.method]:
        try:
            recorded = trace_edit() if flags.edit else trace_method(name)
        except ImportError as e:
            print(f"{name:12} {e}")
            continue
        if not flags.all:
            for file, count in recorded.files.most_common():
                print(f"{count:5} functions  {file}")
        functions, files = len(set(recorded.calls)), len(recorded.files)
        print(f"{name:12} {files} files, {functions} functions, {recorded.changes} changes of file")


if __name__ == "__main__":
    main()
