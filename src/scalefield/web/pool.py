"""Threads for work that would block the event loop: bounded, fair between clients, cancellable."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Generic, TypeVar

T = TypeVar("T")

PACKAGE = "scalefield."


class Busy(RuntimeError):
    """The queue is full."""


class Cancelled(BaseException):
    """Raised inside the work of a client that has left.

    Not an `Exception`, so that no handler of ordinary errors inside the work takes it for one.
    """


@dataclass(eq=False)
class _Job(Generic[T]):
    work: Callable[[], T]
    client: str
    done: asyncio.Future[T]
    cancellable: bool
    cancelled: threading.Event = field(default_factory=threading.Event)

    def __call__(self) -> T:
        """The work's result. After `cancelled` is set it ends at the package's next call."""
        if self.cancelled.is_set():
            raise Cancelled
        if not self.cancellable:
            return self.work()

        def leave(frame: FrameType, event: str, arg: object) -> None:
            # Only in code of this package: other code may hold a lock that would never be released.
            if self.cancelled.is_set() and frame.f_globals.get("__name__", "").startswith(PACKAGE):
                sys.setprofile(None)
                raise Cancelled

        sys.setprofile(leave)
        try:
            return self.work()
        finally:
            sys.setprofile(None)


class Pool:
    """Threads that serve clients in turn, one job each, however many jobs a client sends."""

    def __init__(self, threads: int, most_waiting: int, *, cancellable: bool = False) -> None:
        self.executor = ThreadPoolExecutor(threads)
        self.places_left = threads + most_waiting
        self.idle = threads
        self.cancellable = cancellable
        """Whether running work ends when its client leaves; costs some time a function call."""
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()
        self._running: set[asyncio.Task[None]] = set()

    def check(self) -> None:
        """Raise `Busy` if the queue is full."""
        if self.places_left <= 0:
            raise Busy("the server is busy; try again in a moment")

    def run(self, work: Callable[[], T], client: str = "") -> Coroutine[Any, Any, T]:
        """The work's result to be awaited, its place taken at once; or `Busy`, at once too.

        A coroutine that is cancelled while it waits cancels the work.
        """
        self.check()
        self.places_left -= 1
        loop = asyncio.get_running_loop()
        job = _Job(work, client, loop.create_future(), self.cancellable)
        self._waiting.setdefault(client, deque()).append(job)
        self._start_waiting()
        return self._result(job)

    async def _result(self, job: _Job[T]) -> T:
        try:
            return await job.done
        finally:
            job.cancelled.set()

    def _start_waiting(self) -> None:
        while self.idle and self._waiting:
            client, jobs = self._waiting.popitem(last=False)
            job = jobs.popleft()
            if jobs:
                self._waiting[client] = jobs  # to the end of the queue
            self.idle -= 1
            task = asyncio.ensure_future(self._serve(job))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _serve(self, job: _Job[T]) -> None:
        try:
            result = await asyncio.get_running_loop().run_in_executor(self.executor, job)
        except Cancelled:
            job.done.cancel()
        except asyncio.CancelledError:
            job.done.cancel()
            raise
        except BaseException as e:
            if not job.done.done():
                job.done.set_exception(e)
        else:
            if not job.done.done():
                job.done.set_result(result)
        finally:
            self.idle += 1
            self.places_left += 1
            self._start_waiting()
