"""The README: its example runs, and its tables have the measured results."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from scalefield import METHODS
from scalefield.cli import COMMANDS
from scalefield.defaults import MDE_NAME
from scalefield.io.weights import WEIGHTS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
TASKS = README.split("| task | command or class | page |")[1].split("\n\n")[0].splitlines()[2:]
CLASSES = {kind.__name__: kind for kind in METHODS.values()}


def test_readme_first_example_runs(tmp_path):
    if not (WEIGHTS / MDE_NAME).is_dir():
        pytest.skip(f"no weights of {MDE_NAME} in this checkout")
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("6 ")


def test_docs_benchmark_table_has_every_method():
    page = (ROOT / "docs" / "benchmark.md").read_text()
    (table,) = re.findall(r"what is fitted to the anchors \|\n(.*?)\n\n", page, re.DOTALL)
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(named) == sorted(METHODS)


def test_contributing_names_every_package():
    package, text = ROOT / "src" / "scalefield", (ROOT / "CONTRIBUTING.md").read_text()
    names = {f"`{path.parent.name}/`" for path in package.glob("*/__init__.py")}
    assert len(names) > 12
    assert [name for name in sorted(names) if name not in text] == []


def test_readme_and_docs_name_existing_commands_and_files():
    texts = README + (ROOT / "CONTRIBUTING.md").read_text()
    assert set(re.findall(r"scalefield (\w+) ?(?:NAME|photo|`)", texts)) <= set(COMMANDS)
    package = ROOT / "src" / "scalefield"
    named = re.findall(r"`([\w/]+(?:\.py|/))`", texts)
    assert len(named) > 20
    places = (ROOT, package, package / "methods", package / "mde")
    missing = [n for n in named if not any((place / n).exists() for place in places)]
    assert set(missing) <= {"methods/yours.py", "field/"}
    pictures = re.findall(r"\]\((docs/[^)#]+)", README)
    assert pictures
    assert all((ROOT / p).is_file() for p in pictures)


def anchors_of(page: str) -> set[str]:
    """The names by which links can refer to the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def exists(name: str) -> bool:
    """Whether `name` is a command, a name of scalefield or a class of a method."""
    if name.startswith("scalefield "):
        return name.removeprefix("scalefield ") in COMMANDS
    first, *rest = name.split(".")
    found = CLASSES.get(first) or getattr(import_module("scalefield"), first, None)
    for part in rest:
        found = getattr(found, part, None)
    return found is not None


def broken_links(text: str) -> list[str]:
    """Links of a text in the repository's root to files or headings that do not exist."""
    wrong = []
    for link in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = link.partition("#")
        page = ROOT / path
        if not page.exists() or (anchor and anchor not in anchors_of(page.read_text())):
            wrong.append(link)
    return wrong


def faults(row: str) -> list[str]:
    """What a row of the table of tasks names and does not exist: commands, classes and links."""
    _, _, names, links, _ = row.split("|")
    wrong = [name for name in re.findall(r"`([^`]+)`", names) if not exists(name)]
    return wrong + broken_links(links)


@pytest.mark.parametrize("row", TASKS)
def test_readme_row_of_tasks_names_a_command_and_a_page(row):
    assert "](docs/" in row
    assert "`" in row
    assert faults(row) == []


def test_readme_faults_of_a_row_are_found():
    row = "| a | `scalefield nothing`, `Recovery.nothing` | [a](docs/no.md), [b](docs/web.md#no) |"
    found = ["scalefield nothing", "Recovery.nothing", "docs/no.md", "docs/web.md#no"]
    assert faults(row) == found


def test_readme_and_contributing_have_no_broken_links():
    assert broken_links(README) == []
    assert broken_links((ROOT / "CONTRIBUTING.md").read_text()) == []


def test_readme_tasks_name_every_command_for_users():
    named = set(re.findall(r"`scalefield ([\w-]+)`", "\n".join(TASKS)))
    assert set(COMMANDS) - named == {"demo", "predict"}
