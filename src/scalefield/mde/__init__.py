"""Monocular depth estimators (MDEs) behind one small protocol, by name."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from scalefield.errors import InputError
from scalefield.io import read_json
from scalefield.io.weights import WEIGHTS
from scalefield.mde.hub import Weights, find_weights, split_revision
from scalefield.mde.output import Kind, MDEOutput
from scalefield.runtime.devices import check_device
from scalefield.validation import import_object


@runtime_checkable
class MDE(Protocol):
    """A frozen depth estimator: an RGB image of any size in, `MDEOutput` of that size out.

    An estimator that can be cached also has a `revision`, which names its weights, and may have
    `options`, its preprocessing. A `BatchMDE` takes several images of one size at once.
    """

    @property
    def name(self) -> str:
        """Name of the estimator in reports, records and cache keys."""
        ...

    def __call__(self, image: UInt8[np.ndarray, "h w 3"]) -> MDEOutput:
        """Relative depth and features of one image."""
        ...


@runtime_checkable
class BatchMDE(MDE, Protocol):
    """An MDE that computes several images of one size together."""

    def batch(self, images: Sequence[UInt8[np.ndarray, "h w 3"]]) -> list[MDEOutput]:
        """Relative depth and features of images of one size."""
        ...


def estimate_batch(mde: MDE, images: Sequence[UInt8[np.ndarray, "h w 3"]]) -> list[MDEOutput]:
    """The outputs for images of one size, together if the estimator can."""
    if isinstance(mde, BatchMDE):
        return mde.batch(images)
    return [mde(image) for image in images]


class NonCommercialWarning(UserWarning):
    """The weights being loaded may not be used commercially."""


@dataclass(frozen=True)
class ModelCard:
    """Facts about an MDE: licence, size, kind of output."""

    source: str
    """Hub id of the weights; empty if they are in this package."""
    parameters_m: int
    """Parameters that are run, in millions."""
    kind: Kind
    """Whether the model gives depth or disparity."""
    feature_channels: int | None
    """Channels of F; None where the model gives no F."""
    weights_licence: str
    loader: Literal["lite", "da3", "transformers"] = "transformers"
    """Key of `LOADERS`."""
    code_licence: str = "Apache-2.0"
    known_shift: bool = False
    """Whether the disparity of the model has a known zero. Depth always has one here."""
    metric: bool = False
    """Whether the depth of the model is roughly in metres. Recovery does not use it; the check of
    the unit of the anchors does."""

    @property
    def affine(self) -> bool:
        """Whether the shift of its output is unknown, as in `MDEOutput`."""
        return self.kind == "disparity" and not self.known_shift


MODELS: dict[str, ModelCard] = {
    "lite": ModelCard("", 4, "depth", 64, "Apache-2.0", "lite", metric=True),
    "da3-small": ModelCard("depth-anything/DA3-SMALL", 25, "depth", 64, "Apache-2.0", "da3"),
    "da3-base": ModelCard("depth-anything/DA3-BASE", 98, "depth", 128, "Apache-2.0", "da3"),
    # 1.1 is retrained after a bug was found; its authors deprecate the first.
    "da3-large": ModelCard(
        "depth-anything/DA3-LARGE-1.1", 337, "depth", 256, "CC BY-NC 4.0", "da3"
    ),
    "da3-mono": ModelCard("depth-anything/DA3MONO-LARGE", 334, "depth", 256, "Apache-2.0", "da3"),
    "da3-metric": ModelCard(
        "depth-anything/DA3METRIC-LARGE", 334, "depth", 256, "Apache-2.0", "da3"
    ),
    "midas-hybrid": ModelCard("Intel/dpt-hybrid-midas", 122, "disparity", 256, "Apache-2.0"),
    "midas-large": ModelCard("Intel/dpt-large", 343, "disparity", 256, "Apache-2.0"),
    "dav1-small": ModelCard("LiheYoung/depth-anything-small-hf", 25, "disparity", 64, "Apache-2.0"),
    "dav1-base": ModelCard("LiheYoung/depth-anything-base-hf", 97, "disparity", 128, "Apache-2.0"),
    "dav1-large": ModelCard(
        "LiheYoung/depth-anything-large-hf", 335, "disparity", 256, "Apache-2.0"
    ),
    "dav2-small": ModelCard(
        "depth-anything/Depth-Anything-V2-Small-hf", 25, "disparity", 64, "Apache-2.0"
    ),
    "dav2-base": ModelCard(
        "depth-anything/Depth-Anything-V2-Base-hf", 97, "disparity", 128, "CC BY-NC 4.0"
    ),
    "dav2-large": ModelCard(
        "depth-anything/Depth-Anything-V2-Large-hf", 335, "disparity", 256, "CC BY-NC 4.0"
    ),
    "depth-pro": ModelCard(
        "apple/DepthPro-hf", 952, "disparity", None, "Apple AMLR (research)", known_shift=True
    ),
    "zoedepth": ModelCard("Intel/zoedepth-nyu-kitti", 346, "depth", 256, "MIT", metric=True),
    "glpn-nyu": ModelCard("vinvino02/glpn-nyu", 61, "depth", None, "Apache-2.0", metric=True),
    "glpn-kitti": ModelCard("vinvino02/glpn-kitti", 61, "depth", None, "Apache-2.0", metric=True),
}


STORED = "stored"
"""Name in place of an estimator's for predictions that come with the frames of a dataset."""

ALIASES = {"midas-dpt-hybrid": "midas-hybrid", "midas-dpt-large": "midas-large"}
"""Other names of the same models."""
OTHERS = {
    "moge": ("MoGe", "--kind depth"),
    "unidepth": ("UniDepth", "--kind depth"),
    "metric3d": ("Metric3D", "--kind depth"),
    "marigold": ("Marigold", "--kind depth --affine yes"),
}
"""Estimators that only their own packages run, by the beginning of their names: title, and the
flags of their maps."""


def _load_lite(name: str, weights: Weights, device: str, kind: Kind | None) -> MDE:
    from scalefield.mde.lite import load_lite

    return load_lite(weights.folder, device)


def _load_onnx(name: str, weights: Weights, device: str, kind: Kind | None) -> MDE:
    from scalefield.mde.onnx_mde import load_onnx

    return load_onnx(weights.folder, device=device)


def _load_da3(name: str, weights: Weights, device: str, kind: Kind | None) -> MDE:
    from scalefield.mde.da3 import load_da3

    return load_da3(name, weights.file, weights.revision, device)


def _load_transformers(name: str, weights: Weights, device: str, kind: Kind | None) -> MDE:
    from scalefield.mde.transformers_mde import load_transformers

    return load_transformers(name, weights.folder, weights.revision, device, kind)


LOADERS: dict[str, Callable[[str, Weights, str, Kind | None], MDE]] = {
    "lite": _load_lite,
    "onnx": _load_onnx,
    "da3": _load_da3,
    "transformers": _load_transformers,
}
"""Functions that make an estimator of its name, weights, device and kind; each imports its module
when it is called."""


def load_mde(name: str, *, device: str = "cpu", kind: Kind | None = None) -> MDE:
    """The estimator of that name.

    A name of `MODELS` or a hub id `owner/name`, each with `@revision` if it is to be pinned; a
    folder with model.safetensors; a release file of MiDaS or Depth Anything (.pt, .pth); an ONNX
    file or its description (see `onnx_mde`). `kind` is for models whose architecture does not
    determine whether they give depth or disparity. `affine:NAME` is the estimator NAME whose output
    is normalised to affine-invariant disparity, `affine8:NAME` the same in 8 bits, `median:NAME`
    with D divided by its median (see `affine`).
    """
    from scalefield.mde.affine import AffineMDE, Normalisation

    check_device(device)
    normalisation, inner = Normalisation.split(name)
    if normalisation is not None:
        return AffineMDE(load_mde(inner, device=device, kind=kind), normalisation)
    if name == STORED:
        raise InputError(
            f"{STORED!r} stands for predictions that come with the frames of a dataset; it is for "
            "`scalefield evaluate` and `diagnose` with --dataset predictions"
        )
    short, revision = split_revision(name)
    short = ALIASES.get(short, short)
    card = MODELS.get(short)
    if card is None:
        loader, weights = _find(name)
        path = Path(short)
        label = path.stem if path.is_file() else path.name if path.is_dir() else short
        licence = weights.licence
    else:
        pinned = f"{card.source}@{revision}" if revision else card.source
        weights = find_weights(pinned) if card.source else Weights(WEIGHTS / short, "")
        loader, label, licence = card.loader, short, weights.licence or card.weights_licence
    _warn_of_licence(name, licence)
    return LOADERS[loader](label, weights, device, kind)


def _find(name: str) -> tuple[str, Weights]:
    """The loader and the weights of a file, a folder or a hub id."""
    path = Path(name)
    if path.suffix in (".onnx", ".json"):
        return "onnx", Weights(path, "")
    if (path / "config.json").is_file():
        content = read_json(path / "config.json")
        if isinstance(content, dict) and "trained_on" in content:  # by `scalefield train-mde`
            return "lite", Weights(path, "")
    if "/" not in name and not (name and path.exists()):
        for beginning, (title, flags) in OTHERS.items():
            if name.lower().startswith(beginning):
                raise InputError(
                    f"{title} runs in its own package, not here: give its map as --depth FILE "
                    f"{flags}, or wrap it as --mde module:object (docs/benchmark.md)"
                )
        raise InputError(
            f"no MDE {name!r}; there are {', '.join(MODELS)}, hub ids owner/name, folders with "
            f"model.safetensors, published .pt and .pth files, and .onnx files{_nearest(name)}"
        )
    weights = find_weights(name)
    return "da3" if weights.architecture is None else "transformers", weights


def _nearest(name: str) -> str:
    """The end of a message about an unknown name: "; did you mean lite?", or nothing.

    A model is also found by the name of its repository on the hub.
    """
    spellings = {card.source.rpartition("/")[2].lower(): name for name, card in MODELS.items()}
    spellings |= {name: name for name in MODELS} | ALIASES
    spelling = name.lower()
    near = [spelling] if spelling in spellings else get_close_matches(spelling, spellings, n=3)
    models = dict.fromkeys(spellings[each] for each in near)
    return f"; did you mean {' or '.join(models)}?" if models else ""


def open_mde(source: MDE | str, device: str = "cpu", cache: Path | None = None) -> MDE:
    """An estimator given as an object, by a name of `load_mde` or by an import path.

    With `cache`, its outputs are kept in that folder.
    """
    loaded = source
    if isinstance(loaded, str):
        from scalefield.mde.affine import AffineMDE, Normalisation

        normalisation, inner = Normalisation.split(loaded)
        if normalisation is not None:  # what is kept is the output before it
            return AffineMDE(open_mde(inner, device, cache), normalisation)
        by_path = ":" in loaded
        loaded = import_object(loaded) if by_path else load_mde(loaded, device=device)
    if cache is None:
        return loaded
    from scalefield.mde.cache import MDECache

    return MDECache(cache, loaded)


def _warn_of_licence(name: str, licence: str) -> None:
    if re.search(r"\bnc\b|non-?commercial|research|amlr", licence, re.IGNORECASE):
        message = f"the weights of {name} are licensed for non-commercial use only: {licence}"
        warnings.warn(message, NonCommercialWarning, stacklevel=3)
