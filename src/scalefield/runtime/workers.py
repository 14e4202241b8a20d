"""Work on one torch thread each: here, or in processes that end with their parent, however it ends.

Sums depend in their last digits on how many threads share them; on one thread they do not.
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

from scalefield.runtime.signals import end_worker_when_asked

Result = TypeVar("Result")


def each(
    work: Callable[[str], Result], names: Sequence[str], workers: int
) -> Iterator[tuple[str, Result]]:
    """Each name with what the work gives for it, done by so many processes."""
    from scalefield.runtime.devices import one_thread

    if workers == 1 or len(names) < 2:
        with one_thread():
            for name in names:
                yield name, work(name)
        return
    with worker_pool(workers, _take, work) as pool:
        yield from zip(names, pool.map(_do, names), strict=True)


_taken: Callable[[str], Any]


def _take(work: Callable[[str], Any]) -> None:
    global _taken  # noqa: PLW0603  a worker process has one, loaded once
    _taken = work


def _do(name: str) -> Any:
    return _taken(name)


@contextmanager
def worker_pool(
    workers: int, start: Callable[..., None], *given: object
) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes of one torch thread each, in which `start(*given)` has run.

    Where the block is left early, what has not begun is forgotten.
    """
    context = get_context("spawn")  # a fork after torch's threads have started may hang
    pool = ProcessPoolExecutor(workers, context, _begin, (start, given))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(start: Callable[..., None], given: tuple) -> None:
    import torch

    Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches all; the parent tells the others
    end_worker_when_asked()
    warnings.simplefilter("ignore")  # the parent loads the same, and has said it
    torch.set_num_threads(1)
    start(*given)


def _end_with_parent() -> None:
    """A killed command cannot tell its workers to stop; they would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
