"""The short version of `make soak`, and a check that it detects lost memory and files."""

import gc
import mmap
import os

import numpy as np
import pytest
import torch
from benchmarks.soak import Visitor, Watch, live, page_here, recover_once

from scalefield import METHODS, Anchors, recover

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")

pytestmark = pytest.mark.slow

NOISE_MB = 40.0
"""By which a process's memory wanders whose allocator keeps what is freed, as pytest's does."""


def test_soak_detects_lost_memory_and_files():
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


@pytest.mark.parametrize("method", METHODS)
def test_recover_leaves_no_reference_cycles(method):
    """Tensors in a reference cycle stay until the garbage collector runs, which counts objects
    and no bytes: a loop over large images would keep those of a dozen calls."""
    v, u = np.indices((210, 200))
    relative = 2 + np.sin(u / 17) + v / 60
    anchors = Anchors([5, 90, 150, 30], [9, 180, 20, 100], [3.0, 5.0, 4.0, 2.0])
    options = {"superpixels": 12} if method == "region" else {}
    gc.collect()
    gc.disable()
    try:
        recover(None, anchors, mde_depth=relative, kind="depth", method=method, **options)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = [thing for thing in gc.garbage if isinstance(thing, (np.ndarray, torch.Tensor))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert [tuple(tensor.shape) for tensor in found] == []


def test_recover_keeps_no_memory_and_no_files():
    life = live(Watch(os.getpid()), 110, recover_once, 10)
    assert life["growth_mb"] < NOISE_MB, life
    assert life["files"][1] <= life["files"][0]


def test_soak_of_the_page_loses_no_file():
    """Its memory grows until all sessions are in use, so only the long run measures memory."""
    with page_here() as (pid, client):
        life = live(Watch(pid), 60, Visitor(client, edits=20), 6)
    assert life["files"][1] <= life["files"][0]
