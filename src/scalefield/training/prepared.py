"""Prepared frames on disk: what training reads, made once and shared by every run.

A folder holds the frames of one split of one dataset as one MDE sees them: a safetensors file a
frame, written atomically, so that preparation may be interrupted, resumed, and shared by the
processes of torchrun. F is kept on the generator's grid, as 8-bit numbers with a step and an
offset for each channel (or as float16). Files are memory-mapped when they are read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import signal
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import torch
from jaxtyping import Float, UInt8
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from scalefield.datasets import Dataset as FrameDataset
from scalefield.datasets.splits import thin
from scalefield.errors import InputError, one_line
from scalefield.io import read_json, write_atomic, write_json
from scalefield.io.run_folder import config_differences
from scalefield.mde import MDE, MDEOutput, estimate_batch
from scalefield.runtime.progress import progress
from scalefield.training.cross_fit import CrossFit
from scalefield.training.data import PIXELS, FrameTable, TrainingFrame, frame_table, training_frame
from scalefield.training.loop import wait_for_all

FORMAT = 1
"""Version of the files; a folder of another version is refused."""


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


class Entry(NamedTuple):
    """Path of a prepared frame, with what must be known before it is read."""

    file: str
    name: str
    scene: str
    group: str
    bucket: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class PreparedFrames(Sequence[TrainingFrame]):
    """Prepared frames, read from disk one by one when they are asked for."""

    entries: tuple[Entry, ...]

    def __len__(self) -> int:
        """How many frames there are."""
        return len(self.entries)

    @overload
    def __getitem__(self, index: int) -> TrainingFrame: ...

    @overload
    def __getitem__(self, index: slice) -> PreparedFrames: ...

    def __getitem__(self, index: int | slice) -> TrainingFrame | PreparedFrames:
        """One frame, its maps memory-mapped; or some frames, still on disk."""
        if isinstance(index, slice):
            return PreparedFrames(self.entries[index])
        return read_frame(Path(self.entries[index].file))

    def __add__(self, other: PreparedFrames) -> PreparedFrames:
        """The frames of both, as one run trains on several datasets."""
        return PreparedFrames(self.entries + other.entries)

    @property
    def buckets(self) -> list[tuple[int, ...]]:
        """The bucket of each frame; see `TrainingFrame.bucket`."""
        return [entry.bucket for entry in self.entries]

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(Path(entry.file).stat().st_size for entry in self.entries)

    def on(self, device: str | torch.device) -> list[TrainingFrame]:
        """All frames in a device's memory, for sets that are small enough."""
        return [to_device(frame, device) for frame in self]


# ---- one frame -------------------------------------------------------------------------------


def quantise(
    features: Float[Tensor, "c h w"],
) -> tuple[UInt8[Tensor, "c h w"], Float[Tensor, "2 c"]]:
    """F in 8 bits: each channel's values from its least to its largest, in 255 equal steps."""
    least, largest = features.float().flatten(1).aminmax(dim=1)
    step = ((largest - least) / 255).clamp(min=torch.finfo(torch.float32).tiny)
    scaled = (features.float() - least[:, None, None]) / step[:, None, None]
    return scaled.round().clamp(0, 255).to(torch.uint8), torch.stack([step, least])


def dequantise(frame: TrainingFrame) -> TrainingFrame:
    """The frame with its features in float16."""
    if frame.features is None or frame.quantisation is None:
        return frame
    step, least = frame.quantisation[..., None, None]
    features = torch.addcmul(least, frame.features.float(), step).half()
    return dataclasses.replace(frame, features=features, quantisation=None)


def pack_frame(frame: TrainingFrame, scene: str, kept: str) -> bytes:
    """The file of a frame."""
    whole = np.int16 if max(frame.shape) <= np.iinfo(np.int16).max else np.int32
    tensors: dict[str, Tensor] = {
        "log_depth": frame.log_depth,
        "image": ((frame.image.float() + 1) * 127.5).round().to(torch.uint8),
        "pixels": torch.from_numpy(frame.pixels.astype(whole)),
        "mde_log_depth": torch.from_numpy(frame.mde_log_depth),
        "true_log_depth": torch.from_numpy(frame.true_log_depth),
    }
    for regime, rows in frame.anchors.items():
        tensors[f"anchors/{regime}"] = torch.from_numpy(rows.astype(np.int32))
    if frame.features is not None and kept != "none":
        tensors["features"] = frame.features.half()
        if kept == "uint8":
            tensors["features"], tensors["quantisation"] = quantise(frame.features)
    record = {
        "name": frame.name,
        "scene": scene,
        "group": frame.group,
        "shape": frame.shape,
        "level": frame.level,
        "true": frame.true,
        "drawn": frame.drawn,
        "regimes": list(frame.anchors),
    }
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return save(tensors, metadata={"record": json.dumps(record)})


FINISHING = 4
"""Threads that join tables with the MDE's outputs, pack the frames and write them."""

DAMAGE = (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError)
"""What a damaged file may cause."""


def read_frame(file: Path) -> TrainingFrame:
    """A prepared frame; its maps are mapped from the file and not copied."""
    try:
        with safe_open(file, "pt") as opened:
            record = json.loads(opened.metadata()["record"])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        return TrainingFrame(
            name=record["name"],
            shape=tuple(record["shape"]),
            features=tensors.get("features"),
            log_depth=tensors["log_depth"],
            image=(tensors["image"].float() / 127.5 - 1).half(),
            level=record["level"],
            group=record["group"],
            true=record["true"],
            pixels=tensors["pixels"].numpy().astype(np.float32),
            mde_log_depth=tensors["mde_log_depth"].numpy(),
            true_log_depth=tensors["true_log_depth"].numpy(),
            anchors={
                regime: tensors[f"anchors/{regime}"].numpy().astype(np.int64)
                for regime in record["regimes"]
            },
            drawn=record["drawn"],
            quantisation=tensors.get("quantisation"),
        )
    except DAMAGE as e:
        raise InputError(f"{file}: not a prepared frame ({one_line(e)}); delete it") from None


def read_entry(file: Path) -> Entry:
    """What must be known of a prepared frame before it is read."""
    try:
        with safe_open(file, "pt") as opened:
            record = json.loads(opened.metadata()["record"])
            cells = tuple(opened.get_slice("log_depth").get_shape()[1:])
            if "features" in opened.keys():  # noqa: SIM118
                cells += tuple(opened.get_slice("features").get_shape())
    except DAMAGE as e:
        raise InputError(f"{file}: not a prepared frame ({one_line(e)}); delete it") from None
    return Entry(str(file), record["name"], record["scene"], record["group"], cells)


def to_device(frame: TrainingFrame, device: str | torch.device) -> TrainingFrame:
    """The frame with its maps on a device; the tables stay on the host."""
    maps = {
        name: getattr(frame, name).to(device)
        for name in ("features", "log_depth", "image", "quantisation")
        if getattr(frame, name) is not None
    }
    return dataclasses.replace(frame, **maps)


# ---- all frames of a split -------------------------------------------------------------------


class _Tables(Dataset[FrameTable | str]):
    """The tables of named frames, or why there is none; read by the workers of a DataLoader."""

    def __init__(
        self, dataset: FrameDataset, names: Sequence[str], preparation: Preparation
    ) -> None:
        self.dataset, self.names, self.preparation = dataset, names, preparation

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> FrameTable | str:
        chosen = self.preparation
        try:
            frame = self.dataset.load(self.names[index])
            return frame_table(frame, chosen.regimes, pixels=chosen.pixels, seed=chosen.seed)
        except InputError as e:
            return str(e)


def start_worker(_: int) -> None:
    """Ignore Ctrl+C in a worker of a DataLoader; the parent ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


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
    again the next time. `name` is what the data are called, where it is not the reader's name.
    """
    preparation, called = preparation or Preparation(), name or dataset.name
    names = split_names(dataset, split, limit, called)
    claim_folder(folder, dataset, called, split, mde, preparation)
    mine = names[rank::world]
    missing = [frame for frame in mine if not frame_file(folder, frame).is_file()]
    if missing:
        bar = progress(
            len(mine),
            initial=len(mine) - len(missing),
            desc=f"prepare {called} {split}",
            unit="frame",
            show=show_progress and rank == 0,
        )
        with bar:
            for frame, error in _prepare_missing(
                dataset, missing, mde, folder, preparation, workers=workers, batch=batch
            ):
                if error:
                    bar.write(f"left out: {error}", file=sys.stderr)
                    write_json(skipped_file(folder, frame), {"error": error})
                else:
                    skipped_file(folder, frame).unlink(missing_ok=True)
                bar.update()
    wait_for_all(world)
    return open_prepared(folder, names, quiet=rank > 0)


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


def split_names(
    dataset: FrameDataset, split: str, limit: int | None = None, called: str | None = None
) -> list[str]:
    """The frames of a split, thinned evenly to `limit`; an empty split is refused."""
    names = dataset.names(split)
    if not names:
        raise InputError(
            f"the split {split} of {called or dataset.name} has no frame; training needs train and "
            "val, an evaluation test, and a few frames or drives are too few to be split"
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
    called: str,
    split: str,
    mde: MDE | CrossFit,
    preparation: Preparation,
) -> None:
    """Record what the folder's frames are; a folder that holds others is refused."""
    wanted = {
        "format": FORMAT,
        "dataset": called,
        "split": split,
        "ranges_m": getattr(dataset, "ranges_m", {}),
        "mde": describe_mde(mde),
        "preparation": dataclasses.asdict(preparation),
    }
    record = folder / "prepared.json"
    differing = config_differences(record, wanted)
    if differing:
        raise InputError(
            f"{folder} holds frames prepared with another {', '.join(differing)}; "
            "choose another folder with --prepared, or delete it"
        )
    if differing is None:
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
        _Tables(dataset, names, preparation),
        batch_size=None,
        num_workers=min(workers, len(names)),
        worker_init_fn=start_worker,
    )
    waiting: dict[tuple, list[FrameTable]] = defaultdict(list)
    writing: deque[tuple[str, Future[str | None]]] = deque()

    def write(table: FrameTable, output: MDEOutput) -> str | None:
        try:
            frame = training_frame(table, output)
        except InputError as e:
            return str(e)
        data = pack_frame(frame, table.scene, preparation.features)
        write_atomic(frame_file(folder, table.name), data)
        return None

    def finish(members: list[FrameTable], model: MDE) -> Iterator[tuple[str, str | None]]:
        outputs = estimate_batch(model, [table.image.numpy() for table in members])
        for table, output in zip(members, outputs, strict=True):
            writing.append((table.name, pool.submit(write, table, output)))
        # Outputs that wait are large: no more than two batches of them.
        while writing and (writing[0][1].done() or len(writing) > 2 * batch):
            name, future = writing.popleft()
            yield name, future.result()

    with ThreadPoolExecutor(FINISHING) as pool:
        models: dict[int, MDE] = {}
        for name, table in zip(names, loader, strict=True):
            if isinstance(table, str):
                yield name, table
                continue
            model = mde.for_scene(table.scene) if isinstance(mde, CrossFit) else mde
            models[id(model)] = model
            key = (id(model), tuple(table.image.shape))
            waiting[key].append(table)
            if len(waiting[key]) == batch:
                yield from finish(waiting.pop(key), model)
        for (model_index, _), members in waiting.items():
            yield from finish(members, models[model_index])
        for name, future in writing:
            yield name, future.result()
