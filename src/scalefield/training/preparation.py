"""Preparation of training frames: what an MDE predicts for a split, written once for all runs.

A folder holds the frames of one split of one dataset as one MDE predicts them, a file for each
frame (`prepared`). Files are written atomically, so that preparation may be interrupted, resumed,
and shared by the processes of torchrun.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch.utils.data import DataLoader

from scalefield.datasets import Dataset as FrameDataset
from scalefield.datasets.splits import thin
from scalefield.errors import InputError, counted
from scalefield.io import config_differences, read_json, write_atomic, write_json
from scalefield.mde import MDE, MDEOutput, estimate_batch
from scalefield.runtime.progress import progress
from scalefield.training.cross_fit import CrossFit
from scalefield.training.data import PIXELS, FrameTable, frame_table, training_frame
from scalefield.training.loop import prefetch, start_worker, wait_for_all
from scalefield.training.prepared import PreparedFrames, pack_frame, read_entry

FORMAT = 1
"""Version of the files; a folder of another version is refused."""


WRITER_THREADS = 4
"""Threads that join tables with the MDE's outputs, pack the frames and write them."""


@dataclass(frozen=True)
class Preparation:
    """What is kept of each frame."""

    pixels: int = PIXELS
    """Known pixels with both depths, drawn once by the frame's name."""
    regimes: tuple[str | int, ...] = (1, "low", "medium", "high")
    """Regimes whose anchors are drawn by the protocol and kept."""
    features: Literal["uint8", "float16", "none"] = "uint8"
    """How F is kept. uint8 has 256 levels between the least and the largest value of each channel
    of a frame, and half the size of float16; none leaves F out, for generators without it."""
    seed: int = 0
    """Seed of the anchors and pixels."""


def prepare_datasets(
    datasets: Mapping[str, FrameDataset],
    split: str,
    mde: MDE | CrossFit,
    folder_of: Callable[[str], Path],
    preparation: Preparation | None = None,
    **options: Any,
) -> PreparedFrames:
    """`prepare_split` for several datasets, by the name of each; their frames together."""
    parts = [
        prepare_split(dataset, split, mde, folder_of(name), preparation, name=name, **options)
        for name, dataset in datasets.items()
    ]
    return sum(parts[1:], start=parts[0])


def prepare_split(
    dataset: FrameDataset,
    split: str,
    mde: MDE | CrossFit,
    folder: Path,
    preparation: Preparation | None = None,
    *,
    name: str | None = None,
    workers: int = 0,
    batch: int = 8,
    limit: int | None = None,
    rank: int = 0,
    world: int = 1,
    show_progress: bool = True,
) -> PreparedFrames:
    """Prepare the frames of a split that `folder` does not hold yet, and open all of them.

    Workers read frames and draw their pixels and anchors; this process runs the MDE on batches of
    images of one size. Of several processes (`rank` of `world`) each prepares its share, and all
    wait for the last. A frame that cannot be read is left out, counted and named; it is tried
    again the next time. `name` is the name of the data, if it is not the name of the reader.
    """
    preparation, label = preparation or Preparation(), name or dataset.name
    names = split_names(dataset, split, limit, label)
    claim_folder(folder, dataset, label, split, mde, preparation)
    own_names = names[rank::world]
    missing = [frame for frame in own_names if not frame_file(folder, frame).is_file()]
    if missing:
        bar = progress(
            len(own_names),
            initial=len(own_names) - len(missing),
            desc=f"prepare {label} {split}",
            unit="frame",
            show=show_progress and rank == 0,
        )
        reasons: Counter[str] = Counter()
        with bar:
            for frame, error in _prepare_missing(
                dataset, missing, mde, folder, preparation, workers=workers, batch=batch
            ):
                if error:
                    reasons[error] += 1
                    write_json(skipped_file(folder, frame), {"error": error})
                else:
                    skipped_file(folder, frame).unlink(missing_ok=True)
                bar.update()
        for error, count in reasons.items():  # one reason may hold for thousands of frames
            print(f"left out: {counted(count, 'frame')}: {error}", file=sys.stderr)
    wait_for_all(world)
    return open_prepared(folder, names, quiet=rank > 0)


def split_names(
    dataset: FrameDataset, split: str, limit: int | None = None, label: str | None = None
) -> list[str]:
    """The frames of a split, thinned evenly to `limit`; an empty split is refused."""
    names = dataset.names(split)
    if not names:
        raise InputError(
            f"the split {split} of {label or dataset.name} has no frame; training needs the splits "
            "train and val, and evaluation needs test: the data may have too few frames or drives"
        )
    return names if limit is None else thin(names, limit)


def open_prepared(folder: Path, names: Sequence[str], *, quiet: bool = False) -> PreparedFrames:
    """The frames of a folder by name; those that could not be prepared are counted and named."""
    found = [name for name in names if frame_file(folder, name).is_file()]
    absent = [name for name in names if not frame_file(folder, name).is_file()]
    if not found:
        raise InputError(f"{folder}: none of its {len(names)} frames could be prepared")
    if absent and not quiet:
        shown = ", ".join(absent[:5]) + (", …" if len(absent) > 5 else "")
        print(
            f"{len(absent)} of {len(names)} frames could not be prepared and are left out: {shown}",
            file=sys.stderr,
        )
    return PreparedFrames(tuple(read_entry(frame_file(folder, name)) for name in found))


def left_out(folder: Path) -> dict[str, str]:
    """The frames of a folder that could not be prepared, each with the reason."""
    files = sorted((folder / "skipped").rglob("*.json"))
    return {
        file.relative_to(folder / "skipped").with_suffix("").as_posix(): read_json(file)["error"]
        for file in files
    }


def frame_file(folder: Path, name: str) -> Path:
    """Path of a prepared frame."""
    return folder / "frames" / f"{name}.safetensors"


def skipped_file(folder: Path, name: str) -> Path:
    """Path of the file that states why a frame could not be prepared."""
    return folder / "skipped" / f"{name}.json"


def claim_folder(  # noqa: PLR0917
    folder: Path,
    dataset: FrameDataset,
    label: str,
    split: str,
    mde: MDE | CrossFit,
    preparation: Preparation,
) -> None:
    """Record what the folder's frames are; a folder that holds others is refused.

    A folder without any frame, after a preparation that failed, is taken.
    """
    wanted = {
        "format": FORMAT,
        "dataset": label,
        "split": split,
        "ranges_m": getattr(dataset, "ranges_m", {}),
        "mde": describe_mde(mde),
        "preparation": dataclasses.asdict(preparation),
    }
    record = folder / "prepared.json"
    differing = config_differences(record, wanted)
    if differing and any((folder / "frames").rglob("*.safetensors")):
        raise InputError(
            f"{folder} holds frames prepared with another {', '.join(differing)}; "
            "choose another folder with --prepared, or delete it"
        )
    if differing != []:
        shutil.rmtree(folder / "skipped", ignore_errors=True)
        write_json(record, wanted)


def describe_mde(mde: MDE | CrossFit) -> Any:
    """What identifies the outputs of an MDE: its name, weights and preprocessing."""
    if isinstance(mde, CrossFit):
        described = [describe_mde(model) for model, _ in mde.models]
        return described if len(described) > 1 else described[0]
    revision = getattr(mde, "revision", None)
    if not isinstance(revision, str):
        raise InputError(
            f"the MDE {mde.name} has no `revision`, without which prepared frames cannot tell its "
            "weights from others"
        )
    return {"name": mde.name, "revision": revision, "options": getattr(mde, "options", {})}


def mde_folder(mde: MDE | CrossFit) -> str:
    """A folder name for the frames of one MDE: its name, and a hash of all that identifies it."""
    described = json.dumps(describe_mde(mde), sort_keys=True)
    name = mde.models[0][0].name if isinstance(mde, CrossFit) else mde.name
    digest = hashlib.sha256(described.encode()).hexdigest()[:8]
    return re.sub(r"[^\w.-]+", "-", f"{name}-{digest}")


def _prepare_missing(
    dataset: FrameDataset,
    names: Sequence[str],
    mde: MDE | CrossFit,
    folder: Path,
    preparation: Preparation,
    *,
    workers: int,
    batch: int,
) -> Iterator[tuple[str, str | None]]:
    """Write each frame; yields its name, and the reason where it could not be prepared."""
    loader: DataLoader = DataLoader(
        names,  # type: ignore[arg-type]
        batch_size=None,
        collate_fn=partial(read_table, dataset, preparation),  # in the worker
        num_workers=min(workers, len(names)),
        worker_init_fn=start_worker,
    )

    def predicted() -> Iterator[tuple[str, FrameTable | str, MDEOutput | None]]:
        """Each frame's table with what the MDE gives for its image, or why there is no table."""
        waiting: dict[tuple, list[FrameTable]] = defaultdict(list)
        models: dict[int, MDE] = {}
        for name, table in zip(names, loader, strict=True):
            if isinstance(table, str):
                yield name, table, None
                continue
            model = mde.for_scene(table.scene) if isinstance(mde, CrossFit) else mde
            models[id(model)] = model
            key = id(model), *table.image.shape
            waiting[key].append(table)
            if len(waiting[key]) == batch:
                yield from joined(model, waiting.pop(key))
        for (model_id, *_), tables in waiting.items():
            yield from joined(models[model_id], tables)

    def joined(model: MDE, tables: list[FrameTable]) -> Iterator[tuple[str, FrameTable, MDEOutput]]:
        outputs = estimate_batch(model, [table.image.numpy() for table in tables])
        for table, output in zip(tables, outputs, strict=True):
            yield table.name, table, output

    def write(job: tuple[str, FrameTable | str, MDEOutput | None]) -> tuple[str, str | None]:
        name, table, output = job
        if isinstance(table, str) or output is None:
            return name, str(table)
        try:
            frame = training_frame(table, output)
        except InputError as e:
            return name, str(e)
        write_atomic(frame_file(folder, name), pack_frame(frame, table.scene, preparation.features))
        return name, None

    # Outputs that wait are large: no more than two batches of them.
    yield from prefetch(write, predicted(), WRITER_THREADS, ahead=2 * batch)


def read_table(dataset: FrameDataset, preparation: Preparation, name: str) -> FrameTable | str:
    """The table of a frame, or why there is none."""
    try:
        frame = dataset.load(name)
        return frame_table(
            frame, preparation.regimes, pixels=preparation.pixels, seed=preparation.seed
        )
    except InputError as e:
        return str(e)
