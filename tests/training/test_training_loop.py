"""What training loops share: batches made ahead, and the clock."""

import threading
import time

import pytest
import torch

from scalefield.training.loop import Clock, ahead


def test_what_is_made_ahead_comes_in_order() -> None:
    def make(job: int) -> int:
        time.sleep(0.002 * (job % 3))  # the later of two may be ready first
        return job * job

    assert list(ahead(make, range(20))) == [job * job for job in range(20)]
    assert list(ahead(make, [])) == []


def test_the_next_is_made_while_the_present_one_is_worked_on() -> None:
    begun = [threading.Event() for _ in range(3)]
    made = ahead(lambda job: begun[job].set(), range(3))
    next(made)
    assert begun[1].wait(5)
    made.close()


def test_a_batch_that_cannot_be_made_says_why_when_its_turn_comes() -> None:
    def make(job: int) -> int:
        if job == 2:
            raise ValueError("no such frame")
        return job

    made = ahead(make, range(9))
    assert [next(made), next(made)] == [0, 1]
    with pytest.raises(ValueError, match="no such frame"):
        next(made)


def test_clock_tells_waiting_from_working(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 0.0
    monkeypatch.setattr("scalefield.training.loop.time.perf_counter", lambda: seconds)
    clock = Clock(torch.device("cpu"))
    assert clock.share == 0
    for step in range(2 * Clock.EVERY):
        with clock.waiting(step):
            seconds += 3
        with clock.working(step):
            seconds += 1
    assert clock.share == 0.25
    assert clock.waited == 6  # only two steps of forty are measured
