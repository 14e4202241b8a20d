"""The page in a real browser: what a person does, and what they then read."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import scalefield as sf
from scalefield import samples
from scalefield.io import read_npz
from scalefield.web.server import STATIC

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
FLAGS = [
    "--no-sandbox",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-gl=angle",
    "--use-angle=swiftshader",  # WebGL without a graphics card
    "--enable-unsafe-swiftshader",
]
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, address: str) -> Iterator[Callable]:
    """Opens the page; afterwards nothing may have been said on the console, not even by the CSP."""
    complaints: list[str] = []
    contexts = []

    def make(sample: bool = True, width: int = 1280, height: int = 800, **options: object):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
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
    assert [c for c in complaints if "400 (Bad Request)" not in c] == []


def at(page, u: float, v: float) -> tuple[float, float]:
    """Where on the screen a pixel of the room's photograph lies."""
    box = page.locator("#base").bounding_box()
    return box["x"] + (u + 0.5) / 640 * box["width"], box["y"] + (v + 0.5) / 480 * box["height"]


def place(page, u: int, v: int, distance: str) -> None:
    page.mouse.click(*at(page, u, v))
    page.fill("#ask-value", distance)
    page.keyboard.press("Enter")


def hover(page, u: int, v: int) -> float:
    """The metres that the readout shows there."""
    page.mouse.move(*at(page, u, v))
    return float(page.inner_text("#readout .value").split()[0])


def solved(page, anchors: int) -> None:
    """Wait until the result for so many anchors is shown."""
    page.wait_for_function(
        "n => document.querySelectorAll('#anchor-list .words').length === n && "
        "[...document.querySelectorAll('#anchor-list .words')].every((w) => w.textContent)",
        arg=anchors,
    )


THREE = ((60, 420, 2.37), (360, 270, 2.96), (300, 155, 4.42))


@needs_browser
def test_three_clicks_give_metres(open_page, tmp_path: Path) -> None:
    page = open_page()
    for u, v, distance in THREE:
        place(page, u, v, f"{distance}")
    solved(page, 3)
    with page.expect_download() as download:
        page.click("[data-file='anchors.csv']")
    download.value.save_as(tmp_path / "anchors.csv")
    anchors = sf.Anchors.read(tmp_path / "anchors.csv")
    placed = np.stack([anchors.u, anchors.v, anchors.depth_m], axis=1)
    np.testing.assert_array_equal(placed, THREE)

    room = samples.load("room")
    expected = sf.recover(room.image, anchors).depth_m
    for u, v in ((330, 200), (100, 380), (250, 300)):
        shown = hover(page, u, v)
        assert shown == pytest.approx(expected[v, u], abs=0.015)
        assert shown == pytest.approx(room.depth_m[v, u], rel=0.25)
    assert "true" in page.inner_text("#readout")

    # Delete one by keyboard, undo, redo.
    page.locator(".marker").nth(1).focus()
    page.keyboard.press("Delete")
    solved(page, 2)
    page.keyboard.press("Control+z")
    solved(page, 3)
    page.keyboard.press("Control+Shift+z")
    solved(page, 2)
    page.click("#undo")
    solved(page, 3)

    # Take it home and read it back.
    with page.expect_download() as download:
        page.click("[data-file='depth.npz']")
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    assert path.name == "room_depth.npz"
    depth_m = read_npz(path, required=("depth_m",))["depth_m"]
    np.testing.assert_allclose(depth_m, expected, rtol=1e-5)


@needs_browser
def test_every_view_shows_something_of_its_own(open_page) -> None:
    page = open_page()
    page.click("[data-view=depth]")
    assert "No metres yet" in page.inner_text("#stage-empty")
    page.click("#sample-anchors")
    solved(page, 6)
    seen = []
    for view in ("photo", "depth", "field", "mde"):
        page.click(f"[data-view={view}]")
        pixels = page.evaluate(
            "() => [...document.getElementById('base').getContext('2d')"
            ".getImageData(0, 0, 640, 480).data.filter((_, i) => i % 997 === 0)]"
        )
        assert len(set(pixels)) > 20
        assert pixels not in seen
        seen.append(pixels)
        assert page.locator("#colour-bar").is_visible()
    page.click("[data-view=basis]")
    page.wait_for_selector("#basis figure")
    weights = page.locator("#basis .weight").all_inner_texts()
    assert len(weights) == page.locator("#basis canvas").count() > 1
    assert all(re.fullmatch(r"w = −?\d+\.\d{3}", w) for w in weights)
    # Only a method that knows its uncertainty has a view of it.
    page.select_option("#method", "interpolate")
    page.wait_for_selector("[data-view=doubt]", state="hidden")
    page.select_option("#method", "field")
    page.click("[data-view=doubt]")
    assert re.search(r"\d %", page.inner_text("#ticks"))
    page.mouse.move(*at(page, 400, 300))
    near, far = re.search(r"([\d.]+) … ([\d.]+) m with 90 %", page.inner_text("#readout")).groups()
    value = float(page.inner_text("#readout .value").split()[0])
    assert float(near) < value < float(far)
    page.select_option("#method", "interpolate")
    page.wait_for_selector("[data-view=depth][aria-selected=true]")
    page.click("[data-view=cloud]")
    before = cloud_pixels(page)
    assert before.any(axis=-1).mean() > 0.1  # points, on a transparent ground
    page.focus("#cloud")
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(100)
    assert (cloud_pixels(page) != before).any(axis=-1).mean() > 0.1


def cloud_pixels(page) -> np.ndarray:
    values = page.evaluate(
        """() => {
          const canvas = document.getElementById("cloud"), gl = canvas.getContext("webgl");
          const data = new Uint8Array(4 * canvas.width * canvas.height);
          gl.readPixels(0, 0, canvas.width, canvas.height, gl.RGBA, gl.UNSIGNED_BYTE, data);
          return [...data.filter((_, i) => Math.floor(i / 4) % 37 === 0)];
        }"""
    )
    return np.array(values).reshape(-1, 4)


@needs_browser
def test_anchors_are_dragged_edited_pasted_and_doubted(open_page) -> None:
    page = open_page()
    # Units: what is typed and what is read.
    page.click("#units label:has([value=ft])")
    place(page, 360, 270, "9 ft 8.5 in")
    solved(page, 1)
    assert page.inner_text(".marker .plate") == "9.71 ft"
    page.click("#units label:has([value=cm])")
    assert page.inner_text(".marker .plate") == "296 cm"
    page.click("#units label:has([value=m])")
    # A length that is none.
    page.mouse.click(*at(page, 100, 100))
    page.fill("#ask-value", "far")
    page.keyboard.press("Enter")
    assert "above zero" in page.inner_text("#ask-hint")
    page.keyboard.press("Escape")
    assert page.locator("#ask").is_hidden()
    # Dragging moves it, in one step of undo.
    page.mouse.move(*at(page, 360, 270))
    page.mouse.down()
    page.mouse.move(*at(page, 300, 250), steps=4)
    page.mouse.move(*at(page, 200, 300), steps=4)
    page.mouse.up()
    label = page.locator(".marker").get_attribute("aria-label")
    assert "at 200 right, 300 down" in label
    page.click("#undo")
    assert "at 360 right, 270 down" in page.locator(".marker").get_attribute("aria-label")
    # A table, wrong and right.
    page.click("#csv-open")
    page.fill("#csv-text", "u,v\n1,2")
    page.click("#csv-ok")
    assert "lacks depth_m" in page.inner_text("#csv-error")
    page.fill("#csv-text", "1,2,3\n700,5,2")
    page.click("#csv-ok")
    assert "Line 2" in page.inner_text("#csv-error")
    page.fill("#csv-text", (samples.FOLDER / "room_anchors.csv").read_text())
    page.click("#csv-ok")
    solved(page, 6)
    # A wrong number is shown in red, with what the others say.
    assert page.locator(".marker.suspect").count() == 0
    page.locator("#anchor-list input").nth(5).fill("44.2")
    page.keyboard.press("Enter")
    page.wait_for_selector(".marker.suspect")
    assert "others say 4." in page.inner_text("#anchor-list li.suspect .words")
    assert page.inner_text(".marker.suspect .plate").startswith("44.20 m")
    # Suggestions come as rings.
    page.check("#next")
    page.wait_for_selector("#overlay .suggestion")
    assert page.locator("#overlay .suggestion").count() == 3
    assert re.search(r"1 removes \d+ %", page.inner_text("#next-hint"))


@needs_browser
def test_measuring_comparing_and_profiles(open_page) -> None:
    page = open_page()
    page.click("#sample-anchors")
    solved(page, 6)
    a, b = (240, 60), (530, 300)
    depths = [hover(page, *p) for p in (a, b)]
    page.click("[data-tool=measure]")
    for p in (a, b):
        page.mouse.click(*at(page, *p))
    shown = float(page.inner_text("#caption").split()[0])
    focal = 320 / np.tan(np.radians(62.73 / 2))
    ends = [
        np.array([(u - 319.5) / focal, (v - 239.5) / focal, 1]) * depth
        for (u, v), depth in zip((a, b), depths, strict=True)
    ]
    assert shown == pytest.approx(float(np.linalg.norm(ends[0] - ends[1])), abs=0.03)
    page.click("[data-tool=profile]")
    assert page.locator("#profile-chart path").count() == 2  # the result and the truth
    page.select_option("#compare", "median")
    page.wait_for_selector("#divider:not([hidden])")
    assert page.locator("#profile-chart path").count() == 3
    assert page.inner_text("#divider-left") == page.input_value("#method")
    page.focus("#compare-slider")
    before = page.locator("#divider").bounding_box()["x"]
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    assert page.locator("#divider").bounding_box()["x"] > before
    page.mouse.move(*at(page, 300, 100))
    assert "median" in page.inner_text("#readout")


@needs_browser
def test_bad_files_get_a_sentence_and_the_page_goes_on(open_page, tmp_path: Path) -> None:
    page = open_page(sample=False)
    (tmp_path / "notes.jpg").write_text("not a photograph")
    page.set_input_files("#file", tmp_path / "notes.jpg")
    page.wait_for_selector("#toast:not([hidden])")
    assert "This file is no image in JPEG" in page.inner_text("#toast-text")
    page.set_input_files("#file", samples.load("room").image_path)
    page.wait_for_selector("body[data-screen=work]")
    assert "room.jpg · 640×480" in page.inner_text("#photo-name")
    # No field of view is known, so measuring asks for it.
    place(page, 360, 270, "2.96")
    solved(page, 1)
    page.click("[data-tool=measure]")
    page.mouse.click(*at(page, 100, 100))
    page.wait_for_selector("#toast:not([hidden])")
    assert "field of view" in page.inner_text("#toast-text")
    # Depth of one's own: its kind must be said.
    np.save(tmp_path / "mine.npy", samples.load("room").depth_m * 3)
    page.click("summary")
    page.set_input_files("#depth-file", tmp_path / "mine.npy")
    assert "Say first what the depth file holds" in page.inner_text("#toast-text")
    page.select_option("#depth-kind", "depth")
    page.set_input_files("#depth-file", tmp_path / "mine.npy")
    page.wait_for_selector("#depth-source:text-is('mine.npy')")
    page.select_option("#method", "median")
    page.click("[data-tool=anchor]")
    page.wait_for_selector("#method-about:has-text('median')")
    truth = samples.load("room").depth_m
    expected = 2.96 / truth[270, 360] * truth[380, 100]
    page.mouse.move(*at(page, 100, 380))
    page.wait_for_function(
        "d => Math.abs(parseFloat(document.querySelector('#readout').textContent) - d) < 0.01",
        arg=float(expected),
    )


@needs_browser
def test_the_keyboard_alone_suffices(open_page) -> None:
    page = open_page()
    page.focus("#stage")
    for key in ("ArrowRight", "Shift+ArrowDown", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("#ask:not([hidden])")
    page.keyboard.type("3.1")
    page.keyboard.press("Enter")
    solved(page, 1)
    page.keyboard.press("2")
    assert page.get_attribute("[data-view=depth]", "aria-selected") == "true"
    page.keyboard.press("ArrowLeft")
    assert re.match(r"\d\.\d\d m", page.inner_text("#readout"))
    page.wait_for_function("() => /\\d m/.test(document.getElementById('live').textContent)")


@needs_browser
@pytest.mark.parametrize(("width", "height"), [(390, 844), (820, 1180), (1280, 800)])
def test_it_fits_and_every_control_has_a_name(open_page, width: int, height: int) -> None:
    page = open_page(width=width, height=height, color_scheme="dark", has_touch=width < 1000)
    page.click("#sample-anchors")
    solved(page, 6)
    for view in ("photo", "depth", "basis", "cloud"):
        page.click(f"[data-view={view}]")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, textarea, canvas[role]")]
          .filter((e) => e.checkVisibility() && e.type !== "file")
          .filter((e) => !(e.ariaLabel || e.textContent.trim() || e.labels?.length))
          .map((e) => e.outerHTML)"""
    )
    assert nameless == []


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("theme", [0, 1, 2])  # light, dark by choice, dark by the system
def test_text_has_contrast(theme: int) -> None:
    style = (STATIC / "style.css").read_text()
    block = re.findall(r"color-scheme: (?:light|dark);(.*?)}", style, re.S)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block[theme]))
    pairs = [
        ("ink", "paper"), ("ink", "card"), ("soft", "paper"), ("soft", "card"), ("soft", "hover"),
        ("accent-ink", "accent"), ("accent", "card"), ("bad", "card"), ("bad", "bad-paper"),
    ]  # fmt: skip
    for text, ground in pairs:
        low, high = sorted(luminance(colours[name]) for name in (text, ground))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)
