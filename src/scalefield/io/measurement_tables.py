"""Strict parser of tables of measurements: a kind, a value and any number of pixels in each line.

kind,value,sigma,u,v,u2,v2
length,74 cm,,320,400,420,400
slant,2.31 m,1 cm,100,200
level,,,100,300,200,310,150,350
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from scalefield.errors import one_line
from scalefield.io.anchor_tables import (
    HEADER_UNITS,
    TableError,
    _cells,
    _lines,
    _pixel,
    _separator,
)
from scalefield.io.lengths import LengthError, Unit, parse_length

_RANGE = re.compile(r"\s*(?:…|\.\.+|–|\bto\b)\s*")
_NUMBER = re.compile(r"-?[0-9]+(?:[.,][0-9]+)?(?= ?(?:°|deg|%)?$)")
_RELATIVE = ("plane", "level", "upright", "equal", "order", "interval", "floor", "wall", "table")
"""Kinds whose sigma is a share, such as 1 % or 0.01."""


@dataclass(frozen=True)
class MeasurementRow:
    """One line of a table."""

    line: int
    kind: str
    pixels: list[tuple[float, float]]
    values: dict[str, float]
    """Numbers by the field of the measurement; empty cells are left out."""


def parse_measurement_table(text: str) -> list[MeasurementRow]:
    """The rows of a table, or a `TableError` that names the line and what it holds."""
    _, lines = _lines(text)
    wanted = "wanted the header kind,value,u,v,u2,v2 (sigma may follow value)"
    if not lines:
        raise TableError("empty", f"{wanted}, found an empty file")
    separator = _separator([line for _, line in lines])
    (number, header), *rest = lines
    titles = [cell.text.lower() for cell in _cells(header, separator, number)]
    stems = [title.partition("_")[0] for title in titles]
    if "kind" not in stems or "value" not in stems:
        raise TableError("header", f"{wanted}, found {one_line(header, 60)!r}")
    units = {stem: _unit(title) for stem, title in zip(stems, titles, strict=True)}
    known: tuple[str, ...] = ("kind", "value", "sigma")
    named = {stem: stems.index(stem) for stem in known if stem in stems}
    return [_row(n, line, separator, named, units) for n, line in rest]


def _row(
    line: int, text: str, separator: str, named: dict[str, int], units: dict[str, Unit]
) -> MeasurementRow:
    cells = [cell.text for cell in _cells(text, separator, line)]
    given = {name: cells[i] if i < len(cells) else "" for name, i in named.items()}
    positions = [c for i, c in enumerate(cells) if i not in named.values() and c]
    if len(positions) % 2:
        raise TableError("columns", f"line {line}: pixels are pairs u,v, found {len(positions)}")
    numbers = [_pixel(c, None, f"line {line}: u or v") for c in positions]
    pixels = list(zip(numbers[::2], numbers[1::2], strict=True))
    kind = given["kind"].lower().replace("_", " ").strip()
    kind = {"camera height": "camera_height"}.get(kind, kind)
    values: dict[str, float] = {}
    for name in ("value", "sigma"):
        if cell := given.get(name, ""):
            values |= _values(name, cell, kind, units[name], f"line {line}: {name}")
    return MeasurementRow(line, kind, pixels, values)


def _values(name: str, cell: str, kind: str, unit: Unit, position: str) -> dict[str, float]:
    """The numbers of one cell by the field that they belong to."""
    if kind == "interval" and name == "value":
        ends = _RANGE.split(cell)
        if len(ends) != 2:
            raise TableError("number", f"{position} of an interval is 2 m … 3 m, found {cell!r}")
        return {
            n: _metres(x, unit, position) for n, x in zip(("low_m", "high_m"), ends, strict=True)
        }
    angle = kind == "tilt"
    if angle or (kind in _RELATIVE and name == "sigma") or (kind == "order" and name == "value"):
        match = _NUMBER.match(cell)
        if not match:
            raise TableError("number", f"{position} is not a number: {one_line(cell, 40)!r}")
        number = float(match.group().replace(",", "."))
        share = number / 100 if cell.endswith("%") else number
        if angle:
            return {"pitch_deg" if name == "value" else "sigma_deg": number}
        return {"margin" if name == "value" else "sigma": share}
    return {f"{name}_m": _metres(cell, unit, position)}


def _metres(cell: str, unit: Unit, position: str) -> float:
    try:
        return parse_length(cell, unit)
    except LengthError as e:
        raise TableError(e.code, f"{position}: {e}") from None


def _unit(title: str) -> Unit:
    return HEADER_UNITS.get(title.partition("_")[2], "m")
