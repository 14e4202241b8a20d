"""`scalefield evaluate`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class EvaluateCommand:
    """Measure methods on a dataset; what is already measured is not measured again."""

    root: Path
    """The dataset's folder."""
    mde: str
    """Monocular depth estimator by name, or your own as module:object."""
    out: Path
    """Folder for results.json, images.csv and the frames' files."""
    dataset: Literal["folder", "kitti", "urbansyn", "sunrgbd"] = "folder"
    """The layout of that folder."""
    name: str | None = None
    """How tables call the data; the layout's name if left out."""
    methods: tuple[str, ...] = ("all",)
    """Rows of the table: NAME, 'NAME(option=value)', module:function, or 'LABEL @low,drop: NAME'
    to name a row and restrict it to anchor regimes; "all" is every method with its defaults."""
    split: Literal["train", "val", "test", "all"] = "test"
    """Which frames."""
    regimes: tuple[Literal["low", "medium", "high"], ...] = ("low", "medium", "high")
    """Anchor regimes: 10–15, 100–120 and 500–530 anchors an image."""
    drop: bool = True
    """Also run the drop-anchor sequence 9, 7, 5, 3, 1."""
    seed: int = 0
    """Of the anchors."""
    range: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SOURCE=NEAR,FAR")] = ()
    """Depth ranges in metres of a folder's sources, e.g. kitti=0.1,80 '*=0.1,10'."""
    device: str = "cpu"
    """Where the MDE runs: cpu, cuda, cuda:1, …"""
    cache: Path | None = None
    """Keep the MDE's outputs in this folder, for other runs with the same images."""
    workers: int = os.cpu_count() or 1
    """Processes."""
    shard: str = "0/1"
    """Take only every n-th frame, from the i-th: i/n, for several machines on one folder."""
    limit: int | None = None
    """Take only so many frames, spread over the split."""
    overwrite: bool = False
    """Discard what another configuration left in the output folder."""
    gallery: bool = True
    """Keep pictures of each method's worst, median and best image for the report."""

    def run(self) -> None:
        """Both loops; prints the table."""
        from scalefield.datasets import open_dataset
        from scalefield.evaluation import Evaluation, Evaluator, parse_methods, run
        from scalefield.gallery import write_gallery
        from scalefield.report.text import overview
        from scalefield.scoring import score_files

        # As for `python -m`: your own module:function is found beside you, by the workers too.
        sys.path.insert(0, str(Path.cwd()))
        ranges_m = dict(parse_range(text) for text in self.range)
        dataset = open_dataset(self.dataset, self.root, ranges_m)
        evaluation = Evaluation(
            name=self.name or self.dataset,
            dataset=self.dataset,
            split=self.split,
            mde=_display_name(self.mde),
            methods=parse_methods(self.methods),
            regimes=self.regimes,
            drop=self.drop,
            seed=self.seed,
            ranges_m=ranges_m,
            cached=self.cache is not None,
        )
        evaluator = Evaluator(dataset, evaluation, self.out, self.mde, self.device, self.cache)
        shard = _parse_shard(self.shard)
        names = run(
            evaluator,
            workers=self.workers,
            shard=shard,
            limit=self.limit,
            overwrite=self.overwrite,
            progress=True,
        )
        if shard != (0, 1):
            print(f"shard {self.shard} is done; run once more without --shard to score all frames")
            return
        results = score_files(self.out, names)
        if self.gallery:
            write_gallery(evaluator)
        print(overview(results))
        print(f"\n{self.out / 'results.json'}; pictures and tables: scalefield report {self.out}")


def _display_name(mde: str) -> str:
    """A file goes by its stem: where it lies is nobody's business."""
    return Path(mde).stem if Path(mde).suffix in (".onnx", ".json") or Path(mde).is_dir() else mde


def parse_range(text: str) -> tuple[str, tuple[float, float]]:
    """A source and its depth range, from SOURCE=NEAR,FAR."""
    from scalefield.errors import InputError

    source, _, limits = text.rpartition("=")
    try:
        nearest, farthest = (float(x) for x in limits.split(","))
    except ValueError:
        raise InputError(f"--range wants SOURCE=NEAR,FAR in metres, found {text!r}") from None
    return source, (nearest, farthest)


def _parse_shard(text: str) -> tuple[int, int]:
    from scalefield.errors import InputError

    try:
        index, count = (int(x) for x in text.split("/"))
    except ValueError:
        raise InputError(f"--shard wants i/n, found {text!r}") from None
    return index, count
