import re
import socket
import subprocess
import sys
import urllib.request

import pytest

from scalefield.cli import main
from scalefield.commands.web import WebCommand, bracketed
from scalefield.errors import InputError, MissingExtra


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": 70000}, "--port must be 0 … 65535, found 70000"),
        ({"max_megapixels": 0.0}, "--max-megapixels must be above zero"),
        ({"max_sessions": -1}, "--max-sessions must be above zero"),
        ({"max_memory_gb": float("inf")}, "--max-memory-gb must be above zero"),
    ],
)
def test_flags_are_checked(flags: dict, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        WebCommand(**flags).check()


def test_a_taken_port_is_a_sentence(capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("uvicorn")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["web", "--port", str(port), "--no-open"]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_without_the_extra_its_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtra, match=re.escape("pip install 'scalefield[web]'")):
        WebCommand(open=False).run()


def test_addresses() -> None:
    assert bracketed("::1") == "[::1]"
    assert bracketed("127.0.0.1") == "127.0.0.1"


def test_it_serves_this_machine_and_ends_when_told() -> None:
    pytest.importorskip("uvicorn")
    command = [sys.executable, "-m", "scalefield.cli", "web", "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            line = server.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+/", line)
            assert address, line
            with urllib.request.urlopen(address[0], timeout=600) as page:
                assert b"scalefield" in page.read()
        finally:
            server.terminate()
        assert server.wait() in (0, 143)
