"""Every command line of docs/data.md and docs/usage.md is parsed by the program."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import tyro

from scalefield.cli import COMMANDS

DOCS = Path(__file__).parents[1] / "docs" / "data.md"
USAGE = DOCS.with_name("usage.md")


def command_lines(page: Path = DOCS) -> list[str]:
    text = page.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.startswith("scalefield ")]
    return [line for line in lines if not line.startswith("scalefield --")]


@pytest.mark.parametrize("line", [*command_lines(), *command_lines(USAGE)])
def test_docs_data_line_is_understood(line):
    words = shlex.split(line, comments=True)[1:]
    command = tyro.extras.subcommand_cli_from_dict(COMMANDS, args=words)
    assert isinstance(command, COMMANDS[words[0]])


def test_docs_data_there_are_lines_for_every_command_of_the_page():
    assert {line.split()[1] for line in command_lines()} == {
        "anchors", "colmap", "recover", "label", "export"
    }  # fmt: skip


def test_docs_usage_python_runs():
    """The Python blocks of the page, one after the other."""
    blocks = re.findall(r"```python\n(.*?)```", USAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 3
    names: dict = {}
    for block in blocks:
        exec(block, names)
    assert isinstance(names["r"].depth_m, np.ndarray)
    assert len(names["cloud"].points_m) <= 100_000
