"""The README: its example runs, and its tables have the measured results."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scalefield import METHODS
from scalefield.cli import COMMANDS
from scalefield.defaults import MDE_NAME
from scalefield.io.weights import WEIGHTS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


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
