"""Strict parser of numbers and lengths as users type them: ambiguous text is an error.

`parse_length("8 ft 3")` is 2.5146. A text with two possible readings, such as "2,400 mm", raises
`LengthError` with both of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from scalefield.errors import InputError, one_line

Unit = Literal["km", "m", "dm", "cm", "mm", "yd", "ft", "in"]
DecimalMark = Literal["point", "comma"]

LENGTH_LIMITS_M = (1e-12, 1e12)
"""Lengths outside these limits, in metres, are refused. Recovered depth, a thousand times beyond
them, and ratios of such depths are still numbers in float32."""

UNIT_WORDS: dict[str, Unit] = {
    **dict.fromkeys(("km", "kilometre", "kilometres", "kilometer", "kilometers"), "km"),
    **dict.fromkeys(("m", "metre", "metres", "meter", "meters"), "m"),
    **dict.fromkeys(("dm", "decimetre", "decimetres", "decimeter", "decimeters"), "dm"),
    **dict.fromkeys(("cm", "centimetre", "centimetres", "centimeter", "centimeters"), "cm"),
    **dict.fromkeys(("mm", "millimetre", "millimetres", "millimeter", "millimeters"), "mm"),
    **dict.fromkeys(("yd", "yds", "yard", "yards"), "yd"),
    **dict.fromkeys(("ft", "foot", "feet", "'"), "ft"),
    **dict.fromkeys(("in", "inch", "inches", '"'), "in"),
}

# Metres as a ratio of whole numbers: 240 cm is then the number 2.4, and 8 ft 3 in 2.5146.
METRES_PER_UNIT: dict[Unit, tuple[int, int]] = {
    "km": (1000, 1),
    "m": (1, 1),
    "dm": (1, 10),
    "cm": (1, 100),
    "mm": (1, 1000),
    "yd": (9144, 10_000),
    "ft": (3048, 10_000),
    "in": (254, 10_000),
}
_METRIC = {"km": 1_000_000, "m": 1000, "dm": 100, "cm": 10, "mm": 1}
_IMPERIAL = {"yd": 36, "ft": 12, "in": 1}

_SPACES = re.compile(r"[\s\u00a0\u1680\u2000-\u200b\u202f\u205f\u3000]+")
_FEET_SIGNS = re.compile("[\u2018\u2019\u02b9\u2032\u00b4`]")
_INCH_SIGNS = re.compile("''|[\u201c\u201d\u201e\u02ba\u2033\u02dd]")
_MINUS_SIGNS = re.compile("[\u2212\u2012\u2013]")
_VULGAR = {"½": "1/2", "¼": "1/4", "¾": "3/4", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8"}

_NUMBER = re.compile(
    r"(?:[0-9]{1,3}(?: [0-9]{3})+(?![0-9])(?:[.,][0-9]+)?"  # groups of three, set apart by spaces
    r"|[0-9]+(?:[.,][0-9]+)*\.?|[.,][0-9]+)"
    r"(?:e[+-]?[0-9]+)?"
)
_FRACTION = re.compile(r" ?([0-9]{1,3})/([0-9]{1,3})(?![0-9/])")
_UNIT = re.compile(r" ?([a-zµ²³°%]+\.?|'|\")")


class LengthError(InputError):
    """A text that is not one length.

    `code` names the rule that it breaks; `readings` are the lengths in metres that it could mean,
    by unambiguous texts.
    """

    def __init__(self, code: str, sentence: str, readings: Mapping[str, float] | None = None):
        super().__init__(sentence)
        self.code = code
        self.readings = dict(readings or {})


@dataclass(frozen=True)
class _Part:
    numbers: tuple[str, ...]
    """Possible readings of the number, each with a decimal point and nothing else."""
    fraction: tuple[int, int] | None
    unit: Unit | None
    plain: bool
    """Whether the number was written with digits only."""


def number_readings(
    text: str, mark: DecimalMark | None = None, point_may_group: bool = False
) -> tuple[str, ...]:
    """Every possible reading of an unsigned number, as text with a decimal point.

    A point is the decimal mark. A single comma before exactly three digits may be either a decimal
    mark or a thousands separator, unless `mark` (known from other numbers of the same file)
    decides; `point_may_group` makes a single point before three digits as uncertain as that. No
    reading means that the text is not a number.
    """
    mantissa, e, exponent = text.partition("e")
    spaced, mantissa = " " in mantissa, mantissa.replace(" ", "")
    mantissa = mantissa.removesuffix(".")
    separators = [c for c in mantissa if c in ".,"]
    decimal_reading = f"{mantissa.replace(',', '.')}{e}{exponent}"
    if not separators:
        return (decimal_reading,)
    if len(separators) > 1 or text.endswith("."):
        ungrouped = "" if e or spaced or text.endswith(".") else _ungrouped(mantissa)
        return (ungrouped,) if ungrouped else ()
    (separator,) = separators
    uncertain = not e and not spaced and _may_group(mantissa, separator)
    if not uncertain or (separator == "." and not point_may_group):
        return (decimal_reading,)
    grouped_reading = mantissa.replace(separator, "")
    if mark is None:
        return (grouped_reading, decimal_reading)
    return (decimal_reading if (mark == "point") == (separator == ".") else grouped_reading,)


def _ungrouped(mantissa: str) -> str:
    """A number with thousands separators, without them; empty where the groups are not of three."""
    for group, decimal in ((",", "."), (".", ",")):
        if re.fullmatch(rf"[0-9]{{1,3}}(\{group}[0-9]{{3}})+(\{decimal}[0-9]+)?", mantissa):
            return mantissa.replace(group, "").replace(decimal, ".")
    return ""


def decimal_mark(text: str) -> DecimalMark | None:
    """The decimal mark that a number proves to be used, if it proves one."""
    points, commas = text.count("."), text.count(",")
    if points and commas:
        return "point" if text.rfind(".") > text.rfind(",") else "comma"
    if points + commas > 1:
        return "comma" if points else "point"  # the other one groups thousands
    if points + commas == 1:
        separator = "." if points else ","
        if not _may_group(text, separator):
            return "point" if points else "comma"
    return None


def _may_group(mantissa: str, separator: str) -> bool:
    whole, _, rest = mantissa.partition(separator)
    return len(rest) == 3 and 1 <= len(whole) <= 3 and whole[0] != "0"


def parse_length(
    text: str,
    unit: Unit = "m",
    *,
    mark: DecimalMark | None = None,
    point_may_group: bool | None = None,
) -> float:
    """The length in metres that a text states; a bare number is in `unit`.

    Takes one number with a unit ("2.4 m", "240cm", "8 feet"), or a compound of whole larger parts
    ("8 ft 3 in", "8'3\"", "2 m 40"). Raises `LengthError` for everything else, and where the text
    has several readings.
    """
    parts, negative = _parts(text, mark, point_may_group)
    shown = one_line(text, 40)
    units = _chain(parts, unit, shown)
    results: dict[str, float] = {}
    for number in parts[-1].numbers:
        numbers = [*(float(p.numbers[0]) for p in parts[:-1]), float(number)]
        if parts[-1].fraction:
            numerator, denominator = parts[-1].fraction
            numbers[-1] += numerator / denominator
        for part_units in units:
            metres = _metres(numbers, part_units, shown)
            results[_wording(parts, number, part_units)] = metres
    if len(results) > 1:
        listed = " or ".join(f"{wording} ({metres:.6g} m)" for wording, metres in results.items())
        raise LengthError("ambiguous", f"“{shown}” can be {listed}; write one", results)
    (metres,) = results.values()
    if negative or not metres > 0:
        raise LengthError("sign", f"a length above zero is wanted, found “{shown}”")
    if not LENGTH_LIMITS_M[0] <= metres <= LENGTH_LIMITS_M[1]:
        low, high = LENGTH_LIMITS_M
        raise LengthError("range", f"a length of {low:g} to {high:g} m is wanted, found “{shown}”")
    return metres


def normalised(text: str) -> str:
    """Lower case, single spaces, one sign each for feet, inches and minus; fractions as a/b."""
    for sign, fraction in _VULGAR.items():
        text = text.replace(sign, f" {fraction}")
    text = _SPACES.sub(" ", text).strip().lower()
    text = _FEET_SIGNS.sub("'", text)
    return _MINUS_SIGNS.sub("-", _INCH_SIGNS.sub('"', text))


def _parts(
    text: str, mark: DecimalMark | None, point_may_group: bool | None
) -> tuple[list[_Part], bool]:
    """The numbers with their units, in order, and whether a minus sign stands before them."""
    rest, shown = normalised(text), one_line(text, 40)
    if not rest:
        raise LengthError("empty", "a length such as 2.4 m is wanted, found nothing")
    negative = rest.startswith("-")
    rest = rest[1:].lstrip() if rest[0] in "+-" else rest
    parts: list[_Part] = []
    while rest:
        number, fraction = _NUMBER.match(rest), _FRACTION.match(rest)
        if fraction:
            written, rest = "0", rest[fraction.end() :]
        elif number:
            written, rest = number.group(), rest[number.end() :]
            fraction = _FRACTION.match(rest) if written.isdigit() else None
            if rest.startswith("/"):  # 12/13 and longer
                raise LengthError("number", f"a length such as 2.4 m is wanted, found “{shown}”")
            if fraction:
                rest = rest[fraction.end() :]
        else:
            raise LengthError("number", f"a length such as 2.4 m is wanted, found “{shown}”")
        word = _UNIT.match(rest)
        unit = None
        if word:
            unit = UNIT_WORDS.get(word.group(1).rstrip("."))
            if unit is None:
                known = "m, cm, mm, km, ft, in or yd"
                raise LengthError("unit", f"“{word.group(1)}” is not a unit here; use {known}")
            rest = rest[word.end() :]
        elif rest and not rest.startswith(" "):
            raise LengthError("number", f"a length such as 2.4 m is wanted, found “{shown}”")
        group = unit == "mm" if point_may_group is None else point_may_group
        numbers = number_readings(written, mark, group)
        if not numbers:
            raise LengthError("number", f"“{one_line(written, 40)}” is not a number")
        pair = (int(fraction.group(1)), int(fraction.group(2))) if fraction else None
        if pair and (pair[1] == 0 or unit not in _IMPERIAL):
            raise LengthError("number", f"fractions are read for ft, in and yd, found “{shown}”")
        parts.append(_Part(numbers, pair, unit, written.isdigit()))
        rest = rest.lstrip()
    return parts, negative


def _chain(parts: list[_Part], unit: Unit, shown: str) -> list[list[Unit]]:
    """The unit of every part; several lists where the last one's unit is uncertain."""
    given = [part.unit for part in parts]
    if len(parts) == 1:
        return [[given[0] or unit]]
    refusal = LengthError(
        "compound", f"“{shown}” is not one length; write it as 2.4 m or 8 ft 3 in"
    )
    if not all(p.plain and p.unit and p.fraction is None for p in parts[:-1]):
        raise refusal
    known_units = [u for u in given if u is not None]
    for order in (_METRIC, _IMPERIAL):
        sizes = [order.get(u, 0) for u in known_units]
        if all(sizes) and all(a > b for a, b in pairwise(sizes)):
            break
    else:
        raise refusal
    last = given[-1]
    if last is not None:
        return [known_units]
    digits = len(parts[-1].numbers[0].partition(".")[0])
    implied: dict[tuple[Unit, int], list[Unit]] = {
        ("km", 3): ["m"],
        ("m", 1): ["cm", "dm"],  # 2 m 4: 2.04 m or 2.4 m
        ("m", 2): ["cm"],
        ("m", 3): ["mm"],
        ("cm", 1): ["mm"],
        ("ft", 1): ["in"],
        ("ft", 2): ["in"],
    }
    if len(parts[-1].numbers) > 1 or (known_units[-1], digits) not in implied:
        raise refusal
    return [[*known_units, minor] for minor in implied[known_units[-1], digits]]


def _metres(numbers: list[float], units: list[Unit], shown: str) -> float:
    """The sum of all parts, added up in the smallest unit."""
    order = _METRIC if units[0] in _METRIC else _IMPERIAL
    smallest = units[-1]
    for larger, minor, value in zip(units, units[1:], numbers[1:], strict=False):
        if value >= order[larger] // order[minor]:
            raise LengthError("compound", f"{value:g} {minor} after {larger}: found “{shown}”")
    total = sum(n * (order[u] // order[smallest]) for n, u in zip(numbers, units, strict=True))
    numerator, denominator = METRES_PER_UNIT[smallest]
    return total * numerator / denominator


def _wording(parts: list[_Part], number: str, units: list[Unit]) -> str:
    """One reading, written so that it has no other."""
    words = [f"{p.numbers[0]} {u}" for p, u in zip(parts[:-1], units, strict=False)]
    return " ".join([*words, f"{number} {units[-1]}"])
