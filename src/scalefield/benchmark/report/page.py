"""HTML pages of figures and tables, for reports and diagnoses."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from scalefield.benchmark.report.table import TEMPLATES, Table, render


@dataclass(frozen=True)
class Image:
    """A picture with the words under it."""

    source: str
    """Address of a file beside the page, or the encoded picture as a data address."""
    caption: str
    alt: str = ""


def inline(data: bytes, mime: str) -> str:
    """An encoded picture as a data address."""
    return f"data:{mime};base64,{b64encode(data).decode()}"


Panel = tuple[Image | Table, ...]
"""Figures and tables that are seen together."""


@dataclass(frozen=True)
class Section:
    """A heading over panels, of which one is shown, chosen by its name."""

    title: str
    panels: Mapping[str, Panel]
    introduction: str = ""

    @property
    def buttons(self) -> list[str]:
        """The names of the panels without what all begin with, up to a comma or colon."""
        ends = zip(min(self.panels), max(self.panels), strict=False)
        shared = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], ends))
        common = len(re.sub(r"[^:,]*$", "", shared))
        return [name[common:].strip() or name for name in self.panels]


def document(title: str, sections: Sequence[Section], **head: Any) -> str:
    """A page: a title; `notes` and `facts` by name, if they are given; and the sections that have
    a panel."""
    style, script = ((TEMPLATES / name).read_text("utf-8") for name in ("page.css", "page.js"))
    shown = [section for section in sections if section.panels]
    return render("page.html.j2", title=title, sections=shown, style=style, script=script, **head)
