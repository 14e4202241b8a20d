"""Origin of a result: commit, versions and machine, stored in every result and run."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path

from scalefield.defaults import VERSION

PACKAGES = ("torch", "numpy", "scipy", "pillow", "safetensors")


def provenance() -> dict[str, object]:
    """The commit of the source tree (None outside one), versions and the kind of device."""
    import torch

    versions = {name: metadata.version(name) for name in PACKAGES}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return {
        "scalefield": VERSION,
        "commit": commit(),
        "python": platform.python_version(),
        "versions": versions,
        "device": device,
    }


def commit() -> str | None:
    """The checked-out commit, with "+" where tracked files differ from it."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "HEAD")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed else "")


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()
