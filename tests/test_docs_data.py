"""Every command line of docs/data.md is one that the program understands."""

import shlex
from pathlib import Path

import pytest
import tyro

from scalefield.cli import COMMANDS

DOCS = Path(__file__).parents[1] / "docs" / "data.md"


def command_lines() -> list[str]:
    text = DOCS.read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line.startswith("scalefield ")]


@pytest.mark.parametrize("line", command_lines())
def test_docs_data_line_is_understood(line):
    words = shlex.split(line, comments=True)[1:]
    command = tyro.extras.subcommand_cli_from_dict(COMMANDS, args=words)
    assert isinstance(command, COMMANDS[words[0]])


def test_docs_data_there_are_lines_for_every_command_of_the_page():
    assert {line.split()[1] for line in command_lines()} == {
        "anchors", "colmap", "recover", "label", "export"
    }  # fmt: skip
