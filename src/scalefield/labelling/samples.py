"""Samples to label, from a folder, a list or tar shards."""

from __future__ import annotations

import csv
import io
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from scalefield.anchors import Anchors
from scalefield.errors import FileError, InputError, one_line
from scalefield.io import IMAGE_SUFFIXES, files_below, read_image, read_text, refuse_address

ANCHOR_SUFFIXES = (".anchors.csv", ".anchors.npz", ".anchors.png")


@dataclass(frozen=True)
class Piece:
    """A file, or a member of a tar file, which is read without the other members."""

    path: Path
    name: str = ""
    """Name of the tar's member; empty for a plain file."""
    offset: int = 0
    size: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.name}" if self.name else str(self.path)

    @contextmanager
    def as_file(self) -> Iterator[Path]:
        """A path with the content of the piece; errors name the piece."""
        if not self.name:
            yield self.path
            return
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, Path(self.name).name)
            with self.path.open("rb") as tar:
                tar.seek(self.offset)
                copy.write_bytes(tar.read(self.size))
            try:
                yield copy
            except FileError as e:
                raise e.renamed(self) from None


@dataclass(frozen=True)
class Sample:
    """One image with its anchors, under a key that also names its outputs."""

    key: str
    image: Piece
    anchors: Piece

    def read_image(self) -> UInt8[np.ndarray, "h w 3"]:
        """The pixels."""
        with self.image.as_file() as path:
            return read_image(path)

    def read_anchors(self) -> Anchors:
        """The anchors; a PNG must carry its units."""
        with self.anchors.as_file() as path:
            return Anchors.read(path)


@dataclass(frozen=True)
class Job:
    """Samples that are labelled together, and complete together."""

    name: str
    samples: tuple[Sample, ...]
    shard: bool = False
    """Whether the output is one tar, as the input was."""


def find_jobs(source: Path) -> tuple[list[Job], list[str]]:
    """The jobs of a source, in order, and the keys of images without anchors.

    A folder has KEY.jpg (or another image) beside KEY.anchors.csv (.npz, .png), and is searched
    recursively. A list is a .csv with the columns image and anchors, relative to itself. Tar shards
    (one file, or all in a folder that has any) contain the same pairs as a folder.
    """
    if source.suffix == ".csv":
        return _from_list(source)
    if source.suffix == ".tar":
        return _from_shards([source], source.parent)
    if not source.is_dir():
        refuse_address(source)
        raise InputError(f"{source}: wanted a folder, a .csv list or a .tar shard")
    files = [path for path in files_below(source) if path.is_file()]
    if shards := [path for path in files if path.suffix == ".tar"]:
        return _from_shards(shards, source)
    pieces = {p.relative_to(source).as_posix(): Piece(p) for p in files}
    samples, without_anchors = _pairs(source, pieces)
    return [Job(s.key, (s,)) for s in samples], without_anchors


def in_batches(jobs: Sequence[Job], batch: int) -> list[Job]:
    """The same jobs, with single samples joined so that an estimator gets several at once."""
    shards = [job for job in jobs if job.shard]
    samples = [sample for job in jobs if not job.shard for sample in job.samples]
    parts = (tuple(samples[i : i + batch]) for i in range(0, len(samples), batch))
    return shards + [Job(part[0].key, part) for part in parts]


def _pairs(source: Path, pieces: dict[str, Piece]) -> tuple[list[Sample], list[str]]:
    """Images with the anchors of the same key, and the keys of images without anchors."""
    samples: dict[str, Sample] = {}
    without_anchors = []
    for name, piece in pieces.items():
        stem, dot, suffix = name.rpartition(".")
        if f"{dot}{suffix}".lower() not in IMAGE_SUFFIXES or stem.endswith(".anchors"):
            continue
        if stem in samples:
            raise InputError(
                f"{samples[stem].image} and {piece} have the same key {stem}; rename one of them"
            )
        if stem.startswith("/") or ".." in Path(stem).parts:
            raise InputError(f"{source}: {name} would leave the folder of labels")
        anchors = [pieces[stem + s] for s in ANCHOR_SUFFIXES if stem + s in pieces]
        if not anchors:
            without_anchors.append(stem)
            continue
        samples[stem] = Sample(stem, piece, anchors[0])
    if not samples:
        raise InputError(f"{source}: no image with anchors beside it (KEY.jpg, KEY.anchors.csv)")
    return list(samples.values()), without_anchors


def _from_shards(shards: Iterable[Path], root: Path) -> tuple[list[Job], list[str]]:
    jobs, without_anchors = [], []
    for shard in shards:
        try:
            with tarfile.open(shard, "r:") as tar:  # not compressed: pieces are read by place
                members = [m for m in tar.getmembers() if m.isfile()]
        except (tarfile.TarError, OSError, EOFError) as e:
            raise InputError(f"{shard}: not a readable tar file ({e})") from None
        pieces = {m.name: Piece(shard, m.name, m.offset_data, m.size) for m in members}
        samples, missing = _pairs(shard, pieces)
        name = shard.relative_to(root).with_suffix("").as_posix()
        jobs.append(Job(name, tuple(samples), shard=True))
        without_anchors += [f"{name}/{key}" for key in missing]
    return jobs, without_anchors


def _from_list(path: Path) -> tuple[list[Job], list[str]]:
    rows = csv.DictReader(io.StringIO(read_text(path)))
    try:
        if not {"image", "anchors"} <= set(rows.fieldnames or ()):
            raise InputError(f"{path}: a list has the columns image and anchors")
        listed = [(rows.line_num, row) for row in rows]
    except csv.Error as e:
        raise InputError(f"{path}, line {rows.line_num}: not a CSV file ({e})") from None
    jobs: dict[str, Job] = {}
    for line_number, row in listed:
        if not (row["image"] and row["anchors"] and Path(row["image"]).name):
            raise InputError(f"{path}, line {line_number}: both image and anchors are needed")
        key = Path(row["image"]).with_suffix("").as_posix().lstrip("/")
        if key in jobs:
            raise InputError(f"{path}, line {line_number}: {one_line(key)} is in the list already")
        if ".." in Path(key).parts:
            raise InputError(
                f"{path}, line {line_number}: {one_line(key)} would leave the labels' folder"
            )
        pieces = (Piece(path.parent / row[column]) for column in ("image", "anchors"))
        jobs[key] = Job(key, (Sample(key, *pieces),))
    if not jobs:
        raise InputError(f"{path}: the list is empty")
    return list(jobs.values()), []
