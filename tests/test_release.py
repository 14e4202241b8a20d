"""What a release needs: notes from the changelog, complete extras, tracked files only."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
assert SPEC is not None
release = importlib.util.module_from_spec(SPEC)
assert SPEC.loader is not None
SPEC.loader.exec_module(release)

CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n- new\n\n## [0.2.0] - 2026-01-02\n\n- a\n- b\n"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_notes_are_the_section_of_the_tag():
    assert release.notes("v0.2.0", CHANGELOG, "0.2.0") == "- a\n- b"


@pytest.mark.parametrize(
    ("tag", "version", "problem"),
    [
        ("v0.2.0", "0.3.0", "the tag is v0.2.0 and the version in pyproject.toml 0.3.0"),
        ("v0.3.0", "0.3.0", "has no section 0.3.0"),
        ("0.2.0", "0.2.0", "the tag is 0.2.0"),
    ],
)
def test_notes_refuse_a_tag_without_a_section(tag, version, problem):
    with pytest.raises(SystemExit, match=re.escape(problem)):
        release.notes(tag, CHANGELOG, version)


def test_extra_all_has_every_extra():
    extras = PROJECT["optional-dependencies"]
    every = [re.fullmatch(r"scalefield\[(.*)\]", text)[1] for text in extras["all"]]
    listed = ",".join(every).split(",")
    assert sorted(listed) == sorted(set(extras) - {"all"})


def test_extras_have_one_spelling_in_documents_and_messages():
    files = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py")]
    named = re.compile(r"pip install (\S+\[\S+\]\S*)")
    for path in files:
        for spelling in named.findall(path.read_text()):
            extra = re.match(r"'scalefield\[([a-z{},]+)\]'", spelling)
            assert extra, (path, spelling)
            assert extra[1] == "{extra}" or set(extra[1].split(",")) <= set(
                PROJECT["optional-dependencies"]
            )


def test_versions_of_python_are_tested():
    """Those of the classifiers, in CI's matrix."""
    stated = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    matrix = re.search(r"python: \[(.*)\]", (ROOT / ".github/workflows/ci.yml").read_text())[1]
    assert re.findall(r"3\.\d+", matrix) == stated == ["3.11", "3.12", "3.13", "3.14"]
