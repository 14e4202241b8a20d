"""`scalefield label`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from scalefield.commands.data import MapOptions, check_counts
from scalefield.commands.recover import parse_options
from scalefield.defaults import METHOD_NAME
from scalefield.labelling.rules import Rules


@dataclass(frozen=True)
class LabelCommand:
    """Make depth labels for many images with anchors, and decide which to keep.

    The source is a folder (KEY.jpg beside KEY.anchors.csv, .npz or .png), a .csv list with the
    columns image and anchors, or tar shards of such pairs. Writes KEY.npz and KEY.json for each
    image, or a tar for each tar, and labels.jsonl with all records. A second run continues an
    interrupted one. A bad image is named and skipped, and the exit code is then 1.
    """

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """Folder, .csv list, .tar, or a folder of .tar files."""
    out: Path
    """Output folder; it holds the labels of one configuration."""
    relative: Annotated[MapOptions, tyro.conf.arg(name="")] = field(default_factory=MapOptions)
    method: Annotated[str, tyro.conf.arg(metavar="NAME")] = METHOD_NAME
    """Method by name; `scalefield methods` lists the names."""
    option: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="NAME=VALUE")
    ] = ()
    """Option of the method; may be repeated."""
    device: str = "cpu"
    """Device of the estimator, for example cpu, cuda or cuda:1."""
    batch: int = 1
    """Images read together, and estimated together if they have the same size; for GPUs."""
    workers: int = os.cpu_count() or 1
    """Number of processes or Ray actors; 1 for a GPU that one process fills."""
    cluster: Literal["local", "ray"] = "local"
    """local: this machine. ray: the connected Ray cluster, with a shared file system."""
    rules: Annotated[Rules, tyro.conf.arg(name="")] = field(default_factory=Rules)

    def run(self) -> int:
        """Label the images and print a summary."""
        from scalefield.labelling.labeller import LabelConfig, make_labeller
        from scalefield.labelling.ray_runner import import_ray
        from scalefield.labelling.run import MANIFEST, label
        from scalefield.labelling.samples import find_jobs
        from scalefield.runtime.progress import progress

        check_counts(self, "workers", "batch")
        self.relative.check()
        self.rules.check()
        source, out = self.source, self.out
        if self.cluster == "ray":  # other nodes have other current folders
            import_ray()  # fails before anything is written if Ray is missing
            source, out = source.resolve(), out.resolve()
        jobs, without_anchors = find_jobs(source)
        keys = [sample.key for job in jobs for sample in job.samples]
        relative = self.relative.source(keys)
        config = LabelConfig(
            mde=relative.mde,
            kind=relative.kind,
            affine=relative.affine,
            method=self.method,
            options=parse_options(self.option),
            rules=self.rules,
            device=self.device,
            batch=self.batch,
        )
        make_labeller(config, out)  # a wrong name fails here, and weights are fetched once
        total = sum(len(job.samples) for job in jobs)
        with progress(total, unit="image", leave=False) as bar:
            summary = label(
                jobs,
                config,
                out,
                workers=self.workers,
                cluster=self.cluster,
                progress=bar.update,
                log=lambda sentence: print(f"scalefield: {sentence}", file=sys.stderr, flush=True),
            )
        for key, reason in summary.failed.items():
            print(f"scalefield: {key} failed: {reason}", file=sys.stderr)
        for key in without_anchors:
            print(f"scalefield: {key} has no anchors beside it", file=sys.stderr)
        why = ", ".join(f"{name} {count}" for name, count in summary.reasons.most_common())
        rate = f"; {summary.images_per_second:.2f} images/s" if summary.images_per_second else ""
        print(
            f"{summary.kept} kept, {summary.rejected} rejected{f' ({why})' if why else ''}, "
            f"{len(summary.failed)} failed, {len(without_anchors)} without anchors; "
            f"{summary.found_done} were done before{rate}"
        )
        print(f"  {out / MANIFEST}")
        return 1 if summary.failed or without_anchors else 0
