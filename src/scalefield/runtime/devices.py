"""Where tensors live, checked before anything is loaded, and how many threads work on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any

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


class _Meanwhile:
    """A setting of torch's for the whole process that holds while anyone is inside; the last who
    leaves puts back what was there before the first came."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None], wanted: Any) -> None:
        self.read, self.write, self.wanted = read, write, wanted
        self.lock, self.inside, self.before = Lock(), 0, None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self.lock:
            if not self.inside:
                self.before = self.read()
                self.write(self.wanted)
            self.inside += 1
        try:
            yield
        finally:
            with self.lock:
                self.inside -= 1
                if not self.inside:
                    self.write(self.before)


one_thread = _Meanwhile(torch.get_num_threads, torch.set_num_threads, 1)
"""For many small matrices one after another: several threads wait for each other at every one, and
on a busy machine for whole time slices."""

_cudnn: Any = torch.backends.cudnn
_by_name = hasattr(getattr(_cudnn, "conv", None), "fp32_precision")  # since torch 2.9
_convolutions = _cudnn.conv if _by_name else _cudnn
_precision = "fp32_precision" if _by_name else "allow_tf32"

full_precision = _Meanwhile(
    partial(getattr, _convolutions, _precision),
    partial(setattr, _convolutions, _precision),
    "ieee" if _by_name else False,
)
"""Convolutions in float32 as a processor does them. A GPU would cut their factors to ten bits, and
depth would differ by half a percent."""

fastest_kernels = _Meanwhile(
    partial(getattr, _cudnn, "benchmark"),
    partial(setattr, _cudnn, "benchmark"),
    True,
)
"""cuDNN tries its kernels for each new size and keeps the fastest."""
