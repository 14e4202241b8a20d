"""Torch devices, and settings of torch that hold for the duration of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any

import torch

from scalefield.errors import InputError, one_line


def check_device(device: str) -> str:
    """The name of the device, if torch can compute on it; InputError otherwise."""
    try:
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError) as e:  # AssertionError: torch without CUDA
        why = one_line(e).partition(". ")[0]
        raise InputError(f"device {device!r} cannot be used here ({why}); cpu always can") from None
    return device


class GlobalSetting:
    """A setting of the whole process that has another value while any thread is in its block.

    The first thread to enter stores the former value, the last one to leave restores it.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None], wanted: Any) -> None:
        self.read, self.write, self.wanted = read, write, wanted
        self.lock, self.inside, self.before = Lock(), 0, None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """A block during which the setting has the wanted value."""
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


one_thread = GlobalSetting(torch.get_num_threads, torch.set_num_threads, 1)
"""One torch thread, for sequences of small matrix operations. Several threads synchronise at every
operation, and on a busy machine each synchronisation costs a whole time slice."""

_cudnn: Any = torch.backends.cudnn
_by_name = hasattr(getattr(_cudnn, "conv", None), "fp32_precision")  # since torch 2.9
_convolutions = _cudnn.conv if _by_name else _cudnn
_precision = "fp32_precision" if _by_name else "allow_tf32"

full_precision = GlobalSetting(
    partial(getattr, _convolutions, _precision),
    partial(setattr, _convolutions, _precision),
    "ieee" if _by_name else False,
)
"""Convolutions in full float32. By default a GPU rounds their inputs to a mantissa of ten bits
(TF32), which changes depth by half a percent."""

fastest_kernels = GlobalSetting(
    partial(getattr, _cudnn, "benchmark"),
    partial(setattr, _cudnn, "benchmark"),
    True,
)
"""cuDNN measures its kernels for each new size and keeps the fastest."""
