"""Readers of datasets in their own layouts, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from scalefield.datasets.folder import Folder
from scalefield.datasets.frame import Dataset, Frame
from scalefield.datasets.kitti import Kitti
from scalefield.datasets.predictions import Predictions
from scalefield.datasets.splits import SPLITS
from scalefield.datasets.sunrgbd import SunRgbd
from scalefield.datasets.urbansyn import UrbanSyn
from scalefield.errors import InputError, did_you_mean
from scalefield.io.exr import import_openexr

__all__ = [
    "DATASETS",
    "Dataset",
    "Folder",
    "Frame",
    "Kitti",
    "Predictions",
    "SunRgbd",
    "UrbanSyn",
    "open_dataset",
    "open_datasets",
]

DATASETS: dict[str, Callable[..., Dataset]] = {
    "kitti": Kitti,
    "urbansyn": UrbanSyn,
    "sunrgbd": SunRgbd,
    "folder": Folder,
    "predictions": Predictions,
}


def open_dataset(
    name: str,
    root: str | Path,
    ranges_m: Mapping[str, tuple[float, float]] | None = None,
    *,
    sunrgbd_max_m: float | None = None,
) -> Dataset:
    """The reader of that name at `root`; `ranges_m` is for the folder layout.

    `sunrgbd_max_m` replaces the depth above which SUN RGB-D is taken as unknown.
    A package that the reader needs and that is not installed is reported here, before any work.
    """
    if name not in DATASETS:
        raise InputError(f"no dataset {name!r}; there are {', '.join(DATASETS)}")
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"{root}: no such folder")
    if name == "folder":
        return Folder(root, ranges_m or {})
    if ranges_m:
        raise InputError(f"the depth range of {name} is declared by its reader; drop --range")
    if name == "urbansyn":
        import_openexr()
    if name == "sunrgbd" and sunrgbd_max_m is not None:
        if not sunrgbd_max_m > SunRgbd.depth_range_m[0]:
            raise InputError(
                f"--sunrgbd-max-m must be more than {SunRgbd.depth_range_m[0]:g} m, "
                f"found {sunrgbd_max_m:g}"
            )
        return SunRgbd(root, sunrgbd_max_m)
    return DATASETS[name](root)


def open_datasets(
    texts: Iterable[str],
    ranges_m: Mapping[str, tuple[float, float]] | None = None,
    *,
    sunrgbd_max_m: float | None = None,
) -> dict[str, Dataset]:
    """Readers by name, each from NAME=FOLDER.

    A name of `DATASETS` is read in that layout, any other as a plain folder. `sunrgbd_max_m`
    replaces the depth above which SUN RGB-D is taken as unknown.
    """
    opened: dict[str, Dataset] = {}
    for text in texts:
        name, found, root = text.partition("=")
        if not found or not name or not root:
            raise InputError(f"--data must be NAME=FOLDER, found {text!r}")
        if name in opened:
            raise InputError(f"--data {name} is given twice")
        layout = name if name in DATASETS else "folder"
        ranges = ranges_m if layout == "folder" else None
        listed = any(Path(root, f"{split}.txt").is_file() for split in SPLITS)
        if name not in DATASETS and Path(root).is_dir() and not listed:
            layouts = [known for known in DATASETS if known != "folder"]
            raise InputError(
                f"--data {name}: neither a layout ({', '.join(layouts)}) nor a plain folder, "
                f"because {root} has no train.txt, val.txt or test.txt{did_you_mean(name, layouts)}"
            )
        opened[name] = open_dataset(layout, root, ranges, sunrgbd_max_m=sunrgbd_max_m)
    return opened
