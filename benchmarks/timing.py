"""Comparable times: measured in turns, and reported with their spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

Work = Callable[[], object]

SHORTEST_S = 0.01
MOST_CALLS = 64
"""A sample is the mean of as many calls as take 10 ms, and of no more than 64."""
SLOW_S = 0.3


@dataclass
class Times:
    """Seconds a call by case and round, and why a case has none."""

    seconds: dict[str, np.ndarray] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def ratio(self, name: str, reference: str) -> list[float]:
        """Median and quartiles of one case's time over another's in the same round."""
        return spread(self.seconds[name] / self.seconds[reference])


def turn_by_turn(cases: Mapping[str, Work], repeats: int, device: str = "cpu") -> Times:
    """Run every case once in each of `repeats` rounds, so that a busy moment of the machine falls
    on all of them; a first round, in which libraries load and pools open, does not count."""
    times, calls = Times(), {}
    for name, work in cases.items():
        try:
            taken = _sample(work, 1, device)
            if taken < SLOW_S:
                taken = _sample(work, 1, device)  # without what only a first call does
        except Exception as e:  # one case that cannot run here must not take the others along
            times.missing[name] = f"{type(e).__name__}: {e}".splitlines()[0][:200]
            continue
        calls[name] = min(MOST_CALLS, max(1, round(SHORTEST_S / taken)))
        times.seconds[name] = np.empty(repeats)
    for i in range(repeats):
        for name in times.seconds:
            times.seconds[name][i] = _sample(cases[name], calls[name], device)
    return times


def spread(values: np.ndarray) -> list[float]:
    """Median, lower and upper quartile, to four digits."""
    return [float(f"{x:.4g}") for x in np.quantile(values, (0.5, 0.25, 0.75))]


def _sample(work: Work, calls: int, device: str) -> float:
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    for _ in range(calls):
        work()
    wait()
    return (time.perf_counter() - began) / calls
