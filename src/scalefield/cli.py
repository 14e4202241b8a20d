"""`scalefield COMMAND`: each command is a dataclass whose fields are its flags and its help."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import tyro

import scalefield
from scalefield.commands.anchors import AnchorsCommand
from scalefield.commands.colmap import ColmapCommand
from scalefield.commands.demo import DemoCommand
from scalefield.commands.diagnose import DiagnoseCommand
from scalefield.commands.evaluate import EvaluateCommand
from scalefield.commands.export import ExportCommand
from scalefield.commands.label import LabelCommand
from scalefield.commands.methods import MethodsCommand
from scalefield.commands.models import ModelsCommand
from scalefield.commands.predict import PredictCommand
from scalefield.commands.recover import RecoverCommand
from scalefield.commands.report import ReportCommand
from scalefield.commands.reproduce import ReproduceCommand
from scalefield.commands.suggest import SuggestCommand
from scalefield.commands.train import TrainCommand, TrainMdeCommand
from scalefield.commands.web import WebCommand
from scalefield.errors import InputError, MissingExtra, one_line
from scalefield.runtime.signals import graceful_shutdown


class Command(Protocol):
    """A command of the command line. Its module imports nothing heavy, so that --help is fast."""

    def run(self) -> int | None:
        """Run the command; returns the exit code, None for success."""
        ...


COMMANDS: dict[str, Callable[..., Command]] = {
    "recover": RecoverCommand,
    "suggest": SuggestCommand,
    "anchors": AnchorsCommand,
    "colmap": ColmapCommand,
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


def main(args: list[str] | None = None) -> int:
    """Run the command line; bad input is one sentence on stderr and exit code 2."""
    _keep_streams()
    with warnings.catch_warnings():
        warnings.showwarning = _print_warning  # the message without a line of source
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
    try:
        if (sys.argv[1:] if args is None else args) == ["--version"]:
            print(f"scalefield {scalefield.__version__}")
            return 0
        command: Command = tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="scalefield",
            description=scalefield.__doc__.splitlines()[0],
            args=args,
        )
        return command.run() or 0
    finally:
        sys.stdout.flush()  # here, where an error can still be reported


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
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _mute() -> None:
    with suppress(io.UnsupportedOperation):  # stdout may have no file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(message: object, code: int) -> int:
    print(f"scalefield: {one_line(message, 2000)}", file=sys.stderr)
    return code


def _print_warning(
    message: Warning | str, category: type[Warning], *_: object, **__: object
) -> None:
    if category.__module__.startswith(
        "scalefield"
    ):  # warnings of other libraries are for programmers
        print(f"scalefield: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
