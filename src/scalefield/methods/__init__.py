"""Every way to get metric depth from an MDE's output and anchors, by name.

A method is a frozen dataclass whose fields are its options and whose call is the whole protocol:

    recovery = METHODS["lwlr"](bandwidth="adaptive")(mde_output, anchors)

Any function of that form is a method too; nothing needs to inherit.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from scalefield.anchors import Anchors
from scalefield.errors import InputError, brief
from scalefield.mde.output import MDEOutput
from scalefield.methods.basis import Basis
from scalefield.methods.field import Field
from scalefield.methods.global_affine import Global
from scalefield.methods.grid import Grid
from scalefield.methods.interpolate import Interpolate
from scalefield.methods.knn import KNN
from scalefield.methods.log_kernel import LogKernel
from scalefield.methods.lwlr import LWLR
from scalefield.methods.median import Median
from scalefield.methods.piecewise import Piecewise
from scalefield.methods.region import Region
from scalefield.recovery import Recovery

Method = Callable[[MDEOutput, Anchors], Recovery]

METHODS: dict[str, Callable[..., Method]] = {
    "field": Field,
    "basis": Basis,
    "global": Global,
    "piecewise": Piecewise,
    "lwlr": LWLR,
    "grid": Grid,
    "region": Region,
    "knn": KNN,
    "median": Median,
    "interpolate": Interpolate,
    "log_kernel": LogKernel,
}

LARGEST_OPTION = 1e18
"""What the number of an option may be: within int64, and its square within float64."""


def make_method(method: str | Method, **options: Any) -> Method:
    """The method of that name with these options; a callable is taken as it is."""
    if not isinstance(method, str):
        if not callable(method):
            raise InputError(f"a method is a name or a function, found {brief(repr(method))}")
        if isinstance(method, type):
            name = method.__name__
            raise InputError(f"{name} is a class of methods; give one of them, as {name}() is")
        if options:
            raise InputError("options belong to a method given by name; yours is an object")
        return method
    if method not in METHODS:
        raise InputError(f"no method {method!r}; there are {', '.join(METHODS)}")
    known = inspect.signature(METHODS[method]).parameters
    for name in options:
        if name not in known:
            there = ", ".join(known) or "none"
            raise InputError(f"method {method} has no option {name!r}; there are {there}")
    hints = get_type_hints(METHODS[method]) if options else {}
    for name, value in options.items():
        if not _fits(value, hints[name]):
            wanted, found = inspect.formatannotation(hints[name]), brief(repr(value), 40)
            raise InputError(f"method {method}: {name} must be {wanted}, found {found}")
    try:
        return METHODS[method](**options)
    except TypeError as e:
        raise InputError(f"method {method}: {e}") from None


def _fits(value: Any, hint: Any) -> bool:
    """Whether an option's value is of the annotated kind, and a number that can be reckoned with.

    Values outside a Literal are left to the method, which has a better sentence for them.
    """
    number = isinstance(value, Real)
    if number and not -LARGEST_OPTION <= value <= LARGEST_OPTION:  # not so for NaN either
        return False
    origin, parts = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return any(_fits(value, type(part)) for part in parts)
    if origin in (int, float):
        kind = Integral if origin is int else Real
        return isinstance(value, kind) and not isinstance(value, bool)
    if origin is tuple:
        return isinstance(value, (tuple, list, np.ndarray))
    return origin is Any or isinstance(value, origin)


def method_name(method: Method) -> str:
    """The name under which a method is known, or its own."""
    for name, known in METHODS.items():
        if type(method) is known:
            return name
    return getattr(method, "__qualname__", type(method).__qualname__)
