"""The server on a real socket: many clients, slow clients, broken clients."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from scalefield.errors import one_line
from scalefield.web.edits import Edit
from scalefield.web.pool import Pool
from scalefield.web.protocol import GuardedProtocol
from scalefield.web.uploads import Limits
from scalefield.web.wire import unpack
from web.conftest import serve

EDITS = 200
PHOTO = (240, 320)
"""Height and width of the photograph that is edited: an edit then takes milliseconds."""
MOST_GROWTH = 40 * 2**20
"""Bytes that the server may keep after all edits; one float32 map of each would be 61 MB."""


def resident_bytes() -> int:
    """Memory of this process, in which the server runs."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        pytest.skip("this system has no /proc with the memory of a process")
    return int(pages) * 4096


@pytest.fixture(scope="module")
def session(address: str, wait) -> dict:
    with httpx.Client(base_url=address, timeout=600) as client:
        started = client.post("/api/samples/room").json()
        return {**wait(client, started), "anchors": started["anchors"]}


def test_server_answers_two_hundred_edits_at_once_and_keeps_no_memory(
    address: str, wait, png
) -> None:
    height, width = PHOTO
    with httpx.Client(base_url=address, timeout=600) as client:
        uploaded = client.post("/api/sessions", content=png(width, height)[1]).json()
        session = wait(client, uploaded)
    positions = [(30, 40), (290, 40), (160, 120), (30, 200), (290, 200), (100, 90)]

    def edit(i: int) -> dict:
        depths_m = [(2 + k) * (1 + i / 1000) for k in range(len(positions))]
        rows = zip(positions, depths_m, strict=True)
        anchors = [{"u": u, "v": v, "depth_m": depth_m} for (u, v), depth_m in rows]
        # Methods on the thread for slow work can be cancelled, which makes them slow in tests.
        method = "median" if i % 25 == 0 else ("basis", "field")[i % 2]
        return {"anchors": anchors, "method": method}

    async def at_once(count: int) -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=EDITS)
        async with httpx.AsyncClient(base_url=address, limits=limits, timeout=600) as client:
            url = f"/api/sessions/{session['id']}/recover"
            return await asyncio.gather(*(client.post(url, json=edit(i)) for i in range(count)))

    asyncio.run(at_once(10))  # starts threads and fills the memory pools of the allocator
    held = resident_bytes()
    answers = asyncio.run(at_once(EDITS))
    # The answers are held here, in the same process; the rest is the server's.
    grown = resident_bytes() - held - sum(len(answer.content) for answer in answers)
    assert [a.status_code for a in answers] == [200] * EDITS
    for answer in answers:
        assert len(unpack(answer.content)[0]["anchors"]) == len(positions)
    assert grown < MOST_GROWTH


@pytest.mark.parametrize(("method", "most_bytes"), [("basis", 90_000), ("field", 800_000)])
def test_recover_answer_is_small(address: str, session: dict, method: str, most_bytes: int) -> None:
    with httpx.Client(base_url=address, timeout=600) as client:
        edit = {"anchors": session["anchors"], "method": method}
        answer = client.post(f"/api/sessions/{session['id']}/recover", json=edit)
        assert len(answer.content) < most_bytes


def test_guarded_protocol_closes_half_open_headers(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    place = urlsplit(address)
    monkeypatch.setattr(GuardedProtocol, "header_seconds", 0.2)
    for beginning in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\n"):
        with socket.create_connection((place.hostname, place.port), timeout=600) as client:
            client.sendall(beginning)
            assert client.recv(65536) == b""  # closed without an answer


def test_guarded_protocol_closes_half_open_headers_after_a_request(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=600) as client:
        client.sendall(f"GET /api HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        # Only now: a busy machine may take longer than this to receive the first request.
        monkeypatch.setattr(GuardedProtocol, "header_seconds", 0.2)
        client.sendall(b"GET / HT")
        assert b"HTTP/1.1" not in b"".join(iter(lambda: client.recv(65536), b""))


def test_guarded_protocol_refuses_what_is_not_http_with_the_headers(address: str) -> None:
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=600) as client:
        client.sendall(b"nonsense\r\n\r\n")
        received = b"".join(iter(lambda: client.recv(65536), b""))
    assert received.startswith(b"HTTP/1.1 400")
    assert b"content-security-policy: default-src 'none'" in received
    assert b"x-content-type-options: nosniff" in received


def test_guarded_protocol_closes_connections_beyond_the_limit(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(GuardedProtocol, "most_connections", 3)
    place = urlsplit(address)
    held = [socket.create_connection((place.hostname, place.port), timeout=600) for _ in range(12)]
    try:
        assert held[-1].recv(100) == b""
    finally:
        for client in held:
            client.close()


def test_server_cancels_the_work_of_a_client_that_left(
    address: str, session: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread for slow work is free again although the first method never ends by itself."""
    started, ended = threading.Event(), threading.Event()

    def endless(*_: object) -> None:
        try:
            while one_line("a call of the package"):
                started.set()
        finally:
            ended.set()

    url = f"{address}/api/sessions/{session['id']}/recover"
    edit = {"anchors": session["anchors"], "method": "knn"}
    with monkeypatch.context() as patch:
        patch.setattr("scalefield.web.server.apply_edit", endless)

        async def leave() -> None:
            async with httpx.AsyncClient(timeout=600) as client:
                task = asyncio.create_task(client.post(url, json=edit, timeout=600))
                await asyncio.get_running_loop().run_in_executor(None, started.wait)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        asyncio.run(leave())
        assert ended.wait(600)
    assert httpx.post(url, json=edit, timeout=600).status_code == 200


def test_server_keeps_the_photo_of_a_client_while_another_uploads(wait, png) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    stop = serve(listening, Limits(sessions=3))
    base = f"http://127.0.0.1:{listening.getsockname()[1]}"
    one, two = (
        httpx.Client(base_url=base, headers={"x-scalefield-client": name}, timeout=600)
        for name in ("one", "two")
    )
    try:
        photo = png(64, 48)[1]
        first = one.post("/api/sessions", content=photo).json()
        wait(one, first)
        for _ in range(5):
            wait(two, two.post("/api/sessions", content=photo).json())
        assert one.get(f"/api/sessions/{first['id']}").status_code == 200
    finally:
        one.close()
        two.close()
        stop()


def test_server_lets_clients_take_turns_at_slow_work(
    address: str, session: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with many slow requests does not hold up the first one of another client."""
    gate, begun, queued = threading.Event(), [], []

    def slow(session: object, edit: Edit) -> tuple[dict, dict]:
        begun.append(len(edit.anchors))
        gate.wait(600)
        return {}, {}

    def run(self: Pool, work: Callable, client: str = "") -> Coroutine:
        result = pool_run(self, work, client)
        queued.append(client)
        return result

    pool_run = Pool.run
    monkeypatch.setattr("scalefield.web.server.apply_edit", slow)
    monkeypatch.setattr(Pool, "run", run)
    url = f"{address}/api/sessions/{session['id']}/recover"

    async def ask() -> list[int]:
        async with httpx.AsyncClient(timeout=600) as client:
            tasks = []
            for count, name in ((1, "one"), (2, "one"), (3, "one"), (4, "two")):
                edit = {"anchors": session["anchors"][:count], "method": "knn"}
                headers = {"x-scalefield-client": name}
                tasks.append(asyncio.create_task(client.post(url, json=edit, headers=headers)))
                while len(queued) < count:
                    await asyncio.sleep(0.01)
            gate.set()
            return [answer.status_code for answer in await asyncio.gather(*tasks)]

    assert asyncio.run(ask()) == [200] * 4
    assert begun == [1, 2, 4, 3]


def test_server_is_not_blocked_by_slow_and_broken_clients(address: str, session: dict) -> None:
    place = urlsplit(address)
    head = f"POST /api/sessions HTTP/1.1\r\nHost: {place.netloc}\r\n"
    beginnings = [
        b"GET / HT",
        head.encode(),
        f"{head}Content-Length: 5000000\r\n\r\nabc".encode(),
        f"{head}Transfer-Encoding: chunked\r\n\r\n5\r\nab".encode(),
    ]
    lingering = []
    for i in range(40):
        client = socket.create_connection((place.hostname, place.port), timeout=600)
        client.sendall(beginnings[i % len(beginnings)])
        lingering.append(client)
    try:
        with httpx.Client(base_url=address, timeout=600) as client:
            url = f"/api/sessions/{session['id']}/recover"
            assert client.post(url, json={"anchors": session["anchors"]}).status_code == 200
            for broken in lingering[::2]:
                broken.close()
            assert client.get("/api").status_code == 200
    finally:
        for client in lingering:
            client.close()


def test_server_refuses_other_sites(address: str, session: dict) -> None:
    with httpx.Client(base_url=address, timeout=600) as client:
        for headers in (
            {"host": "evil.example"},
            {"origin": "https://evil.example"},
            {"sec-fetch-site": "cross-site"},
        ):
            answer = client.delete(f"/api/sessions/{session['id']}", headers=headers)
            assert answer.status_code == 403
        assert client.get(f"/api/sessions/{session['id']}").status_code == 200
