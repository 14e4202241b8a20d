"""Configurations from JSON: a dataclass whose fields are each of the kind they are said to be."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")

MOST = 2**31
"""Whole numbers in a configuration are counts, and none is as large."""


def checked(cls: type[T], values: Any) -> T:
    """The dataclass that JSON values describe; TypeError or ValueError where they do not."""
    if not isinstance(values, dict):
        raise TypeError(f"{cls.__name__} wants names and values, found {values!r}")
    hints = get_type_hints(cls)
    for name, value in values.items():
        if name in hints and not _fits(hints[name], value):
            raise TypeError(f"{name} cannot be {value!r}")
    return cls(**values)


def _fits(hint: Any, value: Any) -> bool:
    """Whether a value is of the kind; kinds that JSON has not are left to the dataclass."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is tuple and parts[-1] is ...:
        return isinstance(value, (tuple, list)) and all(_fits(parts[0], v) for v in value)
    if type(None) in parts:
        return value is None or any(_fits(p, value) for p in parts if p is not type(None))
    if float in parts:  # float | Tensor, of which a file has only the first
        hint = float
    if hint is bool or hint is str:
        return isinstance(value, hint)
    if hint is int:
        return type(value) is int and abs(value) < MOST
    if hint is float:
        return type(value) in (int, float) and abs(value) < 1e300  # not so for NaN
    return not (isinstance(hint, type) and dataclasses.is_dataclass(hint)) or isinstance(
        value, hint
    )
