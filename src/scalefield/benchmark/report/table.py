"""A table of results, and the same table as Markdown, CSV, LaTeX and HTML."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby


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

    def __str__(self) -> str:
        if self.text or self.value is None:
            return self.text or "–"
        if self.value and (abs(self.value) < 10**-self.digits or abs(self.value) >= 1e5):
            return f"{self.value:.2g}"
        return f"{self.value:.{self.digits}f}"


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
    marks = {1: "**%s**", 2: "<u>%s</u>"}

    def line(*cells: str) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = [
        f"### {table.title}\n",
        line(table.corner, *(" · ".join(column) for column in table.columns)),
        line("---", *["---:"] * len(table.columns)),
        *(
            line(label, *(marks.get(c.rank, "%s") % c for c in cells))
            for label, cells in table.rows
        ),
        f"\n{table.caption}\n",
    ]
    return "\n".join(lines)


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


def latex(table: Table) -> str:
    """A booktabs table with the head's levels as spanning columns."""
    marks = {1: "\\textbf{%s}", 2: "\\underline{%s}"}
    head = []
    for i, level in enumerate(table.head):
        cells, rules, start = [_tex(table.corner) if i == len(table.head) - 1 else ""], "", 2
        for title, width in level:
            shown = _tex(title)
            if width > 1:
                shown = f"\\multicolumn{{{width}}}{{c}}{{{shown}}}"
                rules += f"\\cmidrule(lr){{{start}-{start + width - 1}}}"
            cells.append(shown)
            start += width
        head.append(f"{' & '.join(cells)} \\\\{rules}")
    body = [
        " & ".join([_tex(label), *(marks.get(c.rank, "%s") % _tex(str(c)) for c in cells)]) + r" \\"
        for label, cells in table.rows
    ]
    return "\n".join(
        [
            r"\begin{table*}[t]",
            r"\centering",
            f"\\caption{{{_tex(table.title)}. {_tex(table.caption)}}}",
            f"\\label{{tab:{table.name}}}",
            f"\\begin{{tabular}}{{l {'c' * len(table.columns)}}}",
            r"\toprule",
            *head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table*}",
            "",
        ]
    )


_TEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%_#${}"},
    "–": "--", "…": r"\ldots{}", "·": r"$\cdot$", "|": "$|$", "‖": r"$\|$", "√": r"$\surd$",
    "≈": r"$\approx$", "δ": r"$\delta$", "η": r"$\eta$", "α": r"$\alpha$", "²": r"$^2$",
    "₀": r"$_0$", "₁": r"$_1$", "ᵀ": r"$^\top$",
}  # fmt: skip


def _tex(text: str) -> str:
    escaped = "".join(_TEX.get(character, character) for character in text).replace("$$", "")
    return re.sub(r"\$\\delta\$(\d)", r"$\\delta_\1$", escaped)


def html(table: Table) -> str:
    """A table whose rows the page's script sorts; intervals are shown beside their means."""
    head = ""
    for i, level in enumerate(table.head):
        last = i == len(table.head) - 1
        kind, corner = (" class=sort", escape(table.corner)) if last else ("", "")
        cells = "".join(f"<th{kind} colspan={n}>{escape(title)}</th>" for title, n in level)
        head += f"<tr><th{kind}>{corner}</th>{cells}</tr>"
    rows = "".join(
        f"<tr><th>{escape(label)}</th>{''.join(map(_html_cell, cells))}</tr>"
        for label, cells in table.rows
    )
    return (
        f"<div class=scroll><table><caption>{escape(table.title)}</caption>"
        f"<thead>{head}</thead><tbody>{rows}</tbody></table></div>"
        f"<p class=under>{escape(table.caption)}</p>"
    )


def _html_cell(cell: Cell) -> str:
    value = "" if cell.value is None else f' data-v="{cell.value!r}"'
    note, width = cell.note, ""
    if cell.low is not None and cell.high is not None:
        note = note or f"95 % interval {cell.low:.4g} … {cell.high:.4g}"
        width = f" <small>±{(cell.high - cell.low) / 2:.{cell.digits}f}</small>"
    title = f' title="{escape(note)}"' if note else ""
    rank = {1: " class=best", 2: " class=second"}.get(cell.rank, "")
    return f"<td{value}{title}{rank}><span>{escape(str(cell))}</span>{width}</td>"
