"""Check that the installed package works alone; run by the Python it was installed into.

.wheel/bin/python scripts/smoke_wheel.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.metadata import files, version
from pathlib import Path

NEEDED = (
    "scalefield/py.typed",
    "scalefield/weights/SHA256SUMS",
    "scalefield/weights/lite/model.safetensors",
    "scalefield/samples/room.jpg",
    "scalefield/web/static/index.html",
    "scalefield/web/static/page.js",
    "scalefield/web/static/zip.js",
)


def main() -> None:
    """Look for what must be there, then recover the sample in two ways."""
    here = Path(sys.prefix).resolve()
    installed = {str(path) for path in files("scalefield") or ()}
    missing = [name for name in NEEDED if name not in installed]
    assert not missing, f"the wheel lacks {missing}"
    command = str(Path(sys.executable).with_name("scalefield"))
    with tempfile.TemporaryDirectory() as folder:

        def run(*words: str) -> str:
            # In another folder, so that no checkout is imported in place of what was installed.
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
            return done.stdout

        location = run(sys.executable, "-c", "import scalefield; print(scalefield.__file__)")
        assert Path(location.strip()).resolve().is_relative_to(here), location
        run(command, "demo", "--out", "demo")
        samples = Path(location.strip()).parent / "samples"
        photo, anchors = str(samples / "room.jpg"), str(samples / "room_anchors.csv")
        run(command, "recover", photo, "--anchors", anchors, "--out", "result", "--method", "basis")
        for name in ("demo", "result"):
            report = json.loads(Path(folder, name, "recovery.json").read_text())
            assert report, name
            assert Path(folder, name, "depth.png").stat().st_size > 10_000
        run(sys.executable, "-m", "pip", "check")
    print(f"scalefield {version('scalefield')} works from its wheel")


if __name__ == "__main__":
    main()
