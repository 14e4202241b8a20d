"""What training loops share: prefetched batches, the clock, the average of the weights."""

import threading
import time

import pytest
import torch

from scalefield.training.loop import (
    Clock,
    OptimiserConfig,
    RunFolder,
    Schedule,
    Trainer,
    cosine_rate,
    prefetch,
)


def test_what_is_made_ahead_comes_in_order() -> None:
    def make(job: int) -> int:
        time.sleep(0.002 * (job % 3))  # the later of two may be ready first
        return job * job

    assert list(prefetch(make, range(20))) == [job * job for job in range(20)]
    assert list(prefetch(make, [])) == []


def test_the_next_is_made_while_the_present_one_is_worked_on() -> None:
    begun = [threading.Event() for _ in range(3)]
    made = prefetch(lambda job: begun[job].set(), range(3))
    next(made)
    assert begun[1].wait(5)
    made.close()


def test_batches_raise_the_error_of_a_batch_at_its_turn() -> None:
    def make(job: int) -> int:
        if job == 2:
            raise ValueError("no such frame")
        return job

    made = prefetch(make, range(9))
    assert [next(made), next(made)] == [0, 1]
    with pytest.raises(ValueError, match="no such frame"):
        next(made)


def test_clock_separates_waiting_from_working(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_schedule_counts_steps_or_time_and_ends_with_a_rate_of_zero(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr("scalefield.training.loop.time.monotonic", lambda: now[0])
    by_steps, by_time = Schedule(100), Schedule(100, time_limit_s=50.0)
    assert by_steps.progress(50) == by_time.progress(50) == 0.5
    now[0] += 40
    assert by_steps.progress(50) == 0.5
    assert by_time.progress(50) == pytest.approx(0.8)
    assert by_time.rate(5, 10) == pytest.approx(0.6)  # still warming up
    now[0] += 10
    assert by_time.progress(50) == 1
    assert by_time.rate(50, 10) == pytest.approx(0)
    again = Schedule(100, time_limit_s=50.0)
    again.resume(25.0)
    assert again.progress(0) == pytest.approx(0.5)
    assert by_steps.rate(60, 10) == pytest.approx(cosine_rate(60, 100, 10))


def trainer_of(folder, net, config, steps=5):
    groups = [{"params": list(net.parameters()), "lr": config.rate}]
    run, schedule = RunFolder(folder, config), Schedule(steps)
    return Trainer(net, groups, config, run, schedule, torch.device("cpu"), show_progress=False)


def test_trainer_averages_the_weights_with_a_decay_that_grows(tmp_path) -> None:
    """The average moves by 1 − min(ema, (step + 1) / (step + 10))."""
    config = OptimiserConfig(ema=0.3, rate=0.1, warmup=1)
    net = torch.nn.Linear(2, 1)
    expected = net.weight.detach().clone()
    trainer = trainer_of(tmp_path, net, config)
    for step in trainer.steps():
        trainer.update(net(torch.ones(1, 2)).sum())
        decay = min(0.3, (step + 1) / (step + 10))
        expected = expected * decay + net.weight.detach() * (1 - decay)
        torch.testing.assert_close(trainer.average.weight.detach(), expected)


def test_trainer_ends_with_the_same_average_after_an_interruption(tmp_path) -> None:
    config = OptimiserConfig(ema=0.9, rate=0.1, warmup=1)
    averages = []
    for interrupted in (False, True):
        folder = tmp_path / str(interrupted)
        torch.manual_seed(0)
        trainer = trainer_of(folder, torch.nn.Linear(2, 1), config)
        for step in trainer.steps():
            trainer.update(trainer.net(torch.ones(1, 2)).square().sum())
            if interrupted and step == 2:
                trainer.keep()
                break
        if interrupted:
            trainer = trainer_of(folder, torch.nn.Linear(2, 1), config)
            assert trainer.step == 3
            for _ in trainer.steps():
                trainer.update(trainer.net(torch.ones(1, 2)).square().sum())
        averages.append(trainer.average.weight.detach())
    assert torch.equal(*averages)
