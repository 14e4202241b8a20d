"""Torch devices, and settings of their libraries that hold for the duration of a block."""

from __future__ import annotations

import copy
from functools import lru_cache, partial
from typing import Any

import torch

from scalefield.errors import InputError, one_line
from scalefield.runtime.threads import GlobalSetting


def check_device(device: str) -> str:
    """The name of the device, if torch can compute on it; InputError otherwise."""
    try:
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError) as e:  # AssertionError: torch without CUDA
        why = one_line(e).partition(". ")[0]
        raise InputError(f"device {device!r} cannot be used here ({why}); cpu always can") from None
    return device


@lru_cache(maxsize=16)
def on_device(network: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """A network on a device: itself where it is there already, otherwise a copy, because other
    threads may be using it where it is."""
    there = {parameter.device for parameter in network.parameters()}
    if all(x.type == device.type and device.index in {None, x.index} for x in there):
        return network
    return copy.deepcopy(network).to(device)


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
