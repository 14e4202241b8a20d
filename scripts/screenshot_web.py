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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from PIL import Image
from playwright.sync_api import sync_playwright

from scalefield.web.app import create_app

DEVICES = {"laptop": (1280, 800), "phone": (390, 844)}
COLUMNS = {"laptop": 3, "phone": 8}
SHEET_WIDTH = {"laptop": 1500, "phone": 1540}
FLAGS = ["--no-sandbox", "--enable-unsafe-swiftshader"]  # WebGL without a graphics card


@dataclass(frozen=True)
class Screens:
    """The screens of the page on one device, one after the other."""

    page: Any
    phone: bool

    def at(self, u: int, v: int) -> tuple[float, float]:
        """Where a pixel of the sample room lies on the screen."""
        box = self.page.locator("#stage").bounding_box()
        scale = min(box["width"] / 640, box["height"] / 480)
        left = box["x"] + (box["width"] - scale * 640) / 2
        top = box["y"] + (box["height"] - scale * 480) / 2
        return left + (u + 0.5) * scale, top + (v + 0.5) * scale

    def press(self, u: int, v: int) -> None:
        """Click or tap a pixel."""
        self.page.wait_for_timeout(400)  # the stage has its size
        (self.page.touchscreen.tap if self.phone else self.page.mouse.click)(*self.at(u, v))
        self.page.wait_for_timeout(300)

    def sheet(self, name: str) -> None:
        """On a phone, open or close one tab of the bottom sheet."""
        if self.phone:
            self.page.click(f"#sheet-tab-{name}")

    def scenes(self) -> Iterator[str]:
        """Bring the page to each state and yield its name."""
        for part in (self.anchors, self.views, self.tools, self.checks):
            yield from part()

    def anchors(self) -> Iterator[str]:
        """The start, the first distance, the list of anchors."""
        page = self.page
        page.wait_for_selector("body[data-ready]")
        yield "start"
        page.click("#sample")
        page.wait_for_selector("body[data-screen=work]")
        self.press(360, 270)
        yield "distance"
        page.click("#card-close")
        self.sheet("anchors")
        page.click("#sample-anchors")
        page.wait_for_selector("body[data-solved$=' full']")
        if self.phone:
            yield "anchors"
            page.click("#sheet-toggle")
            self.press(300, 330)
            yield "reading"
            page.click("#card-close")

    def views(self) -> Iterator[str]:
        """Every view."""
        page = self.page
        for view in ("photo", "depth", "uncertainty", "cloud", "inspect"):
            page.click(f"[data-view={view}]")
            page.wait_for_timeout(900)
            if view != "cloud" and not self.phone:
                page.mouse.move(*self.at(300, 330))
                page.wait_for_timeout(200)
            yield view
        page.click("[data-inspect=basis]")
        page.wait_for_selector("#basis figure")
        yield "basis"

    def tools(self) -> Iterator[str]:
        """Measure, profile, compare."""
        page = self.page
        page.click("[data-view=photo]")
        page.click("[data-tool=measure]")
        self.press(240, 60)
        self.press(60, 300)
        page.click("[data-kind=area]")
        for corner in ((205, 30), (340, 30), (340, 250), (215, 250)):
            self.press(*corner)
        page.click("#measure-done")
        yield "measure"
        page.click("[data-tool=profile]")
        page.wait_for_timeout(400)
        yield "profile"
        page.click("[data-tool=point]")
        self.sheet("method")
        page.select_option("#compare", "median")
        page.wait_for_selector("#divider:not([hidden])")
        if self.phone:
            page.click("#sheet-toggle")
        page.wait_for_timeout(500)
        yield "compare"
        self.sheet("method")
        page.select_option("#compare", "")

    def checks(self) -> Iterator[str]:
        """A wrong anchor, and where to measure next."""
        page = self.page
        page.click("[data-view=photo]")
        self.sheet("anchors")
        page.check("#next")
        self.sheet("anchors")
        page.locator("#anchor-list input").nth(4).fill("42.6")
        page.keyboard.press("Enter")
        page.wait_for_selector("#anchor-list li.suspect")
        page.wait_for_selector("#next-hint:has-text('removes')")
        page.mouse.move(1, 1)
        page.wait_for_timeout(300)
        yield "suspect"
        if self.phone:
            self.sheet("save")
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
    """Write a JPEG with the best quality that fits."""
    for quality in range(88, 20, -4):
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality, optimize=True)
        if buffer.tell() < most_bytes:
            break
    path.write_bytes(buffer.getvalue())


def main() -> None:
    """Serve the page, take the screenshots, write the sheets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/web"))
    parser.add_argument("--each", type=Path, help="folder for every screenshot by itself")
    flags = parser.parse_args()
    out, each = flags.out, flags.each
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
                page.set_default_timeout(300_000)  # also on a busy machine
                page.goto(address)
                pictures = {
                    name: Image.open(io.BytesIO(page.screenshot())).convert("RGB")
                    for name in Screens(page, device == "phone").scenes()
                }
                if each is not None:
                    each.mkdir(parents=True, exist_ok=True)
                    for name, picture in pictures.items():
                        picture.save(each / f"{device}-{scheme}-{name}.png")
                context.close()
                all_views = sheet(list(pictures.values()), COLUMNS[device], SHEET_WIDTH[device])
                save(all_views, out / f"{device}-{scheme}.jpg")
                if (device, scheme) == ("laptop", "light"):
                    save(pictures["depth"].resize((960, 600)), out / "depth.jpg")
        browser.close()
    server.should_exit = True


if __name__ == "__main__":
    main()
