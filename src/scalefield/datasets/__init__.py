"""Readers of datasets in their own layouts, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from scalefield.datasets.folder import Folder
from scalefield.datasets.frame import Dataset, Frame
from scalefield.datasets.kitti import Kitti
from scalefield.datasets.predictions import Predictions
from scalefield.datasets.published import LAYOUTS, Published
from scalefield.datasets.splits import SPLITS
from scalefield.datasets.sunrgbd import SunRgbd
from scalefield.datasets.urbansyn import UrbanSyn
from scalefield.errors import InputError, did_you_mean
from scalefield.io.exr import import_openexr

DATASETS: dict[str, Callable[..., Dataset]] = {
    "kitti": Kitti,
    "urbansyn": UrbanSyn,
    "sunrgbd": SunRgbd,
    "folder": Folder,
    "predictions": Predictions,
    **{name: partial(Published, layout=name) for name in LAYOUTS},
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
    roots: dict[str, Path] = {}
    for text in texts:
        name, _, root = text.partition("=")
        if not name or not root:
            raise InputError(f"--data must be NAME=FOLDER, found {text!r}")
        if name in roots:
            raise InputError(f"--data {name} is given twice")
        roots[name] = Path(root)
    return {
        name: open_dataset(name, root, sunrgbd_max_m=sunrgbd_max_m)
        if name in DATASETS and name != "folder"
        else _open_folder(name, root, ranges_m)
        for name, root in roots.items()
    }


def _open_folder(
    name: str, root: Path, ranges_m: Mapping[str, tuple[float, float]] | None
) -> Dataset:
    """A plain folder; one without lists of frames is refused, since its name may be a typo."""
    dataset = open_dataset("folder", root, ranges_m)
    if not any((root / f"{split}.txt").is_file() for split in SPLITS):
        layouts = [known for known in DATASETS if known != "folder"]
        raise InputError(
            f"--data {name}: neither a layout ({', '.join(layouts)}) nor a plain folder, because "
            f"{root} has no train.txt, val.txt or test.txt{did_you_mean(name, layouts)}"
        )
    return dataset
