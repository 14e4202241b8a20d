"""Latency of the web page: from an edit to the painted map, and from a photo to its readiness.

    python -m benchmarks.page --out results/page

Writes every time and the machine into results.json. Needs playwright and a chromium on the PATH,
and an idle machine: the browser, the server and this program share its cores. `load_average` in the
record is that at the start.
"""

from __future__ import annotations

import io
import os
import platform
import shutil
import socket
import statistics
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from benchmarks.record import new_record, parser, write_record
from PIL import Image
from playwright.sync_api import sync_playwright

from scalefield import samples
from scalefield.web.app import create_app
from scalefield.web.protocol import GuardedProtocol

FLAGS = ["--no-sandbox"]
"""No flag for graphics: without a GPU the browser then composes its picture itself, and not by an
emulated GPU."""

EDIT = """depth => new Promise((done) => {
  const start = performance.now(), frame = () => new Promise(requestAnimationFrame);
  let first = null;
  const painted = async () => (await frame(), await frame(), performance.now() - start);
  const seen = new MutationObserver(async () => {
    const full = document.body.dataset.solved.endsWith(" full");
    if (full) seen.disconnect();
    const shown = painted();
    first ??= shown;
    if (full) done({ painted_ms: await first, full_ms: await shown });
  });
  seen.observe(document.body, { attributeFilter: ["data-solved"] });
  const input = document.querySelector("#anchor-list input");
  input.value = depth;
  input.dispatchEvent(new Event("change"));
})"""
"""Changes the first anchor's distance; milliseconds until two frames after a result is shown: the
first, which may be on a coarser grid, and that at every displayed pixel."""

PASTE = """text => {
  const data = new DataTransfer();
  data.setData("text/plain", text);
  const start = performance.now();
  const options = { clipboardData: data, bubbles: true, cancelable: true };
  document.body.dispatchEvent(new ClipboardEvent("paste", options));
  return new Promise((done) => setTimeout(() => done(performance.now() - start)));
}"""
"""Pastes a table; milliseconds until the page can do something else."""


@dataclass(frozen=True)
class PageBenchmark:
    """What is measured."""

    photos: tuple[tuple[int, int], ...] = ((640, 480), (4032, 3024))
    """Width and height of the photos, in pixels."""
    anchors: tuple[int, ...] = (5, 50, 300)
    edits: int = 9
    """Edits for each photo and number of anchors."""
    pasted: int = 5000
    """Anchors of the pasted table whose blocking time is measured."""
    seed: int = 0
    """Seed of the anchors' pixels."""


def photo_bytes(width: int, height: int) -> bytes:
    """The sample room at another size, as a JPEG."""
    buffer = io.BytesIO()
    image = Image.open(samples.load("room").image_path).resize((width, height))
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def table(count: int, width: int, height: int, seed: int) -> str:
    """Anchors of the sample room's true depth, as CSV."""
    rng = np.random.default_rng((seed, count, width))
    truth = samples.load("room").depth_m
    u, v = rng.integers(0, width, count), rng.integers(0, height, count)
    depth = truth[v * truth.shape[0] // height, u * truth.shape[1] // width]
    rows = (f"{a},{b},{d:.4f}" for a, b, d in zip(u, v, depth, strict=True))
    return "u,v,depth_m\n" + "\n".join(rows)


def measure_photo(page: Any, config: PageBenchmark, width: int, height: int) -> dict[str, Any]:
    """Times of one photo, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "photo.jpg")
        path.write_bytes(photo_bytes(width, height))
        start = page.evaluate("performance.now()")
        page.set_input_files("#file", path)
        page.wait_for_selector(f"#photo-name:has-text('{width}×{height}')")
        page.wait_for_selector("body[data-screen=work]")
        ready = page.evaluate("performance.now()") - start
    edits = {}
    for count in config.anchors:
        page.evaluate(PASTE, table(count, width, height, config.seed))
        page.wait_for_selector(f"body[data-solved='field {count} full']")
        times = [page.evaluate(EDIT, f"{2 + i / 100:.2f}") for i in range(config.edits + 1)][1:]
        each = {name: [t[name] for t in times] for name in ("painted_ms", "full_ms")}
        medians = {f"median_{name}": statistics.median(values) for name, values in each.items()}
        edits[str(count)] = medians | {f"all_{name}": values for name, values in each.items()}
    blocked = page.evaluate(PASTE, table(config.pasted, width, height, config.seed))
    page.click("#new-photo")
    return {"ready_ms": ready, "edits": edits, "paste_blocks_ms": blocked}


def main() -> None:
    """Serve, edit, write."""
    flags = parser(__doc__)
    flags.add_argument("--edits", type=int, default=PageBenchmark.edits)
    flags.add_argument("--seed", type=int, default=PageBenchmark.seed)
    given = flags.parse_args()
    config = PageBenchmark(edits=given.edits, seed=given.seed)
    load_average = os.getloadavg()
    listening = socket.create_server(("127.0.0.1", 0))
    served = uvicorn.Config(create_app(), http=GuardedProtocol, log_level="error")
    server = uvicorn.Server(served)
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(300_000)
        page.goto(f"http://127.0.0.1:{listening.getsockname()[1]}")
        page.wait_for_selector("body[data-ready]")
        results = {f"{w}x{h}": measure_photo(page, config, w, h) for w, h in config.photos}
        version = browser.version
        browser.close()
    server.should_exit = True
    record = new_record(asdict(config)) | {
        "machine": {
            "chromium": version,
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "load_average": load_average,
        },
        "photos": results,
    }
    write_record(given.out, record)


if __name__ == "__main__":
    main()
