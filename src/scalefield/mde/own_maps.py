"""Maps of the user in place of an estimator's: arrays, files, and folders with a map for each
image."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from scalefield import mde as estimators
from scalefield.errors import FileError, InputError, one_line, size_text
from scalefield.io import MAP_SUFFIXES, files_below, read_map
from scalefield.io.arrays import npz_members
from scalefield.io.maps import without_unit_axes
from scalefield.mde import MDE, estimate_batch
from scalefield.mde.output import Kind, MDEOutput, affine_by_default


@dataclass(frozen=True)
class OwnMaps:
    """An MDE that reads its output: the map of a file, or of the file in a folder that has the
    image's name.

    A file belongs to the image of the same path below its folder without the suffix, or else of the
    same file name, if only one map in the folder has it. Where names are numbers, leading zeros do
    not count. The image's own suffix may stay: a.jpg.npy belongs to a.jpg.
    """

    path: Path
    kind: Kind
    affine: bool | None = None
    """Whether the shift is unknown too; None for what `affine_by_default` gives."""
    key: str | None = None
    """Name of the array of an NPZ, or of the channel of an EXR; by default that of the file, if it
    has several."""
    resize: bool = False
    """Whether a map of another size than the image is resized."""

    name: ClassVar[str] = "array"

    def __call__(self, image: UInt8[np.ndarray, "h w 3"], name: str = "") -> MDEOutput:
        """The map of the image of this name, checked."""
        path = self.find(name)
        try:
            return from_array(
                self.read(path), self.kind, image, affine=self.affine, resize=self.resize
            )
        except FileError:
            raise
        except InputError as e:
            raise InputError(f"{path}: {e}") from None

    def read(self, path: Path) -> Float[np.ndarray, "h w"]:
        """The map of a file; zeros of disparity of unknown shift are far."""
        key = self.key
        if key is None and path.suffix.lower() == ".npz":
            with npz_members(path) as members:
                key = path.stem if path.stem in members else None
        affine = affine_by_default(self.kind) if self.affine is None else self.affine
        return read_map(path, key=key, zero_is_far=self.kind == "disparity" and affine)

    def find(self, name: str) -> Path:
        """The file of the image of this name, a path without the suffix."""
        if not self.path.is_dir():
            return self.path
        for files, asked in zip(self.files, (name, PurePosixPath(name).name), strict=True):
            found = files.get(_spelling(asked), [])
            if len(found) == 1:
                return found[0]
            if found:
                both = " and ".join(map(str, found[:2]))
                raise InputError(f"{both} could both be the map of {name}; wanted one")
        raise InputError(f"{self.path}: no map for {name} ({', '.join(MAP_SUFFIXES)})")

    def require(self, names: Iterable[str]) -> None:
        """Raise InputError if none of these images has a map."""
        first: InputError | None = None
        for name in names:
            try:
                self.find(name)
            except InputError as e:
                first = first or e
            else:
                return
        if first is not None:
            raise first

    @cached_property
    def files(self) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
        """The folder's files by their path below it, and by their file name alone."""
        by_path: dict[str, list[Path]] = {}
        by_name: dict[str, list[Path]] = {}
        for path in files_below(self.path):
            if path.suffix.lower() in MAP_SUFFIXES:
                below = path.relative_to(self.path).with_suffix("")
                for stem in {below, below.with_suffix("")} if _is_image(below) else {below}:
                    by_path.setdefault(_spelling(stem.as_posix()), []).append(path)
                    by_name.setdefault(_spelling(stem.name), []).append(path)
        return by_path, by_name


def _is_image(path: Path) -> bool:
    """Whether the stem of a map ends as the file name of a photograph does."""
    return path.suffix.lower() in (".jpg", ".jpeg", ".png")


def _spelling(name: str) -> str:
    """A name without leading zeros, if it is a number."""
    return str(int(name)) if name.isascii() and name.isdigit() else name


@dataclass(frozen=True)
class RelativeDepth:
    """Where the relative depth of images comes from, and what is declared of it."""

    mde: str | MDE
    """An estimator or its name, or `OwnMaps`."""
    kind: Kind | None = None
    """Kind of an estimator that does not determine it."""
    affine: bool | None = None
    """Whether the shift is unknown too; None for what the estimator declares."""

    @property
    def name(self) -> str:
        """Name of the estimator."""
        return self.mde if isinstance(self.mde, str) else self.mde.name

    def load(self, device: str = "cpu") -> RelativeDepth:
        """The same with the estimator loaded."""
        if not isinstance(self.mde, str):
            return self
        return dataclasses.replace(
            self, mde=estimators.load_mde(self.mde, device=device, kind=self.kind)
        )

    def __call__(self, image: UInt8[np.ndarray, "h w 3"], name: str = "") -> MDEOutput:
        """The relative depth of one image; own maps are found by the image's name."""
        return self.batch([image], [name])[0]

    def batch(
        self, images: Sequence[UInt8[np.ndarray, "h w 3"]], names: Sequence[str] = ()
    ) -> list[MDEOutput]:
        """The relative depth of images of one size, together if the estimator can."""
        mde: Any = self.load().mde
        if isinstance(mde, OwnMaps):
            outputs = [mde(*pair) for pair in zip(images, names or [""] * len(images), strict=True)]
        else:
            outputs = estimate_batch(mde, images) if callable(mde) else [mde]
        for output in outputs:
            if not isinstance(output, MDEOutput):
                raise InputError(
                    "an MDE must be a name or return an MDEOutput for an image, found "
                    f"{type(output).__name__}"
                )
            if self.kind not in (None, output.kind):
                raise InputError(
                    f"{output.model} gives {output.kind}, but kind={self.kind} was given"
                )
        if self.affine is None:
            return outputs
        return [dataclasses.replace(output, affine=self.affine) for output in outputs]


def from_array(
    mde_depth: np.ndarray | Tensor,
    kind: Kind | None,
    image: np.ndarray | None = None,
    *,
    affine: bool | None = None,
    resize: bool = False,
) -> MDEOutput:
    """A user's own depth or disparity map as an `MDEOutput`.

    `affine`: whether a shift of the map is unknown too; by default that of disparity is.
    """
    if kind not in ("depth", "disparity"):
        raise InputError(
            'kind is required with your own map: "depth" (grows with distance) or '
            f'"disparity" (falls with it), found {kind!r}'
        )
    try:
        values = _plain(mde_depth) if isinstance(mde_depth, Tensor) else _native(mde_depth)
    except (TypeError, ValueError, RuntimeError) as e:
        raise InputError(f"the depth map must be an array of numbers: {one_line(e)}") from None
    shape = tuple(values.shape)
    values = values.reshape(without_unit_axes(shape))
    if values.ndim != 2 or 0 in shape:
        raise InputError(f"a depth map must have shape (height, width), found {shape}")
    if values.dtype.itemsize == 1 and kind == "depth":
        raise InputError(
            "8-bit depth has too few steps and is usually a picture of depth; "
            "give the float or 16-bit map itself"
        )
    # float16 and integer maps become float32; float64 keeps its range.
    prediction = values.to(torch.float64 if values.dtype == torch.float64 else torch.float32)
    pixels = None
    if image is not None:
        pixels = torch.tensor(image, device=prediction.device)
        prediction = _fitted(prediction, image.shape[:2], resize=resize)
    affine = affine_by_default(kind) if affine is None else affine
    output = MDEOutput(prediction, kind, affine=affine, image=pixels)
    output.require_usable()
    return output


def _fitted(
    prediction: Float[Tensor, "_ _"], shape: tuple[int, int], *, resize: bool
) -> Float[Tensor, "h w"]:
    """The map at the image's size; a map of another size is refused unless `resize` is set."""
    if prediction.shape == shape:
        return prediction
    found, wanted = map(size_text, (prediction.shape, shape))
    if prediction.shape == shape[::-1]:
        raise InputError(
            f"the depth map is {found} pixels and the image {wanted}: one of them is rotated, "
            "for example because EXIF rotates the photograph; rotate the map"
        )
    if not resize:
        raise InputError(
            f"the depth map is {found} pixels and the image {wanted}; make the sizes equal, or "
            "allow resizing the map with resize=True (--resize)"
        )
    # Nearest keeps holes and edges: it invents no value between foreground and background.
    maps = torch.nn.functional.interpolate(prediction[None, None], shape, mode="nearest-exact")
    return maps[0, 0]


def _plain(values: Tensor) -> Tensor:
    """The detached tensor; rejects sparse, quantised, complex, boolean and meta tensors."""
    unusual = values.layout != torch.strided or values.is_quantized or values.is_meta
    if unusual or values.is_complex() or values.dtype == torch.bool:
        raise TypeError(f"found a tensor of {values.dtype}, {values.layout}, on {values.device}")
    return values.detach()


def _native(values: Any) -> Tensor:
    """A tensor with its own memory; accepts flipped, read-only and byte-swapped arrays."""
    if np.ma.isMaskedArray(values):
        values = np.ma.filled(values.astype(np.float64), np.nan)  # masked pixels are unknown
    array = np.array(values, order="C")
    if array.dtype.kind not in "fiu":
        raise TypeError(f"found {array.dtype}")
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
