import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from scalefield.cli import main
from scalefield.commands.web import (
    WebCommand,
    bracketed,
    is_loopback,
    page_addresses,
    reachable_names,
)
from scalefield.errors import InputError, MissingExtra


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": 70000}, "--port must be 0 … 65535, found 70000"),
        ({"max_megapixels": 0.0}, "--max-megapixels must be above zero"),
        ({"max_sessions": -1}, "--max-sessions must be above zero"),
        ({"max_memory_gb": float("inf")}, "--max-memory-gb must be above zero"),
        (
            {"allow_host": ("192.168.1.5:8008",)},
            "without port or http://, found '192.168.1.5:8008'",
        ),
        ({"allow_host": ("http://kitchen",)}, "without port or http://, found 'http://kitchen'"),
        ({"token": "a b"}, "--token takes letters, digits"),
    ],
)
def test_web_command_checks_its_flags(flags: dict, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        WebCommand(**flags).check()


def test_web_command_names_a_port_that_is_taken(capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("uvicorn")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["web", "--port", str(port), "--no-open"]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_web_command_names_the_extra_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtra, match=re.escape("pip install 'scalefield[web]'")):
        WebCommand(open=False).run()


def test_bracketed_ipv6_addresses() -> None:
    assert bracketed("::1") == "[::1]"
    assert bracketed("127.0.0.1") == "127.0.0.1"


def test_page_addresses_have_ipv6_in_brackets_and_the_token() -> None:
    addresses = page_addresses(("127.0.0.1", "fe80::1", "[::1]"), 80, "")
    assert addresses == ["http://127.0.0.1:80/", "http://[fe80::1]:80/", "http://[::1]:80/"]
    assert page_addresses(["a.local"], 8008, "secret") == ["http://a.local:8008/?token=secret"]


def test_web_command_allows_names_and_addresses_without_a_port() -> None:
    WebCommand(allow_host=("kitchen.local", "192.168.1.5", "fe80::1", "[::1]")).check()


def test_reachable_names_of_a_wildcard_host() -> None:
    names = reachable_names("0.0.0.0")
    assert "0.0.0.0" not in names
    assert names[-1] == "127.0.0.1"
    assert all(not is_loopback(name) for name in names[:-1])
    assert reachable_names("::1") == ("[::1]",)


def test_web_command_on_a_wildcard_host_asks_for_the_printed_token() -> None:
    pytest.importorskip("uvicorn")
    command = [sys.executable, "-m", "scalefield.cli", "web", "--host", "0.0.0.0", "--port", "0"]
    with subprocess.Popen([*command, "--no-open"], stdout=subprocess.PIPE, text=True) as server:
        try:
            lines = [server.stdout.readline()]
            while "127.0.0.1" not in lines[-1]:  # the addresses of the network come first
                assert lines[-1], lines
                lines.append(server.stdout.readline())
            for line in lines:
                printed = re.search(r"(http://[\d.]+:\d+/)\?token=([\w-]{20,})", line)
                assert printed, line
                assert "0.0.0.0" not in line
                address, token = printed.groups()
                for host in (None, "localhost"):  # a client may name any Host: that opens nothing
                    request = urllib.request.Request(address)
                    if host:
                        request.add_header("Host", host)
                    with pytest.raises(urllib.error.HTTPError, match="401"):
                        urllib.request.urlopen(request, timeout=600)
                opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
                with opener.open(f"{address}?token={token}", timeout=600) as page:
                    assert b"scalefield" in page.read()
        finally:
            server.terminate()
        assert server.wait(timeout=600) in (0, 143)


def test_web_command_serves_this_machine_and_ends_by_sigterm() -> None:
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
