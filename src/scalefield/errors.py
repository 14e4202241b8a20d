"""Exceptions and warnings of the package, and short texts for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from functools import partial
from importlib import import_module
from typing import Any


class InputError(ValueError):
    """Bad input. The command line prints its message and exits with code 2."""


LONGEST_PATH = 500
"""Characters of a path that a message repeats; damaged lists of files have names of thousands."""


class FileError(InputError):
    """A file that cannot be used. The message is "path: problem" or "path, line 3: problem"."""

    def __init__(self, path: object, problem: str, *, line: int | None = None) -> None:
        self.path, self.problem, self.line = path, problem, line
        position = "" if line is None else f", line {line}"
        shown = str(path) if len(str(path)) <= LONGEST_PATH else f"{str(path)[:LONGEST_PATH]}…"
        super().__init__(f"{shown}{position}: {problem}")

    def renamed(self, name: object) -> FileError:
        """The same problem with another name of the file, for example the one that the user
        gave."""
        return FileError(name, self.problem, line=self.line)

    def __reduce__(self) -> tuple:
        """Pickling support: by default Python would rebuild the error from its message."""
        return partial(FileError, line=self.line), (str(self.path), self.problem)


def one_line(error: object, most: int = 200) -> str:
    """The text of an error, or any text, as one line of at most `most` characters."""
    text = " ".join("".join(c if c.isprintable() else " " for c in str(error)).split())
    return text if len(text) <= most else f"{text[:most]}…"


def counted(n: int, noun: str) -> str:
    """The number with its noun: "1 pixel", "2 pixels"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def size_text(shape: Sequence[int]) -> str:
    """Width and height of an image of this shape, for messages: "640×480"."""
    return f"{shape[1]}×{shape[0]}"


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: "; did you mean field?", or nothing."""
    near = difflib.get_close_matches(str(name), list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""


class Notice(UserWarning):
    """Information for the user; the command line prints it and no warning of other libraries."""


def require_package(package: str, extra: str, purpose: str) -> None:
    """Report an optional package that is not installed, before long work starts."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise MissingExtra(package, extra, purpose)


def import_extra(module: str, extra: str, purpose: str, *, package: str = "") -> Any:
    """An optional module; `MissingExtra` if it is not installed.

    `package` is the name of its distribution, if that is not the name of the module.
    """
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtra(package or module, extra, purpose) from None


class MissingExtra(ImportError):
    """An optional dependency is not installed. The message contains the command that installs
    it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        self._given = (package, extra, purpose)
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed: "
            f"pip install 'scalefield[{extra}]'"
        )

    def __reduce__(self) -> tuple:
        """Pickling support: by default Python would rebuild the error from its message."""
        return type(self), self._given
