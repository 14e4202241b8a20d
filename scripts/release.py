"""The notes of a version, from the changelog; fails unless tag, package and changelog agree.

python scripts/release.py v0.1.0
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def notes(tag: str, changelog: str, version: str) -> str:
    """The section of the changelog of a tag vX.Y.Z, which must be the package's version."""
    if tag != f"v{version}":
        raise SystemExit(f"the tag is {tag} and the version in pyproject.toml {version}")
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    found = [s.partition("\n")[2].strip() for s in sections if s.split()[0].strip("[]") == version]
    if not found or not found[0]:
        raise SystemExit(f"CHANGELOG.md has no section {version}")
    return found[0]


def main() -> None:
    """Print the notes of the tag that is given."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    print(notes(sys.argv[1], (ROOT / "CHANGELOG.md").read_text(), version))


if __name__ == "__main__":
    main()
