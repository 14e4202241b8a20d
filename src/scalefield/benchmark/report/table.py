"""A table of results, and templates that render it as Markdown, LaTeX and HTML."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

TEMPLATES = Path(__file__).parent


@dataclass(frozen=True)
class Cell:
    """A number of a table, or a word."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    rank: int = 0
    """1 for the best of its column, 2 for the second best, else 0."""
    digits: int = 3
    text: str = ""
    """Shown instead of the number, if there is any."""
    note: str = ""
    beside: str = ""
    """Shown after the number, without its rank: the paper's figure, a number of images."""

    def __str__(self) -> str:
        if self.text or self.value is None:
            return self.text or "–"
        if self.value and (abs(self.value) < 10**-self.digits or abs(self.value) >= 1e5):
            return f"{self.value:.2g}"
        return f"{self.value:.{self.digits}f}"

    @property
    def half(self) -> str:
        """Half of the interval's width."""
        known = self.low is not None and self.high is not None
        return f"{(self.high - self.low) / 2:.{self.digits}f}" if known else ""  # type: ignore[operator]

    @property
    def hover(self) -> str:
        """The note, or the interval."""
        return self.note or (f"95 % interval {self.low:.4g} … {self.high:.4g}" if self.half else "")


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns whose titles have one or more levels."""

    name: str
    """Stem of the files it is written to."""
    title: str
    caption: str
    corner: str
    """Title of the column of row labels."""
    columns: tuple[tuple[str, ...], ...]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    """Labels with their cells."""

    @property
    def head(self) -> list[list[tuple[str, int]]]:
        """By level: each title, and the number of columns that it spans."""
        return [
            [
                (path[level], len(list(members)))
                for path, members in groupby(self.columns, key=lambda c: c[: level + 1])
            ]
            for level in range(len(self.columns[0]))
        ]


def markdown(table: Table) -> str:
    """A Markdown table: best bold, second underlined; levels of the head joined by " · "."""
    return render("table.md.j2", head=table.head, **vars(table)) + "\n"


def latex(table: Table) -> str:
    """A booktabs table with the head's levels as spanning columns."""
    return render("table.tex.j2", head=table.head, **vars(table))


def csv_text(table: Table) -> str:
    """The numbers with all their digits, and their intervals."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    titles = [" ".join(column) for column in table.columns]
    writer.writerow([table.corner, *(f"{t}{end}" for t in titles for end in ("", " low", " high"))])
    for label, cells in table.rows:
        values = [v for cell in cells for v in (cell.value, cell.low, cell.high)]
        writer.writerow([label, *("" if v is None else v for v in values)])
    return text.getvalue()


def render(template: str, **values: Any) -> str:
    """A template of this folder, filled in."""
    return environment(template.split(".")[-2]).get_template(template).render(values)


@lru_cache
def environment(language: str) -> Environment:
    """Templates for md, html, or tex, whose braces are free for LaTeX."""
    marks = {"block": ("<%", "%>"), "variable": ("<<", ">>"), "comment": ("<#", "#>")}
    given = {f"{k}_{end}_string": v[i] for k, v in marks.items() for i, end in enumerate(_ENDS)}
    options: dict[str, Any] = given if language == "tex" else {}
    made = Environment(
        loader=FileSystemLoader(TEMPLATES, encoding="utf-8"), keep_trailing_newline=True,
        autoescape=language == "html", **options,
    )  # fmt: skip
    made.filters |= {"tex": _tex, "bars": lambda text: str(text).replace("|", "\\|")}
    return made


_ENDS = ("start", "end")
_TEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%_#${}"},
    "–": "--", "…": r"\ldots{}", "·": r"$\cdot$", "|": "$|$", "‖": r"$\|$", "√": r"$\surd$",
    "≈": r"$\approx$", "δ": r"$\delta$", "η": r"$\eta$", "α": r"$\alpha$", "²": r"$^2$",
    "₀": r"$_0$", "₁": r"$_1$", "ᵀ": r"$^\top$", "−": "$-$", "×": r"$\times$",
}  # fmt: skip


def _tex(text: str) -> str:
    escaped = "".join(_TEX.get(character, character) for character in text).replace("$$", "")
    return re.sub(r"\$\\delta\$(\d)", r"$\\delta_\1$", escaped)
