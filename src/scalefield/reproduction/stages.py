"""The stages of a reproduction: splits, prepared frames, generators, evaluation, report.

Every stage writes files that a rerun finds: frames, checkpoints and results that are there are
not made again.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalefield.anchor_sampling import REGIMES
from scalefield.basis.generator import Generator
from scalefield.benchmark.method_spec import MethodSpec
from scalefield.datasets import DATASETS, Dataset
from scalefield.datasets.splits import write_list
from scalefield.errors import InputError, counted, require_package
from scalefield.io import (
    config_differences,
    read_json,
    read_text,
    remove_temporary,
    write_json,
)
from scalefield.io.weights import sha256
from scalefield.mde import ALIASES, MODELS, ModelCard
from scalefield.mde.affine import Normalisation, public_name
from scalefield.reproduction.matrix import (
    BANDWIDTHS,
    PAPER_MDES,
    TRAINING_REGIME,
    UNIVERSAL,
    GeneratorJob,
    aligner_rows,
    basis_rows,
    find_generators,
    paper_jobs,
    universal_rows,
)
from scalefield.reproduction.options import DepthUnit, ReproductionOptions
from scalefield.runtime.workers import worker_pool
from scalefield.training.bank import ResidentFrames
from scalefield.training.basis import train_basis
from scalefield.training.basis_config import BasisTraining, paper_preset
from scalefield.training.cross_fit import open_cross_fit
from scalefield.training.loop import RunFolder, pick_device
from scalefield.training.preparation import Preparation, left_out, prepare_datasets, split_names
from scalefield.training.prepared import PreparedFrames

if TYPE_CHECKING:
    from scalefield.benchmark.run import Evaluation


@dataclass(frozen=True)
class EstimatorSpec:
    """An MDE of the reproduction: what tables call it, and where it comes from."""

    label: str
    source: str
    """What `load_mde` takes, or module:object."""
    cross_fit: tuple[Path, ...] = ()
    """Folders of models of the same kind, each trained without some places."""

    @classmethod
    def parse(
        cls, text: str, cross_fit: tuple[Path, ...] = (), unit: DepthUnit = "raw"
    ) -> EstimatorSpec:
        """Read NAME or LABEL=SOURCE."""
        label, found, source = text.partition("=")
        if found and not (label and source):
            raise InputError(f"--mde wants NAME or LABEL=SOURCE, found {text!r}")
        label = ALIASES.get(label, label)
        prefix = "" if unit == "raw" else f"{unit}:"
        return cls(re.sub(r"[^\w.-]+", "-", prefix + label), prefix + (source or label), cross_fit)

    @property
    def card(self) -> ModelCard | None:
        """What is known of the estimator before its weights are opened."""
        return MODELS.get(Normalisation.split(self.source)[1])


FINISHED = "finished.json"
"""Written into the folder of a generator when its training has ended."""


@dataclass(frozen=True, eq=False)
class TrainingTask:
    """The training of one generator, in this process or in one of its own."""

    config: BasisTraining
    out: Path
    start: Path | None
    """The generator to fine-tune."""
    frames: tuple[PreparedFrames, PreparedFrames]
    """Frames to train on and to validate on."""
    device: str
    frames_on_device: bool
    options: dict[str, Any]
    """Further arguments of `train_basis`."""

    def run(self) -> None:
        """Train to the end, and record that in the folder of the run."""
        device = pick_device(self.device)
        train, val = (
            ResidentFrames.of(frames, device) if self.frames_on_device else frames
            for frames in self.frames
        )
        start = None if self.start is None else Generator.load(self.start)
        options = {"device": self.device, "start_from": start, **self.options}
        train_basis(self.config, train, val, self.out, **options)
        write_json(self.out / FINISHED, {"epochs": self.config.epochs})


@dataclass(frozen=True, kw_only=True)
class Reproduction(ReproductionOptions):
    """All that determines a reproduction."""

    datasets: dict[str, Dataset]
    """Readers of the datasets by name."""
    estimators: tuple[EstimatorSpec, ...]
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of `BasisTraining` that differ from the paper's preset."""
    epochs: tuple[int, int] = (25, 5)
    """Epochs of training, and of fine-tuning."""
    preparation: Preparation = field(default_factory=Preparation)
    extra_rows: tuple[MethodSpec, ...] = ()
    """Rows beside the paper's."""
    tables: bool = True
    """Write the report, for which matplotlib is needed; else stop after the evaluation."""

    @property
    def trains(self) -> bool:
        """Whether generators are trained here."""
        return self.generators is None

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits whose frames are used."""
        used = ("train", "val", self.split) if self.trains else (self.split,)
        return tuple(dict.fromkeys(used))

    @cached_property
    def job_list(self) -> list[GeneratorJob]:
        """The generators of one MDE."""
        return paper_jobs(self.seeds, self.k, ablation=self.ablation)

    def check(self) -> None:
        """Raise InputError for what can be refused before work starts, except an MDE's weights.

        That is missing packages, options of the training, the device, empty splits, labels, rows
        and ready generators.
        """
        if self.tables:
            require_package("matplotlib", "plot", "drawing the report's figures")
        pick_device(self.device)
        for job in self.job_list:
            self.config(job)
        for spec in self.extra_rows:
            spec.make().prepare()
        for name, dataset in self.datasets.items():
            for split in self.splits:
                split_names(dataset, split, self.limit, name)
        labels = [estimator.label for estimator in self.estimators]
        if len(set(labels)) < len(labels):
            raise InputError(f"two estimators have one label: {', '.join(labels)}")
        for estimator in self.estimators:
            for name in self.datasets:
                self.evaluation(estimator, name)

    def incomplete(self) -> list[str]:
        """A line for each of the paper's datasets that is not there as a whole."""
        found = {n: getattr(d, "incomplete", str)() for n, d in self.datasets.items()}
        return [f"{name}: {sentence}" for name, sentence in found.items() if sentence]

    def check_estimators(self) -> None:
        """Raise InputError if the weights of an MDE cannot be opened, or training needs F and there
        is none; weights are fetched."""
        for estimator in self.estimators:
            open_cross_fit(estimator.source, estimator.cross_fit, "cpu")
            card = estimator.card
            if self.trains and card is not None and card.feature_channels is None:
                raise InputError(no_features(estimator.label))

    def run(self) -> Path:
        """All stages, one after another; the value is the report's page, or the results' folder."""
        self.check()
        for line in self.incomplete():
            print(line, file=sys.stderr)
        self.check_estimators()
        self.claim()
        remove_temporary(self.out)
        self.write_splits()
        for estimator in self.estimators if self.trains else ():
            self.train(estimator, self.prepare(estimator))
            write_json(self.out / "training.json", self.training_record())
        folders = [
            self.evaluate(estimator, name)
            for estimator in self.estimators
            for name in self.datasets
        ]
        return self.report(folders) if self.tables else self.out / "results"

    def claim(self) -> None:
        """Record the frames that generators are trained on; a folder that has others is refused."""
        if not self.trains:
            return
        wanted = {"datasets": sorted(self.datasets), "limit": self.limit}
        record = self.out / "reproduction.json"
        differing = config_differences(record, wanted)
        if differing:
            raise InputError(
                f"{self.out} holds a reproduction with another {' and '.join(differing)}; choose "
                "another --out, or delete it"
            )
        if differing is None:
            write_json(record, wanted)

    def write_splits(self) -> None:
        """The lists of frames, as text that a reader can diff."""
        for name, dataset in self.datasets.items():
            for split in self.splits:
                write_list(self.out / "splits" / name / f"{split}.txt", dataset.names(split))

    def prepare(self, estimator: EstimatorSpec) -> tuple[PreparedFrames, PreparedFrames]:
        """The training and validation frames of all datasets, as one MDE predicts them."""
        device = str(pick_device(self.device))
        mde, models = open_cross_fit(
            estimator.source, estimator.cross_fit, device, in_sample=self.in_sample
        )

        def frames(split: str, source: Any) -> PreparedFrames:
            return prepare_datasets(
                self.datasets,
                split,
                source,
                lambda name: self.prepared_folder(estimator, name, split),
                self.preparation,
                workers=self.workers,
                batch=self.mde_batch,
                limit=self.limit,
            )

        made = frames("train", models), frames("val", mde)
        skipped = {
            f"{name}-{split}": found
            for name in self.datasets
            for split in ("train", "val")
            if (found := left_out(self.prepared_folder(estimator, name, split)))
        }
        write_json(self.out / "prepared" / estimator.label / "left_out.json", skipped)
        if made[0][0].features is None:
            raise InputError(no_features(estimator.label))
        return made

    def prepared_folder(self, estimator: EstimatorSpec, name: str, split: str) -> Path:
        """Folder of the prepared frames of a split."""
        return self.out / "prepared" / estimator.label / f"{name}-{split}"

    def train(
        self, estimator: EstimatorSpec, frames: tuple[PreparedFrames, PreparedFrames]
    ) -> None:
        """Train every generator of an MDE that is not there yet, `jobs` at a time."""
        pending = [job for job in self.job_list if not self.finished(estimator, job)]
        if self.jobs == 1 or not pending:
            for job in pending:
                self.training_task(estimator, job, frames).run()
            return
        with worker_pool(min(self.jobs, len(pending))) as pool:
            running: dict[Future[None], GeneratorJob] = {}
            while pending or running:
                # No more than there are processes, so that the first of the list that can start
                # is the next to start: a seed is completed before another is begun.
                ready = [
                    job
                    for job in pending
                    if job.start is None or self.finished(estimator, job.start)
                ]
                for job in ready[: self.jobs - len(running)]:
                    pending.remove(job)
                    task = self.training_task(estimator, job, frames)
                    running[pool.submit(TrainingTask.run, task)] = job
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    job = running.pop(future)
                    future.result()
                    print(f"{estimator.label}: {job.name} is trained", flush=True)

    def training_task(
        self,
        estimator: EstimatorSpec,
        job: GeneratorJob,
        frames: tuple[PreparedFrames, PreparedFrames],
    ) -> TrainingTask:
        """The training of one generator."""
        start = job.start
        return TrainingTask(
            config=self.config(job),
            out=self.run_folder(estimator, job),
            start=None if start is None else self.run_folder(estimator, start) / "model",
            frames=frames,
            device=self.device,
            frames_on_device=self.frames_on_device,
            options={
                "workers": max(1, self.workers // self.jobs) if self.workers > 1 else 0,
                "source": f"the MDE {estimator.label}",
                "show_progress": self.jobs == 1,  # bars of several would overwrite each other
            },
        )

    def config(self, job: GeneratorJob) -> BasisTraining:
        """The paper's recipe for a generator, with `changes`."""
        tuned = job.start is not None
        preset = paper_preset(
            job.k,
            job.regime,
            fine_tune=tuned,
            zero_features=job.zero_features,
            seed=job.seed,
            epochs=self.epochs[1 if tuned else 0],
        )
        return dataclasses.replace(preset, **self.changes)

    def run_folder(self, estimator: EstimatorSpec, job: GeneratorJob) -> Path:
        """Folder in which a generator is trained."""
        return self.out / "generators" / estimator.label / job.name

    def finished(self, estimator: EstimatorSpec, job: GeneratorJob) -> bool:
        """Whether a generator is trained to its end; one with another recipe is refused."""
        folder = self.run_folder(estimator, job)
        if not (folder / FINISHED).is_file():
            return False
        RunFolder(folder, self.config(job))
        return True

    def training_record(self) -> dict[str, dict[str, Any]]:
        """The metrics of each generator's chosen step, by MDE, and what its training took."""
        found: dict[str, dict[str, Any]] = {}
        for file in sorted((self.out / "generators").glob("*/*/metrics.jsonl")):
            folder = file.parent
            lines = [json.loads(line) for line in read_text(file).splitlines()]
            found.setdefault(folder.parent.name, {})[folder.name] = {
                "finished": (folder / FINISHED).is_file(),
                "chosen": min(lines, key=lambda line: line["val_loss"]),
                "last": read_json(folder / "clock.json"),
            }
        return found

    def evaluate(self, estimator: EstimatorSpec, name: str) -> Path:
        """Every row on one dataset with one MDE; the value is the folder of the results."""
        from scalefield.benchmark.gallery import write_gallery
        from scalefield.benchmark.run import Evaluator, run
        from scalefield.benchmark.score import score_files
        from scalefield.datasets.source import FrameSource

        folder = self.out / "results" / f"{name}-{estimator.label}"
        evaluation = self.evaluation(estimator, name)
        self.claim_results(folder, evaluation)
        device = str(pick_device(self.device))
        source = FrameSource(self.datasets[name], estimator.source, device, self.cache)
        evaluator = Evaluator(source, evaluation, folder)
        names = run(
            evaluator,
            workers=self.workers,
            limit=self.limit,
            overwrite=self.overwrite,
            progress=True,
        )
        score_files(folder, names)
        if self.gallery:
            write_gallery(evaluator)
        return folder

    def evaluation(self, estimator: EstimatorSpec, name: str) -> Evaluation:
        """What is measured on one dataset with one MDE."""
        from scalefield.benchmark.run import Evaluation

        return Evaluation(
            name=name,
            dataset=name if name in DATASETS else "folder",
            split=self.split,
            mde=estimator.label,
            methods=tuple(self.rows(estimator, name)),
            regimes=tuple(REGIMES),
            drop=self.drop,
            seed=0,
            ranges_m=getattr(self.datasets[name], "ranges_m", {}),
            cached=self.cache is not None,
            source=public_name(estimator.source),
        )

    def rows(self, estimator: EstimatorSpec, dataset: str) -> Iterator[MethodSpec]:
        """The rows of the tables: aligners, generators, and `extra_rows`."""
        if self.aligners:
            yield from aligner_rows(dataset, disparity=self.disparity)
        if self.generators == UNIVERSAL:
            yield from universal_rows()
        else:
            yield from basis_rows(self.generator_folders(estimator))
        yield from self.extra_rows

    def generator_folders(self, estimator: EstimatorSpec) -> dict[GeneratorJob, Path]:
        """The folder of every generator of an MDE: ready ones, checked, or those to be trained."""
        if self.generators is None:
            return {job: self.run_folder(estimator, job) / "model" for job in self.job_list}
        card = estimator.card
        channels = None if card is None else card.feature_channels
        return find_generators(
            Path(self.generators), estimator.label, self.job_list, channels=channels
        )

    def claim_results(self, folder: Path, evaluation: Evaluation) -> None:
        """Record the weights behind the rows; results that were made with others are refused."""
        files = {
            str(spec.options["generator"]): Path(spec.options["generator"]) / "model.safetensors"
            for spec in evaluation.methods
            if "generator" in spec.options
        }
        digests = {name: sha256(file) for name, file in files.items() if file.is_file()}
        record = folder / "generators.json"
        differing = config_differences(record, digests)
        if differing and not self.overwrite:
            raise InputError(
                f"{folder} holds results that were not made with the present weights in "
                f"{', '.join(differing)}; discard them with --overwrite, or choose another --out"
            )
        if differing:
            shutil.rmtree(folder)
        write_json(record, digests)

    def report(self, folders: list[Path]) -> Path:
        """Tables and figures of all results, with the paper's figures beside them."""
        from scalefield.benchmark.report import load_run, write_report

        runs = [load_run(folder) for folder in folders]
        return write_report(runs, self.out / "report", self.title, self.deviations)

    @property
    def deviations(self) -> list[str]:
        """What differs from the paper's data and recipe, as a sentence under the report's title."""
        sources = {estimator.source: estimator.label for estimator in self.estimators}
        used = [s if label == s else f"{label}={s}" for s, label in sources.items()]
        found = []
        if set(self.datasets) != set(BANDWIDTHS):
            found.append(f"data {' and '.join(self.datasets)}")
        if self.limit is not None:
            found.append(f"at most {self.limit} frames of each split")
        if self.split != Reproduction.split:
            found.append(f"evaluated on {self.split}")
        if set(sources) != set(PAPER_MDES):
            found.append(f"MDE {' and '.join(used)}")
        if set(self.k) != set(TRAINING_REGIME):
            found.append(f"K = {' and '.join(map(str, self.k))}")
        if not self.trains:
            found.append(f"ready generators {self.generators}")
        else:
            if self.preparation != Preparation():
                kept = self.preparation
                found.append(f"{kept.pixels} pixels and {kept.features} features kept")
            if self.epochs != Reproduction.epochs:
                found.append(f"{self.epochs[0]} and {self.epochs[1]} epochs")
            preset = paper_preset(8, "low")
            found += sorted(k for k, v in self.changes.items() if getattr(preset, k) != v)
        return [f"Not as in the paper: {', '.join(found)}."] if found else []


def no_features(label: str) -> str:
    """The message about an MDE without F."""
    return f"the MDE {label} gives no features F, which the paper's generators are trained with"


def summary(reproduction: Reproduction) -> list[str]:
    """Lines about frames that were left out, and rows without a result, for the end of a run."""
    lines = []
    for estimator in reproduction.estimators:
        file = reproduction.out / "prepared" / estimator.label / "left_out.json"
        if reproduction.trains and file.is_file():
            lines += [
                f"{counted(len(frames), 'frame')} of {place} left out with {estimator.label}"
                for place, frames in read_json(file).items()
            ]
        for name in reproduction.datasets:
            folder = reproduction.out / "results" / f"{name}-{estimator.label}"
            results = read_json(folder / "results.json")
            if missing := results["data"]["missing"]:
                lines.append(f"{counted(len(missing), 'frame')} of {folder.name} not evaluated")
            lines += [
                f"{folder.name}: {row['method']} ({row['condition']}) has no result on "
                f"{counted(row['images'], 'image')}; the first is {row['first']}"
                for row in results["failures"]
                if row["kind"] == "error"
            ]
    return lines
