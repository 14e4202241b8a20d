"""The page's JavaScript: its unit tests in node, and its types by the TypeScript compiler."""

import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "js"


@pytest.mark.skipif(not shutil.which("node"), reason="node is not installed")
def test_javascript_unit_tests_pass() -> None:
    command = ["node", "--test", *map(str, sorted(FOLDER.glob("*.test.mjs")))]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=FOLDER)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_javascript_types_hold(node_modules: Path) -> None:
    command = ["node", str(node_modules / "typescript" / "bin" / "tsc"), "--project", str(FOLDER)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=FOLDER)
    assert done.returncode == 0, done.stdout[-4000:]
