"""A command killed before any change of the disk and run again writes the same bytes."""

import json
import shutil
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MOMENTS = {"recover": 4, "predict": 5, "label": 5, "evaluate": 5, "train": 2}
"""About how many moments are tried, evenly spread over all there are."""


def content(out: Path) -> dict[str, bytes]:
    """Every file of a run without times and without hidden files."""
    paths = (p for p in out.rglob("*") if p.is_file())
    found = {p.relative_to(out).as_posix(): p.read_bytes() for p in paths}
    return {k: v for k, v in found.items() if not (hidden(k) or "/timings" in k or "/clock" in k)}


def hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def check_whole(name: str, data: bytes) -> None:
    """Every visible file can be read completely."""
    if name.endswith(".json"):
        json.loads(data)
    if name.endswith(".npz"):
        assert data[:2] == b"PK"
        assert b"PK\x05\x06" in data[-22:]
    if name.endswith(".png"):
        assert data.endswith(b"IEND\xaeB`\x82")
    if name.endswith(".safetensors"):
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        ends = [v["data_offsets"][1] for k, v in header.items() if k != "__metadata__"]
        assert len(data) == 8 + int.from_bytes(data[:8], "little") + max(ends)


@pytest.mark.parametrize("command", MOMENTS)
def test_interruption_killed_at_any_moment_and_run_again(
    command, world, in_child, killer, tmp_path, monkeypatch
):
    # No git: a commit while the test runs would change the recorded provenance.
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    watch = killer(undisturbed)
    ended = in_child(lambda: world.run(command, undisturbed / "out"), watch)
    assert ended.code == 0, ended.printed
    wanted = content(undisturbed)
    assert watch.changes > len(wanted) > 0
    for moment in range(0, watch.changes, max(1, watch.changes // MOMENTS[command])):
        ended = in_child(lambda: world.run(command, disturbed / "out"), killer(disturbed, moment))
        assert ended.code == -signal.SIGKILL, ended.printed
        for name, data in content(disturbed).items():
            check_whole(name, data)
        ended = in_child(lambda: world.run(command, disturbed / "out"))
        assert ended.code == 0, ended.printed
        assert content(disturbed) == wanted, f"killed before change {moment} of {watch.changes}"
        shutil.rmtree(disturbed, ignore_errors=True)
