"""`scalefield models`."""

from __future__ import annotations

from dataclasses import dataclass

RECOMMENDED = {
    "dav2-small": "for real work (pip install 'scalefield[mde]'; fetched once)",
    "lite": "the default: small, in this package, needs no network",
}
"""Estimators to begin with, by purpose."""


@dataclass(frozen=True)
class ModelsCommand:
    """List the depth estimators: size, kind, features, licences, and whether their weights are on
    this machine. Recommended ones are marked."""

    def run(self) -> None:
        """Print the table; `here` means that no download is needed."""
        from scalefield.io.weights import WEIGHTS
        from scalefield.mde import MODELS
        from scalefield.mde.hub import weights_here

        head = ("name", "size", "kind", "F", "code", "weights", "loaded from", "here")
        rows = [
            (
                f"{name} *" if name in RECOMMENDED else name,
                f"{card.parameters_m} M",
                f"affine {card.kind}" if card.affine else card.kind,
                f"{card.feature_channels or '–'}",
                card.code_licence,
                card.weights_licence,
                card.source or "this package",
                "yes" if weights_here(card.source or str(WEIGHTS / name)) else "no",
            )
            for name, card in MODELS.items()
        ]
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        for row in (head, *rows):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print("  ".join(cells).rstrip())
        marked = "\n".join(f"* {name}: {purpose}" for name, purpose in RECOMMENDED.items())
        print(f"\n{marked}")
        print("\nAlso: any hub id owner/name[@revision], a folder, an .onnx file with its .json.")
