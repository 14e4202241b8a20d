"""`scalefield reproduce`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from scalefield.commands.data import Ranges, check_counts, parse_ranges
from scalefield.commands.train import RecipeOptions
from scalefield.errors import InputError
from scalefield.reproduction.options import DepthUnit, ReproductionOptions

if TYPE_CHECKING:
    from scalefield.reproduction.stages import Reproduction


@dataclass(frozen=True)
class ReproduceCommand:
    """Run the paper's experiment from raw data to its tables, beside the paper's own figures.

    Stages: split lists; prepared frames of every MDE; the paper's generators (each K in its regime
    for 25 epochs, five epochs of fine-tuning for the others, with F and with F = 0) over all
    datasets together; evaluation; report. The same command continues an interrupted run.
    """

    options: Annotated[ReproductionOptions, tyro.conf.arg(name="")]
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=FOLDER")]
    """Datasets: kitti=…, urbansyn=…, sunrgbd=… in their own layouts; any other name is a plain
    folder."""
    mde: tuple[str, ...] = ("da3-base", "midas-dpt-hybrid")
    """Estimators: NAME, or LABEL=SOURCE for a folder, a file or module:object."""
    cross_fit: Annotated[tuple[str, ...], tyro.conf.arg(metavar="LABEL=FOLDER,FOLDER")] = ()
    """Models of an estimator that was trained on these frames, each trained without some places."""
    depth_unit: tuple[DepthUnit, ...] = ("raw",)
    """Unit of D, to which the paper's ridge is not invariant: raw is the estimator's own, median
    divides D by its median over the image. Each is an estimator of its own, with its generators."""
    datasets: tuple[str, ...] = ()
    """Take only these of the datasets."""
    range: Ranges = ()
    """Depth ranges in metres of a plain folder's sources, e.g. kitti=0.1,80 '*=0.1,10'."""
    sunrgbd_max_m: float = 10.0
    """Depths of SUN RGB-D above this are unknown. The paper scores up to 10 m; the dataset's own
    toolbox sets depths above 8 m to 8 m."""
    plan: bool = False
    """Print the stages with estimated time and disk, and stop."""
    recipe: Annotated[RecipeOptions, tyro.conf.arg(name="")] = field(default_factory=RecipeOptions)
    fine_tune_epochs: int = 5
    """Epochs of fine-tuning for another regime."""
    kept_features: Literal["uint8", "float16"] = "uint8"
    """How prepared frames keep F."""
    kept_pixels: int = 8192
    """Known pixels that a prepared frame keeps."""
    rows: tuple[str, ...] = ()
    """Methods beside the paper's rows, as for evaluate: 'Field: field'."""
    report: bool = True
    """Write the report at the end; without it, `scalefield report OUT/results/*` does so later."""

    def run(self) -> None:
        """All stages, or the plan."""
        from scalefield.reproduction.plan import plan, plan_text
        from scalefield.reproduction.stages import summary

        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise InputError(
                "reproduce trains several generators at once with --jobs; torchrun is for train"
            )
        sys.path.insert(0, str(Path.cwd()))  # as for `python -m`: module:object beside the user
        reproduction = self.reproduction()
        if self.plan:
            print("\n".join([plan_text(plan(reproduction)), *reproduction.incomplete()]))
            return
        page = reproduction.run()
        for line in summary(reproduction):
            print(line)
        print(page)

    def reproduction(self) -> Reproduction:
        """The plan that the flags describe, checked."""
        from scalefield.benchmark.method_spec import parse_methods
        from scalefield.datasets import open_datasets
        from scalefield.reproduction.matrix import TRAINING_REGIME
        from scalefield.reproduction.stages import EstimatorSpec, Reproduction
        from scalefield.training.basis_config import paper_preset
        from scalefield.training.preparation import Preparation

        options = self.options
        check_counts(options, "limit", "workers", "jobs", "mde_batch")
        check_counts(self, "kept_pixels", "fine_tune_epochs")
        check_counts(self.recipe, "epochs")
        if not (options.k and options.seeds and self.mde and self.depth_unit):
            raise InputError("--mde, --depth-unit, --k and --seeds need at least one value each")
        unknown = [k for k in options.k if k not in TRAINING_REGIME]
        if unknown:
            known = ", ".join(map(str, TRAINING_REGIME))
            raise InputError(f"--k: the paper's K are {known}, found {unknown[0]}")
        opened = open_datasets(
            self.data, parse_ranges(self.range), sunrgbd_max_m=self.sunrgbd_max_m
        )
        absent = [name for name in self.datasets if name not in opened]
        if absent or not opened:
            raise InputError(
                f"--datasets {', '.join(absent)}: not among --data"
                if absent
                else "nothing to reproduce: give --data NAME=FOLDER"
            )
        folds = self._folds()
        estimators = tuple(
            EstimatorSpec.parse(text, folds.get(text.partition("=")[0], ()), unit)
            for text in self.mde
            for unit in self.depth_unit
        )
        named = {text.partition("=")[0] for text in self.mde}
        if unknown_folds := [label for label in folds if label not in named]:
            raise InputError(f"--cross-fit {unknown_folds[0]}: no such --mde")
        changes = self.recipe.changes(paper_preset(8, "low"))
        epochs = changes.pop("epochs", 25)
        assert isinstance(epochs, int)
        return Reproduction(
            **vars(options),
            datasets={n: d for n, d in opened.items() if not self.datasets or n in self.datasets},
            estimators=estimators,
            changes=changes,
            epochs=(epochs, self.fine_tune_epochs),
            preparation=Preparation(pixels=self.kept_pixels, features=self.kept_features),
            extra_rows=parse_methods(self.rows),
            tables=self.report,
        )

    def _folds(self) -> dict[str, tuple[Path, ...]]:
        folds = {}
        for text in self.cross_fit:
            label, found, folders = text.partition("=")
            if not found or not folders:
                raise InputError(f"--cross-fit wants LABEL=FOLDER,FOLDER, found {text!r}")
            folds[label] = tuple(Path(folder) for folder in folders.split(","))
        return folds
