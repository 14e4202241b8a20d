"""Weights by hub id, folder or published file; revisions recorded, no network needed if here.

Safetensors are loaded as they are. Where a repository has none, its `pytorch_model.bin`, or a
release file of MiDaS or Depth Anything, is converted once into `weights_home()/converted`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from scalefield.errors import InputError
from scalefield.io import read_json, write_atomic
from scalefield.io.weights import sha256
from scalefield.mde.published import RELEASE_SUFFIXES, convert_pickle, convert_release

WEIGHTS_FILE = "model.safetensors"
PICKLED_FILE = "pytorch_model.bin"
"""Fetched and converted only where there is no `WEIGHTS_FILE`."""
FILES = (WEIGHTS_FILE, "config.json", "preprocessor_config.json", "README.md")
"""All that is fetched at first: no pickled weights and no code."""


class WeightsNotFound(InputError):
    """Weights that are not on this machine and cannot be fetched."""


@dataclass(frozen=True)
class Weights:
    """A folder with `model.safetensors`, and what identifies the published file."""

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
        content = read_json(config) if config.is_file() else {}
        if not isinstance(content, dict):
            raise InputError(f"{config}: not a JSON description of a model")
        return content.get("model_type")

    @property
    def licence(self) -> str:
        """Licence that the model card beside the weights states; empty without a card."""
        card = self.folder / "README.md"
        head = card.read_text(errors="replace")[:4000] if card.is_file() else ""
        found = re.match(r"---\n.*?^license:[ \t]*(\S+)", head, re.DOTALL | re.MULTILINE)
        return found[1] if found else ""


def weights_home() -> Path:
    """Folder of weights that were brought by hand, as OWNER/NAME/model.safetensors (or another
    published file), and of pickled ones after conversion."""
    return Path(os.environ.get("SCALEFIELD_WEIGHTS", "~/.cache/scalefield/weights")).expanduser()


def weights_here(source: str) -> bool:
    """Whether a folder or `owner/name[@revision]` can be loaded without a network."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    repository, revision = split_revision(source)
    if any(_published_file(folder) is not None for folder in _folders(repository)):
        return True
    try:
        cached = [
            try_to_load_from_cache(repository, file, revision=revision)
            for file in (WEIGHTS_FILE, PICKLED_FILE)
        ]
    except HFValidationError:  # a folder, then
        return False
    return any(isinstance(file, str) for file in cached)


def find_weights(source: str) -> Weights:
    """The weights of a folder, a published file or `owner/name[@revision]`, fetched if need be.

    A folder under `weights_home` comes first, then the hub, or what is in its cache when it
    cannot be reached or HF_HUB_OFFLINE is set. Pickled files are converted; see `published`.
    """
    repository, revision = split_revision(source)
    if Path(repository).is_file():
        return _of_file(Path(repository))
    for folder in _folders(repository):
        file = _published_file(folder)
        if file is not None:
            return _of_file(file)
    if Path(repository).is_dir():
        raise InputError(
            f"{source}: has no {WEIGHTS_FILE}, no {PICKLED_FILE} with its config.json, and no "
            "release file of MiDaS or Depth Anything"
        )
    weights = _from_hub(repository, revision, FILES)
    if weights.file.is_file():
        return weights
    weights = _from_hub(repository, revision, (*FILES, PICKLED_FILE))
    file = _published_file(weights.folder)
    if file is None:
        raise InputError(f"{source}: the repository has neither {WEIGHTS_FILE} nor {PICKLED_FILE}")
    return Weights(_of_file(file).folder, weights.revision)


def _published_file(folder: Path) -> Path | None:
    """The file of weights to take from a folder: safetensors, else pickled, else a release."""
    if (folder / WEIGHTS_FILE).is_file():
        return folder / WEIGHTS_FILE
    if (folder / PICKLED_FILE).is_file() and (folder / "config.json").is_file():
        return folder / PICKLED_FILE
    if not folder.is_dir():
        return None
    releases = [p for p in sorted(folder.iterdir()) if p.suffix in RELEASE_SUFFIXES]
    return releases[0] if len(releases) == 1 else None


def _of_file(file: Path) -> Weights:
    """The weights of one file; a pickled one is converted where that has not been done yet."""
    revision = f"sha256:{sha256(file)[:16]}"
    if file.name == WEIGHTS_FILE:
        return Weights(file.parent, revision)
    converted = weights_home() / "converted" / f"{file.stem}-{revision.partition(':')[2]}"
    if not (converted / WEIGHTS_FILE).is_file():
        if file.name == PICKLED_FILE:
            config = file.parent / "config.json"
            if not config.is_file():
                raise InputError(f"{file}: no config.json beside it describes the network")
            convert_pickle(file, config, converted)
            for beside in ("preprocessor_config.json", "README.md"):
                if (file.parent / beside).is_file():
                    write_atomic(converted / beside, (file.parent / beside).read_bytes())
        elif file.suffix in RELEASE_SUFFIXES:
            convert_release(file, converted)
        else:
            raise InputError(
                f"{file}: wanted {WEIGHTS_FILE}, {PICKLED_FILE} or a release file (.pt, .pth)"
            )
    return Weights(converted, revision)


def split_revision(source: str) -> tuple[str, str | None]:
    """`owner/name@revision` in its two parts; a folder may have an @ in its name."""
    repository, _, revision = source.rpartition("@")
    if not repository or Path(source).is_dir():
        return source, None
    return repository, revision


def _folders(repository: str) -> tuple[Path, Path]:
    return Path(repository), weights_home() / repository


def _from_hub(repository: str, revision: str | None, files: tuple[str, ...]) -> Weights:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    try:
        folder = Path(snapshot_download(repository, revision=revision, allow_patterns=list(files)))
    except HFValidationError:
        raise InputError(f"{repository!r} is neither a folder nor a hub id owner/name") from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, ConnectionError):
        raise WeightsNotFound(_by_hand(repository, revision, "the hub cannot be reached")) from None
    except (HfHubHTTPError, EntryNotFoundError) as e:
        why = str(e).strip().splitlines()[0]
        raise WeightsNotFound(_by_hand(repository, revision, f"the hub refused ({why})")) from None
    return Weights(folder, folder.name)


def _by_hand(repository: str, revision: str | None, why: str) -> str:
    url = f"https://huggingface.co/{repository}/resolve/{revision or 'main'}"
    return (
        f"{repository} is not on this machine and {why}; put {url}/{WEIGHTS_FILE} (or "
        f"{PICKLED_FILE}) and {url}/config.json into {weights_home() / repository}"
    )
