import os
import subprocess
import sys
import threading
import time
from contextlib import nullcontext

import pytest
import torch

from scalefield.runtime.threads import map_threads, one_thread, worker_threads


@pytest.fixture(params=[1, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_map_threads_returns_results_in_the_order_of_the_items(threads):
    def late(i, delay):
        time.sleep(delay)
        return i, torch.get_num_threads(), threading.get_ident()

    items = [(i, 0.01 * (5 - i)) for i in range(6) if i < 5] + [(5, 0.0)]
    found = map_threads(late, items)
    assert [i for i, _, _ in found] == list(range(6))
    assert {count for _, count, _ in found} == {1}  # torch's own threads would compete
    assert len({ident for _, _, ident in found}) <= threads
    assert torch.get_num_threads() == threads


def test_map_threads_raises_what_an_item_raises_and_restores_torch_s_threads(threads):
    def broken(i):
        if i == 2:
            raise KeyError("third")
        return i

    with pytest.raises(KeyError, match="third"):
        map_threads(broken, [(i,) for i in range(5)])
    assert torch.get_num_threads() == threads


def test_map_threads_takes_none_and_one_item(threads):
    assert map_threads(max, []) == []
    assert map_threads(max, [(2, 3)]) == [3]
    assert map_threads(max, iter([(2, 3), (5, 4)])) == [3, 5]
    assert torch.get_num_threads() == threads


def test_map_threads_within_map_threads(threads):
    inner = map_threads(lambda i: map_threads(pow, [(i, 2), (i, 3)]), [(2,), (3,)])
    assert inner == [[4, 8], [9, 27]]
    assert torch.get_num_threads() == threads


def test_worker_threads_are_those_that_one_thread_leaves(threads):
    barrier = threading.Barrier(threads)
    for block in (nullcontext, one_thread):
        with block(), worker_threads() as thread_map:
            # As many items as threads wait for one another: fewer threads would time out.
            list(thread_map(lambda _: barrier.wait(timeout=60), range(threads)))
            idents = list(thread_map(lambda _: threading.get_ident(), range(9)))
            assert len(set(idents)) <= threads
            assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == threads


def test_map_threads_in_a_block_of_one_thread_uses_the_idle_ones(threads):
    barrier = threading.Barrier(threads)
    with one_thread():  # as many items as threads wait for one another: fewer would time out
        map_threads(lambda _: barrier.wait(timeout=600), [(i,) for i in range(threads)])
        assert torch.get_num_threads() == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_worker_threads_are_started_again_in_a_forked_process():
    code = """
import os, torch
from scalefield.runtime.threads import map_threads
torch.set_num_threads(2)
items = [(i, 2) for i in range(5)]
assert map_threads(pow, items) == [0, 1, 4, 9, 16]
child = os.fork()
if child == 0:
    os._exit(0 if map_threads(pow, items) == [0, 1, 4, 9, 16] else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_map_threads_begins_no_further_item_after_an_error(threads):
    begun = []

    def fail(i):
        begun.append(i)
        raise KeyError(i)

    with pytest.raises(KeyError):
        map_threads(fail, [(i,) for i in range(100)])
    assert len(begun) <= threads
