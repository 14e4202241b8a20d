"""Shutdown by signal: it is never lost, and it leaves complete files and no temporary ones."""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from scalefield import io
from scalefield.cli import COMMANDS, main
from scalefield.errors import InputError
from scalefield.io import disk
from scalefield.runtime import signals
from scalefield.runtime.signals import graceful_shutdown, until_interrupted

SIGNALS = [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)]


@pytest.fixture(autouse=True)
def default_signal_handlers():
    """Handlers as in a terminal; under `nohup` or in the background some signals are ignored."""
    usual = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    assert {number: signal.getsignal(number) for number in usual} == usual
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


@dataclass(frozen=True)
class Interrupted:
    """A command that gets a signal while it writes."""

    by: str = "SIGTERM"

    def run(self) -> None:
        with io.write_folder("out") as staging:
            (staging / "half").write_bytes(b"")
            signal.raise_signal(getattr(signal, self.by))


@pytest.mark.parametrize(("name", "code"), SIGNALS)
def test_graceful_shutdown_leaves_no_partial_file_after_a_signal(
    tmp_path, monkeypatch, capsys, name, code
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(COMMANDS, "interrupted", Interrupted)
    if name == "SIGINT":
        assert main(["interrupted", "--by", name]) == code
        assert capsys.readouterr().err == "scalefield: interrupted\n"
    else:
        with pytest.raises(SystemExit) as caught:
            main(["interrupted", "--by", name])
        assert caught.value.code == code
    assert not list(tmp_path.iterdir())


def called_back(by: str) -> None:
    """A callback of a library that loses the exception which the signal raises."""
    ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(getattr(signal, by)))()


def translated(by: str) -> None:
    try:
        signal.raise_signal(getattr(signal, by))
    except BaseException:
        raise InputError("model.safetensors: not the weights of a generator") from None


def interrupted_by_the_system(by: str) -> None:
    called_back(by)
    raise InterruptedError(4, "Interrupted system call")


def worked_on(by: str) -> None:
    """Work until a signal ends it, or ten minutes have passed."""
    called_back(by)
    end = time.monotonic() + 600
    while time.monotonic() < end:
        time.sleep(0.01)
    pytest.fail("the process was not ended")


def written_down(by: str) -> None:
    """The exception of a signal must not be recorded as the failure of a sample."""
    called_back(by)
    io.write_atomic("record.json", b"failed")


def recovered_from(by: str) -> None:
    """Work continues while another error is handled, and after it."""
    try:
        raise KeyError
    except KeyError:
        called_back(by)
    worked_on(by)


SWALLOWED = [
    called_back, translated, interrupted_by_the_system, written_down, worked_on, recovered_from,
]  # fmt: skip


@pytest.mark.parametrize("swallow", SWALLOWED)
@pytest.mark.parametrize(("name", "code"), SIGNALS)
def test_graceful_shutdown_request_that_is_swallowed_still_ends_the_command(
    monkeypatch, capfd, tmp_path, swallow, name, code
):
    @dataclass(frozen=True)
    class Swallowing:
        """A command."""

        def run(self) -> None:
            swallow(name)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(COMMANDS, "swallowing", Swallowing)
    if name == "SIGINT":
        assert main(["swallowing"]) == code
    else:
        with pytest.raises(SystemExit) as caught:
            main(["swallowing"])
        assert caught.value.code == code
    assert capfd.readouterr().err == "scalefield: interrupted\n" * (name == "SIGINT")
    assert not list(tmp_path.iterdir())


def test_graceful_shutdown_ends_once_though_the_request_is_repeated():
    left = []

    def leave() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            for _ in range(30):  # while some repetitions come in
                time.sleep(0.01)
            left.append(True)

    with pytest.raises(SystemExit), graceful_shutdown():
        leave()
    assert left


def test_graceful_shutdown_restores_the_alarm_of_the_caller():
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 10_000, 7)
    try:
        with suppress(SystemExit), graceful_shutdown():
            worked_on("SIGTERM")
        assert signal.getsignal(signal.SIGALRM) == signal.SIG_IGN
        left_s, interval_s = signal.getitimer(signal.ITIMER_REAL)
        assert 9_000 < left_s <= 10_000
        assert interval_s == pytest.approx(7)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_until_interrupted_ends_normally_by_ctrl_c_only():
    with graceful_shutdown(), until_interrupted():
        called_back("SIGINT")
        time.sleep(60)
    with pytest.raises(SystemExit), graceful_shutdown(), until_interrupted():
        signal.raise_signal(signal.SIGTERM)


WATCHED = {module.__file__ for module in (disk, signals, tempfile)}


class At:
    """Raises a signal at the n-th line of the signal handling; counts the lines."""

    def __init__(self, number: int, line: int) -> None:
        self.number, self.line, self.lines = number, line, 0

    def __call__(self, frame, event, argument):
        if frame.f_code.co_filename not in WATCHED:
            return None
        if event == "line":
            if self.lines == self.line:
                signal.raise_signal(self.number)
            self.lines += 1
        return self


def write(out: Path) -> None:
    with io.write_folder(out) as staging:
        io.write_atomic(staging / "a", b"new a")
        io.write_atomic(staging / "b", b"new b")


OLD = {"a": b"old a", "b": b"old b", "c": b"c"}
NEW = {**OLD, "a": b"new a", "b": b"new b"}


def interrupted_at(line: int, out: Path) -> tuple[int, dict[str, bytes]]:
    """How many lines there were, and the files that are left."""
    out.mkdir(parents=True)
    for name, data in OLD.items():
        (out / name).write_bytes(data)
    at = At(signal.SIGTERM, line)
    with suppress(SystemExit), graceful_shutdown():
        sys.settrace(at)
        try:
            write(out)
        finally:
            sys.settrace(None)
    assert [p.name for p in out.parent.iterdir()] == [out.name], (
        f"temporary files after line {line}"
    )
    return at.lines, {p.name: p.read_bytes() for p in out.iterdir()}


def test_graceful_shutdown_at_any_line_leaves_all_files_old_or_all_new(tmp_path):
    lines, whole = interrupted_at(-1, tmp_path / "whole" / "out")
    assert whole == NEW
    assert lines > 100
    found = []
    for line in range(lines):
        _, left = interrupted_at(line, tmp_path / str(line) / "out")
        assert left in (OLD, NEW), f"half of line {line}"
        found.append(left == NEW)
    assert found == sorted(found)  # first nothing, and from some line on everything
    assert 0 < sum(found) < lines


PARENT = """
import sys, time
from dataclasses import dataclass
from scalefield import io
from scalefield.cli import COMMANDS, main
from scalefield.runtime.workers import worker_pool

def work():
    with io.write_folder("out") as staging:
        (staging / "half").write_bytes(b"")
        print("ready", flush=True)
        time.sleep(600)

@dataclass(frozen=True)
class Pooled:
    "A command."

    def run(self) -> None:
        with worker_pool(1, int) as pool:
            pool.submit(work).result()

if __name__ == "__main__":
    COMMANDS["pooled"] = Pooled
    sys.exit(main(["pooled"]))
"""


def test_graceful_shutdown_of_a_group_leaves_no_folder_of_its_workers(tmp_path):
    """As `timeout`, a scheduler of jobs and systemd send it: to every process of the group."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command = [sys.executable, script]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        os.killpg(parent.pid, signal.SIGTERM)
        assert parent.wait() == 143
    assert [p.name for p in tmp_path.iterdir()] == ["parent.py"]
