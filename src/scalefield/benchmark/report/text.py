"""Tables as Markdown, CSV, LaTeX, and as a few lines for a terminal."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from itertools import groupby
from typing import Any

from scalefield.anchor_sampling import REGIMES
from scalefield.benchmark.metrics import METRICS
from scalefield.benchmark.report.tables import Cell, Table
from scalefield.benchmark.score import EVERYWHERE


def markdown(table: Table) -> str:
    """A Markdown table: best bold, second underlined; levels of the head joined by " · "."""

    def show(cell: Cell) -> str:
        marks: dict[int, Callable[[Cell], str]] = {
            1: lambda c: f"**{c}**",
            2: lambda c: f"<u>{c}</u>",
        }
        return marks.get(cell.rank, str)(cell).replace("|", "\\|")

    head = [table.corner, *(" · ".join(column) for column in table.columns)]
    lines = [
        f"### {table.title}\n",
        _pipes([h.replace("|", "\\|") for h in head]),
        _pipes(["---", *["---:"] * len(table.columns)]),
        *(_pipes([label.replace("|", "\\|"), *map(show, cells)]) for label, cells in table.rows),
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
    n = len(table.columns)
    levels = len(table.columns[0])
    head = []
    for level in range(levels):
        cells, rules, start = [], [], 2
        for _, members in groupby(table.columns, key=lambda c: c[: level + 1]):
            width = len(list(members))
            title = _tex(table.columns[start - 2][level])
            cells.append(title if width == 1 else f"\\multicolumn{{{width}}}{{c}}{{{title}}}")
            rules.append(f"\\cmidrule(lr){{{start}-{start + width - 1}}}" if width > 1 else "")
            start += width
        corner = _tex(table.corner) if level == levels - 1 else ""
        head.append(" & ".join([corner, *cells]) + r" \\" + "".join(rules))
    marks = {1: "\\textbf{%s}", 2: "\\underline{%s}"}
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
            f"\\begin{{tabular}}{{l {'c' * n}}}",
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


def overview(results: dict[str, Any]) -> str:
    """AbsRel and δ1 of every method for a terminal, and what is missing."""
    regimes = [r for r in REGIMES if any(c["condition"] == r for c in results["cells"])]
    cells = {(c["method"], c["condition"]): c for c in results["cells"] if c["group"] == EVERYWHERE}
    methods = list(dict.fromkeys(m for m, _ in cells))
    left = max(len(m) for m in methods)
    titles = f"{METRICS['abs_rel'].title}/{METRICS['delta1'].title}"
    lines = [f"{titles:{left}}  " + "".join(f"{r:>22}" for r in regimes)]
    for method in methods:
        shown = []
        for regime in regimes:
            cell = cells.get((method, regime))
            if cell is None:
                shown.append(f"{'–':>22}")
                continue
            (mean, low, high), delta = cell["clamped"]["abs_rel"], cell["clamped"]["delta1"][0]
            width = f"±{(high - low) / 2:.3f}" if low is not None else ""
            shown.append(f"{mean:7.3f} {width:6} /{delta:6.3f}")
        lines.append(f"{method:{left}}  " + "".join(f"{s:>22}" for s in shown))
    return "\n".join([*lines, *_coverage_lines(results, regimes), *missing(results)])


def _coverage_lines(results: dict[str, Any], regimes: list[str]) -> list[str]:
    """A line for each method with a std_log: the coverage of its 90 % interval."""
    coverage: dict[str, list[str]] = {}
    for cell in results["cells"]:
        if "coverage" in cell and cell["group"] == EVERYWHERE and cell["condition"] in regimes:
            covered = 100 * cell["coverage"]["coverage_90"][0]
            coverage.setdefault(cell["method"], []).append(f"{cell['condition']} {covered:.0f} %")
    return [f"{method}'s 90 % intervals cover: {', '.join(c)}" for method, c in coverage.items()]


def missing(results: dict[str, Any]) -> list[str]:
    """A sentence for everything that a table lacks."""
    data = results["data"]
    lines = [f"{data['evaluated']} of {data['frames']} frames evaluated"]
    lines += [f"no result for {m['name']}: {m['error']}" for m in data["missing"]]
    for (method, kind, first), group in groupby(
        sorted(results["failures"], key=lambda f: (f["method"], f["kind"], f["first"])),
        key=lambda f: (f["method"], f["kind"], f["first"]),
    ):
        parts = ", ".join(f"{f['condition']} {f['images']}" for f in group)
        word = "was not run" if kind == "skipped" else "gave no result"
        lines.append(f"{method} {word} on some images ({parts}); the first: {first}")
    if len(data["mde"]) > 1:
        lines.append(f"frames were seen by several estimators: {', '.join(data['mde'])}")
    if len(data["commits"]) > 1:
        lines.append(f"frames were evaluated by {len(data['commits'])} versions of the code")
    return lines


def _pipes(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


_TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "_": r"\_",
    "#": r"\#",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "·": r"$\cdot$",
    "δ": r"$\delta$",
    "η": r"$\eta$",
    "α": r"$\alpha$",
    "‖": r"$\|$",
    "²": r"$^2$",
    "…": r"\ldots{}",
    "₀": r"$_0$",
    "₁": r"$_1$",
    "ᵀ": r"$^\top$",
    "√": r"$\surd$",
    "≈": r"$\approx$",
    "|": "$|$",
}


def _tex(text: str) -> str:
    escaped = "".join(_TEX.get(character, character) for character in text).replace("$$", "")
    return re.sub(r"\$\\delta\$(\d)", r"$\\delta_\1$", escaped)
