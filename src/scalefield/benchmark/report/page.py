"""Self-contained HTML pages of figures and tables, for reports and diagnoses."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import takewhile
from pathlib import Path
from typing import Any

from scalefield.benchmark.report.table import Table, html


@dataclass(frozen=True)
class Image:
    """An encoded picture with the words under it."""

    data: bytes
    mime: str
    caption: str
    alt: str = ""


Panel = tuple[Image | Table, ...]
"""Figures and tables that are seen together."""


@dataclass(frozen=True)
class Section:
    """A heading over panels, of which one is shown, chosen by its name."""

    title: str
    panels: Mapping[str, Panel]
    introduction: str = ""


def document(title: str, introduction: str, sections: Sequence[Section]) -> str:
    """A page: a title, an introduction in HTML, and the sections that have a panel."""
    shown = [s for s in sections if s.panels]
    nav = "".join(f'<a href="#s{i}">{escape(s.title)}</a>' for i, s in enumerate(shown))
    body = "".join(_section(i, section) for i, section in enumerate(shown))
    style, script = (
        (Path(__file__).parent / name).read_text("utf-8") for name in ("page.css", "page.js")
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{style}</style>"
        f"<header><h1>{escape(title)}</h1>{introduction}</header><nav>{nav}</nav>"
        f"<main>{body}</main><script>\n{script}</script></html>\n"
    )


def fact_list(facts: dict[str, str], results: dict[str, Any], notes: Sequence[str]) -> str:
    """Names and values in a box, with the origin of the results and notes under them, in HTML."""
    origin = results["provenance"]
    facts = {
        **facts,
        "data": f"sha256 {results['data']['sha256'][:12]}",
        "scalefield": f"{origin['scalefield']} ({(origin['commit'] or 'no commit')[:10]})",
    }
    items = "".join(f"<div><dt>{escape(k)}<dd>{escape(v)}</div>" for k, v in facts.items())
    lines = "".join(f"<li>{escape(line)}</li>" for line in notes)
    return f"<dl>{items}</dl>" + (f"<ul class=notes>{lines}</ul>" if lines else "")


def _section(i: int, section: Section) -> str:
    """The section with a button for each panel; a single one needs no button."""
    # What all names begin with, up to a comma or colon, need not be on every button.
    ends = zip(min(section.panels), max(section.panels), strict=False)
    shared = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], ends))
    common = len(re.sub(r"[^:,]*$", "", shared))
    buttons = "".join(
        f'<button type=button aria-pressed="{"false" if j else "true"}">'
        f"{escape(name[common:].strip() or name)}</button>"
        for j, name in enumerate(section.panels)
    )
    panels = "".join(
        f"<div class=panel{' hidden' if j else ''}>{''.join(map(_part, panel))}</div>"
        for j, panel in enumerate(section.panels.values())
    )
    words = f"<p>{escape(section.introduction)}</p>" if section.introduction else ""
    bar = f"<div class=buttons>{buttons}</div>" if len(section.panels) > 1 else ""
    return (
        f'<section id="s{i}"><h2>{escape(section.title)}</h2>{words}'
        f"<div class=choice>{bar}{panels}</div></section>"
    )


def _part(part: Image | Table) -> str:
    if isinstance(part, Table):
        return html(part)
    source = f"data:{part.mime};base64,{b64encode(part.data).decode()}"
    return (
        f'<figure><img loading="lazy" src="{source}" alt="{escape(part.alt or part.caption)}">'
        f"<figcaption>{escape(part.caption)}</figcaption></figure>"
    )
