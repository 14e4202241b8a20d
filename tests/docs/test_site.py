"""The documentation site: complete, and built strictly."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_mkdocs_builds_the_site_strictly(tmp_path):
    pytest.importorskip("mkdocs", reason="the dependency group docs is not installed")
    pytest.importorskip("mkdocstrings", reason="the dependency group docs is not installed")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    api = (tmp_path / "api" / "index.html").read_text()
    assert "scalefield.api.recover" in api
    assert "Standard deviation of log_scale" in api  # a docstring under a field
    assert "../results/" not in (tmp_path / "field" / "index.html").read_text()


def test_mkdocs_navigation_names_every_page():
    text = (ROOT / "mkdocs.yml").read_text()
    pages = [p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")]
    assert [page for page in sorted(pages) if f" {page}\n" not in text] == []
