"""Frames with stored predictions of an estimator, to measure methods on anyone's maps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

from scalefield.datasets.frame import Frame
from scalefield.datasets.splits import check_split
from scalefield.errors import InputError, one_line, size_text
from scalefield.io import MAP_SUFFIXES, UNITS_TAG, read_image, read_json, read_png16
from scalefield.mde.output import Kind, affine_by_default
from scalefield.mde.own_maps import OwnMaps


@dataclass(frozen=True)
class Predictions:
    """A folder for each frame, with an image, a prediction and the truth.

    - `NAME/rgb.jpg` (or .png): the image; one of another size than the prediction is resized.
    - `NAME/pred.npz` (or .npy, .png, .pfm, .exr): what the estimator gave.
    - `NAME/gt.npz` (or as above): true depth of the same size, sparse or dense; 0 or NaN = unknown.
    - `NAME/meta.json`: see `Meta`.

    All frames are in the split `test`. They are for the estimator "stored".
    """

    root: Path
    name: ClassVar[str] = "predictions"

    def names(self, split: str) -> list[str]:
        """The folders in `root` for `test` and `all`; nothing for `train` and `val`."""
        check_split(split)
        if split not in ("test", "all"):
            return []
        folders = sorted(path.name for path in Path(self.root).iterdir() if path.is_dir())
        found = [name for name in folders if not name.startswith(".")]
        if not found:
            raise InputError(f"{self.root}: no frame found; wanted folders NAME with {_WANTED}")
        return found

    def load(self, name: str) -> Frame:
        """The frame with its prediction."""
        folder = Path(self.root) / name
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder; wanted {_WANTED} in it")
        meta = Meta.read(folder / "meta.json", name)
        prediction_path = _find(folder, "pred", MAP_SUFFIXES)
        maps = OwnMaps(prediction_path, meta.kind, meta.affine)
        prediction = maps.read(prediction_path)
        image = _resized(read_image(_find(folder, "rgb", _IMAGES)), prediction.shape, folder)
        mde_output = dataclasses.replace(maps(image), model=meta.model)
        return Frame(
            name=name,
            group=meta.group,
            scene=meta.scene,
            image=image,
            depth_m=_truth(_find(folder, "gt", MAP_SUFFIXES), meta, prediction.shape),
            depth_range_m=meta.depth_range_m,
            mde_output=mde_output,
        )


@dataclass(frozen=True)
class Meta:
    """The meta.json of a frame. Only `kind` is required; further entries are ignored."""

    kind: Kind
    """Whether the prediction grows with distance (depth) or falls with it (disparity)."""
    affine: bool
    """Whether the shift of the prediction is unknown too; by default that of disparity is."""
    group: str
    """Family under which results are reported; `source` if not given, else the frame's name."""
    scene: str
    """The sequence of the frame, whose frames are near-duplicates; `group` if not given."""
    model: str = "stored"
    """Name of the estimator, for records."""
    metric: bool = False
    """Whether the truth is in metres. If not, its scale is arbitrary, and it is scaled to a median
    of `ARBITRARY_MEDIAN_M`."""
    units_per_metre: float | None = None
    """Units of a metric truth; 1 by default. A PNG needs it unless scalefield wrote the file."""
    depth_range_m: tuple[float, float] = (0.1, 80.0)
    """Nearest and farthest depth that is scored, after the scaling."""

    @classmethod
    def read(cls, path: Path, name: str) -> Meta:
        """The entries of the file, checked; `name` is that of the frame."""
        values = read_json(path)
        if not isinstance(values, dict):
            raise InputError(f"{path}: wanted a JSON object with kind, found {_found(values)}")
        if (kind := values.get("kind")) not in get_args(Kind) or kind is None:
            raise InputError(f'{path}: kind must be "depth" or "disparity", found {_found(kind)}')
        group = _entry(path, values, "group", _entry(path, values, "source", name))
        units = _entry(path, values, "units_per_metre", None, _is_length)
        near, far = _entry(path, values, "depth_range_m", cls.depth_range_m, _is_range)
        return cls(
            kind=kind,
            affine=_entry(path, values, "affine", affine_by_default(kind)),
            group=group,
            scene=_entry(path, values, "scene", group),
            model=_entry(path, values, "model", cls.model),
            metric=_entry(path, values, "metric", cls.metric),
            units_per_metre=None if units is None else float(units),
            depth_range_m=(float(near), float(far)),
        )


ARBITRARY_MEDIAN_M = 3.0
"""Median to which a truth of arbitrary scale is brought."""

_IMAGES = (".jpg", ".png", ".jpeg")
_WANTED = "rgb.jpg, pred.npz, gt.npz and meta.json"


def _is_length(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e12


def _is_range(value: Any) -> bool:
    pair = isinstance(value, (list, tuple)) and len(value) == 2
    return pair and all(map(_is_length, value)) and value[0] < value[1]


_WORDS = {str: "a text", bool: "true or false"}


def _entry(
    path: Path,
    values: dict[str, Any],
    key: str,
    default: Any,
    accepts: Callable[[Any], bool] | None = None,
) -> Any:
    """The entry, or the default where there is none; of the default's type if nothing else is
    given to check it."""
    value = values.get(key)
    if value is None:
        return default
    if accepts is not None:
        wanted = "a number above 0" if accepts is _is_length else "[NEAREST, FARTHEST] above 0"
        accepted = accepts(value)
    else:
        wanted = _WORDS[type(default)]
        accepted = isinstance(value, type(default)) and value != ""
    if not accepted:
        raise InputError(f"{path}: {key} must be {wanted}, found {_found(value)}")
    return value


def _found(value: Any) -> str:
    return "nothing" if value is None else one_line(repr(value))


def _find(folder: Path, stem: str, suffixes: tuple[str, ...]) -> Path:
    """The file of that stem; there must be exactly one."""
    found = [path for s in suffixes if (path := folder / f"{stem}{s}").is_file()]
    if not found:
        raise InputError(f"{folder}: has no {stem} ({', '.join(suffixes)})")
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise InputError(f"{folder}: has {names}; wanted one file {stem}")
    return found[0]


def _truth(path: Path, meta: Meta, shape: tuple[int, ...]) -> Float32[np.ndarray, "h w"]:
    """True depth in metres, or of the agreed median; NaN where unknown."""
    depth = OwnMaps(path, "depth").read(path).astype(np.float64)
    if depth.shape != shape:
        raise InputError(
            f"{path}: the truth is {size_text(depth.shape)} and the prediction {size_text(shape)} "
            "pixels; make the sizes equal"
        )
    known = np.isfinite(depth) & (depth > 0)
    if not known.any():
        raise InputError(f"{path}: no depth is known; all are NaN, infinite, or not above 0")
    if meta.metric:
        scale = 1 / _units_per_metre(path, meta)
    else:
        scale = ARBITRARY_MEDIAN_M / float(np.median(depth[known]))
    with np.errstate(over="ignore", under="ignore"):
        return np.where(known, depth * scale, np.nan).astype(np.float32)


def _units_per_metre(path: Path, meta: Meta) -> float:
    if meta.units_per_metre is not None:
        return meta.units_per_metre
    if path.suffix != ".png":
        return 1.0
    try:
        units = float(read_png16(path)[1].get(UNITS_TAG, ""))
        if not _is_length(units):
            raise ValueError
    except ValueError:
        raise InputError(
            f"{path}: a PNG does not record its units; put units_per_metre into meta.json "
            "(1000 for millimetres, 256 for KITTI)"
        ) from None
    return units


def _resized(
    image: UInt8[np.ndarray, "_ _ 3"], shape: tuple[int, ...], folder: Path
) -> UInt8[np.ndarray, "h w 3"]:
    """The image at the size of the prediction; a rotated one is refused."""
    if image.shape[:2] == shape:
        return image
    if image.shape[:2] == shape[::-1]:
        raise InputError(
            f"{folder}: the prediction is {size_text(shape)} and the image "
            f"{size_text(image.shape)} pixels: one of them is rotated, for example because EXIF "
            "rotates the photograph"
        )
    resized = Image.fromarray(image).resize((shape[1], shape[0]), Image.Resampling.LANCZOS)
    return np.array(resized)
