"""Anchors: the pixels whose metric depth is known, and the files they come in."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float64, Int64

from scalefield.errors import FileError, InputError, one_line
from scalefield.io import read_bytes, read_depth_png, read_npz, write_atomic, write_depth_png
from scalefield.io.anchor_tables import (
    TableError,
    decode_text,
    parse_anchor_table,
    table_columns,
)
from scalefield.io.lengths import LENGTH_LIMITS_M, METRES_PER_UNIT

AnchorsLike: TypeAlias = Any
"""An argument of `Anchors.of`: Anchors, rows, named columns, a file, or None."""


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Anchors:
    """N pixels with their metric depth: z along the optical axis, in metres.

    `u` counts pixels to the right and `v` downwards, with pixel centres at integers, so the
    top-left pixel is (0, 0) and covers −0.5 … 0.5. An anchor measures the pixel that it falls in.
    `sigma_m` is the standard deviation of each measurement, NaN where it is not known, and None if
    no anchor has one. `lines` and `unit` are used in messages only.

    >>> Anchors.of([(320, 400, 1.52), (120, 400, 1.63)])
    Anchors(2: 1.52 … 1.63 m)
    """

    u: Float64[np.ndarray, " n"]
    v: Float64[np.ndarray, " n"]
    depth_m: Float64[np.ndarray, " n"]
    sigma_m: Float64[np.ndarray, " n"] | None = None
    lines: Int64[np.ndarray, " n"] | None = None
    """Line of each anchor in the file that it was read from, counted from 1."""
    unit: str = "m"
    """The unit in messages; another one for a COLMAP model, whose scale is arbitrary."""

    def __init__(
        self,
        u: Any,
        v: Any,
        depth_m: Any,
        sigma_m: Any = None,
        *,
        lines: Any = None,
        unit: str = "m",
    ) -> None:
        object.__setattr__(self, "lines", None if lines is None else np.array(lines, np.int64))
        object.__setattr__(self, "unit", unit)
        columns = {"u": u, "v": v, "depth_m": depth_m, "sigma_m": sigma_m}
        for name, values in columns.items():
            column = None
            if values is not None or name != "sigma_m":
                column = as_numbers(f"anchor column {name}", values)
                if column.ndim != 1:
                    shape = column.shape
                    raise InputError(f"anchor column {name} must be one-dimensional, found {shape}")
                column.flags.writeable = False
            object.__setattr__(self, name, column)
        if self.sigma_m is not None and len(self.sigma_m) and np.isnan(self.sigma_m).all():
            object.__setattr__(self, "sigma_m", None)
        lengths = {n: len(getattr(self, n)) for n in columns if getattr(self, n) is not None}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{name} has {n}" for name, n in lengths.items())
            raise InputError(f"anchor columns must have equal lengths, but {found}")
        self._require(np.isfinite(self.u) & np.isfinite(self.v), "a finite pixel position")
        least_m, most_m = LENGTH_LIMITS_M
        for name, values in (("depth_m", self.depth_m), ("sigma_m", self.sigma_m)):
            if values is not None:
                unknown = np.isnan(values) if name == "sigma_m" else np.zeros(len(values), bool)
                positive = np.isfinite(values) & (values > 0)
                self._require(positive | unknown, f"a finite {name} above zero", values)
                within = unknown | ((values >= least_m) & (values <= most_m))
                self._require(within, f"a {name} between {least_m:g} and {most_m:g} m", values)

    def __len__(self) -> int:
        return len(self.u)

    def __getitem__(self, index: Any) -> Anchors:
        """The anchors selected by a mask, a slice or an index array."""
        sigma_m = None if self.sigma_m is None else np.atleast_1d(self.sigma_m[index])
        u, v, depth_m = (np.atleast_1d(c[index]) for c in (self.u, self.v, self.depth_m))
        lines = None if self.lines is None else np.atleast_1d(self.lines[index])
        return Anchors(u, v, depth_m, sigma_m, lines=lines, unit=self.unit)

    def moved(self, u: Any, v: Any) -> Anchors:
        """The same anchors at other pixels, for example of a resized image."""
        return Anchors(u, v, self.depth_m, self.sigma_m, lines=self.lines, unit=self.unit)

    def joined(self, others: Anchors) -> Anchors:
        """These anchors followed by others."""
        if not len(others):
            return self
        sigma_m = None
        if self.sigma_m is not None or others.sigma_m is not None:
            each = (
                np.full(len(a), np.nan) if a.sigma_m is None else a.sigma_m for a in (self, others)
            )
            sigma_m = np.concatenate(list(each))
        u, v, depth_m = (
            np.concatenate([getattr(self, n), getattr(others, n)]) for n in ("u", "v", "depth_m")
        )
        return Anchors(u, v, depth_m, sigma_m, unit=self.unit)

    def __repr__(self) -> str:
        if not len(self):
            return "Anchors(0)"
        nearest, farthest = self.depth_m.min(), self.depth_m.max()
        return f"Anchors({len(self)}: {nearest:.3g} … {farthest:.3g} {self.unit})"

    def describe(self, index: Any, most: int = 5) -> str:
        """The anchors of an index by line (if read from a table), position and depth; the first
        `most`, and how many more there are."""
        index = np.atleast_1d(index)
        named = ", ".join(
            f"{'' if self.lines is None else f'line {self.lines[i]}, '}"
            f"u={self.u[i]:g} v={self.v[i]:g} ({self.depth_m[i]:.3g} {self.unit})"
            for i in index[:most].tolist()
        )
        return named + (f" and {len(index) - most} more" if len(index) > most else "")

    def _require(self, good: np.ndarray, wanted: str, values: np.ndarray | None = None) -> None:
        if good.all():
            return
        bad = np.flatnonzero(~good).tolist()
        named = ", ".join(
            self._numbered(i) + ("" if values is None else f" ({values[i]:g})") for i in bad[:5]
        )
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise InputError(f"every anchor needs {wanted}; not so: {named}{more}")

    def _numbered(self, index: int) -> str:
        """The name of an anchor in messages: the line of its file, or its index in Python."""
        return f"anchors[{index}]" if self.lines is None else f"line {self.lines[index]}"

    def sigma_log(self, default: float, *, floor: float = 0.0) -> Float64[np.ndarray, " n"]:
        """Standard deviation of log-depth, σ_m / depth_m to first order, of each anchor.

        `default` is used where sigma_m is not known. Known values are hypot(σ_m / depth_m, floor).
        """
        if self.sigma_m is None:
            return np.full(len(self), default)
        measured = np.hypot(self.sigma_m / self.depth_m, floor)
        return np.where(np.isnan(self.sigma_m), default, measured)

    def complete_sigma_m(self) -> Float64[np.ndarray, " n"] | None:
        """`sigma_m` for weights, which compare anchors: None if no anchor has one.

        Where only some anchors have one, the others get the median of σ_m / depth_m times their
        own depth.
        """
        if self.sigma_m is None or not np.isnan(self.sigma_m).any():
            return self.sigma_m
        typical = np.nanmedian(self.sigma_m / self.depth_m)
        return np.where(np.isnan(self.sigma_m), typical * self.depth_m, self.sigma_m)

    def pixels(self, shape: tuple[int, int]) -> tuple[Int64[np.ndarray, " n"], ...]:
        """Row and column of the pixel that each anchor falls in; all must lie in the image."""
        return pixel_indices(self.u, self.v, shape, name=self._numbered)

    @classmethod
    def of(cls, values: Any) -> Anchors:
        """Anchors from what holds them.

        Rows (u, v, depth_m[, sigma_m]) are a list of tuples or an array of shape (n, 3) or (n, 4).
        Named columns are a dict or a pandas frame, with the names and units of a CSV's header, for
        example depth_cm. A path is read. None becomes no anchors.
        """
        if isinstance(values, Anchors):
            return values
        if values is None:
            return cls([], [], [])
        if isinstance(values, (str, Path)):
            return cls.read(values)
        if hasattr(values, "columns") and hasattr(values, "to_numpy"):  # a pandas frame
            values = {name: values[name].to_numpy() for name in values.columns}
        if isinstance(values, Mapping):
            return _from_columns(values)
        if not hasattr(values, "__len__"):
            found = type(values).__name__
            raise InputError(
                "wanted Anchors, rows of u, v, depth_m, named columns or a file (Anchors.of), "
                f"found {found}"
            )
        return _from_rows(values)

    @classmethod
    def from_map(cls, depth_m: np.ndarray, mask: np.ndarray | None = None) -> Anchors:
        """The finite, positive pixels of a (sparse) metric depth map, in row order."""
        depth_m = as_numbers("a map of depth", depth_m)
        mask = np.ones(depth_m.shape, bool) if mask is None else np.asarray(mask)
        if depth_m.ndim != 2 or mask.shape != depth_m.shape or mask.dtype != bool:
            raise InputError(
                "anchors from a map want depth of shape (height, width) and a mask of booleans, "
                f"found {depth_m.shape} and {mask.dtype} of {mask.shape}"
            )
        v, u = np.nonzero(np.isfinite(depth_m) & (depth_m > 0) & mask)
        return cls(u, v, depth_m[v, u])

    @classmethod
    def read(cls, path: str | Path, *, png_units_per_metre: float | None = None) -> Anchors:
        """Read `.csv` (u,v,depth_m[,sigma_m]), `.npz` (the same names) or a sparse 16-bit `.png`.

        A CSV may be separated by commas, semicolons, tabs or spaces, have decimal commas, state
        units ("depth_mm", "8 ft 3 in") and have no header. A value with two readings is refused.
        An empty sigma_m means that the anchor has none.
        A PNG has no units of its own: `png_units_per_metre` is their number in a metre
        (1000 for millimetres, 256 for KITTI) unless the file carries scalefield's own tag.
        """
        path = Path(path)
        match path.suffix.lower():
            case ".png":
                return cls.from_map(read_depth_png(path, units_per_metre=png_units_per_metre))
            case ".npz":
                columns = read_npz(path, required=("u", "v", "depth_m"), optional=("sigma_m",))
            case ".csv":
                columns = _parse_csv(path)
            case suffix:
                raise FileError(
                    path,
                    f"anchors are read from .csv, .npz or 16-bit .png, not {one_line(suffix)!r}",
                )
        try:
            return cls(**columns)
        except InputError as e:
            raise FileError(path, str(e)) from None

    def write(
        self,
        path: str | Path,
        *,
        shape: tuple[int, int] | None = None,
        png_units_per_metre: float = 1000.0,
    ) -> None:
        """Write `.csv`, `.npz` (both exact) or, given the image's shape, a sparse 16-bit `.png`.

        A PNG holds one depth a pixel, in whole units and below 65536 of them; anchors that it
        cannot hold are refused.
        """
        path = Path(path)
        columns = {"u": self.u, "v": self.v, "depth_m": self.depth_m}
        if self.sigma_m is not None:
            columns["sigma_m"] = self.sigma_m
        match path.suffix.lower():
            case ".csv":
                rows = zip(*(c.tolist() for c in columns.values()), strict=True)
                # All digits of each number; an anchor without a sigma_m has an empty cell.
                cells = (["" if np.isnan(x) else repr(x) for x in row] for row in rows)
                lines = [",".join(row) for row in (list(columns), *cells)]
                write_atomic(path, ("\n".join(lines) + "\n").encode())
            case ".npz":
                buffer = io.BytesIO()
                np.savez(buffer, **columns)  # type: ignore[arg-type]
                write_atomic(path, buffer.getvalue())
            case ".png":
                write_depth_png(
                    path, self._as_map(path, shape, png_units_per_metre), png_units_per_metre
                )
            case suffix:
                raise FileError(path, f"anchors are written as .csv, .npz or .png, not {suffix!r}")

    def _as_map(self, path: Path, shape: tuple[int, int] | None, units: float) -> np.ndarray:
        if shape is None:
            raise FileError(path, "a sparse PNG needs shape=(height, width)")
        if self.sigma_m is not None:
            raise FileError(path, "a PNG cannot hold sigma_m; write .csv or .npz")
        pixels = self.pixels(shape)
        if len(np.unique(np.stack(pixels), axis=1).T) < len(self):
            raise FileError(path, "a PNG holds one anchor a pixel, and some pixels have more")
        whole = np.round(self.depth_m * units)
        self._require(
            (whole >= 1) & (whole <= 65535), f"1 to 65535 units of 1/{units:g} m", self.depth_m
        )
        depth_m = np.zeros(shape)
        depth_m[pixels] = self.depth_m
        return depth_m


def require_anchors(name: str, given: object) -> Anchors:
    """The value as `Anchors`; refuses what `Anchors.of` does not take, with the argument's name."""
    try:
        return Anchors.of(given)
    except InputError as e:
        raise InputError(f"{name}: {e}") from None


def _from_columns(columns: Mapping[Any, Any]) -> Anchors:
    """Anchors of named columns, whose names are those of a table's header."""
    given = {str(title): values for title, values in columns.items()}
    converted: dict[str, Any] = {}
    for column in table_columns(list(given)):
        values = as_numbers(f"anchor column {column.title}", given[column.title])
        if column.name in ("depth_m", "sigma_m"):
            numerator, denominator = METRES_PER_UNIT[column.unit]
            values = values * numerator / denominator
        converted[column.name] = values
    return Anchors(**converted)


def _from_rows(rows: Any) -> Anchors:
    """Anchors of an array-like of rows u, v, depth_m[, sigma_m]."""
    table = as_numbers("anchors", rows)
    if table.size == 0:
        return Anchors([], [], [])
    if table.ndim == 2 and table.shape[1] in (3, 4):
        return Anchors(*table.T)
    hint = ""
    if table.ndim == 2:
        transposed = table.shape[0] in (3, 4)
        hint = "; is it transposed?" if transposed else "; Anchors.from_map reads a map of depth"
    raise InputError(
        "an array of anchors must have the shape (n, 3), rows of u, v, depth_m, or (n, 4) with "
        f"sigma_m, found {table.shape}{hint}"
    )


def pixel_indices(
    u: Float64[np.ndarray, " n"],
    v: Float64[np.ndarray, " n"],
    shape: tuple[int, int],
    *,
    noun: str = "anchors",
    name: Callable[[int], str] = "#{}".format,
) -> tuple[Int64[np.ndarray, " n"], ...]:
    """Row and column of the pixels at (u, v); InputError if one is outside.

    `noun` and `name` are what its message calls all of them and the one of an index.
    """
    rows, columns = np.floor(v + 0.5), np.floor(u + 0.5)
    height, width = shape
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    if not inside.all():
        outside = ", ".join(
            f"{name(i)} at u={u[i]:g}, v={v[i]:g}" for i in np.flatnonzero(~inside)[:5].tolist()
        )
        swapped = (columns >= 0) & (columns < height) & (rows >= 0) & (rows < width)
        hint = "; u and v swapped, all would lie inside" if swapped.all() else ""
        raise InputError(
            f"{np.count_nonzero(~inside)} of {len(u)} {noun} lie outside the image of "
            f"{width}×{height} pixels (u 0…{width - 1}, v 0…{height - 1}): {outside}{hint}"
        )
    return rows.astype(np.int64), columns.astype(np.int64)


def as_numbers(name: str, values: Any) -> np.ndarray:
    """A new float64 array; masked values become NaN. `name` begins the message of an error."""
    try:
        if hasattr(values, "detach"):  # a torch tensor, on any device and of any type
            values = values.detach().cpu()
            values = (values.double() if values.is_floating_point() else values).numpy()
        array = np.ma.asarray(values) if np.ma.isMaskedArray(values) else np.array(values)
        if array.dtype.kind not in "fiuO":
            raise TypeError(f"found {array.dtype}")
        return np.ma.filled(array.astype(np.float64), np.nan)
    except (TypeError, ValueError, OverflowError, RuntimeError) as e:
        raise InputError(f"{name} must be numbers: {one_line(e)}") from None


def _parse_csv(path: Path) -> dict[str, Any]:
    try:
        table = parse_anchor_table(decode_text(read_bytes(path)))
    except TableError as e:
        raise FileError(path, str(e)) from None
    columns: dict[str, Any] = {
        "u": table.u,
        "v": table.v,
        "depth_m": table.depth_m,
        "lines": table.lines,
    }
    if table.sigma_m is None:
        return columns
    return {**columns, "sigma_m": [np.nan if s is None else s for s in table.sigma_m]}
