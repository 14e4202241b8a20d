"""Shutdown by signal (SIGTERM, SIGHUP, SIGINT) that cannot be lost and leaves no partial files.

A signal reaches the main thread between any two instructions of Python. An exception raised there
may be lost, because libraries that call back into Python replace or print it. The request is
therefore recorded, repeated by SIGALRM until it takes effect, and decides how the command ends:

                 signal                        no block of `defer_signals` is active
    (running) ------------> (requested) ---------------------------------------------> (exiting)
        ^                    |       ^                                                     |
        |     defer_signals  |       |  the block ends, or SIGALRM after RETRY_INTERVAL_S  |
        |                    v       |                                                     |
        |                   (deferred)                                                     |
        +---------------------------- graceful_shutdown ends ------------------------------+

Exiting means KeyboardInterrupt for SIGINT and SystemExit(128 + signal) otherwise. A worker process
runs its `on_worker_exit` callbacks and ends with `os._exit`, because its pool would catch an
exception and hand it to the parent as the result of the job.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any

RETRY_INTERVAL_S = 0.1
"""Seconds after which a request that had no effect yet is repeated."""


class ShutdownRequest:
    """The shutdown request of this process, if it received one; it is also the signal handler."""

    def __init__(self) -> None:
        self.signal_number = 0
        self.deferred = False
        self.is_worker = False
        self.former_alarm: tuple[Any, tuple[float, float]] = signal.SIG_DFL, (0.0, 0.0)
        self.exit_callbacks: list[Callable[[], object]] = []

    def __call__(self, signal_number: int, frame: object) -> None:
        """Record a request and exit if that is allowed now; SIGALRM repeats the first request."""
        if signal_number == _ALARM:
            self.poll()
            return
        if not self.signal_number:
            self.signal_number = signal_number
            if _ALARM:
                handler = signal.signal(_ALARM, self)
                interval = (RETRY_INTERVAL_S, RETRY_INTERVAL_S)
                self.former_alarm = handler, signal.setitimer(signal.ITIMER_REAL, *interval)
        if not self.deferred:
            self.exit_now()

    def poll(self) -> None:
        """Exit if a request is pending, not deferred, and no exception is being handled.

        The exception that is being handled may be the one that this request raised.
        """
        if not self.deferred and sys.exception() is None:
            self.exit_now()

    def exit_now(self) -> None:
        """Exit if a request is pending."""
        if self.signal_number and self.is_worker:
            self.deferred = True
            try:
                for callback in self.exit_callbacks:
                    callback()
            finally:
                os._exit(128 + self.signal_number)
        if self.signal_number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal_number:
            raise SystemExit(128 + self.signal_number)

    def reset(self) -> None:
        """Discard the request and restore the alarm that was set before it."""
        if self.signal_number and _ALARM:
            handler, timer = self.former_alarm
            signal.setitimer(signal.ITIMER_REAL, *timer)
            signal.signal(_ALARM, handler)
        self.signal_number, self.deferred = 0, False


_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_ALARM = getattr(signal, "SIGALRM", 0)
_request = ShutdownRequest()


@contextmanager
def graceful_shutdown() -> Iterator[None]:
    """A block that ends by SIGTERM, SIGHUP or SIGINT once one was received, whatever it raises.

    Signals that the process ignores stay ignored, as under `nohup`. In other threads than the
    main one, which receive no signals, the block runs as it is.
    """
    if current_thread() is not main_thread():
        yield
        return
    defaults: dict[int, Any] = dict.fromkeys(_SIGNALS, signal.SIG_DFL)
    defaults[signal.SIGINT] = signal.default_int_handler
    replaced = {n: handler for n, handler in defaults.items() if signal.getsignal(n) == handler}
    former_hook = sys.unraisablehook
    sys.unraisablehook = lambda lost: None if _request.signal_number else former_hook(lost)
    for signal_number in replaced:
        signal.signal(signal_number, _request)
    try:
        yield
    finally:
        _request.deferred = True
        for signal_number, handler in replaced.items():
            signal.signal(signal_number, handler)
        sys.unraisablehook = former_hook
        try:
            _request.exit_now()
        finally:
            _request.reset()


@contextmanager
def until_interrupted() -> Iterator[None]:
    """A block whose normal end is Ctrl+C."""
    try:
        yield
    except KeyboardInterrupt:
        _request.reset()


@contextmanager
def defer_signals(deferred: bool = True) -> Iterator[None]:
    """A block during which a shutdown request waits; `deferred=False` allows it again inside.

    A request that is pending before the block takes effect first, so that work which a library
    ended early is not written as a result.
    """
    if current_thread() is not main_thread():
        yield
        return
    before = _request.deferred
    _request.poll()
    _request.deferred = deferred
    try:
        _request.poll()
        yield
    finally:
        _request.deferred = before
        _request.poll()


@contextmanager
def on_worker_exit(callback: Callable[[], Any]) -> Iterator[None]:
    """A block during which a worker process that must exit calls `callback` first.

    Other processes leave the block by an exception, and need no callback.
    """
    _request.exit_callbacks.append(callback)
    try:
        yield
    finally:
        _request.exit_callbacks.remove(callback)


def exit_worker_on_signal() -> None:
    """Make this process a worker: from now on it exits by itself when it is asked to."""
    _request.is_worker = True
    for signal_number in _SIGNALS:
        signal.signal(signal_number, _request)
