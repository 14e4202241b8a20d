"""Frames of a dataset together with an estimator's output for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scalefield.datasets.frame import Dataset, Frame
from scalefield.datasets.splits import thin
from scalefield.mde import MDE, MDEOutput, open_mde


@dataclass(frozen=True, eq=False)
class FrameSource:
    """A dataset and an estimator. The estimator is loaded once per process, when first used."""

    dataset: Dataset
    """Reader of the frames."""
    estimator: MDE | str
    """The estimator, or a name that `open_mde` accepts."""
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
        return frame, self.mde(frame.image)
