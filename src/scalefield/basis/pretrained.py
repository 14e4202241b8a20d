"""Loading generators by name, folder or Hugging Face hub id, and uploading them with a model
card."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from scalefield.basis.generator import Generator
from scalefield.errors import InputError, did_you_mean
from scalefield.io import write_atomic
from scalefield.io.weights import find_shipped, shipped
from scalefield.mde.hub import find_weights

CARD = """---
license: {licence}
library_name: scalefield
pipeline_tag: depth-estimation
tags: [depth-estimation, metric-depth, scalefield]
---

# {name}

{summary}

```python
import scalefield as sf

anchors = sf.Anchors.read("anchors.csv")
r = sf.recover("photo.jpg", anchors, method="{method}", {option}="{repository}")
```

{about}

## Data

{data}

## Figures

{figures}
"""


@dataclass(frozen=True)
class Card:
    """The model card of uploaded weights; every field is required."""

    summary: str
    """Purpose of the weights, in a sentence or two."""
    data: str
    """Training data, with its licence terms."""
    licence: str
    """Name of the licence on the hub, such as apache-2.0, cc-by-nc-4.0 or other."""
    figures: Mapping[str, Mapping[str, float]]
    """Measured results: metrics by row, e.g. {"kitti, 100 anchors": {"AbsRel": 0.06}}."""

    def __post_init__(self) -> None:
        for name in ("summary", "data", "licence", "figures"):
            if not getattr(self, name):
                raise InputError(f"a model card must state its {name}")

    def markdown(self, repository: str, *, method: str, option: str, about: str) -> str:
        """The card as the hub's README.md, for weights that are this option of a method."""
        return CARD.format(
            licence=self.licence,
            name=repository.rpartition("/")[2],
            summary=self.summary,
            repository=repository,
            method=method,
            option=option,
            about=about,
            data=self.data,
            figures=_table(self.figures),
        )


@runtime_checkable
class Savable(Protocol):
    """A model that can write its weights and configuration to a folder."""

    def save(self, folder: str | Path) -> None:
        """Write the files."""


@lru_cache(maxsize=64)  # a table may have a row for each of dozens
def load_generator(name: str | Path, device: torch.device | str = "cpu") -> Generator:
    """A generator by shipped name, folder or hub id `owner/name[@revision]`, on that device."""
    folder = find_shipped(name)
    if folder is not None:
        return Generator.load(folder).to(device)
    if not Path(name).is_dir() and str(name).count("/") != 1:
        names = shipped("basis-")
        raise InputError(
            f"no generator {str(name)!r}; there are {', '.join(names)}, folders with "
            f"model.safetensors, and hub ids owner/name{did_you_mean(name, names)}"
        )
    return from_pretrained(str(name)).to(device)


def from_pretrained(source: str) -> Generator:
    """The generator of a hub id `owner/name[@revision]` or of a folder, ready for inference.

    Only safetensors and JSON are read. Weights in the hub's cache need no network.
    """
    return Generator.load(find_weights(source).folder)


def push_to_hub(
    generator: Generator,
    repository: str,
    card: Card,
    *,
    private: bool | None = None,
    message: str = "Upload a basis map generator",
) -> str:
    """Upload weights, configuration and card in one commit; returns its address.

    huggingface_hub provides the login (`hf auth login`).
    """
    channels = generator.config.used_channels
    uses = f"with F of {channels} channels" if channels else "without features (F = 0)"
    about = (
        f"K = {generator.config.k} basis maps, {generator.parameter_count:,} parameters, {uses}."
    )
    text = card.markdown(repository, method="basis", option="generator", about=about)
    return upload(generator, repository, text, private=private, message=message)


def upload(
    model: Savable, repository: str, card: str, *, private: bool | None, message: str
) -> str:
    """Upload a model and its card in one commit; returns its address."""
    from huggingface_hub import HfApi

    api = HfApi()
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        write_atomic(Path(folder, "README.md"), card.encode())
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
    return str(commit.commit_url)


def _table(figures: Mapping[str, Mapping[str, float]]) -> str:
    columns = list(dict.fromkeys(name for row in figures.values() for name in row))
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for label, row in figures.items():
        cells = (f"{row[name]:.4g}" if name in row else "–" for name in columns)
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
