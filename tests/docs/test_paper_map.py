"""The table "Where each part is" of docs/paper.md names code that exists."""

import importlib
import re
from pathlib import Path

import pytest

import scalefield

PACKAGE = Path(scalefield.__file__).parent
PAGE = (PACKAGE.parents[1] / "docs" / "paper.md").read_text()
SECTION = PAGE.split("## Where each part is")[1].split("\n## ")[0]
ROWS = [line for line in SECTION.splitlines() if line.startswith("| ")][1:]


def parts():
    """File and name for each `name` of the table; files alone have an empty name."""
    for row in ROWS:
        words, folder, file = re.findall(r"`([^`]+)`", row.rsplit(" | ", 1)[1]), "", ""
        for word in words:
            if word.endswith(".py"):
                folder = word.rpartition("/")[0] if "/" in word else folder
                file = word if "/" in word or not folder else f"{folder}/{word}"
                yield file, ""
            else:
                yield file, word


@pytest.mark.parametrize(("file", "name"), list(parts()))
def test_code_of_the_paper_map_exists(file, name):
    assert (PACKAGE / file).is_file()
    found = importlib.import_module("scalefield." + file.removesuffix(".py").replace("/", "."))
    for part in name.split(".") if name else ():
        found = getattr(found, part)
