"""Threads that share work without waiting for one another, and settings that all threads share.

torch divides one operation among its threads and waits for the slowest. Where other processes
compete for the cores, each of many small operations then waits for a time slice. Here every thread
works on items of its own, with torch on one thread, and takes the next item when it is done.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache, partial
from threading import Lock, local
from typing import Any

import torch


class GlobalSetting:
    """A setting of the whole process that has another value while any thread is in its block.

    The first thread to enter stores the former value, the last one to leave restores it.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None], wanted: Any) -> None:
        self.read, self.write, self.wanted = read, write, wanted
        self._lock = Lock()  # guards the value of the process and the two below
        self._former: Any = None
        self._blocks = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """A block during which the setting has the wanted value."""
        with self._lock:
            if self._blocks == 0:
                self._former = self.read()
                self.write(self.wanted)
            self._blocks += 1
        try:
            yield
        finally:
            with self._lock:
                self._blocks -= 1
                if self._blocks == 0:
                    self.write(self._former)

    def outside(self) -> Any:
        """The value of the setting outside of its blocks."""
        with self._lock:
            return self._former if self._blocks else self.read()


one_thread = GlobalSetting(torch.get_num_threads, torch.set_num_threads, 1)
"""One torch thread, for sequences of small matrix operations. Several threads synchronise at every
operation, and on a busy machine each synchronisation costs a whole time slice."""


_this_thread = local()
"""Whether this thread is a worker."""


def _start_worker() -> None:
    _this_thread.is_worker = True
    torch.set_num_threads(1)


@lru_cache(maxsize=1)
def _workers(count: int) -> ThreadPoolExecutor:
    """Worker threads that are kept: starting one costs more than most of its items."""
    return ThreadPoolExecutor(count, "scalefield-worker", initializer=_start_worker)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.cache_clear)  # threads do not survive a fork


@contextmanager
def worker_threads() -> Iterator[Callable[..., Iterable[Any]]]:
    """A block with a `map` that shares its items among as many threads as torch uses outside of
    blocks of `one_thread`; torch itself has one thread in the block.

    In a worker the items are not shared again.
    """
    threads = one_thread.outside()
    serial = threads == 1 or getattr(_this_thread, "is_worker", False)
    with one_thread():
        yield map if serial else partial(_shared_map, threads)


def _shared_map(threads: int, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """`function` of every item, in this thread and in workers that take the next item when they
    are done. After an error no further item is begun."""
    pending = deque(enumerate(items))
    results = [None] * len(pending)

    def work() -> None:
        while True:
            try:
                i, item = pending.popleft()
            except IndexError:
                return
            try:
                results[i] = function(item)
            except BaseException:
                pending.clear()
                raise

    workers = _workers(threads - 1)
    others = [workers.submit(work) for _ in range(min(threads, len(results)) - 1)]
    try:
        work()
    finally:
        wait(others)
    for other in others:
        other.result()
    return results


def map_threads(function: Callable[..., Any], items: Iterable[tuple[Any, ...]]) -> list[Any]:
    """`function(*item)` of every item, on the threads of `worker_threads`."""
    items = list(items)
    if len(items) < 2:
        with one_thread():
            return [function(*item) for item in items]
    with worker_threads() as thread_map:
        return list(thread_map(lambda item: function(*item), items))
