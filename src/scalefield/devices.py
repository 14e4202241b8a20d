"""Where tensors live, checked before anything is loaded."""

from __future__ import annotations

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
