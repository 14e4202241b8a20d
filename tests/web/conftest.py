import io
import socket
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import uvicorn
from PIL import Image
from starlette.testclient import TestClient

from scalefield.web.app import create_app
from scalefield.web.sessions import Session

BASE = "http://127.0.0.1:8008"


def wait_until_ready(client: TestClient, session: dict) -> dict:
    end = time.monotonic() + 60
    while session["state"] not in ("ready", "failed"):
        assert time.monotonic() < end, session
        time.sleep(0.01)
        session = client.get(f"/api/sessions/{session['id']}").json()
    return session


def picture(width: int, height: int, seed: int = 0) -> np.ndarray:
    """Soft shapes, so that an estimator finds something."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def encoded(pixels: np.ndarray, form: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form, **options)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def client() -> Iterator[TestClient]:
    with TestClient(create_app(), base_url=BASE) as client:
        yield client


@pytest.fixture(scope="session")
def room(client: TestClient) -> dict:
    """The bundled sample, ready; "anchors" are its six measured points."""
    started = client.post("/api/samples/room").json()
    return {**wait_until_ready(client, started), "anchors": started["anchors"]}


@pytest.fixture(scope="session")
def prepared() -> Callable[[int, int], Session]:
    """A session for a made picture of that width and height, with the estimator's depth."""

    def make(width: int, height: int) -> Session:
        session = Session("made.png", picture(width, height))
        session.prepare()
        assert session.state == "ready"
        return session

    return make


@pytest.fixture(scope="session")
def wait() -> Callable[[TestClient, dict], dict]:
    return wait_until_ready


@pytest.fixture(scope="session")
def png() -> Callable[[int, int], tuple[np.ndarray, bytes]]:
    """A made picture of that width and height, and its PNG."""

    def make(width: int, height: int) -> tuple[np.ndarray, bytes]:
        pixels = picture(width, height)
        return pixels, encoded(pixels)

    return make


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The server on a real socket, with the address of its page."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(timeout=10)
