import asyncio

import pytest
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.testclient import TestClient

from scalefield.web import guard
from scalefield.web.app import create_app
from scalefield.web.guard import LOCAL_HOSTS, Bodies, Guard, host_name


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({"host": "127.0.0.1:8008"}, ""),
        ({"host": "LOCALHOST:8008"}, ""),
        ({"host": "localhost"}, ""),
        ({"host": "[::1]:8008"}, ""),
        ({"host": "127.0.0.1:8008", "origin": "http://127.0.0.1:8008"}, ""),
        ({"host": "127.0.0.1:8008", "sec-fetch-site": "same-origin"}, ""),
        ({"host": "127.0.0.1:8008", "sec-fetch-site": "none"}, ""),
        ({}, "Host"),
        ({"host": "evil.example"}, "Host"),
        ({"host": "evil.example:8008"}, "Host"),
        ({"host": "127.0.0.1.evil.example"}, "Host"),
        ({"host": "127.0.0.1:8008@evil.example"}, "Host"),
        ({"host": "localhost:8008:80"}, "Host"),
        ({"host": "127.0.0.1:8008", "origin": "http://evil.example"}, "Origin"),
        ({"host": "127.0.0.1:8008", "origin": "http://127.0.0.1:9000"}, "Origin"),
        ({"host": "127.0.0.1:8008", "origin": "null"}, "Origin"),
        ({"host": "127.0.0.1:8008", "origin": "http://["}, "Origin"),
        ({"host": "127.0.0.1:8008", "sec-fetch-site": "cross-site"}, "another site"),
        ({"host": "127.0.0.1:8008", "sec-fetch-site": "same-site"}, "another site"),
    ],
)
def test_guard_refusal_by_host_and_origin(headers: dict, refused: str) -> None:
    words = Guard(lambda *_: None, LOCAL_HOSTS).refusal(Headers(headers))
    assert (refused in words) if refused else (words == "")


def test_host_name_drops_the_port() -> None:
    assert host_name("a:80") == "a"
    assert host_name("[::1]:80") == "[::1]"
    assert host_name("[::1]") == "[::1]"


@pytest.mark.parametrize("path", ["/", "/api", "/static/app.js", "/nothing"])
def test_guard_refuses_first_and_adds_headers_to_every_answer(
    client: TestClient, path: str
) -> None:
    for headers, status in (({"host": "evil.example"}, 403), ({}, None)):
        answer = client.get(path, headers=headers)
        assert status in (None, answer.status_code)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "does not answer" in client.get(path, headers={"host": "evil.example"}).json()["error"]


def request_of(chunks: list, headers: dict | None = None) -> Request:
    """A request whose body arrives in these chunks; None never arrives."""
    waiting = iter(chunks)

    async def receive() -> dict:
        chunk = next(waiting, b"")
        if chunk is None:
            await asyncio.sleep(60)
        return {"type": "http.request", "body": chunk, "more_body": chunk != b""}

    raw = [(k.encode(), v.encode()) for k, v in (headers or {}).items()]
    return Request({"type": "http", "method": "POST", "headers": raw}, receive)


def read(bodies: Bodies, request: Request, limit: int) -> bytes:
    return asyncio.run(whole(bodies, request, limit))


async def whole(bodies: Bodies, request: Request, limit: int) -> bytes:
    async with bodies.read(request, limit) as body:
        assert bodies.held >= len(body)  # it counts for as long as it is used
        return body


def test_bodies_are_limited_by_received_and_declared_size() -> None:
    bodies = Bodies(1000)
    assert read(bodies, request_of([b"abc", b"def"]), 6) == b"abcdef"
    with pytest.raises(HTTPException, match="413"):
        read(bodies, request_of([b"abc", b"def", b"g"]), 6)
    with pytest.raises(HTTPException, match="413"):
        read(bodies, request_of([b"a"], {"content-length": "7"}), 6)
    with pytest.raises(HTTPException, match="413"):
        read(bodies, request_of([b"a"], {"content-length": "-1"}), 6)
    assert bodies.held == 0


def test_bodies_are_limited_together() -> None:
    bodies = Bodies(10)

    async def both() -> tuple:
        slow = asyncio.create_task(whole(bodies, request_of([b"12345678", None]), 100))
        while bodies.held < 8:
            await asyncio.sleep(0)
        with pytest.raises(HTTPException, match="503"):
            await whole(bodies, request_of([b"345"]), 100)
        small = await whole(bodies, request_of([b"34"]), 100)
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        return small, bodies.held

    assert asyncio.run(both()) == (b"34", 0)


def test_bodies_give_up_an_upload_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.02)
    bodies = Bodies(1000)
    with pytest.raises(HTTPException, match="408"):
        read(bodies, request_of([b"abc", None]), 100)
    assert bodies.held == 0


def navigation(**changes: str) -> dict:
    return {
        "host": "127.0.0.1:8008",
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "navigate",
        "sec-fetch-dest": "document",
        **changes,
    }


def test_guard_allows_links_from_other_pages_to_the_page_only(client: TestClient) -> None:
    assert client.get("/", headers=navigation()).status_code == 200
    for path, headers in (
        ("/api", navigation()),
        ("/static/app.js", navigation()),
        ("/", navigation(**{"sec-fetch-mode": "cors"})),
        ("/", navigation(**{"sec-fetch-dest": "iframe"})),
        ("/", navigation(host="evil.example")),
    ):
        assert client.get(path, headers=headers).status_code == 403, (path, headers)
    assert client.post("/api/samples/room", headers=navigation()).status_code == 403


def test_guard_asks_for_the_token_and_takes_it_from_the_address() -> None:
    app = create_app(token="sesame")
    with TestClient(app, base_url="http://127.0.0.1:8008") as client:
        for path in ("/", "/api", "/static/app.js", "/?token=wrong", "/api?token=sesame"):
            refused = client.get(path)
            assert refused.status_code == 401, path
            assert "token" in refused.json()["error"]
            assert "content-security-policy" in refused.headers
        person = client.get("/", headers={"accept": "text/html,*/*"})
        assert (person.status_code, "?token=" in person.text) == (401, True)
        assert person.headers["content-type"].startswith("text/html")
        bearer = {"authorization": "Bearer sesame"}
        assert client.get("/api", headers=bearer).status_code == 200
        redirected = client.get("/?token=sesame", follow_redirects=False)
        assert (redirected.status_code, redirected.headers["location"]) == (303, "/")
        assert "HttpOnly" in redirected.headers["set-cookie"]
        assert client.get("/api").status_code == 200  # by the cookie
        client.cookies.set("scalefield_token", "wrong")
        client.cookies.delete("scalefield_token", domain="127.0.0.1", path="/")


def test_guard_answers_an_unforeseen_error_with_headers_and_a_sentence(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("scalefield.web.server.method_entries", fail)
    answer = client.get("/api")
    assert answer.status_code == 500
    assert answer.json()["code"] == "failed"
    assert "secret" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
