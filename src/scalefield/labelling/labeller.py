"""The labeller: from a job to its files. All ways of running map it over the jobs."""

from __future__ import annotations

import dataclasses
import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from scalefield.api import recover_from
from scalefield.errors import InputError, one_line
from scalefield.io import read_text, write_atomic, write_folder, write_json
from scalefield.labelling.figures import figures, held_out_errors
from scalefield.labelling.rules import Rules
from scalefield.labelling.samples import Job, Sample
from scalefield.mde import MDE
from scalefield.mde.output import Kind, MDEOutput
from scalefield.mde.own_maps import RelativeDepth
from scalefield.methods import make_method
from scalefield.recovery import Method

Record = dict[str, Any]
"""One label as JSON values: key, keep, reasons and figures; or key and failed."""

FAILURES = (ValueError, OSError, ArithmeticError, RuntimeError)
"""Errors that a bad image may cause: they are recorded and the run continues. Other errors are
bugs and end the run."""


@dataclass(frozen=True)
class LabelConfig:
    """Everything that influences a label; a folder holds the labels of one configuration."""

    mde: str | MDE
    """An estimator by name, or `OwnMaps` by the images' keys."""
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)
    device: str = "cpu"
    batch: int = 1
    """Images of one size that the MDE computes together."""
    kind: Kind | None = None
    """Kind of an estimator that does not determine it."""
    affine: bool | None = None
    """Whether the shift of the relative depth is unknown; None for what the estimator declares."""

    def identity(self) -> dict[str, Any]:
        """The values that must be equal for two runs to share a folder."""
        ours = dataclasses.asdict(self)
        declared = [name for name in ("kind", "affine") if ours[name] is not None]
        return {name: ours[name] for name in ("mde", "method", "options", "rules", *declared)}


@dataclass(frozen=True)
class Labeller:
    """Labels jobs into `out`. A label is complete when its last file, the record, exists.

    Files are written atomically and each has a fixed name, so that a job may be run again by any
    process at any time.
    """

    out: Path
    mde: RelativeDepth
    method: Method
    rules: Rules
    batch: int = 1

    def __call__(self, job: Job) -> list[Record]:
        """Label every sample of the job, write, and return the records."""
        if job.shard:
            return self.write_shard(job)
        records = []
        for sample, record, label in self.labels(job.samples):
            if label:
                write_atomic(self.out / f"{sample.key}.npz", label)
            write_json(self.out / f"{sample.key}.json", record)
            records.append(record)
        return records

    def write_shard(self, job: Job) -> list[Record]:
        """One tar with KEY.npz and KEY.json for each sample, then the records."""
        records = []
        ((target, target_of_records),) = label_files(self.out, job)
        with (
            write_folder(target.parent) as staging,
            tarfile.open(staging / target.name, "w") as tar,
        ):
            for sample, record, label in self.labels(job.samples):
                if label:
                    _add(tar, f"{sample.key}.npz", label)
                _add(tar, f"{sample.key}.json", json.dumps(record).encode())
                records.append(record)
        lines = "".join(json.dumps(record) + "\n" for record in records)
        write_atomic(target_of_records, lines.encode())
        return records

    def labels(self, samples: Sequence[Sample]) -> Iterator[tuple[Sample, Record, bytes]]:
        """Sample, record and the label's bytes (none for a failure), batch by batch."""
        rest = iter(samples)
        while chunk := list(islice(rest, self.batch)):
            outputs = self.estimate(chunk)
            for sample in chunk:
                try:
                    output = outputs[sample.key]
                    if isinstance(output, str):
                        raise InputError(output)
                    record, label = self.recover(sample, output)
                except FAILURES as e:
                    record, label = {"key": sample.key, "failed": _reason(e)}, b""
                yield sample, record, label

    def estimate(self, samples: list[Sample]) -> dict[str, MDEOutput | str]:
        """The MDE's outputs by key; an image that failed has a message instead."""
        outputs: dict[str, MDEOutput | str] = {}
        sizes: dict[tuple[int, ...], list[tuple[str, np.ndarray]]] = {}
        for sample in samples:
            try:
                image = sample.read_image()
                sizes.setdefault(image.shape, []).append((sample.key, image))
            except FAILURES as e:
                outputs[sample.key] = _reason(e)
        for group in sizes.values():
            keys, images = zip(*group, strict=True)
            try:
                outputs |= zip(keys, self.mde.batch(images, keys), strict=True)
            except FAILURES as e:
                outputs |= dict.fromkeys(keys, _reason(e))
        return outputs

    def recover(self, sample: Sample, mde_output: MDEOutput) -> tuple[Record, bytes]:
        """The record and the file of one label."""
        anchors = sample.read_anchors()
        if not len(anchors):  # `field` works without anchors, but then nothing tests its label
            raise InputError("no anchors: at least one pixel of known metric depth is needed")
        solver = self.method.solver(mde_output)  # for the label and the fits of the folds
        recovery = recover_from(mde_output, anchors, self.method, solver=solver).numpy()
        held_out = held_out_errors(
            mde_output, anchors, self.method, self.rules.folds, sample.key, solver=solver
        )
        labelled = np.ones(recovery.depth_m.shape, dtype=bool)
        if recovery.support is not None:
            labelled = recovery.support >= self.rules.min_support
        label_figures = figures(recovery, anchors, held_out, labelled)
        reasons = self.rules.judge(label_figures)
        maps = {"depth_m": recovery.depth_m}
        if recovery.std_log is not None:
            maps["std_log"] = recovery.std_log.astype(np.float16)
        maps = {name: np.where(labelled, m, np.nan) for name, m in maps.items()}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **maps)  # type: ignore[arg-type]
        record = {
            "key": sample.key,
            "keep": not reasons,
            "reasons": [dataclasses.asdict(reason) for reason in reasons],
            "figures": dataclasses.asdict(label_figures),
        }
        return record, buffer.getvalue()


def make_labeller(config: LabelConfig, out: Path) -> Labeller:
    """The labeller of a configuration, with what the configuration names loaded."""
    mde = RelativeDepth(config.mde, config.kind, config.affine).load(config.device)
    method = make_method(config.method, **config.options)
    return Labeller(out, mde, method, config.rules, config.batch)


def is_done(out: Path, job: Job) -> bool:
    """Whether all labels of the job exist."""
    return all(record.is_file() for _, record in label_files(out, job))


def read_records(out: Path, job: Job) -> list[Record]:
    """The records of a complete job."""
    texts = [read_text(record) for _, record in label_files(out, job)]
    try:
        records = [
            json.loads(line)
            for text in texts
            for line in (text.splitlines() if job.shard else [text])
        ]
    except (ValueError, RecursionError) as e:
        raise InputError(f"{out}: the record of {job.name} is damaged ({one_line(e)})") from None
    if not all(map(_is_record, records)):
        raise InputError(f"{out}: the record of {job.name} is not that of a label")
    return records


def _is_record(value: Any) -> bool:
    """Whether a value is a record of `Labeller.labels`: a failure, or a decision with reasons."""
    if not (isinstance(value, dict) and isinstance(value.get("key"), str)):
        return False
    if "failed" in value:
        return isinstance(value["failed"], str)
    keep, reasons = value.get("keep"), value.get("reasons")
    named = isinstance(reasons, list) and all(
        isinstance(r, dict) and isinstance(r.get("rule"), str) for r in reasons
    )
    return isinstance(keep, bool) and named


def label_files(out: Path, job: Job) -> list[tuple[Path, Path]]:
    """The file of labels and that of its records: of a shard, or of each sample."""
    if job.shard:
        return [(out / f"{job.name}.tar", out / f"{job.name}.jsonl")]
    return [(out / f"{s.key}.npz", out / f"{s.key}.json") for s in job.samples]


def failed_records(job: Job, reason: str) -> list[Record]:
    """The records of a job that could not be run."""
    return [{"key": sample.key, "failed": reason} for sample in job.samples]


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)  # without time and owner, so that equal labels are equal bytes
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
