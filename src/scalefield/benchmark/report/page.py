"""The report as one self-contained HTML page."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, takewhile
from pathlib import Path

from scalefield.benchmark.report.runs import Run
from scalefield.benchmark.report.tables import Cell, Table
from scalefield.benchmark.report.text import missing


@dataclass(frozen=True)
class Image:
    """An encoded picture with the words under it."""

    data: bytes
    mime: str
    caption: str
    alt: str = ""


@dataclass(frozen=True)
class Panel:
    """Figures and tables that are seen together."""

    figures: tuple[Image, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Section:
    """A heading over panels, of which one is shown, chosen by its name."""

    title: str
    panels: dict[str, Panel]
    introduction: str = ""


def document(title: str, introduction: str, sections: Sequence[Section]) -> str:
    """A page: a title, an introduction in HTML, and the sections that have a panel."""
    shown = [s for s in sections if s.panels]
    nav = "".join(f'<a href="#s{i}">{escape(s.title)}</a>' for i, s in enumerate(shown))
    body = "".join(_section(i, section) for i, section in enumerate(shown))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{asset_text('page.css')}</style>"
        f"<header><h1>{escape(title)}</h1>{introduction}</header><nav>{nav}</nav>"
        f"<main>{body}</main><script>\n{asset_text('page.js')}</script></html>\n"
    )


def asset_text(name: str) -> str:
    """The text of a style sheet or script in the folder of this module."""
    return (Path(__file__).parent / name).read_text("utf-8")


def run_facts(runs: Sequence[Run]) -> str:
    """Data, estimators and versions of the runs, in HTML."""
    rows = []
    for run in runs:
        data, origin = run.results["data"], run.results["provenance"]
        facts = (
            ("dataset", f"{run.dataset}, {data['evaluated']} of {data['frames']} frames"),
            ("MDE", ", ".join(data["mde"]) or run.mde),
            ("places", ", ".join(run.scores.groups)),
            ("data", f"sha256 {data['sha256'][:12]}"),
            ("scalefield", f"{origin['scalefield']} ({(origin['commit'] or 'no commit')[:10]})"),
            ("seed", str(run.results["config"]["seed"])),
        )
        rows.append(fact_list(facts, missing(run.results)[1:]))
    return "".join(rows)


def fact_list(facts: Sequence[tuple[str, str]], notes: Sequence[str] = ()) -> str:
    """Names and values in a box, with notes under it, in HTML."""
    items = "".join(f"<div><dt>{escape(k)}<dd>{escape(v)}</div>" for k, v in facts)
    lines = "".join(f"<li>{escape(line)}</li>" for line in notes)
    return f"<dl>{items}</dl>" + (f"<ul class=notes>{lines}</ul>" if lines else "")


def _section(i: int, section: Section) -> str:
    parts = [f'<section id="s{i}"><h2>{escape(section.title)}</h2>']
    if section.introduction:
        parts.append(f"<p>{escape(section.introduction)}</p>")
    drawn = {
        name: "".join([*map(_figure, panel.figures), *map(_table, panel.tables)])
        for name, panel in section.panels.items()
    }
    return "".join([*parts, _choice(drawn), "</section>"])


def _choice(panels: dict[str, str]) -> str:
    """Panels of which one is shown, with a button each; a single one needs no button."""
    # What all names begin with, up to a comma or colon, need not be on every button.
    shared = "".join(c[0] for c in takewhile(lambda c: len(set(c)) == 1, zip(*panels)))  # noqa: B905
    common = len(re.sub(r"[^:,]*$", "", shared))
    buttons = "".join(
        f'<button type=button aria-pressed="{"false" if i else "true"}">'
        f"{escape(name[common:].strip() or name)}</button>"
        for i, name in enumerate(panels)
    )
    shown = "".join(
        f"<div class=panel{' hidden' if i else ''}>{panel}</div>"
        for i, panel in enumerate(panels.values())
    )
    bar = f"<div class=buttons>{buttons}</div>" if len(panels) > 1 else ""
    return f"<div class=choice>{bar}{shown}</div>"


def _figure(image: Image) -> str:
    source = f"data:{image.mime};base64,{b64encode(image.data).decode()}"
    alt = escape(image.alt or image.caption, quote=True)
    return (
        f'<figure><img loading="lazy" src="{source}" alt="{alt}">'
        f"<figcaption>{escape(image.caption)}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    levels = len(table.columns[0])
    head = []
    for level in range(levels):
        last = level == levels - 1
        corner = f"<th class=sort>{escape(table.corner)}</th>" if last else "<th></th>"
        cells = []
        for _, members in groupby(table.columns, key=lambda c: c[: level + 1]):
            group = list(members)
            kind = " class=sort" if last else ""
            cells.append(f"<th{kind} colspan={len(group)}>{escape(group[0][level])}</th>")
        head.append(f"<tr>{corner}{''.join(cells)}</tr>")
    rows = "".join(
        f"<tr><th>{escape(label)}</th>{''.join(_cell(c) for c in cells)}</tr>"
        for label, cells in table.rows
    )
    return (
        f"<div class=scroll><table><caption>{escape(table.title)}</caption>"
        f"<thead>{''.join(head)}</thead><tbody>{rows}</tbody></table></div>"
        f"<p class=under>{escape(table.caption)}</p>"
    )


def _cell(cell: Cell) -> str:
    value = "" if cell.value is None else f' data-v="{cell.value!r}"'
    note = cell.note
    width = ""
    if cell.low is not None and cell.high is not None:
        note = note or f"95 % interval {cell.low:.4g} … {cell.high:.4g}"
        width = f" <small>±{(cell.high - cell.low) / 2:.{cell.digits}f}</small>"
    title = f' title="{escape(note, quote=True)}"' if note else ""
    rank = {1: " class=best", 2: " class=second"}.get(cell.rank, "")
    return f"<td{value}{title}{rank}><span>{escape(str(cell))}</span>{width}</td>"
