"""Where tensors live, checked before anything is loaded, and how many threads work on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

from scalefield.errors import InputError, brief


def usable(device: str) -> str:
    """The same name, if torch can reckon there."""
    try:
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError) as e:  # the latter from a torch without CUDA
        why = brief(e).partition(". ")[0]
        raise InputError(f"device {device!r} cannot be used here ({why}); cpu always can") from None
    return device


class _OneThread:
    """Who wants one thread at present, and how many there were before."""

    def __init__(self) -> None:
        self.lock, self.inside, self.before = Lock(), 0, 1

    def enter(self) -> None:
        with self.lock:
            if not self.inside:
                self.before = torch.get_num_threads()
                torch.set_num_threads(1)
            self.inside += 1

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                torch.set_num_threads(self.before)


_one_thread = _OneThread()


@contextmanager
def one_thread() -> Iterator[None]:
    """For many small matrices one after another: several threads wait for each other at every one,
    and on a busy machine for whole time slices. The number is torch's, for the whole process; the
    last of those who are inside at once puts it back."""
    _one_thread.enter()
    try:
        yield
    finally:
        _one_thread.leave()
