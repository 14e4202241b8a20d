"""Deterministic splits, seeded by name, so that two machines with the same data agree."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from scalefield.errors import InputError, one_line
from scalefield.io import read_text, write_atomic

SPLITS = ("train", "val", "test")


def check_split(split: str) -> None:
    """Raise InputError if `split` is not train, val, test or all."""
    if split not in (*SPLITS, "all"):
        raise InputError(f"no split {split!r}; there are {', '.join(SPLITS)} and all")


def hash_order(names: Sequence[str]) -> list[str]:
    """The names in a pseudo-random order that is the same on every machine."""
    return sorted(names, key=lambda name: (hashlib.sha256(name.encode()).digest(), name))


def proportions(total: int, counts: Sequence[int]) -> list[int]:
    """Whole numbers in the ratio of `counts` that sum to `total` (largest remainders)."""
    shares = [total * count / sum(counts) for count in counts]
    whole = [int(share) for share in shares]
    by_remainder = sorted(range(len(counts)), key=lambda i: whole[i] - shares[i])
    for i in by_remainder[: total - sum(whole)]:
        whole[i] += 1
    return whole


def count_differences(found: Mapping[str, int], whole: Mapping[str, int], unit: str) -> str:
    """A sentence about what the whole dataset has more or less of; empty if there is nothing."""
    named = [
        f"{part} {found.get(part, 0):,} of {whole.get(part, 0):,}"
        for part in sorted({*found, *whole})
        if found.get(part, 0) != whole.get(part, 0)
    ]
    total, all_of = sum(found.values()), sum(whole.values())
    return f"{total:,} {unit} found, {all_of:,} expected ({', '.join(named)})" if named else ""


def split_frames(names: Sequence[str], counts: Sequence[int]) -> dict[str, list[str]]:
    """Frames assigned to splits one by one: `counts` of them, or in that ratio if there are
    fewer."""
    order = hash_order(names)
    parts = proportions(min(len(order), sum(counts)), counts)
    ends = np.cumsum([0, *parts])
    return {s: sorted(order[ends[i] : ends[i + 1]]) for i, s in enumerate(SPLITS)}


def split_drives(
    drives: Mapping[str, Sequence[str]], category: Mapping[str, str], counts: Sequence[int]
) -> dict[str, list[str]]:
    """Frames assigned to splits by drive within each category, then thinned evenly to `counts`.

    A whole drive goes to the split that is furthest behind its share, so no drive is in two splits.
    A split that this leaves without a category gets the drive nearest to its share, of a split that
    has others, if the category has a drive for each split.
    """
    assigned: dict[str, list[str]] = {split: [] for split in SPLITS}
    for kind in sorted(set(category.values())):
        members = [drive for drive in hash_order(list(drives)) if category.get(drive) == kind]
        wanted = np.array(counts) / sum(counts) * sum(len(drives[d]) for d in members)
        behind, owner = wanted.copy(), dict[str, int]()
        for drive in members:
            owner[drive] = int(np.argmax(behind))
            behind[owner[drive]] -= len(drives[drive])
        for empty in set(range(len(SPLITS))) - set(owner.values()):
            held = Counter(owner.values())
            spare = [drive for drive in members if held[owner[drive]] > 1]
            if len(members) >= len(SPLITS) and spare:
                owner[min(spare, key=lambda d: abs(len(drives[d]) - wanted[empty]))] = empty
        for drive, split in owner.items():
            assigned[SPLITS[split]] += drives[drive]
    return {
        split: thin(assigned[split], count) for split, count in zip(SPLITS, counts, strict=True)
    }


def read_list(path: Path) -> list[str]:
    """The names of a text list, one per line."""
    names = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    if len(set(names)) < len(names):
        twice = next(n for i, n in enumerate(names) if n in names[:i])
        raise InputError(f"{path}: lists {one_line(twice)} twice")
    return names


def write_list(path: Path, names: Sequence[str]) -> None:
    """Write names as a text list, one per line."""
    write_atomic(path, "".join(f"{name}\n" for name in names).encode())


def thin(frames: Sequence[str], count: int) -> list[str]:
    """`count` frames, evenly spaced; all of them where there are fewer."""
    if len(frames) <= count:
        return list(frames)
    return [frames[i * len(frames) // count] for i in range(count)]
