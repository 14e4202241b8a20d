"""Make docs/web/*.jpg: every view of the page, on a laptop and on a phone, light and dark.

    python scripts/screenshot_web.py [--out docs/web]

Needs playwright and a chromium on the PATH.
"""

from __future__ import annotations

import argparse
import io
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from PIL import Image
from playwright.sync_api import sync_playwright

from scalefield.web.app import create_app

DEVICES = {"laptop": (1280, 800), "phone": (390, 844)}
COLUMNS = {"laptop": 3, "phone": 8}
SHEET_WIDTH = {"laptop": 1500, "phone": 1540}
FLAGS = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]


def scenes(page: Any, phone: bool) -> Iterator[str]:
    """Walk through the page, stopping at every sight."""
    page.wait_for_selector("body[data-ready]")
    yield "start"
    page.click("#sample")
    page.wait_for_selector("body[data-screen=work]")

    def at(u: int, v: int) -> tuple[float, float]:
        box = page.locator("#stage").bounding_box()
        scale = min(box["width"] / 640, box["height"] / 480)
        left = box["x"] + (box["width"] - scale * 640) / 2
        top = box["y"] + (box["height"] - scale * 480) / 2
        return left + (u + 0.5) * scale, top + (v + 0.5) * scale

    def press(u: int, v: int) -> None:
        page.wait_for_timeout(400)  # the stage has its size
        (page.touchscreen.tap if phone else page.mouse.click)(*at(u, v))
        page.wait_for_timeout(300)

    def sheet(name: str) -> None:
        if phone:
            page.click(f"#sheet-tab-{name}")

    press(360, 270)
    yield "distance"
    page.click("#card-close")
    sheet("anchors")
    page.click("#sample-anchors")
    page.wait_for_selector("body[data-solved]")
    if phone:
        yield "anchors"
        page.click("#sheet-toggle")
        press(300, 330)
        yield "reading"
        page.click("#card-close")
    for view in ("photo", "depth", "uncertainty", "cloud", "inspect"):
        page.click(f"[data-view={view}]")
        page.wait_for_timeout(700)
        if view != "cloud" and not phone:
            page.mouse.move(*at(300, 330))
            page.wait_for_timeout(200)
        yield view
    page.click("[data-inspect=basis]")
    page.wait_for_selector("#basis figure")
    yield "basis"
    page.click("[data-view=photo]")
    page.click("[data-tool=measure]")
    press(240, 60)
    press(60, 300)
    page.click("[data-kind=area]")
    for corner in ((205, 30), (340, 30), (340, 250), (215, 250)):
        press(*corner)
    page.click("#measure-done")
    yield "measure"
    page.click("[data-tool=profile]")
    page.wait_for_timeout(400)
    yield "profile"
    page.click("[data-tool=point]")
    sheet("method")
    page.select_option("#compare", "median")
    page.wait_for_selector("#divider:not([hidden])")
    if phone:
        page.click("#sheet-toggle")
    page.wait_for_timeout(500)
    yield "compare"
    sheet("method")
    page.select_option("#compare", "")
    page.click("[data-view=photo]")
    sheet("anchors")
    page.check("#next")
    sheet("anchors")
    page.locator("#anchor-list input").nth(4).fill("42.6")
    page.keyboard.press("Enter")
    page.wait_for_selector("#anchor-list li.suspect")
    page.wait_for_function("document.getElementById('next-hint').textContent.includes('removes')")
    page.mouse.move(1, 1)
    page.wait_for_timeout(300)
    yield "suspect"
    if phone:
        sheet("save")
        yield "save"


def sheet(pictures: list[Image.Image], columns: int, width: int) -> Image.Image:
    """All pictures on one, row by row."""
    cell = width // columns
    small = [p.resize((cell - 8, round(p.height * (cell - 8) / p.width))) for p in pictures]
    height = small[0].height + 8
    result = Image.new("RGB", (width, -(-len(small) // columns) * height), (128, 128, 132))
    for i, picture in enumerate(small):
        result.paste(picture, (i % columns * cell + 4, i // columns * height + 4))
    return result


def save(image: Image.Image, path: Path, most_bytes: int = 190_000) -> None:
    """As good a JPEG as fits."""
    for quality in range(88, 20, -4):
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality, optimize=True)
        if buffer.tell() < most_bytes:
            break
    path.write_bytes(buffer.getvalue())


def main() -> None:
    """Serve, look, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/web"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(), log_level="error"))
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for device, (width, height) in DEVICES.items():
            for scheme in ("light", "dark"):
                context = browser.new_context(
                    viewport={"width": width, "height": height},
                    color_scheme=scheme,  # type: ignore[arg-type]
                    has_touch=device == "phone",
                    is_mobile=device == "phone",
                    device_scale_factor=2 if device == "phone" else 1,
                )
                page = context.new_page()
                page.goto(address)
                pictures = {
                    name: Image.open(io.BytesIO(page.screenshot())).convert("RGB")
                    for name in scenes(page, device == "phone")
                }
                context.close()
                all_views = sheet(list(pictures.values()), COLUMNS[device], SHEET_WIDTH[device])
                save(all_views, out / f"{device}-{scheme}.jpg")
                if (device, scheme) == ("laptop", "light"):
                    save(pictures["depth"].resize((960, 600)), out / "depth.jpg")
        browser.close()
    server.should_exit = True


if __name__ == "__main__":
    main()
