"""Threads that share work without waiting for one another, and settings that all threads share.

torch divides one operation among its threads and waits for the slowest. Where other processes
compete for the cores, each of many small operations then waits for a time slice. Here every thread
works on items of its own, with torch on one thread, and takes the next item when it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Any, NamedTuple

import torch


class HeldSetting(NamedTuple):
    """State of a `GlobalSetting` while threads are in its block."""

    former: Any
    """The value outside of the block."""
    blocks: int
    """Number of blocks that were entered and not left."""


class GlobalSetting:
    """A setting of the whole process that has another value while any thread is in its block.

    The first thread to enter stores the former value, the last one to leave restores it.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None], wanted: Any) -> None:
        self.read, self.write, self.wanted = read, write, wanted
        self._lock = Lock()  # guards the value of the process and `_held`
        self._held: HeldSetting | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """A block during which the setting has the wanted value."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def held(self) -> HeldSetting | None:
        """The state at this moment; None if no thread is in a block."""
        with self._lock:
            return self._held

    def _enter(self) -> None:
        with self._lock:
            former, blocks = self._held or HeldSetting(self.read(), 0)
            if blocks == 0:
                self.write(self.wanted)
            self._held = HeldSetting(former, blocks + 1)

    def _leave(self) -> None:
        with self._lock:
            assert self._held is not None
            former, blocks = self._held
            self._held = HeldSetting(former, blocks - 1) if blocks > 1 else None
            if self._held is None:
                self.write(former)


one_thread = GlobalSetting(torch.get_num_threads, torch.set_num_threads, 1)
"""One torch thread, for sequences of small matrix operations. Several threads synchronise at every
operation, and on a busy machine each synchronisation costs a whole time slice."""


def map_threads(
    function: Callable[..., Any], items: Iterable[tuple[Any, ...]], threads: int | None = None
) -> list[Any]:
    """`function(*item)` of every item, on as many threads as are given, or as torch uses outside of
    blocks of `one_thread`."""
    items, threads = list(items), threads or max(torch.get_num_threads(), idle_threads())
    with one_thread():
        if threads == 1 or len(items) < 2:
            return [function(*item) for item in items]
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(lambda item: function(*item), items))


def idle_threads() -> int:
    """The number of threads that torch would use if it were not in a block of `one_thread`; 1
    outside of such blocks."""
    held = one_thread.held()
    return 1 if held is None else int(held.former)
