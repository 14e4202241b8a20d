"""Every way to get metric depth from an MDE's output and anchors, by name.

A method is a frozen dataclass whose fields are its options and whose call is the whole protocol:

    recovery = METHODS["lwlr"](bandwidth="adaptive")(mde_output, anchors)

Any function of that form is a method too; nothing needs to inherit.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from scalefield.anchors import Anchors
from scalefield.errors import InputError
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
from scalefield.result import Recovery

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


def make_method(method: str | Method, **options: Any) -> Method:
    """The method of that name with these options; a callable is taken as it is."""
    if not isinstance(method, str):
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
    try:
        return METHODS[method](**options)
    except TypeError as e:
        raise InputError(f"method {method}: {e}") from None


def method_name(method: Method) -> str:
    """The name under which a method is known, or its own."""
    for name, known in METHODS.items():
        if type(method) is known:
            return name
    return getattr(method, "__qualname__", type(method).__qualname__)
