"""`scalefield COMMAND`: each command is a dataclass whose fields are its flags and its help."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
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
from scalefield.errors import InputError, MissingExtra


class Command(Protocol):
    """Modules of commands import nothing heavy at the top, so that --help answers at once."""

    def run(self) -> int | None:
        """Do the work; the value is the exit code, None for success."""
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
    with warnings.catch_warnings():
        warnings.showwarning = _say  # a sentence, as errors are, and not a line of our source
        try:
            command: Command = tyro.extras.subcommand_cli_from_dict(
                COMMANDS,
                prog="scalefield",
                description=scalefield.__doc__.splitlines()[0],
                args=args,
            )
            return command.run() or 0
        except (InputError, MissingExtra) as e:
            print(f"scalefield: {e}", file=sys.stderr)
            return 2
        except BrokenPipeError:  # the reader left, as `head` does; say nothing when flushing either
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0


def _say(message: Warning | str, *_: object, **__: object) -> None:
    print(f"scalefield: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
