"""`scalefield recover`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RecoverCommand:
    """Recover metric depth for one image."""

    def run(self) -> None:
        """Placeholder."""
