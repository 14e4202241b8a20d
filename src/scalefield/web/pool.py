"""Threads for what would hold up the event loop, and a word when too much waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Busy(RuntimeError):
    """As much work is waiting as may wait."""


class Pool:
    """Threads for work that would hold up the event loop, with a limit on what may wait."""

    def __init__(self, threads: int, most_waiting: int) -> None:
        self.executor = ThreadPoolExecutor(threads)
        self.room = threads + most_waiting

    def check(self) -> None:
        """`Busy` if there is no room."""
        if self.room <= 0:
            raise Busy("the server is busy; try again in a moment")

    def run(self, work: Callable[[], T]) -> Coroutine[Any, Any, T]:
        """The work's result to be awaited, its room taken at once; or `Busy`, at once too."""
        self.check()
        self.room -= 1
        return self._leave(asyncio.get_running_loop().run_in_executor(self.executor, work))

    async def _leave(self, running: Awaitable[T]) -> T:
        try:
            return await running
        finally:
            self.room += 1
