"""The weights that come with the package, and the check that they are the ones shipped.

Each model is a folder of `WEIGHTS` with model.safetensors and config.json. Their hashes lie beside
the folders in SHA256SUMS, in the format of `sha256sum`.

python -m scalefield.io.weights        # writes the hashes again after weights were replaced
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from scalefield.errors import InputError
from scalefield.io.disk import read_bytes, write_atomic

WEIGHTS = Path(__file__).parent.parent / "weights"
"""One folder for each shipped model."""
SUMS = "SHA256SUMS"
"""Name of the file of hashes in `WEIGHTS`."""
HASHED = ("model.safetensors", "config.json")
"""Files of a model that are hashed."""


def shipped(prefix: str = "") -> list[str]:
    """Names of the shipped models that begin with `prefix`, sorted."""
    return sorted(path.parent.name for path in WEIGHTS.glob(f"{prefix}*/config.json"))


def find_shipped(name: str | Path) -> Path | None:
    """The folder of a shipped model, with its hashes verified; None for any other name."""
    folder = WEIGHTS / name
    return verify_checksums(folder) if folder.is_dir() else None


def verify_checksums(folder: Path) -> Path:
    """The folder, after comparing its files with SHA256SUMS if it is a shipped one.

    Folders outside `WEIGHTS` are not compared with anything.
    """
    if folder.parent != WEIGHTS:
        return folder
    recorded = read_sums(folder.parent)
    for name in HASHED:
        path = folder / name
        if path.is_file() and recorded.get(f"{folder.name}/{name}") != sha256(path):
            raise InputError(
                f"{path} differs from the file that was shipped (its hash is not the one in "
                f"{SUMS}); install scalefield again, or run `make weights-sums` if you replaced it"
            )
    return folder


def read_sums(folder: Path) -> dict[str, str]:
    """The recorded hashes by file name."""
    lines = read_bytes(folder / SUMS).decode().splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def write_sums(folder: Path | None = None) -> None:
    """Record the hashes of all models in a folder, by default in `WEIGHTS`."""
    folder = WEIGHTS if folder is None else folder
    files = sorted(path for name in HASHED for path in folder.glob(f"*/{name}"))
    lines = [f"{sha256(path)}  {path.parent.name}/{path.name}\n" for path in files]
    write_atomic(folder / SUMS, "".join(lines).encode())


def sha256(path: Path) -> str:
    """The file's hash in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    write_sums()
