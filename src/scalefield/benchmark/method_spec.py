"""Rows of a result table, parsed from text: a label, a method with options, conditions."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from scalefield.anchor_sampling import REGIMES
from scalefield.errors import InputError
from scalefield.methods import METHODS, make_method
from scalefield.recovery import Method, as_method
from scalefield.validation import import_object


@dataclass(frozen=True)
class MethodSpec:
    """A row of the table: a label, and the method it stands for under some or all conditions."""

    label: str
    method: str
    """A name of `METHODS` or an import path `module:object`."""
    options: dict[str, Any] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()
    """Anchor regimes, or "drop"; empty for all of them."""

    @classmethod
    def parse(cls, text: str) -> MethodSpec:
        """Read `[LABEL[ @CONDITION,…]: ]METHOD[(OPTION=VALUE, …)]`.

        >>> MethodSpec.parse("Basis K=8 @low,drop: basis(k=8)").options
        {'k': 8}
        """
        head, separator, body = text.rpartition(": ")
        label, _, conditions = head.partition(" @")
        match = re.fullmatch(r"([\w.]+(?::[\w.]+)?)\s*(\(.*\))?", body.strip())
        if match is None:
            raise InputError(
                f"method {text!r} is not understood; wanted NAME, NAME(option=value) or "
                "module:function, with 'LABEL: ' before it if you like"
            )
        return cls(
            label=label.strip() if separator else body.strip(),
            method=match[1],
            options=_parse_options(text, match[2]) if match[2] else {},
            conditions=tuple(c.strip() for c in conditions.split(",") if c.strip()),
        )

    def __post_init__(self) -> None:
        for condition in self.conditions:
            if condition not in (*REGIMES, "drop"):
                names = ", ".join((*REGIMES, "drop"))
                raise InputError(f"{self.label}: no condition {condition!r}; there are {names}")

    def applies(self, condition: str) -> bool:
        """Whether the row has an entry under this condition."""
        return not self.conditions or condition.partition("-")[0] in self.conditions

    def make(self) -> Method:
        """The method itself; an imported object is called with the options, if any are given."""
        if ":" not in self.method:
            return make_method(self.method, **self.options)
        imported = import_object(self.method)
        return as_method(imported(**self.options) if self.options else imported)


def parse_methods(texts: Sequence[str]) -> tuple[MethodSpec, ...]:
    """The rows of a table; `all` means every method of the package with its defaults."""
    specs = []
    for text in texts:
        specs += [MethodSpec(n, n) for n in METHODS] if text == "all" else [MethodSpec.parse(text)]
    return tuple(specs)


def _parse_options(text: str, arguments: str) -> dict[str, Any]:
    """`(space=disparity, k=8)` as a dict; a bare word is a string."""
    source = f"f{arguments}"
    try:
        call = ast.parse(source, mode="eval").body
    except SyntaxError:
        call = None
    if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
        raise InputError(f"method {text!r}: options are written (name=value, …)")
    options = {}
    for keyword in call.keywords:
        try:
            options[str(keyword.arg)] = ast.literal_eval(keyword.value)
        except ValueError:
            options[str(keyword.arg)] = ast.get_source_segment(source, keyword.value)
    return options
