"""Progress of long work: a bar on a terminal, a line from time to time elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

LINES_EVERY_S = 30.0
"""Least time between two lines where there is no terminal."""


class LineProgress:
    """Progress as lines of text, for log files: "12 of 50 images, 35 s, about 2 min left".

    A line is written at most every `every_s` seconds, so short work writes none. It has the methods
    of tqdm that this package uses.
    """

    def __init__(
        self,
        total: int | None = None,
        *,
        unit: str = "step",
        desc: str = "",
        initial: int = 0,
        every_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.unit, self.desc, self.clock = total, unit, desc, clock
        self.every_s = LINES_EVERY_S if every_s is None else every_s
        self.n = self.found = initial
        self.started = self.last = clock()

    def __enter__(self) -> LineProgress:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, n: int = 1) -> None:
        """Count `n` more; those of the first tenth of a second were done before this run."""
        now = self.clock()
        self.n += n
        if now - self.started < 0.1:
            self.found = self.n
        if now - self.last >= self.every_s:
            self.last = now
            self.write(f"scalefield: {self.line(now - self.started)}", file=sys.stderr)

    def line(self, elapsed_s: float) -> str:
        """The state after `elapsed_s` seconds as a sentence."""
        if self.unit == "step":
            return f"{self.desc}, {duration(elapsed_s)}"
        counted = f"{self.n}" if self.total is None else f"{self.n} of {self.total}"
        text = f"{self.desc + ': ' if self.desc else ''}{counted} {self.unit}s"
        text += f", {duration(elapsed_s)}"
        made = self.n - self.found
        if self.total is not None and made > 0:
            left_s = (self.total - self.n) * elapsed_s / made
            text += f", about {duration(left_s)} left"
        return text

    def set_description_str(self, desc: str) -> None:
        """Name the present step."""
        self.desc = desc

    def write(self, text: str, file: Any = None) -> None:
        """Write a line of text."""
        print(text, file=file or sys.stdout, flush=True)


def duration(seconds: float) -> str:
    """A time span in two units at most: "35 s", "2 min", "1 h 10 min"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def progress(
    total: int | None = None,
    *,
    unit: str = "step",
    desc: str = "",
    initial: int = 0,
    show: bool = True,
    **bar: Any,
) -> Any:
    """A tqdm bar if stderr is a terminal, `LineProgress` otherwise; `bar` is for tqdm.

    `initial` were done before this run and do not count for its rate. Without `show`, only
    the text given to `write` is written.
    """
    if not show:
        return LineProgress(total, every_s=math.inf)
    if not sys.stderr.isatty():
        return LineProgress(total, unit=unit, desc=desc, initial=initial)
    from tqdm import tqdm

    return tqdm(total=total, unit=unit, desc=desc or None, initial=initial, **bar)
