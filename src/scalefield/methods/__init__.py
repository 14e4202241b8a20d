"""All methods that recover metric depth from an MDE's output and anchors, by name.

A method is a frozen dataclass whose fields are its options; calling it recovers depth:

    recovery = METHODS["lwlr"](bandwidth="adaptive")(mde_output, anchors)

`recovery.Method` is the protocol. A plain function of (mde_output, anchors) is accepted too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scalefield.errors import InputError, did_you_mean
from scalefield.methods.basis import Basis
from scalefield.methods.bilateral_grid import BilateralGrid
from scalefield.methods.field import Field
from scalefield.methods.global_affine import Global
from scalefield.methods.grid import Grid
from scalefield.methods.interpolate import Interpolate
from scalefield.methods.knn import KNN
from scalefield.methods.log_kernel import LogKernel
from scalefield.methods.lwlr import LWLR
from scalefield.methods.median import Median
from scalefield.methods.piecewise import Piecewise
from scalefield.methods.poisson import Poisson
from scalefield.methods.region import Region
from scalefield.methods.superpixel_graph import SuperpixelGraph
from scalefield.recovery import Method, MethodLike, as_method
from scalefield.validation import check_options

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
    "poisson": Poisson,
    "bilateral_grid": BilateralGrid,
    "superpixel_graph": SuperpixelGraph,
}


def make_method(method: str | MethodLike, **options: Any) -> Method:
    """The method of that name with these options; a method or function is taken as it is."""
    if not isinstance(method, str):
        if options:
            raise InputError("options are for a method given by name, found a method object")
        return as_method(method)
    if method not in METHODS:
        near = did_you_mean(method, METHODS)
        raise InputError(f"no method {method!r}; there are {', '.join(METHODS)}{near}")
    check_options(f"method {method}", METHODS[method], options)
    try:
        return METHODS[method](**options)
    except TypeError as e:
        raise InputError(f"method {method}: {e}") from None
