"""Where tensors live, checked before anything is loaded, and how many threads work on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def one_thread() -> Iterator[None]:
    """For many small matrices one after another: several threads wait for each other at every one,
    and on a busy machine for whole time slices."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
