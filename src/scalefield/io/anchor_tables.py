"""Strict parser of tables of anchors (CSV and similar formats): ambiguous text is an error.

Columns are separated by tabs, semicolons, commas or spaces; numbers have a decimal point or comma.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from scalefield.errors import InputError, one_line
from scalefield.io.lengths import (
    LENGTH_LIMITS_M,
    DecimalMark,
    LengthError,
    Unit,
    decimal_mark,
    normalised,
    number_readings,
    parse_length,
)

PIXEL_NAMES = {
    **dict.fromkeys(("u", "x", "col", "column", "pixel_x", "px_x", "u_px", "x_px"), "u"),
    **dict.fromkeys(("v", "y", "row", "line", "pixel_y", "px_y", "v_px", "y_px"), "v"),
}
LENGTH_NAMES = {
    **dict.fromkeys(("depth", "z", "distance"), "depth_m"),
    **dict.fromkeys(("sigma", "std", "depth_sigma", "depth_std", "sigma_depth"), "sigma_m"),
}
HEADER_UNITS: dict[str, Unit] = {
    **{name: name for name in ("km", "m", "cm", "mm", "ft", "in", "yd")},
    **{"metres": "m", "meters": "m", "metre": "m", "meter": "m", "feet": "ft", "inches": "in"},
}

DELIMITERS = {"\t": "tabs", ";": "semicolons", ",": "commas", " ": "spaces"}
"""Delimiters of the cells of a line, in the order in which they are tried."""

_PLAIN = re.compile(r"-?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,2})?")
_STARTS_NUMBER = re.compile(r"[+\-−.,]*[0-9½¼¾]")
_UNSIGNED = re.compile(r"(?:[0-9]{1,3}(?: [0-9]{3})+|[0-9]*(?:[.,][0-9]+)*\.?|)(?:e[+-]?[0-9]+)?")
_NUMBER_AT_START = re.compile(r"[0-9.,]*[0-9]")


class TableError(InputError):
    """A text that is not one table of anchors. `code` names the rule that it breaks."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(frozen=True)
class AnchorTable:
    """The columns of a table, lengths in metres; `sigma_m` is None where a cell is empty."""

    u: list[float]
    v: list[float]
    depth_m: list[float]
    sigma_m: list[float | None] | None
    lines: list[int]
    """Line of each anchor, counted from 1."""


@dataclass(frozen=True)
class Column:
    """A column of a table with its place, its title and the unit of its lengths."""

    name: str
    """u, v, depth_m or sigma_m."""
    index: int
    title: str
    unit: Unit = "m"


@dataclass(frozen=True)
class _Cell:
    text: str
    quoted: bool


def decode_text(data: bytes) -> str:
    """Text in UTF-8 or, with a byte order mark or if it starts with ASCII in every second byte,
    UTF-16."""
    encoding = "utf-8-sig"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif len(data) > 1 and not any(data[1:64:2]):
        encoding = "utf-16-le"
    elif len(data) > 1 and not any(data[:64:2]):
        encoding = "utf-16-be"
    try:
        text = data.decode(encoding)
        if "\0" in text:
            raise UnicodeError
        return text
    except UnicodeError:
        raise TableError("encoding", "not a text file in UTF-8 or UTF-16") from None


def parse_anchor_table(text: str) -> AnchorTable:
    """The anchors of a table, or a `TableError` that names the line and what it holds."""
    header_comment, lines = _lines(text)
    if not lines:
        raise TableError("empty", "wanted lines of u,v,depth_m, found an empty file")
    separator = _separator([line for _, line in lines])
    _check_delimiters(lines, separator)
    rows = [(line_number, _cells(line, separator, line_number)) for line_number, line in lines]
    titles = None
    if not any(_STARTS_NUMBER.match(cell.text) for cell in rows[0][1]):
        titles = [cell.text for cell in rows.pop(0)[1]]
    elif header_comment:
        titles = header_comment
    count = len(titles) if titles is not None else len(rows[0][1])
    columns = _default_columns(count) if titles is None else table_columns(titles)
    for line_number, cells in rows:
        _check_count(line_number, cells, count, separator)
    if titles is None:
        _check_decimal_comma(rows, separator)
    mark = _decimal_mark(rows, columns)
    values = {c.name: [_value(c, n, cells, mark, separator) for n, cells in rows] for c in columns}
    sigma = values.get("sigma_m")
    has_sigma = sigma is not None and (not sigma or any(value is not None for value in sigma))
    return AnchorTable(
        u=[float(x) for x in values["u"] if x is not None],
        v=[float(x) for x in values["v"] if x is not None],
        depth_m=[float(x) for x in values["depth_m"] if x is not None],
        sigma_m=sigma if has_sigma else None,
        lines=[line_number for line_number, _ in rows],
    )


def _lines(text: str) -> tuple[list[str] | None, list[tuple[int, str]]]:
    """The titles in the last comment before the data, if it has any; and the lines with content."""
    titles: list[str] | None = None
    lines: list[tuple[int, str]] = []
    split = re.split(r"\r\n|\r|\n", text.removeprefix("\ufeff"))
    for line_number, line in enumerate(split, 1):
        stripped = line.strip()
        if stripped.startswith(("#", "//")):
            words = [w for w in re.split(r"[\s,;]+", stripped.lstrip("#/ \t")) if w]
            named = {_title(word)[0] for word in words}
            if not lines and {"u", "v", "depth_m"} <= named:
                titles = words
        elif stripped:
            lines.append((line_number, line.strip("\n\r \ufeff")))
    return titles, lines


def _separator(lines: list[str]) -> str:
    outside = [_unquoted(line) for line in lines]
    candidates = [d for d in DELIMITERS if any(d in line for line in outside)]
    return candidates[0] if candidates else " "


def _unquoted(line: str) -> str:
    """The line without the cells in quotation marks."""
    return re.sub(r'(^|[\t;,])\s*"[^"]*"', r"\1", line) if '"' in line else line


def _check_delimiters(lines: list[tuple[int, str]], separator: str) -> None:
    """Refuse a table in which a line has three cells or more, but by another delimiter."""
    if separator == " ":
        return
    reference = next(line_number for line_number, line in lines if separator in _unquoted(line))
    for line_number, line in lines:
        unquoted = _unquoted(line)
        if separator in unquoted:
            continue
        cells = {d: unquoted.split(None if d == " " else d) for d in DELIMITERS if d != separator}
        others = [d for d, found in cells.items() if len(found) >= 3]
        if others:
            found = f"line {line_number} has {DELIMITERS[others[0]]} between its cells"
            wanted = f"line {reference} has {DELIMITERS[separator]}; use one of them in all lines"
            raise TableError("delimiters", f"{found} and {wanted}")


def _cells(line: str, separator: str, line_number: int) -> list[_Cell]:
    """The cells of a line; a cell that starts with a quotation mark ends with one."""
    if separator == " ":
        return [_Cell(text, False) for text in line.split()]
    if '"' not in line:
        return [_Cell(text.strip(), False) for text in line.split(separator)]
    cells, rest = [], line
    while True:
        quoted = re.match(r'\s*"((?:[^"]|"")*)"\s*', rest)
        if quoted and (quoted.end() == len(rest) or rest[quoted.end()] == separator):
            cells.append(_Cell(quoted.group(1).replace('""', '"').strip(), True))
            rest = rest[quoted.end() :]
        elif rest.lstrip().startswith('"'):
            raise TableError("quote", f"line {line_number}: a quotation mark is not closed")
        else:
            text, delimiter, after = rest.partition(separator)
            cells.append(_Cell(text.strip(), False))
            rest = delimiter + after
        if not rest:
            return cells
        rest = rest[1:]


def _title(title: str) -> tuple[str, Unit | None, str]:
    """The meaning of a column title: its name here, its unit, and the problem with it."""
    plain = re.sub(r"[\s\-]+", "_", title.strip().lower())
    bracketed = re.fullmatch(r"([a-z_]+?)_*[(\[]([a-z]+)[)\]]", plain)
    if bracketed:
        plain = f"{bracketed.group(1)}_{bracketed.group(2)}"
    stem, _, unit = plain.rpartition("_")
    shown, wrong = f"“{one_line(title, 30)}”", ""
    name = PIXEL_NAMES.get(plain) or LENGTH_NAMES.get(plain) or ""
    if not name and stem in LENGTH_NAMES and unit in HEADER_UNITS:
        return LENGTH_NAMES[stem], HEADER_UNITS[unit], ""
    if not name and stem in LENGTH_NAMES:
        wrong = f"{shown} has a unit that is not known"
    elif not name and stem in ("u", "v", "x", "y") and unit in HEADER_UNITS:
        wrong = f"{shown} is a length, and pixels are wanted"
    elif plain in ("range", "range_m", "slant", "slant_m"):
        wrong = f"{shown} is along the ray; depth is along the optical axis"
    return name, None, wrong


def _default_columns(count: int) -> list[Column]:
    """The columns of a table without a header."""
    if count not in (3, 4):
        wanted = "u, v, depth_m[, sigma_m] in metres"
        raise TableError("columns", f"without a header wanted {wanted}, found {count} columns")
    names = ("u", "v", "depth_m", "sigma_m")[:count]
    return [Column(name, i, name) for i, name in enumerate(names)]


def table_columns(titles: list[str]) -> list[Column]:
    """The columns u, v, depth_m and sigma_m that the titles name, or a `TableError` about them."""
    by_name: dict[str, Column] = {}
    units: dict[str, Unit | None] = {}
    header = one_line(", ".join(titles), 80)
    for i, title in enumerate(titles):
        name, unit, wrong = _title(title)
        if wrong:
            raise TableError("header", f"the column {wrong}; wanted u, v, depth_m")
        if not name:
            continue
        if name in by_name:
            raise TableError("header", f"two columns give {name}: {header}")
        by_name[name] = Column(name, i, title.strip(), unit or "m")
        units[name] = unit
    missing = [name for name in ("u", "v", "depth_m") if name not in by_name]
    if missing:
        wanted = "wanted the header u,v,depth_m[,sigma_m]"
        raise TableError("header", f"{wanted}, which lacks {', '.join(missing)}; found {header}")
    if "sigma_m" in by_name and units["sigma_m"] is None and units["depth_m"] not in (None, "m"):
        stated = by_name["depth_m"].title
        raise TableError("header", f"{stated} states its unit, so sigma must too: sigma_mm or such")
    return list(by_name.values())


def _check_count(line_number: int, cells: list[_Cell], count: int, separator: str) -> None:
    extra = cells[count:]
    if len(cells) >= count and not any(cell.text for cell in extra):
        return  # a line may end with its separator
    found = f"line {line_number}: {count} cells wanted, {len(cells)} found"
    if separator == "," and len(cells) > count:
        found += "; numbers with a decimal comma need semicolons or tabs between them"
    raise TableError("columns", found)


def _check_decimal_comma(rows: list[tuple[int, list[_Cell]]], separator: str) -> None:
    """Refuse "10,20,1,5" without a header: depth 1 with sigma 5, or depth 1.5."""
    first = rows[0][1]
    filled = [cell for cell in first if cell.text]
    if separator != "," or len(filled) < 4 or any(c.quoted for _, row in rows for c in row):
        return
    if not any("." in cell.text for _, cells in rows for cell in cells):
        line_number, cells = rows[0]
        u, v, depth, sigma = (cell.text for cell in cells[:4])
        readings = f"depth {depth} m with sigma {sigma} m, or depth {depth}.{sigma} m"
        raise TableError(
            "ambiguous", f"line {line_number}: {u},{v} can have {readings}; add a header"
        )


def _decimal_mark(rows: list[tuple[int, list[_Cell]]], columns: list[Column]) -> DecimalMark | None:
    """The decimal mark that the numbers of the file prove; a file may not prove both."""
    proof: dict[DecimalMark, str] = {}
    indices = [column.index for column in columns]
    for line_number, cells in rows:
        for i in indices:
            text = cells[i].text
            if "," not in text and "." not in text:
                continue
            match = _NUMBER_AT_START.search(text)
            mark = decimal_mark(match.group()) if match else None
            if mark:
                proof.setdefault(mark, f"{one_line(text, 20)} in line {line_number}")
    if len(proof) > 1:
        raise TableError(
            "ambiguous",
            f"the decimal mark is a point ({proof['point']}) and a comma ({proof['comma']})",
        )
    return next(iter(proof), None)


def _value(
    column: Column, line_number: int, cells: list[_Cell], mark: DecimalMark | None, separator: str
) -> float | None:
    text = cells[column.index].text
    if column.name == "sigma_m" and not text:
        return None
    plain = _PLAIN.fullmatch(text)
    position = f"line {line_number}: {column.title}"
    if column.name in ("u", "v"):
        # A point is never a thousands separator in a pixel coordinate.
        return _pixel(text, mark, position) if not plain or len(text) > 15 else float(text)
    may_group = column.unit == "mm" and separator != ","
    if plain and not may_group:
        length = float(text)
        if column.unit == "m" and LENGTH_LIMITS_M[0] <= length <= LENGTH_LIMITS_M[1]:
            return length
    try:
        return parse_length(text, column.unit, mark=mark, point_may_group=may_group)
    except LengthError as e:
        if e.code in ("number", "unit", "compound", "empty"):
            raise TableError(
                e.code, f"{position} is not a length: {one_line(text, 40)!r}"
            ) from None
        raise TableError(e.code, f"{position}: {e}") from None


def _pixel(text: str, mark: DecimalMark | None, position: str) -> float:
    plain = normalised(text)
    unsigned = plain[1:] if plain[:1] in ("-", "+") else plain
    whole = bool(unsigned) and bool(_UNSIGNED.fullmatch(unsigned))
    readings = number_readings(unsigned, mark) if whole and unsigned[-1:] != "," else ()
    if len(readings) > 1:
        listed = " or ".join(readings)
        raise TableError(
            "ambiguous", f"{position} “{one_line(text, 40)}” can be {listed}; write one"
        )
    try:
        value = float(readings[0])
    except (IndexError, ValueError):
        raise TableError("number", f"{position} is not a number: {one_line(text, 40)!r}") from None
    if value in (float("inf"), float("-inf")):
        raise TableError("range", f"{position} is too large: {one_line(text, 40)!r}")
    return -value if plain.startswith("-") else value
