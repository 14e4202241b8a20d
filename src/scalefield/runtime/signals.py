"""A request to end (SIGTERM, SIGHUP, Ctrl+C) ends a command wherever it comes in, and tidily."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any

AGAIN_S = 0.1
"""Seconds after which a request to end that nobody obeyed is repeated."""


class _Ending:
    """The request to end that this process has had, if any.

    Signals reach the main thread between any two steps of Python. What is raised there may be
    lost: libraries that call back into Python turn it into an error of their own, or print it.
    So the request is noted, repeated until it is obeyed, and decides how the command ends.
    """

    def __init__(self) -> None:
        self.number = 0  # of the signal
        self.held = False  # while files take their places
        self.worker = False
        self.alarm: tuple[Any, tuple[float, float]] = signal.SIG_DFL, (0.0, 0.0)  # another's
        self.tidy: list[Callable[[], object]] = []

    def __call__(self, number: int, frame: object) -> None:
        """The handler of signals, a repeated request among them."""
        if number == _ALARM:
            self.heed()
            return
        if not self.number:
            self.number = number
            if _ALARM:
                handler = signal.signal(_ALARM, self)
                self.alarm = handler, signal.setitimer(signal.ITIMER_REAL, AGAIN_S, AGAIN_S)
        if not self.held:
            self.obey()

    def heed(self) -> None:
        """End, if that was asked for and nothing is on its way out, perhaps because of it."""
        if not self.held and sys.exception() is None:
            self.obey()

    def obey(self) -> None:
        """End, if that was asked for."""
        if self.number and self.worker:
            # Its pool would catch what is raised, and hand it to the parent as the job's result.
            self.held = True
            try:
                for tidy in self.tidy:
                    tidy()
            finally:
                os._exit(128 + self.number)
        if self.number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.number:
            raise SystemExit(128 + self.number)

    def forget(self) -> None:
        """As if nothing had been asked."""
        if self.number and _ALARM:
            handler, timer = self.alarm
            signal.setitimer(signal.ITIMER_REAL, *timer)
            signal.signal(_ALARM, handler)
        self.number, self.held = 0, False


_REQUESTS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_ALARM = getattr(signal, "SIGALRM", 0)
_ending = _Ending()


@contextmanager
def ends_when_asked() -> Iterator[None]:
    """Once SIGTERM, SIGHUP or SIGINT came, the block ends by it, whatever else it ends with."""
    if current_thread() is not main_thread():  # the only one that hears of signals
        yield
        return
    usual: dict[int, Any] = dict.fromkeys(_REQUESTS, signal.SIG_DFL)
    usual[signal.SIGINT] = signal.default_int_handler
    # `nohup` and a job in the background ignore one of them, and so do we.
    changed = {n: handler for n, handler in usual.items() if signal.getsignal(n) == handler}
    unheard = sys.unraisablehook
    sys.unraisablehook = lambda lost: None if _ending.number else unheard(lost)
    for number in changed:
        signal.signal(number, _ending)
    try:
        yield
    finally:
        _ending.held = True
        for number, handler in changed.items():
            signal.signal(number, handler)
        sys.unraisablehook = unheard
        try:
            _ending.obey()
        finally:
            _ending.forget()


@contextmanager
def until_interrupted() -> Iterator[None]:
    """A block whose ordinary end is Ctrl+C."""
    try:
        yield
    except KeyboardInterrupt:
        _ending.forget()


@contextmanager
def uninterrupted(held: bool = True) -> Iterator[None]:
    """A request to end waits until the block is left; not `held`, it need not wait any more."""
    if current_thread() is not main_thread():
        yield
        return
    before = _ending.held
    _ending.heed()  # what was swallowed on the way here must not be written down as a result
    _ending.held = held
    try:
        _ending.heed()
        yield
    finally:
        _ending.held = before
        _ending.heed()


@contextmanager
def tidied(tidy: Callable[[], Any]) -> Iterator[None]:
    """A worker that is asked to end within the block does this first; others leave the block."""
    _ending.tidy.append(tidy)
    try:
        yield
    finally:
        _ending.tidy.remove(tidy)


def end_worker_when_asked() -> None:
    """From now on this process, a worker, ends by itself when it is asked to."""
    _ending.worker = True
    for number in _REQUESTS:
        signal.signal(number, _ending)
