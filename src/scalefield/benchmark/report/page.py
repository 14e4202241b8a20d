"""The report as one self-contained HTML page."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, takewhile

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
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
        f"<header><h1>{escape(title)}</h1>{introduction}</header><nav>{nav}</nav>"
        f"<main>{body}</main><script>{SCRIPT}</script></html>\n"
    )


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


STYLE = """
:root{--ink:#1c2126;--soft:#69737d;--line:#dfe3e8;--paper:#fff;--wash:#f6f7f9;--mark:#0072b2}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ec;--soft:#9aa4ae;--line:#343a41;
--paper:#16191d;--wash:#1e2328;--mark:#56b4e9}}
*{box-sizing:border-box}
body{margin:0;color:var(--ink);background:var(--paper);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
header,main{max-width:1240px;margin:0 auto;padding:0 24px}
h1{font-size:27px;line-height:1.2;margin:36px 0 12px;letter-spacing:-.01em}
h2{font-size:20px;margin:0 0 6px;padding-top:56px}
p{max-width:72ch;margin:0 0 14px}
dl{display:flex;flex-wrap:wrap;gap:8px 32px;margin:0 0 8px;padding:12px 16px;background:var(--wash);
border-radius:8px}
dl dt{color:var(--soft);font-size:12px;line-height:1.3}
dl dd{margin:0;font-size:13.5px}
.notes{margin:0 0 12px;padding-left:20px;color:var(--soft);font-size:13px}
nav{position:sticky;top:0;z-index:2;background:var(--paper);border-bottom:1px solid var(--line);
display:flex;flex-wrap:wrap;gap:4px 20px;padding:10px max(24px,calc((100vw - 1192px)/2))
;margin-top:16px}
nav a{color:var(--soft);text-decoration:none;font-size:13px}
nav a:hover{color:var(--mark)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:14px;min-width:60%}
caption{text-align:left;font-weight:600;padding:4px 0 8px}
th,td{padding:5px 12px;text-align:right;white-space:nowrap}
tbody th,thead th:first-child{text-align:left}
tbody th{font-weight:500}
thead th{color:var(--soft);font-weight:500;font-size:12.5px}
thead tr:last-child th{border-bottom:1.5px solid var(--ink)}
thead tr:not(:last-child) th[colspan]:not([colspan="1"]){text-align:center;
border-bottom:1px solid var(--line)}
tbody tr{border-bottom:1px solid var(--line)}
tbody tr:hover{background:var(--wash)}
td small{color:var(--soft);font-size:11px}
.best span{font-weight:700;color:var(--mark)}
.second span{text-decoration:underline;text-underline-offset:3px}
.sort{cursor:pointer;user-select:none}
.sort:hover{color:var(--mark)}
.sort[aria-sort=ascending]::after{content:" ↑"}
.sort[aria-sort=descending]::after{content:" ↓"}
.under{color:var(--soft);font-size:13px;margin-top:8px}
.buttons{display:flex;flex-wrap:wrap;gap:6px;margin:6px 0 14px}
button{font:inherit;font-size:13px;padding:4px 11px;border:1px solid var(--line);
border-radius:999px;background:none;color:var(--ink);cursor:pointer}
button[aria-pressed=true]{background:var(--mark);border-color:var(--mark);color:var(--paper)}
figure{margin:0 0 22px}
figure img{max-width:100%;height:auto;display:block;background:#fff;border-radius:6px}
figcaption{color:var(--soft);font-size:13px;margin-top:5px}
main{padding-bottom:80px}
"""

SCRIPT = """
for (const choice of document.querySelectorAll('.choice')) {
  const buttons = choice.querySelectorAll('button'), panels = choice.querySelectorAll('.panel');
  buttons.forEach((button, i) => button.onclick = () => {
    buttons.forEach((b, j) => b.setAttribute('aria-pressed', i === j));
    panels.forEach((p, j) => p.hidden = i !== j);
  });
}
for (const table of document.querySelectorAll('table')) {
  const body = table.tBodies[0], heads = table.tHead.rows[table.tHead.rows.length - 1].cells;
  const key = (row, i) => {
    const cell = row.cells[i];
    return i === 0 ? cell.textContent : cell.dataset.v === undefined ? NaN : +cell.dataset.v;
  };
  [...heads].forEach((head, i) => head.onclick = () => {
    const down = head.getAttribute('aria-sort') === 'ascending';
    [...heads].forEach(h => h.removeAttribute('aria-sort'));
    head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
    const rows = [...body.rows].map(row => [key(row, i), row]);
    rows.sort(([a], [b]) => {
      if (typeof a === 'string') return (down ? -1 : 1) * a.localeCompare(b);
      if (isNaN(a) || isNaN(b)) return isNaN(a) - isNaN(b);
      return (down ? -1 : 1) * (a - b);
    });
    body.append(...rows.map(([, row]) => row));
  });
}
"""
