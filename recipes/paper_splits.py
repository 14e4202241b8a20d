"""Write two splits of the same frames, for the question of where the features F help.

    python recipes/paper_splits.py DATA OUT --train-only taskonomy/sample_model_1

OUT/blocks: blocks of consecutive frames of every source, so that each source is in train, val and
test, as in two of the paper's datasets. OUT/places: the splits of DATA, which are by place, with
the sources of --train-only in train alone. Both have about the same numbers of frames. The frames
are links to those of DATA.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

import tyro

from scalefield.datasets.splits import SPLITS, hash_order, proportions, read_list, write_list
from scalefield.errors import InputError

BLOCK = 8
"""Consecutive frames that stay together."""


@dataclass(frozen=True)
class Splits:
    """Write two splits of the same frames: by blocks of frames, and by place."""

    data: Annotated[Path, tyro.conf.Positional]
    """Plain folder with train.txt, val.txt and test.txt."""
    out: Annotated[Path, tyro.conf.Positional]
    """Folder for the two splits."""
    train_only: tuple[str, ...] = ()
    """Sources, DATASET/SOURCE, whose frames of val and test go to train."""

    def run(self) -> None:
        """Write the lists, and links to the frames."""
        given = {split: read_list(self.data / f"{split}.txt") for split in SPLITS}
        by_place = places(given, self.train_only)
        counts = [len(by_place[split]) for split in SPLITS]
        names = [name for frames in given.values() for name in frames]
        for kind, lists in {"blocks": blocks(names, counts), "places": by_place}.items():
            (self.out / kind).mkdir(parents=True, exist_ok=True)
            for dataset in {name.split("/")[0] for name in names}:
                link = self.out / kind / dataset
                if not link.exists():
                    os.symlink((self.data / dataset).resolve(), link)
            for split, frames in lists.items():
                write_list(self.out / kind / f"{split}.txt", frames)
            print(kind, *(f"{split} {len(frames)}" for split, frames in lists.items()))


def places(given: dict[str, list[str]], train_only: tuple[str, ...]) -> dict[str, list[str]]:
    """The given splits with all frames of some sources in train."""
    found = {name.rpartition("/")[0] for frames in given.values() for name in frames}
    if unknown := set(train_only) - found:
        raise InputError(f"--train-only: no frame of {unknown.pop()}; there are {sorted(found)}")
    lists: dict[str, list[str]] = {split: [] for split in SPLITS}
    for split, frames in given.items():
        for name in frames:
            lists["train" if name.rpartition("/")[0] in train_only else split].append(name)
    return lists


def blocks(names: list[str], counts: list[int]) -> dict[str, list[str]]:
    """Splits in the ratio of `counts`, in which every source is dealt out block by block."""
    sources: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        sources[name.rpartition("/")[0]].append(name)
    lists: dict[str, list[str]] = {split: [] for split in SPLITS}
    for frames in sources.values():
        parts = {frames[i]: frames[i : i + BLOCK] for i in range(0, len(frames), BLOCK)}
        dealt = iter([name for first in hash_order(list(parts)) for name in parts[first]])
        for split, share in zip(SPLITS, proportions(len(frames), counts), strict=True):
            lists[split] += islice(dealt, share)
    return lists


if __name__ == "__main__":
    tyro.cli(Splits).run()
