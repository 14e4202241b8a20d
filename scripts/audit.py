"""Known vulnerabilities of everything installed; fails if the database cannot be reached.

python scripts/audit.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

DATABASE = "https://pypi.org/pypi/pip/25.1/json"
"""PyPI's record of one release with its known vulnerabilities; mirrors of the index have none."""


def reachable(address: str = DATABASE) -> str:
    """Why the database cannot be asked; empty if it can."""
    try:
        with urllib.request.urlopen(address, timeout=20) as answer:
            return "" if b'"vulnerabilities"' in answer.read() else "it answers something else"
    except (urllib.error.URLError, TimeoutError) as e:
        return str(e)


def installed() -> str:
    """Everything in this environment but the package itself, as requirements."""
    words = [sys.executable, "-m", "pip", "freeze", "--exclude-editable"]
    frozen = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return frozen.replace("+cpu", "")  # the CPU build of torch is the same release


def main() -> int:
    """Exit code 1 if something is vulnerable, or if the check failed."""
    if why := reachable():
        print(
            f"audit: nothing was looked up, because the database of known vulnerabilities "
            f"({DATABASE}) cannot be reached from here: {why}",
            file=sys.stderr,
        )
        return 1
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder, "frozen.txt")
        listed.write_text(installed())
        words = [sys.executable, "-m", "pip_audit", "--strict", "--no-deps", "--disable-pip"]
        return subprocess.run([*words, "-r", str(listed)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
