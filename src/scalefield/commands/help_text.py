"""Help texts for a terminal: paragraphs filled to its width, no empty defaults."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro

BOX = re.compile("[│╭╰├─]")
"""Characters of the frames around flags, inside which tyro fills the lines itself."""
STYLES = re.compile(r"\x1b\[[0-9;]*m")
"""Escape sequences of colours and bold text."""
METAVARS: dict[Any, str] = {
    int: "INT",
    float: "FLOAT",
    str: "STR",
    Path: "PATH",
    bool: "{True,False}",
}
"""Names of values in the help, by type."""
WIDEST = 100
"""Columns of a paragraph at most."""


@contextlib.contextmanager
def filled_help() -> Iterator[None]:
    """Fill the paragraphs of the help that is printed inside to the width of the terminal."""
    terminal = sys.stdout
    captured = _Captured(terminal)
    try:
        with contextlib.redirect_stdout(captured):
            yield
    finally:
        width = min(shutil.get_terminal_size().columns, WIDEST)
        print(fill_paragraphs(captured.getvalue(), width), end="", file=terminal)


def fill_paragraphs(text: str, width: int) -> str:
    """The text with lines of at most `width` columns, but for the lines of boxes.

    The list of all commands in the first line becomes COMMAND; a box below describes each.
    """
    lines = []
    for styled in text.split("\n"):
        usage = "usage:" in styled
        line = re.sub(r"\{[a-z,-]{60,}\}", "COMMAND", STYLES.sub("", styled))
        if BOX.search(line) or (len(line) <= width and not usage):
            lines.append(styled)
            continue
        indent = " " * 4 if usage else ""
        lines += textwrap.wrap(
            line, width, break_long_words=False, break_on_hyphens=False, subsequent_indent=indent
        )
    return "\n".join(lines)


def document_fields(command: Any) -> None:
    """Give the fields of a dataclass, and of dataclasses in it, their docstrings as help.

    tyro reads docstrings too, but keeps the line breaks of the source. A default of None or of
    nothing is not shown: the text describes what happens without the flag. An optional value is
    named by its type alone, INT and not {None}|INT, or by its choices.
    """
    import docstring_parser

    hints = get_type_hints(command, include_extras=True)
    params = docstring_parser.parse_from_object(command).params
    docs = {p.arg_name: " ".join((p.description or "").split()) for p in params}
    for field in dataclasses.fields(command):
        hint = hints[field.name]
        inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if dataclasses.is_dataclass(inner):
            document_fields(inner)
            continue
        # An explicit help of the field comes later and stays in force.
        texts: dict[str, Any] = {"help": docs[field.name]} if docs.get(field.name) else {}
        if field.default is None or field.default == ():
            texts["help_behavior_hint"] = ""
        elif field.default is dataclasses.MISSING and get_origin(inner) is tuple:
            texts["help_behavior_hint"] = "(required)"
        others = [each for each in get_args(inner) if each is not NoneType]
        if NoneType in get_args(inner):
            choices = ",".join(map(str, get_args(others[0])))
            texts["metavar"] = METAVARS.get(others[0], f"{{{choices}}}")
        given = () if inner is hint else get_args(hint)[1:]
        command.__annotations__[field.name] = Annotated[inner, tyro.conf.arg(**texts), *given]


class _Captured(io.StringIO):
    """A buffer with the encoding and the styles of another stream."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self.stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the stream: tyro draws frames of Unicode characters in UTF-8 only."""
        return getattr(self.stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Whether the stream is a terminal, for which tyro uses colours."""
        return self.stream.isatty()
