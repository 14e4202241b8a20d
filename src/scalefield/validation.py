"""Checks of a method's options, each refused in a sentence that names it."""

from __future__ import annotations

from scalefield.errors import InputError, brief


def require_choice(option: str, value: object, choices: tuple[object, ...]) -> None:
    """Refuse a value that is none of an option's choices."""
    if value not in choices:
        raise InputError(
            f"{option} must be one of {', '.join(map(str, choices))}, found {brief(repr(value))}"
        )


def require(holds: bool, option: str, wanted: str, value: object) -> None:
    """Refuse an option's value unless the condition holds."""
    if not holds:
        raise InputError(f"{option} must be {wanted}, found {brief(repr(value))}")
