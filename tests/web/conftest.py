import io
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import uvicorn
from PIL import Image
from starlette.testclient import TestClient

from scalefield.web.app import create_app
from scalefield.web.protocol import GuardedProtocol
from scalefield.web.sessions import Session
from scalefield.web.uploads import Limits

BASE = "http://127.0.0.1:8008"


def wait_until_ready(client: TestClient, session: dict) -> dict:
    end = time.monotonic() + 600
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


def serve(
    listening: socket.socket, limits: Limits | None = None, address: str = ""
) -> Callable[[], None]:
    """Start a server on a socket; returns the function that stops it."""
    config = uvicorn.Config(
        create_app(limits, address=address),
        http=GuardedProtocol,
        log_level="critical",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join(timeout=60)
        listening.close()

    return stop


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The server on a real socket, with the address of its page."""
    listening = socket.create_server(("127.0.0.1", 0))
    stop = serve(listening)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    stop()


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
FLAGS = [
    "--no-sandbox",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-unsafe-swiftshader",  # WebGL without a graphics card
]


@pytest.fixture(scope="module")
def browser() -> Iterator:
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium is installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=600_000)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, address: str) -> Iterator[Callable]:
    """Opens the page in a new context, or in a given one. Fails if the console has a message,
    also one of the content-security policy."""
    complaints: list[str] = []
    contexts = []

    def make(
        sample: bool = True,
        width: int = 1280,
        height: int = 800,
        context=None,
        address: str = address,
        **options: object,
    ):
        if context is None:
            context = browser.new_context(viewport={"width": width, "height": height}, **options)
            contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(600_000)
        page.on("pageerror", lambda e: complaints.append(str(e)))
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        if sample:
            page.click("#sample")
            page.wait_for_selector("body[data-screen=work]")
        return page

    yield make
    for context in contexts:
        context.close()
    # A refused request is a red line in Chromium's console; that is the test's wish.
    meant = (
        "400 (Bad Request)",
        "404 (Not Found)",
        "ERR_CONNECTION",
        "ERR_FAILED",
        "501 (",
        "500 (",
    )
    assert [c for c in complaints if not any(word in c for word in meant)] == []


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """The folder with the npm packages that only tests use, installed where npm can."""
    folder = Path(__file__).parent / "js"
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("node and npm are not installed")
    if not (folder / "node_modules" / "typescript").is_dir():
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]
        done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"npm could not install the packages of {folder}: {done.stderr[-200:]}")
    return folder / "node_modules"
