"""Frames of a dataset together with an estimator's output for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scalefield.datasets.frame import Dataset, Frame
from scalefield.datasets.splits import thin
from scalefield.errors import InputError
from scalefield.mde import MDE, STORED, MDEOutput, open_mde
from scalefield.mde.affine import Normalisation
from scalefield.mde.own_maps import RelativeDepth


@dataclass(frozen=True, eq=False)
class FrameSource:
    """A dataset and an estimator. The estimator is loaded once per process, when first used."""

    dataset: Dataset
    """Reader of the frames."""
    estimator: MDE | str
    """The estimator, `OwnMaps` by the frames' names, or a name that `open_mde` accepts; "stored"
    takes the predictions that come with the frames, "affine:stored" takes them as affine-invariant
    disparity."""
    device: str = "cpu"
    """Device of an estimator given by name."""
    cache: Path | None = None
    """Folder that keeps the estimator's outputs; None keeps nothing."""

    @cached_property
    def mde(self) -> MDE:
        """The loaded estimator."""
        return open_mde(self.estimator, self.device, self.cache)

    def names(self, *splits: str, limit: int | None = None) -> list[str]:
        """Names of the frames of these splits, each once; `limit` takes evenly spaced ones."""
        names = list(dict.fromkeys(n for split in splits for n in self.dataset.names(split)))
        return names if limit is None else thin(names, limit)

    def load(self, name: str) -> tuple[Frame, MDEOutput]:
        """A frame and the estimator's output for its image."""
        frame = self.dataset.load(name)
        return frame, self.output(frame)

    def output(self, frame: Frame) -> MDEOutput:
        """The estimator's output for a frame: computed, or the one that came with the frame."""
        normalisation, stored = self._stored
        if not stored:
            return RelativeDepth(self.mde)(frame.image, frame.name)
        if frame.mde_output is None:
            raise InputError(
                f"{frame.name}: the frame comes without a prediction, which the estimator "
                f"{STORED!r} stands for; use --dataset predictions, or the name of an estimator"
            )
        return frame.mde_output if normalisation is None else normalisation(frame.mde_output)

    def check(self) -> None:
        """Raise InputError if the estimator cannot be opened; its weights are fetched."""
        if not self._stored[1]:
            open_mde(self.estimator, self.device)

    @property
    def _stored(self) -> tuple[Normalisation | None, bool]:
        """The normalisation of stored predictions, and whether they are asked for."""
        if not isinstance(self.estimator, str):
            return None, False
        normalisation, name = Normalisation.split(self.estimator)
        return normalisation, name == STORED
