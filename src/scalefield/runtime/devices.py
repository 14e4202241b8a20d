"""Torch devices, and settings of torch that hold for the duration of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

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


class HeldSetting(NamedTuple):
    """State of a `GlobalSetting` while threads are in its block."""

    former: Any
    """The value outside of the block."""
    blocks: int
    """Number of blocks that were entered and not left."""


class GlobalSetting:
    """A setting of the whole process that has another value while any thread is in its block.

    The first thread to enter stores the former value, the last one to leave restores it.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None], wanted: Any) -> None:
        self.read, self.write, self.wanted = read, write, wanted
        self._lock = Lock()  # guards the value of the process and `_held`
        self._held: HeldSetting | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """A block during which the setting has the wanted value."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def held(self) -> HeldSetting | None:
        """The state at this moment; None if no thread is in a block."""
        with self._lock:
            return self._held

    def _enter(self) -> None:
        with self._lock:
            former, blocks = self._held or HeldSetting(self.read(), 0)
            if blocks == 0:
                self.write(self.wanted)
            self._held = HeldSetting(former, blocks + 1)

    def _leave(self) -> None:
        with self._lock:
            assert self._held is not None
            former, blocks = self._held
            self._held = HeldSetting(former, blocks - 1) if blocks > 1 else None
            if self._held is None:
                self.write(former)


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
