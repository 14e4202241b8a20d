"""The training of one generator of a reproduction, in this process or in one of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scalefield.basis.generator import Generator
from scalefield.io import write_json
from scalefield.training.basis import train_basis
from scalefield.training.basis_config import BasisTraining
from scalefield.training.loop import pick_device
from scalefield.training.prepared import PreparedFrames
from scalefield.training.resident import ResidentFrames

FINISHED = "finished.json"
"""Written into a run's folder when its training has ended."""


@dataclass(frozen=True, eq=False)
class TrainingTask:
    """One generator to be trained."""

    config: BasisTraining
    out: Path
    start: Path | None
    """The generator to fine-tune."""
    train: PreparedFrames
    val: PreparedFrames
    device: str
    workers: int
    source: str
    frames_on_device: bool = False
    picture: bool = True
    show_progress: bool = True

    def run(self) -> None:
        """Train to the end, and record that in the folder of the run."""
        device = pick_device(self.device)
        train, val = (
            ResidentFrames.of(frames, device) if self.frames_on_device else frames
            for frames in (self.train, self.val)
        )
        train_basis(
            self.config,
            train,
            val,
            self.out,
            device=self.device,
            start_from=None if self.start is None else Generator.load(self.start),
            workers=self.workers,
            picture=self.picture,
            source=self.source,
            show_progress=self.show_progress,
        )
        write_json(self.out / FINISHED, {"epochs": self.config.epochs})
