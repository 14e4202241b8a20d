"""Shipped weights are what was shipped: their hashes stand beside them, in `sha256sum`'s format.

python -m scalefield.io.weights        # writes the hashes anew, after weights were replaced
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from scalefield.errors import InputError
from scalefield.io import read_bytes, write_atomic

WEIGHTS = Path(__file__).parent.parent / "weights"
SUMS = "SHA256SUMS"
HASHED = ("model.safetensors", "config.json")


def verified(folder: Path) -> Path:
    """The folder itself, if it holds what the sums beside it say; folders of others are trusted."""
    if folder.parent != WEIGHTS:
        return folder
    recorded = read_sums(folder.parent)
    for name in HASHED:
        path = folder / name
        if path.is_file() and recorded.get(f"{folder.name}/{name}") != sha256(path):
            raise InputError(
                f"{path} is not the file that was shipped ({SUMS} beside it says otherwise); "
                "install scalefield again, or run `make weights-sums` if you replaced it"
            )
    return folder


def read_sums(folder: Path) -> dict[str, str]:
    """Hash by file name."""
    lines = read_bytes(folder / SUMS).decode().splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def write_sums(folder: Path = WEIGHTS) -> None:
    """Hash everything that is loaded; `sha256sum --check SHA256SUMS` agrees."""
    files = sorted(path for name in HASHED for path in folder.glob(f"*/{name}"))
    lines = [f"{sha256(path)}  {path.parent.name}/{path.name}\n" for path in files]
    write_atomic(folder / SUMS, "".join(lines).encode())


def sha256(path: Path) -> str:
    """The file's hash in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    write_sums()
