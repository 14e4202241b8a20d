"""Readers of datasets in their own layouts, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from scalefield.datasets.folder import Folder
from scalefield.datasets.frame import Dataset, Frame
from scalefield.datasets.kitti import Kitti
from scalefield.datasets.sunrgbd import SunRgbd
from scalefield.datasets.urbansyn import UrbanSyn
from scalefield.errors import InputError

__all__ = ["DATASETS", "Dataset", "Folder", "Frame", "Kitti", "SunRgbd", "UrbanSyn", "open_dataset"]

DATASETS: dict[str, Callable[..., Dataset]] = {
    "kitti": Kitti,
    "urbansyn": UrbanSyn,
    "sunrgbd": SunRgbd,
    "folder": Folder,
}


def open_dataset(
    name: str, root: str | Path, ranges_m: Mapping[str, tuple[float, float]] | None = None
) -> Dataset:
    """The reader of that name at `root`; `ranges_m` is for the folder layout."""
    if name not in DATASETS:
        raise InputError(f"no dataset {name!r}; there are {', '.join(DATASETS)}")
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"{root}: no such folder")
    if name == "folder":
        return Folder(root, ranges_m or {})
    if ranges_m:
        raise InputError(f"the depth range of {name} is declared by its reader; drop --range")
    return DATASETS[name](root)
