"""`scalefield diagnose`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro

from scalefield.commands.data import DataOptions, check_counts


@dataclass(frozen=True)
class DiagnoseCommand:
    """Analyse the bias of an MDE on a dataset.

    The squared log error is split into parts: one number per image, a function of depth, a function
    of the position, regions, and finer structure. Writes diagnosis.html, diagnosis.json and
    images.csv.
    """

    data: Annotated[DataOptions, tyro.conf.arg(name="")]
    out: Path
    """Output folder."""
    splits: tuple[Literal["train", "val", "test", "all"], ...] = ("val", "test")
    """Splits to analyse."""
    pictures: bool = True
    """Show the parts of the error of the worst, median and best frame. The page then contains
    images of the dataset: check its licence."""

    def run(self) -> None:
        """Write the results and print a summary."""
        from scalefield.benchmark.diagnosis import ImageDiagnosis, diagnose_frame
        from scalefield.benchmark.diagnosis_summary import collect, write_images
        from scalefield.benchmark.report.advice import overview
        from scalefield.benchmark.report.diagnosis_page import ranked, take_apart, write_page
        from scalefield.benchmark.score import readable
        from scalefield.errors import require_package
        from scalefield.io import write_atomic
        from scalefield.runtime.progress import progress
        from scalefield.runtime.workers import map_frames

        data = self.data
        check_counts(data, "workers", "limit")
        require_package("matplotlib", "plot", "drawing the figures of a diagnosis")
        source = data.source()
        names = source.names(*self.splits, limit=data.limit)
        work = partial(diagnose_frame, source)
        results: dict[str, ImageDiagnosis | str] = {}
        with progress(len(names), unit="frame") as bar:
            for name, result in map_frames(work, names, data.workers):
                results[name] = result
                bar.update()
        config = {
            "name": data.data_name,
            "dataset": data.dataset,
            "splits": list(self.splits),
            "mde": data.mde_name,
            "limit": data.limit,
            "ranges_m": data.ranges_m,
        }
        diagnosis = collect(results, config)
        write_atomic(self.out / "diagnosis.json", readable(diagnosis).encode())
        write_images(self.out / "images.csv", diagnosis["images"])
        shown = ranked(diagnosis) if self.pictures else {}
        frames = ((rank, *source.load(name)) for rank, name in shown.items())
        pictures = [take_apart(frame, output, rank) for rank, frame, output in frames]
        page = write_page(diagnosis, self.out, pictures)
        print(overview(diagnosis))
        print(f"\n{page}")
