"""Estimators that predict training frames out of sample, by the scenes they were trained on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalefield.errors import InputError
from scalefield.io import read_json
from scalefield.io.weights import WEIGHTS
from scalefield.mde import MDE, open_mde
from scalefield.mde.affine import Normalisation


@dataclass(frozen=True, eq=False)
class CrossFit:
    """Models of one kind, each trained without some places: every frame gets one not trained on it.

    On its own training frames an MDE is far better than anywhere else, and a generator trained
    there learns to correct errors that it will not meet.
    """

    models: tuple[tuple[MDE, frozenset[str]], ...]
    """Each MDE with the scenes that it was trained on."""

    def for_scene(self, scene: str) -> MDE:
        """The first model that was not trained on the scene."""
        for mde, scenes in self.models:
            if scene not in scenes:
                return mde
        raise InputError(
            f"every one of the {len(self.models)} MDEs was trained on the scene {scene!r}, and a "
            "generator must be trained out of sample; cross-fit the MDE with --folds"
        )


def open_cross_fit(
    name: str,
    folders: Sequence[Path],
    device: str,
    cache: Path | None = None,
    *,
    in_sample: bool = False,
) -> tuple[MDE, CrossFit]:
    """An MDE, and the models that predict its training frames.

    These are the models of `folders`, or the MDE itself if there are none. `in_sample` lets the MDE
    predict frames that it was trained on.
    """
    mde = open_mde(name, device, cache)
    inner = Normalisation.split(name)[1]
    prefix = name.removesuffix(inner)
    folds = [
        (open_mde(f"{prefix}{folder}", device, cache), trained_on(folder)) for folder in folders
    ]
    return mde, CrossFit(tuple(folds or [(mde, frozenset() if in_sample else known_scenes(inner))]))


def known_scenes(name: str) -> frozenset[str]:
    """Scenes on which an MDE is known to have been trained; none for a published MDE."""
    folder = WEIGHTS / name if (WEIGHTS / name).is_dir() else Path(name)
    file = folder / "config.json"
    if not file.is_file() or "trained_on" not in read_json(file):
        return frozenset()
    return trained_on(folder)


def trained_on(folder: Path) -> frozenset[str]:
    """Scenes on which a model was trained."""
    try:
        return frozenset(json.loads((Path(folder) / "config.json").read_text())["trained_on"])
    except (OSError, ValueError, KeyError) as e:
        raise InputError(
            f"{folder}: config.json does not state what it was trained on ({e})"
        ) from None
