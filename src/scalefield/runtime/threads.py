"""Threads that share work without waiting for one another.

torch divides one operation among its threads and waits for the slowest. Where other processes
compete for the cores, each of many small operations then waits for a time slice. Here every thread
works on items of its own, with torch on one thread, and takes the next item when it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from scalefield.runtime.devices import one_thread


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
