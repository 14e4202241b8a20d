"""The short version of `make soak`, and that it would notice what is lost."""

import mmap
import os

import pytest
from benchmarks.soak import Visitor, Watch, live, page_here, recover_once

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")

NOISE_MB = 40.0
"""By which a process's memory wanders whose allocator keeps what is freed, as pytest's does."""


def test_memory_and_files_that_are_lost_are_noticed():
    held: list = []

    def forgetful(i: int) -> None:
        held.append(mmap.mmap(-1, 2**20))  # not of what earlier tests left to the allocator
        held[-1].write(bytes([1]) * 2**20)

    def careless(i: int) -> None:
        held.append(os.open(os.devnull, os.O_RDONLY))

    def careful(i: int) -> None:
        bytearray(2**18)

    assert live(Watch(os.getpid()), 200, careful, 10)["growth_mb"] < NOISE_MB
    greedy = live(Watch(os.getpid()), 200, forgetful, 10)
    assert not greedy["good"]
    assert greedy["growth_mb"] == pytest.approx(0.7 * 200, rel=0.3)
    lost = live(Watch(os.getpid()), 200, careless, 10)
    assert not lost["good"]
    for handle in held:
        if isinstance(handle, int):
            os.close(handle)


def test_recover_loses_nothing():
    life = live(Watch(os.getpid()), 110, recover_once, 10)
    assert life["growth_mb"] < NOISE_MB, life
    assert life["files"][1] <= life["files"][0]


def test_the_page_answers_and_loses_no_file():
    """Its memory grows until its sessions are all taken, which only the long run sees."""
    with page_here() as (pid, client):
        life = live(Watch(pid), 60, Visitor(client, edits=20), 6)
    assert life["files"][1] <= life["files"][0]
