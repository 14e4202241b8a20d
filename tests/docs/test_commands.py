"""Every command line of the README and of docs/ is understood by the program."""

import re
import shlex
from pathlib import Path

import pytest
import tyro

from scalefield.cli import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def command_lines(page: str) -> list[str]:
    """Lines of code blocks that call scalefield, joined where they are continued."""
    blocks = (code for language, code in BLOCK.findall(page) if language != "python")
    text = "\n".join(blocks).replace("\\\n", " ")
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if re.match(r"scalefield \w", line)]


def understood(line: str) -> bool:
    """Whether the program accepts the words of a command line."""
    words = shlex.split(line.replace("$fold", "0"), comments=True)[1:]
    try:
        command = tyro.extras.subcommand_cli_from_dict(COMMANDS, args=words)
    except SystemExit:
        return False
    return isinstance(command, COMMANDS[words[0]])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_the_page_are_understood(page):
    assert [line for line in command_lines(page.read_text()) if not understood(line)] == []


def test_commands_of_most_pages_are_found():
    found = [page.stem for page in PAGES if command_lines(page.read_text())]
    assert len(found) >= 10


def test_commands_that_do_not_exist_are_not_understood():
    page = "text\n```\nscalefield recover a.jpg --no-such-flag\nscalefield nothing\n```\n"
    lines = command_lines(page)
    assert len(lines) == 2
    assert not any(map(understood, lines))
