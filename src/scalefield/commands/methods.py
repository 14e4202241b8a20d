"""`scalefield methods`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MethodsCommand:
    """List the methods, one line each."""

    def run(self) -> None:
        """Print the name and the first sentence of each method."""
        from scalefield.methods import METHODS

        for name, method in METHODS.items():
            print(f"{name:12} {(method.__doc__ or '').splitlines()[0]}")
