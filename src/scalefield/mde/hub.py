"""Weights by hub id or folder: safetensors only, revisions recorded, no network needed if here."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from scalefield.errors import InputError
from scalefield.io import read_json

WEIGHTS_FILE = "model.safetensors"
FILES = (WEIGHTS_FILE, "config.json", "preprocessor_config.json", "README.md")
"""All that is ever fetched: no pickled weights and no code."""


@dataclass(frozen=True)
class Weights:
    """A folder with `model.safetensors`, and what identifies its content."""

    folder: Path
    revision: str
    """The commit on the hub, or the hash of the file where it came another way."""

    @property
    def file(self) -> Path:
        """The weights themselves."""
        return self.folder / WEIGHTS_FILE

    @property
    def architecture(self) -> str | None:
        """The transformers library's name for it, from config.json; None for all others."""
        config = self.folder / "config.json"
        said = read_json(config) if config.is_file() else {}
        if not isinstance(said, dict):
            raise InputError(f"{config}: not a JSON description of a model")
        return said.get("model_type")

    @property
    def licence(self) -> str:
        """As the model card beside the weights states it; empty where there is none."""
        card = self.folder / "README.md"
        head = card.read_text(errors="replace")[:4000] if card.is_file() else ""
        found = re.match(r"---\n.*?^license:[ \t]*(\S+)", head, re.DOTALL | re.MULTILINE)
        return found[1] if found else ""


def weights_home() -> Path:
    """Where weights that were brought by hand lie, as OWNER/NAME/model.safetensors."""
    return Path(os.environ.get("SCALEFIELD_WEIGHTS", "~/.cache/scalefield/weights")).expanduser()


def weights_here(source: str) -> bool:
    """Whether a folder or `owner/name[@revision]` can be loaded without a network."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    repository, revision = split_revision(source)
    if any((folder / WEIGHTS_FILE).is_file() for folder in _folders(repository)):
        return True
    try:
        cached = try_to_load_from_cache(repository, WEIGHTS_FILE, revision=revision)
    except HFValidationError:  # a folder, then
        return False
    return isinstance(cached, str)


def find_weights(source: str) -> Weights:
    """The weights of a folder or of `owner/name[@revision]`, downloaded if need be.

    A folder under `weights_home` comes first, then the hub, or what is in its cache when it
    cannot be reached or HF_HUB_OFFLINE is set.
    """
    repository, revision = split_revision(source)
    for folder in _folders(repository):
        if (folder / WEIGHTS_FILE).is_file():
            return Weights(folder, _file_hash(folder / WEIGHTS_FILE))
    weights = Weights(Path(repository), "")
    if not weights.folder.is_dir():
        weights = _from_hub(repository, revision)
    if not weights.file.is_file():
        raise InputError(f"{source}: has no {WEIGHTS_FILE}, and pickled weights are not read")
    return weights


def split_revision(source: str) -> tuple[str, str | None]:
    """`owner/name@revision` in its two parts; a folder may have an @ in its name."""
    repository, _, revision = source.rpartition("@")
    if not repository or Path(source).is_dir():
        return source, None
    return repository, revision


def _folders(repository: str) -> tuple[Path, Path]:
    return Path(repository), weights_home() / repository


def _from_hub(repository: str, revision: str | None) -> Weights:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    try:
        folder = Path(snapshot_download(repository, revision=revision, allow_patterns=list(FILES)))
    except HFValidationError:
        raise InputError(f"{repository!r} is neither a folder nor a hub id owner/name") from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, ConnectionError):
        raise InputError(_by_hand(repository, revision, "the hub cannot be reached")) from None
    except (HfHubHTTPError, EntryNotFoundError) as e:
        why = str(e).strip().splitlines()[0]
        raise InputError(_by_hand(repository, revision, f"the hub refused ({why})")) from None
    return Weights(folder, folder.name)


def _by_hand(repository: str, revision: str | None, why: str) -> str:
    url = f"https://huggingface.co/{repository}/resolve/{revision or 'main'}"
    return (
        f"{repository} is not on this machine and {why}; put {url}/{WEIGHTS_FILE} and "
        f"{url}/config.json into {weights_home() / repository}"
    )


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()[:16]
