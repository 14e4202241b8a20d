"""`scalefield evaluate`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from scalefield.commands.data import DataOptions


@dataclass(frozen=True)
class EvaluateCommand:
    """Measure methods on a dataset; existing results are kept and not computed again."""

    data: Annotated[DataOptions, tyro.conf.arg(name="")]
    out: Path
    """Folder for results.json, images.csv and the frames' files."""
    methods: tuple[str, ...] = ("all",)
    """Rows of the table: NAME, 'NAME(option=value)', module:function, or 'LABEL @low,drop: NAME'
    to name a row and restrict it to anchor regimes; "all" is every method with its defaults."""
    split: Literal["train", "val", "test", "all"] = "test"
    """Split to evaluate."""
    regimes: tuple[Literal["low", "medium", "high"], ...] = ("low", "medium", "high")
    """Anchor regimes: 10–15, 100–120 and 500–530 anchors per image."""
    drop: bool = True
    """Also run the drop-anchor sequence 9, 7, 5, 3, 1."""
    protocol: Literal["omni-dc", "nyu", "void", "kitti-dc"] | None = None
    """Sampling of a public benchmark instead of --regimes and --drop; published rows are printed
    beside the results. omni-dc is for --dataset ibims, diode and eth3d."""
    seed: int = 0
    """Seed of the anchors."""
    shard: str = "0/1"
    """Take every n-th frame from the i-th, as i/n, to share one folder among several machines."""
    overwrite: bool = False
    """Discard results of another configuration in the output folder."""
    gallery: bool = True
    """Keep pictures of each method's worst, median and best image for the report."""

    def run(self) -> None:
        """Evaluate, score and print the table."""
        from scalefield.benchmark.gallery import write_gallery
        from scalefield.benchmark.method_spec import parse_methods
        from scalefield.benchmark.published_rows import protocol_table
        from scalefield.benchmark.report.text import overview
        from scalefield.benchmark.run import Evaluation, Evaluator, run
        from scalefield.benchmark.score import score_files

        data = self.data
        if self.protocol and self.protocol != "omni-dc" and data.dataset == "folder":
            data = dataclasses.replace(data, dataset=self.protocol)
        source = data.source()
        evaluation = Evaluation(
            name=data.data_name,
            dataset=data.dataset,
            split=self.split,
            mde=data.mde_name,
            methods=parse_methods(self.methods),
            regimes=() if self.protocol else self.regimes,
            drop=self.drop and not self.protocol,
            protocol=self.protocol or "",
            seed=self.seed,
            ranges_m=getattr(source.dataset, "ranges_m", {}),
            cached=data.cache is not None,
            source=data.mde_name,
        )
        shard = _parse_shard(self.shard)
        source.check()  # a wrong name fails here, and weights are fetched once
        evaluator = Evaluator(source, evaluation, self.out)
        names = run(
            evaluator,
            workers=data.workers,
            shard=shard,
            limit=data.limit,
            overwrite=self.overwrite,
            progress=True,
        )
        if shard != (0, 1):
            print(f"shard {self.shard} is done; run once more without --shard to score all frames")
            return
        results = score_files(self.out, names)
        if self.gallery:
            write_gallery(evaluator)
        print(protocol_table(results) if self.protocol else overview(results))
        print(f"\n{self.out / 'results.json'}; pictures and tables: scalefield report {self.out}")


def _parse_shard(text: str) -> tuple[int, int]:
    from scalefield.errors import InputError

    try:
        index, count = (int(x) for x in text.split("/"))
    except ValueError:
        raise InputError(f"--shard must be i/n, found {text!r}") from None
    return index, count
