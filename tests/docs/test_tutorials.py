"""Every code block of the tutorials and of other pages runs, in order, in an empty folder."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from scalefield.cli import main
from scalefield.defaults import MDE_NAME
from scalefield.io.weights import WEIGHTS

DOCS = Path(__file__).parents[2] / "docs"
OTHERS = ("comparison", "index", "field", "benchmark")
PAGES = [*sorted((DOCS / "tutorials").glob("*.md")), *(DOCS / f"{name}.md" for name in OTHERS)]
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.DOTALL | re.MULTILINE)
NEEDS = {"colmap": "pycolmap"}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tutorial_runs_as_written(page, tmp_path, monkeypatch):
    if not (WEIGHTS / MDE_NAME).is_dir():
        pytest.skip(f"no weights of {MDE_NAME} in this checkout")
    if page.stem in NEEDS:
        pytest.importorskip(NEEDS[page.stem])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # another test's module of that name
    namespace: dict = {"__name__": "tutorial"}
    blocks = BLOCK.findall(page.read_text())
    assert blocks
    for language, code in blocks:
        if language == "python":
            exec(compile(code, page, "exec"), namespace)
            continue
        for line in code.splitlines():
            words = shlex.split(line)
            assert words[0] == "scalefield", line
            assert main(words[1:]) == 0, line


def test_tutorials_are_one_for_each_kind_of_user():
    names = {page.stem for page in PAGES if page.parent.name == "tutorials"}
    assert names == {"tape_measure", "lidar", "colmap", "research", "labels"}
