"""Validation of options and configurations against their annotations.

`matches` is the one type check of the package. `from_json` uses it for configuration files,
`check_options` for the options of a method.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from scalefield.errors import InputError, did_you_mean, one_line

T = TypeVar("T")

MAX_NUMBER = 1e18
"""Largest magnitude of a number in an option: it fits int64, and its square fits float64."""
MAX_COUNT = 2.0**31
"""Whole numbers in a configuration file are counts below this."""


def matches(value: Any, hint: Any, *, max_int: float = MAX_NUMBER) -> bool:  # noqa: PLR0911
    """Whether a value has the annotated type and, if it is a number, a usable magnitude.

    A Literal accepts every value of its members' types: the caller names the choices in its own
    message (`require_choice`). Annotations other than plain types are accepted.
    """
    if isinstance(value, Real) and not abs(float(value)) <= MAX_NUMBER:  # NaN fails too
        return False
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin is Any:
        return True
    if origin in (Union, UnionType):
        return any(matches(value, part, max_int=max_int) for part in arguments)
    if origin is Literal:
        return any(matches(value, type(part), max_int=max_int) for part in arguments)
    if origin is tuple:
        if not isinstance(value, (tuple, list, np.ndarray)):
            return False
        repeated = len(arguments) == 2 and arguments[1] is ...
        return not repeated or all(matches(v, arguments[0], max_int=max_int) for v in value)
    if origin in (int, float):
        number = Integral if origin is int else Real
        small = origin is float or (isinstance(value, Integral) and abs(int(value)) < max_int)
        return isinstance(value, number) and not isinstance(value, bool) and small
    return not isinstance(origin, type) or isinstance(value, origin)


def from_json(cls: type[T], values: Any) -> T:
    """The dataclass that JSON values describe.

    Raises TypeError or ValueError where a value does not fit the annotation of its field.
    """
    if not isinstance(values, dict):
        raise TypeError(f"{cls.__name__} must be an object of names and values, found {values!r}")
    hints = get_type_hints(cls)
    for name, value in values.items():
        if name in hints and not matches(value, hints[name], max_int=MAX_COUNT):
            raise TypeError(f"{name} cannot be {value!r}")
    return cls(**values)


def check_options(owner: str, make: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse options that `make` does not have, or whose values have another type.

    `owner` begins the message, for example "method lwlr".
    """
    parameters = inspect.signature(make).parameters
    for name in options:
        if name not in parameters:
            names = ", ".join(parameters) or "none"
            near = did_you_mean(name, parameters)
            raise InputError(f"{owner} has no option {name!r}; there are {names}{near}")
    hints = get_type_hints(make) if options else {}
    for name, value in options.items():
        if not matches(value, hints[name]):
            wanted, found = inspect.formatannotation(hints[name]), one_line(repr(value), 40)
            raise InputError(f"{owner}: {name} must be {wanted}, found {found}")


def require_choice(option: str, value: object, choices: tuple[object, ...]) -> None:
    """Refuse a value that is none of an option's choices."""
    if value not in choices:
        raise InputError(
            f"{option} must be one of {', '.join(map(str, choices))}, found {one_line(repr(value))}"
        )


def require(holds: bool, option: str, wanted: str, value: object) -> None:
    """Refuse an option's value unless the condition holds."""
    if not holds:
        raise InputError(f"{option} must be {wanted}, found {one_line(repr(value))}")


def import_object(path: str) -> Any:
    """The object at an import path `module:name`."""
    module, _, name = path.partition(":")
    try:
        imported: Any = import_module(module)
        for part in name.split("."):
            imported = getattr(imported, part)
    except (ImportError, AttributeError) as e:
        raise InputError(f"{path} cannot be imported: {e}") from None
    return imported
