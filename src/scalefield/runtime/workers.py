"""Map a function over frames, in this process or in worker processes, with one torch thread each.

The last digits of a sum depend on the number of threads that share it, so one thread makes results
reproducible. Worker processes end when their parent ends, even if it is killed.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, TypeVar

from scalefield.runtime.signals import exit_worker_on_signal

Result = TypeVar("Result")


def map_frames(
    work: Callable[[str], Result], names: Sequence[str], workers: int
) -> Iterator[tuple[str, Result]]:
    """Each name with the result of `work(name)`, computed by `workers` processes."""
    from scalefield.runtime.threads import one_thread

    if workers == 1 or len(names) < 2:
        with one_thread():
            for name in names:
                yield name, work(name)
        return
    with worker_pool(workers, set_function, work) as pool:
        yield from zip(names, pool.map(call_function, names), strict=True)


_function: Callable[[Any], Any]


def set_function(function: Callable[[Any], Any]) -> None:
    """Set the function of this worker process, which is sent or created once and called often."""
    global _function  # noqa: PLW0603 - a worker process has no other place for it
    _function = function


def call_function(item: Any) -> Any:
    """The value of the function of this worker process for an item."""
    return _function(item)


@contextmanager
def worker_pool(
    workers: int, start: Callable[..., None] | None = None, *given: object
) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes with one torch thread each, in which `start(*given)` has run, if given.

    Leaving the block early cancels the jobs that have not begun.
    """
    context = get_context("spawn")  # a fork after torch's threads have started may hang
    pool = ProcessPoolExecutor(workers, context, _begin, (start, given))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(start: Callable[..., None] | None, given: tuple) -> None:
    import torch

    Thread(target=_end_with_parent, daemon=True).start()
    # Ctrl+C reaches all processes, and the parent stops its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_worker_on_signal()
    warnings.simplefilter("ignore")  # the parent loads the same models and has warned already
    torch.set_num_threads(1)
    if start is not None:
        start(*given)


def _end_with_parent() -> None:
    """Exit when the parent has ended: a killed parent cannot stop its workers."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
