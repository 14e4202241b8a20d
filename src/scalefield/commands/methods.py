"""`scalefield methods`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True)
class MethodsCommand:
    """List the methods, one line each; or one method with its options."""

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = None
    """Describe this method and its options."""

    def run(self) -> None:
        """Print the first line of every method, or the docstring and options of one."""
        import dataclasses
        import inspect
        import shutil
        import textwrap

        from docstring_parser import parse_from_object  # comes with tyro

        from scalefield.commands.help_text import WIDEST
        from scalefield.methods import METHODS, make_method

        if self.name is None:
            for name, method in METHODS.items():
                print(f"{name:12} {(method.__doc__ or '').splitlines()[0]}")
            return
        instance = make_method(self.name)  # an unknown name is refused
        method = METHODS[self.name]
        width = min(shutil.get_terminal_size().columns, WIDEST)
        for paragraph in (inspect.getdoc(method) or "").split("\n\n"):
            print(textwrap.fill(" ".join(paragraph.split()), width), end="\n\n")
        documented = parse_from_object(method).params
        for option in documented:
            default = getattr(instance, option.arg_name)
            if dataclasses.is_dataclass(default):  # the command line has no text for it
                print(f"{option.arg_name} (in Python only): {type(default).__name__}()")
            else:
                print(f"--option {option.arg_name}={default}")
            text = " ".join((option.description or "").split())
            indent = " " * 4
            print(textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent))
            print()
