"""The server on a real socket: many clients, slow clients, broken clients."""

import asyncio
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from scalefield.web.wire import unpack

EDITS = 200


def resident_bytes() -> int:
    """Memory of this process, in which the server runs."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        pytest.skip("this system does not tell a process's memory in /proc")
    return int(pages) * 4096


@pytest.fixture(scope="module")
def session(address: str, wait) -> dict:
    with httpx.Client(base_url=address) as client:
        started = client.post("/api/samples/room").json()
        return {**wait(client, started), "anchors": started["anchors"]}


def test_two_hundred_edits_at_once(address: str, session: dict) -> None:
    def edit(i: int) -> dict:
        anchors = [{**a, "depth_m": a["depth_m"] * (1 + i / 1000)} for a in session["anchors"]]
        return {"anchors": anchors, "method": ("basis", "field", "basis", "median")[i % 4]}

    async def at_once(count: int) -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=EDITS)
        async with httpx.AsyncClient(base_url=address, limits=limits, timeout=60) as client:
            url = f"/api/sessions/{session['id']}/recover"
            return await asyncio.gather(*(client.post(url, json=edit(i)) for i in range(count)))

    asyncio.run(at_once(30))  # warm: threads, arenas
    held = resident_bytes()
    answers = asyncio.run(at_once(EDITS))
    # The answers are held here, in the same process; the rest is the server's.
    grown = resident_bytes() - held - sum(len(answer.content) for answer in answers)
    assert [a.status_code for a in answers] == [200] * EDITS
    for answer in answers:
        assert len(unpack(answer.content)[0]["anchors"]) == len(session["anchors"])
    assert grown < 64 * 2**20


@pytest.mark.parametrize(("method", "most_bytes"), [("basis", 90_000), ("field", 800_000)])
def test_an_edit_is_a_matter_of_milliseconds(
    address: str, session: dict, method: str, most_bytes: int
) -> None:
    took = []
    with httpx.Client(base_url=address) as client:
        for i in range(15):
            moved = [{**a, "u": a["u"] + i} for a in session["anchors"]]
            start = time.perf_counter()
            edit = {"anchors": moved, "method": method}
            answer = client.post(f"/api/sessions/{session['id']}/recover", json=edit)
            took.append(time.perf_counter() - start)
            assert answer.status_code == 200
            assert len(answer.content) < most_bytes
    # A fifth of this on an idle machine; tests share theirs.
    assert sorted(took)[len(took) // 2] < 0.25


def test_slow_and_broken_clients_block_nobody(address: str, session: dict) -> None:
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
        client = socket.create_connection((place.hostname, place.port), timeout=5)
        client.sendall(beginnings[i % len(beginnings)])
        lingering.append(client)
    try:
        with httpx.Client(base_url=address, timeout=5) as client:
            url = f"/api/sessions/{session['id']}/recover"
            assert client.post(url, json={"anchors": session["anchors"]}).status_code == 200
            for broken in lingering[::2]:
                broken.close()
            assert client.get("/api").status_code == 200
    finally:
        for client in lingering:
            client.close()


def test_other_sites_get_nothing(address: str, session: dict) -> None:
    with httpx.Client(base_url=address) as client:
        for headers in (
            {"host": "evil.example"},
            {"origin": "https://evil.example"},
            {"sec-fetch-site": "cross-site"},
        ):
            answer = client.delete(f"/api/sessions/{session['id']}", headers=headers)
            assert answer.status_code == 403
        assert client.get(f"/api/sessions/{session['id']}").status_code == 200
