import asyncio
import threading

import pytest

from scalefield.errors import one_line
from scalefield.web.pool import Busy, Cancelled, Pool


def test_pool_takes_a_place_at_once_and_gives_it_back() -> None:
    """The place is taken before the work begins, so that accepted work is never refused later."""

    async def ask() -> None:
        pool = Pool(1, 1)
        first, second = pool.run(lambda: 1), pool.run(lambda: 1 // 0)
        with pytest.raises(Busy):
            pool.run(lambda: 3)
        assert await first == 1
        with pytest.raises(ZeroDivisionError):
            await second
        assert await pool.run(lambda: 4) == 4
        assert (pool.places_left, pool.idle) == (2, 1)

    asyncio.run(ask())


def test_pool_serves_clients_in_turn() -> None:
    done: list[str] = []

    async def ask() -> None:
        pool, gate = Pool(1, 20), threading.Event()
        running = [asyncio.ensure_future(pool.run(gate.wait, "a"))]
        for client in ("a", "a", "a", "b", "c", "b"):
            work = pool.run(lambda client=client: done.append(client), client)
            running.append(asyncio.ensure_future(work))
        gate.set()
        await asyncio.gather(*running)

    asyncio.run(ask())
    assert done == ["a", "b", "c", "a", "b", "a"]


def test_pool_skips_waiting_work_of_a_client_that_left() -> None:
    async def ask() -> list[int]:
        pool, gate, begun = Pool(1, 20), threading.Event(), []
        first = asyncio.ensure_future(pool.run(gate.wait))
        second = asyncio.ensure_future(pool.run(lambda: begun.append(2)))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        gate.set()
        await first
        await pool.run(lambda: begun.append(3))
        assert pool.places_left == 21
        return begun

    assert asyncio.run(ask()) == [3]


def test_pool_ends_running_work_of_a_client_that_left() -> None:
    """The loop below would never end by itself."""

    async def ask() -> None:
        pool, started, ended = Pool(1, 1, cancellable=True), threading.Event(), []

        def endless() -> None:
            try:
                while one_line("a call of the package"):
                    started.set()
            except Cancelled:
                ended.append(True)
                raise

        task = asyncio.ensure_future(pool.run(endless))
        await asyncio.get_running_loop().run_in_executor(None, started.wait)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await pool.run(lambda: 5) == 5  # the thread is free again
        assert ended == [True]
        assert pool.places_left == 2

    asyncio.run(ask())
