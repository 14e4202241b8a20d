"""`scalefield COMMAND`: each command is a dataclass whose fields are its flags and its help."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from itertools import takewhile
from typing import Annotated, Any, Protocol, Union, runtime_checkable

import tyro

import scalefield
from scalefield.commands.anchors import AnchorsCommand
from scalefield.commands.colmap import ColmapCommand
from scalefield.commands.demo import DemoCommand
from scalefield.commands.diagnose import DiagnoseCommand
from scalefield.commands.evaluate import EvaluateCommand
from scalefield.commands.explain import ExplainCommand
from scalefield.commands.export import ExportCommand
from scalefield.commands.help_text import document_fields, filled_help
from scalefield.commands.label import LabelCommand
from scalefield.commands.measure import MeasureCommand
from scalefield.commands.methods import MethodsCommand
from scalefield.commands.models import ModelsCommand
from scalefield.commands.predict import PredictCommand
from scalefield.commands.recover import RecoverCommand
from scalefield.commands.report import ReportCommand
from scalefield.commands.reproduce import ReproduceCommand
from scalefield.commands.scene import SceneCommand
from scalefield.commands.suggest import SuggestCommand
from scalefield.commands.train import TrainCommand, TrainMdeCommand
from scalefield.commands.web import WebCommand
from scalefield.errors import InputError, MissingExtra, did_you_mean, one_line
from scalefield.runtime.signals import graceful_shutdown


@runtime_checkable
class Command(Protocol):
    """A command of the command line. Its module imports nothing heavy, so that --help is fast."""

    def run(self) -> int | None:
        """Run the command; returns the exit code, None for success."""
        ...


COMMANDS: dict[str, Callable[..., Command]] = {
    "recover": RecoverCommand,
    "suggest": SuggestCommand,
    "measure": MeasureCommand,
    "explain": ExplainCommand,
    "anchors": AnchorsCommand,
    "colmap": ColmapCommand,
    "scene": SceneCommand,
    "label": LabelCommand,
    "export": ExportCommand,
    "methods": MethodsCommand,
    "demo": DemoCommand,
    "predict": PredictCommand,
    "models": ModelsCommand,
    "evaluate": EvaluateCommand,
    "report": ReportCommand,
    "diagnose": DiagnoseCommand,
    "reproduce": ReproduceCommand,
    "web": WebCommand,
    "train": TrainCommand,
    "train-mde": TrainMdeCommand,
}


HELP = """scalefield COMMAND --help describes a command and its flags.

scalefield --version prints the version.

scalefield --completion bash (or zsh) prints a completion script; see docs/usage.md."""


def main(args: list[str] | None = None) -> int:
    """Run the command line; bad input is one sentence on stderr and exit code 2."""
    _keep_streams()
    with warnings.catch_warnings():
        warnings.showwarning = _WarningPrinter()  # the message without a line of source
        try:
            with graceful_shutdown():
                return _run(args)
        except (InputError, MissingExtra) as e:
            return _end(e, 2)
        except BrokenPipeError:  # the reader ended early, as `head` does; print nothing more
            _mute()
            return 0
        except OSError as e:  # for example a full disk behind stdout, or a removed folder
            _mute()
            return _end(f"{e.filename}: {e.strerror}" if e.filename else e, 1)
        except (MemoryError, RuntimeError) as e:
            if not _lacks_memory(e):
                raise
            return _end("not enough memory on this machine", 1)
        except KeyboardInterrupt:
            return _end("interrupted", 128 + signal.SIGINT)


def _run(args: list[str] | None) -> int:
    args = list(sys.argv[1:] if args is None else args)
    try:
        if args == ["--version"]:
            print(f"scalefield {scalefield.__version__}")
            return 0
        if args[:1] == ["--completion"]:
            if args[1:] not in (["bash"], ["zsh"]):
                found = " ".join(args[1:]) or "nothing"
                raise InputError(f"--completion must be bash or zsh, found {one_line(found, 40)}")
            args = ["--tyro-print-completion", *args[1:]]
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            hint = did_you_mean(args[0], COMMANDS) or f"; there are {', '.join(COMMANDS)}"
            raise InputError(f"no command {one_line(args[0], 40)!r}{hint}")
        if {"-h", "--help"}.isdisjoint(args):
            return _parse(args).run() or 0
        with filled_help():
            return _parse(args).run() or 0
    finally:
        sys.stdout.flush()  # here, where an error can still be reported


def _parse(args: list[str]) -> Command:
    """The command that the arguments describe."""
    title = scalefield.__doc__.splitlines()[0]
    if args and args[0] in COMMANDS:
        if not {"-h", "--help"}.isdisjoint(args):
            document_fields(COMMANDS[args[0]])
        _check_numbers(args)
        return tyro.cli(COMMANDS[args[0]], prog=f"scalefield {args[0]}", args=args[1:])
    # The list of commands has the first line of each; `scalefield COMMAND --help` has the rest.
    listed: list[Any] = []
    for name, make in COMMANDS.items():
        first = " ".join((make.__doc__ or "").partition("\n\n")[0].split())
        listed.append(Annotated[make, tyro.conf.subcommand(name, description=first)])
    union: Any = Union[*listed]
    return tyro.cli(
        union,
        prog="scalefield",
        description=f"{title}\n\n{HELP}",
        args=args,
    )


CAMERA_FLAGS = ("--intrinsics", "--depth-intrinsics")
"""Flags with FX FY CX CY, of which people often give fewer."""


def _check_numbers(args: list[str]) -> None:
    """Refuse a camera of fewer or more than four numbers in one sentence."""
    for at, flag in enumerate(args):
        if flag in CAMERA_FLAGS:
            values = list(takewhile(lambda word: not word.startswith("--"), args[at + 1 :]))
            if len(values) != 4:
                found = one_line(" ".join(values), 60) or "nothing"
                raise InputError(
                    f"{flag} wants four numbers, FX FY CX CY in pixels, found {found}; --fov-deg "
                    "takes the field of view alone"
                )


def _lacks_memory(error: Exception) -> bool:
    """Whether an error means a lack of memory: torch has no common class for it on CPU and GPU."""
    by_name = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return by_name or "can't allocate memory" in str(error)


def _keep_streams() -> None:
    """Make stdout and stderr usable if they are closed or cannot encode every character."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.errors in (
            "strict",
            "surrogateescape",  # of the C locale, which cannot encode an ellipsis
        ):
            stream.reconfigure(errors="backslashreplace")


def _mute() -> None:
    with suppress(io.UnsupportedOperation):  # stdout may have no file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(message: object, code: int) -> int:
    print(f"scalefield: {one_line(message, 2000)}", file=sys.stderr)
    return code


class _WarningPrinter:
    """Prints each warning of this package once, as a sentence."""

    def __init__(self) -> None:
        self.printed: set[str] = set()

    def __call__(
        self, message: Warning | str, category: type[Warning], *_: object, **__: object
    ) -> None:
        # Warnings of other libraries are for programmers.
        if category.__module__.startswith("scalefield") and str(message) not in self.printed:
            self.printed.add(str(message))
            print(f"scalefield: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
