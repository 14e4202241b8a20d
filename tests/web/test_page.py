"""The page in a real browser: input of a user, and displayed values."""

import re
from pathlib import Path

import numpy as np
import pytest

import scalefield as sf
from scalefield import samples
from scalefield.io import read_npz
from scalefield.web.server import STATIC
from web.pages import THREE, at, distances, hover, painted, place, solved


def test_page_gives_metres_after_three_clicks(open_page, tmp_path: Path) -> None:
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
        assert hover(page, u, v) == pytest.approx(expected[v, u], abs=0.015)
    assert "true" in page.inner_text("#readout")

    with page.expect_download() as download:
        page.click("[data-file='depth.npz']")
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    assert path.name == "room_depth.npz"
    depth_m = read_npz(path, required=("depth_m",))["depth_m"]
    np.testing.assert_allclose(depth_m, expected, rtol=1e-5)


def stage_pixels(page) -> list[int]:
    painted(page)
    return page.evaluate(
        "() => { const c = document.getElementById('base'); return [...c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data.filter((_, i) => i % 1997 === 0)] }"
    )


def test_page_views_differ(open_page) -> None:
    page = open_page()
    page.click("[data-view=depth]")
    assert "No metres yet" in page.inner_text("#stage-empty")
    page.click("#sample-anchors")
    solved(page, 6)
    seen = []
    for click in (
        "[data-view=photo]",
        "[data-view=depth]",
        "[data-view=uncertainty]",
        "[data-view=inspect]",
        "[data-inspect=field]",
    ):
        page.click(click)
        pixels = stage_pixels(page)
        assert len(set(pixels)) > 20
        assert pixels not in seen, click
        seen.append(pixels)
        assert page.locator("#colour-bar").is_visible()
    page.click("[data-inspect=basis]")
    page.wait_for_selector("#basis figure")
    weights = page.locator("#basis .weight").all_inner_texts()
    assert len(weights) == page.locator("#basis canvas").count() > 1
    assert all(re.fullmatch(r"w = −?\d+\.\d{3}", w) for w in weights)
    # A method without a range says so where the range would be.
    page.click("[data-view=uncertainty]")
    assert re.search(r"\d %", page.inner_text("#ticks"))
    page.select_option("#method", "interpolate")
    solved(page, 6, "interpolate")
    assert "gives no range" in page.inner_text("#stage-empty")
    page.click("[data-view=cloud]")
    before = cloud_pixels(page)
    assert before.any(axis=-1).mean() > 0.1  # points, on a transparent ground
    page.focus("#cloud")
    for key in ("ArrowLeft", "ArrowLeft", "Shift+ArrowDown"):
        page.keyboard.press(key)
    painted(page)
    assert (cloud_pixels(page) != before).any(axis=-1).mean() > 0.05


def cloud_pixels(page) -> np.ndarray:
    painted(page)
    values = page.evaluate(
        """() => {
          const canvas = document.getElementById("cloud"), gl = canvas.getContext("webgl");
          const data = new Uint8Array(4 * canvas.width * canvas.height);
          gl.readPixels(0, 0, canvas.width, canvas.height, gl.RGBA, gl.UNSIGNED_BYTE, data);
          return [...data.filter((_, i) => Math.floor(i / 4) % 37 === 0)];
        }"""
    )
    return np.array(values).reshape(-1, 4)


def test_page_anchors_are_dragged_edited_and_checked(open_page) -> None:
    page = open_page()
    page.click("#units label:has([value=ft])")
    place(page, 360, 270, "9 ft 8.5 in")
    solved(page, 1)
    assert distances(page) == ["9 ft 8.5 in"]  # as it was typed
    page.click("#units label:has([value=cm])")
    assert distances(page) == ["295.91"]
    page.click("#units label:has([value=m])")
    assert distances(page) == ["2.9591"]
    # Dragging moves it, in one step of undo.
    page.mouse.move(*at(page, 360, 270))
    page.mouse.down()
    page.mouse.move(*at(page, 300, 250), steps=4)
    page.mouse.move(*at(page, 200, 300), steps=4)
    page.mouse.up()
    page.mouse.move(*at(page, 200, 300))
    assert page.get_attribute("#stage", "data-hovered") == "1"
    page.click("#undo")
    page.mouse.move(*at(page, 360, 270))
    assert page.get_attribute("#stage", "data-hovered") == "1"
    # A table, wrong and right.
    page.click("#csv-open")
    page.fill("#csv-text", "u,v\n1,2")
    page.click("#csv-ok")
    page.wait_for_selector("#csv-error:has-text('lacks depth_m')")
    page.fill("#csv-text", "1,2,3\n700,5,2")
    page.click("#csv-ok")
    page.wait_for_selector("#csv-error:has-text('line 2 at u=700')")
    page.fill("#csv-text", (samples.FOLDER / "room_anchors.csv").read_text())
    page.click("#csv-ok")
    solved(page, 6)
    # A wrong number is named, with what the others give.
    page.locator("#anchor-list input").nth(5).fill("44.2")
    page.keyboard.press("Enter")
    page.wait_for_selector("#anchor-list li.suspect")
    words = page.inner_text("#anchor-list li.suspect .words")
    assert re.search(r"not used: the others give [45]\.\d+ m", words)
    # Suggestions.
    page.check("#next")
    page.wait_for_function(
        "() => /1 removes \\d+ %/.test(document.getElementById('next-hint').textContent)"
    )


def test_page_names_the_problem_of_a_bad_file_and_continues(open_page, tmp_path: Path) -> None:
    page = open_page(sample=False)
    (tmp_path / "notes.jpg").write_text("not a photograph")
    page.set_input_files("#file", tmp_path / "notes.jpg")
    page.wait_for_selector("#toast:not([hidden])")
    assert "not an image in JPEG" in page.inner_text("#toast-text")
    page.set_input_files("#file", samples.load("room").image_path)
    page.wait_for_selector("body[data-screen=work]")
    assert "room.jpg · 640×480" in page.inner_text("#photo-name")
    # Depth of one's own: its kind must be given.
    place(page, 360, 270, "2.96")
    solved(page, 1)
    np.save(tmp_path / "mine.npy", samples.load("room").depth_m * 3)
    page.click("summary")
    page.set_input_files("#depth-file", tmp_path / "mine.npy")
    assert "Choose first what the depth file holds" in page.inner_text("#toast-text")
    page.select_option("#depth-kind", "depth")
    page.set_input_files("#depth-file", tmp_path / "mine.npy")
    page.wait_for_selector("#depth-source:text-is('mine.npy')")
    page.select_option("#method", "median")
    solved(page, 1, "median")
    truth = samples.load("room").depth_m
    expected = 2.96 / truth[270, 360] * truth[380, 100]
    assert hover(page, 100, 380) == pytest.approx(float(expected), abs=0.02)


def test_page_works_with_the_keyboard_alone(open_page) -> None:
    page = open_page()
    page.focus("#stage")
    for key in ("ArrowRight", "Shift+ArrowDown", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("#card:not([hidden])")
    page.keyboard.type("3.1")
    page.keyboard.press("Enter")
    solved(page, 1)
    page.keyboard.press("2")
    assert page.get_attribute("[data-view=depth]", "aria-selected") == "true"
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("() => /\\d m/.test(document.getElementById('live').textContent)")


@pytest.mark.parametrize(
    ("width", "height"), [(390, 844), (844, 390), (820, 1180), (1280, 720), (1280, 800)]
)
def test_page_fits_and_shows_the_photo_on_the_first_screen(
    open_page, width: int, height: int
) -> None:
    page = open_page(width=width, height=height, color_scheme="dark", has_touch=width < 1000)
    for view in ("photo", "depth", "cloud"):
        page.click(f"[data-view={view}]")
        document = page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
        )
        assert document[0] <= width
        assert document[1] <= height
    page.click("[data-view=photo]")
    box = page.locator("#stage").bounding_box()
    assert box["y"] + box["height"] <= height
    photo_height = min(box["height"], box["width"] * 0.75)
    share = photo_height * photo_height / 0.75 / (width * height)
    assert share > (0.24 if width < 400 or height < 400 else 0.38)


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("theme", [0, 1])  # light, dark
def test_page_text_has_contrast(theme: int) -> None:
    style = (STATIC / "style.css").read_text()
    found = re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", style)
    colours = {name: pair[theme] for name, *pair in found}
    pairs = [
        ("ink", "paper"), ("ink", "card"), ("soft", "paper"), ("soft", "card"), ("soft", "hover"),
        ("accent-ink", "accent"), ("accent", "card"), ("bad", "card"), ("bad", "bad-paper"),
        ("warn", "warn-paper"), ("warn", "card"),
    ]  # fmt: skip
    for text, ground in pairs:
        low, high = sorted(luminance(colours[name]) for name in (text, ground))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)
