"""Measuring, comparing, zooming and the cloud on the page."""

import csv
import io
import re

import numpy as np
import pytest
from PIL import Image

from web.pages import at, hover, painted, place, solved


def six_anchors(open_page, **options):
    page = open_page(**options)
    page.click("#sample-anchors")
    solved(page, 6)
    return page


def measure(page, *pixels: tuple[int, int]) -> None:
    for pixel in pixels:
        page.mouse.click(*at(page, *pixel))


def measured(page) -> list[tuple[float, float, float]]:
    """Value, low and high of every listed measurement, once the server has read them."""
    page.wait_for_function(
        "() => [...document.querySelectorAll('#measure-list .value')]"
        ".every((node) => node.textContent !== '–')"
    )
    found = []
    for row in page.locator("#measure-list li").all():
        value, text = row.locator(".value").inner_text(), row.locator(".range").inner_text()
        if "…" in value:  # a value without support has its range first
            value, text = text.replace("perhaps ", ""), value
        low, high = re.search(r"([\d.]+) … ([\d.]+)", text).groups()
        found.append((float(value.split()[0]), float(low), float(high)))
    return found


def point(page, u: int, v: int) -> np.ndarray:
    focal = 320 / np.tan(np.radians(62.73 / 2))
    return np.array([(u - 319.5) / focal, (v - 239.5) / focal, 1]) * hover(page, u, v)


def test_measuring_needs_no_new_solve(open_page) -> None:
    page = six_anchors(open_page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.click("[data-tool=measure]")
    measure(page, (240, 60), (60, 300))
    assert len(measured(page)) == 1
    page.click("#measure-list li button")
    page.wait_for_selector("#measurements-empty:not([hidden])")
    assert not [url for url in asked if "/recover" in url]


def test_several_measurements_are_kept_with_their_ranges(open_page, tmp_path) -> None:
    page = six_anchors(open_page)
    corners = ((240, 60), (60, 300), (200, 420))
    a, b, c = (point(page, *pixel) for pixel in corners)
    page.click("[data-tool=measure]")
    measure(page, *corners[:2])
    page.click("[data-kind=path]")
    measure(page, *corners)
    page.click("#measure-done")
    page.click("[data-kind=area]")
    measure(page, *corners)
    page.click("#measure-done")
    page.click("[data-kind=height]")
    measure(page, *corners[:2])
    expected = [
        np.linalg.norm(a - b),
        np.linalg.norm(a - b) + np.linalg.norm(b - c),
        np.linalg.norm(np.cross(b - a, c - a)) / 2,
        abs(a[1] - b[1]),
    ]
    found = measured(page)
    for (value, low, high), wanted in zip(found, expected, strict=True):
        assert value == pytest.approx(wanted, rel=0.02)
        assert low < value < high
    with page.expect_download() as download:
        page.click("[data-file='measurements.csv']")
    download.value.save_as(tmp_path / "m.csv")
    rows = list(csv.DictReader((tmp_path / "m.csv").read_text().splitlines()))
    assert [row["kind"] for row in rows] == ["distance", "path", "area", "height"]
    assert float(rows[0]["value"]) == pytest.approx(expected[0], rel=0.02)
    assert rows[0]["fov_source"] == "sample"
    page.keyboard.press("Control+z")
    assert page.locator("#measure-list li").count() == 3


# A8


def test_measuring_beside_an_anchor_snaps_to_it_and_opens_no_card(open_page) -> None:
    page = six_anchors(open_page)
    page.click("[data-tool=measure]")
    x, y = at(page, 300, 155)
    page.mouse.click(x + 8, y)
    assert page.locator("#card").is_hidden()
    measure(page, (60, 300))
    with page.expect_download() as download:
        page.click("[data-file='measurements.csv']")
    points = download.value.path().read_text().strip().rsplit(",", 1)[1]
    first, second = (tuple(map(int, point.split())) for point in points.split(" / "))
    assert first == (300, 155)
    assert max(abs(second[0] - 60), abs(second[1] - 300)) <= 1  # a pixel of the screen


def test_measuring_an_area_on_a_phone_does_not_pan_the_photo(open_page) -> None:
    page = open_page(width=390, height=844, has_touch=True)
    page.click("#sheet-tab-anchors")
    page.click("#sample-anchors")
    solved(page, 6)
    page.click("#sheet-toggle")
    page.click("[data-tool=measure]")
    for kind in ("distance", "path", "height"):
        page.click(f"[data-kind={kind}]")
        before = page.locator("#stage").bounding_box()
        page.mouse.click(*at(page, 100, 400))
        assert page.locator("#stage").bounding_box() == before
        page.click("#measure-cancel")
    page.click("[data-kind=area]")
    stage = page.locator("#stage").bounding_box()
    for pixel in ((100, 400), (300, 400), (300, 300)):
        page.mouse.click(*at(page, *pixel))
        assert page.locator("#stage").bounding_box() == stage
    page.click("#measure-done")
    page.wait_for_selector("#measure-list li", state="attached")
    assert page.locator("#stage").bounding_box() == stage
    assert page.locator("#measure-kinds").is_visible()


def test_measuring_on_a_phone_held_sideways_has_its_kinds_and_all_tabs(open_page) -> None:
    page = open_page(width=844, height=390, has_touch=True)
    page.click("[data-tool=measure]")
    for shown in ("[data-kind=area]", "#sheet-tab-anchors", "#sheet-tab-save"):
        box = page.locator(shown).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 844
        assert box["y"] + box["height"] <= 390


# A9


def test_cloud_view_hides_tools_without_effect_and_measures(open_page) -> None:
    page = six_anchors(open_page)
    page.click("[data-tool=profile]")
    page.click("[data-view=cloud]")
    assert page.get_attribute("[data-tool=point]", "aria-checked") == "true"
    assert page.locator("[data-tool=profile]").is_disabled()
    assert "row" not in page.inner_text("#caption")
    page.click("[data-tool=measure]")
    painted(page)
    box = page.locator("#cloud").bounding_box()
    for x, y in ((0.45, 0.4), (0.3, 0.6)):
        page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])
    page.wait_for_selector("#measure-list li")
    assert measured(page)[0][0] > 0.3


def test_reading_without_support_shows_its_range_first(open_page) -> None:
    page = open_page()
    place(page, 360, 270, "2.96")
    solved(page, 1)
    page.select_option("#method", "field")
    page.mouse.move(*at(page, 620, 40))
    unsure = page.evaluate("document.getElementById('readout').classList.contains('unsure')")
    text = page.inner_text("#readout")
    std = np.log(
        float(re.search(r"… ([\d.]+)", text)[1]) / float(re.search(r"([\d.]+) …", text)[1])
    )
    assert unsure == (std / 3.29 > 0.35)
    assert text.startswith(re.search(r"[\d.]+ …", text)[0]) == unsure


def test_measuring_without_a_field_of_view_asks_for_it_and_marks_an_assumed_one(
    open_page, png
) -> None:
    page = open_page(sample=False)
    page.set_input_files(
        "#file", {"name": "made.png", "mimeType": "image/png", "buffer": png(320, 240)[1]}
    )
    page.wait_for_selector("body[data-screen=work]")
    assert page.get_attribute("#fov", "placeholder") == "unknown"
    page.mouse.click(*at(page, 100, 100, 320, 240))
    page.fill("#card-value", "2")
    page.keyboard.press("Enter")
    solved(page, 1)
    page.click("[data-tool=measure]")
    page.mouse.click(*at(page, 50, 50, 320, 240))
    page.wait_for_selector("#fov-dialog[open]")
    page.fill("#fov-value", "500")
    page.click("#fov-ok")
    assert "1 to 170 degrees" in page.inner_text("#fov-error")
    page.click("#fov-assume")
    assert page.locator("#fov-badge").is_visible()
    page.mouse.click(*at(page, 250, 50, 320, 240))
    page.wait_for_function(
        "() => document.getElementById('measure-note').textContent.includes('assumed (60°)')"
    )
    page.click("[data-view=cloud]")
    assert page.inner_text("#cloud-assumed") == "Field of view assumed: 60°"


# A17


def test_compare_divider_is_dragged(open_page) -> None:
    page = six_anchors(open_page)
    page.select_option("#compare", "median")
    page.wait_for_selector("#divider:not([hidden])")
    assert page.inner_text("#divider-left") == "Gaussian process"
    assert page.inner_text("#divider-right") == "One scale"
    box = page.locator("#divider").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    assert x == pytest.approx(at(page, 319.5, 0)[0], abs=1)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 120, y, steps=3)
    page.mouse.up()
    moved = page.locator("#divider").bounding_box()
    assert moved["x"] + moved["width"] / 2 == pytest.approx(x + 120, abs=1.5)
    page.focus("#divider")
    page.keyboard.press("ArrowLeft")
    assert page.locator("#divider").bounding_box()["x"] < moved["x"]
    page.mouse.move(*at(page, 300, 100))
    assert "One scale" in page.inner_text("#readout")


# Zoom, loupe, device pixels


def test_zoom_keeps_the_pixel_under_the_pointer(open_page) -> None:
    page = open_page()
    page.mouse.move(*at(page, 500, 100))
    for _ in range(6):
        page.mouse.wheel(0, -300)
    assert page.inner_text("#zoom-level") != "Fit"
    page.mouse.click(*at(page, 500, 100))
    page.fill("#card-value", "3")
    page.keyboard.press("Enter")
    solved(page, 1)
    with page.expect_download() as download:
        page.click("[data-file='anchors.csv']")
    u, v, _ = download.value.path().read_text().splitlines()[1].split(",")
    assert abs(int(u) - 500) <= 1
    assert abs(int(v) - 100) <= 1
    page.focus("#stage")
    page.keyboard.press("0")
    assert page.inner_text("#zoom-level") == "Fit"


def test_dragging_pans_a_zoomed_photo_and_sets_nothing(open_page) -> None:
    page = open_page()
    page.click("#zoom-in")
    page.click("#zoom-in")
    box = page.locator("#stage").bounding_box()
    before = page.locator("#base").screenshot()
    page.mouse.move(box["x"] + 400, box["y"] + 300)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 200, steps=4)
    page.mouse.up()
    painted(page)
    assert page.locator("#card").is_hidden()
    assert page.locator("#base").screenshot() != before


def test_canvas_has_the_pixels_of_the_device(open_page) -> None:
    page = open_page(device_scale_factor=2)
    painted(page)
    width = page.locator("#stage").bounding_box()["width"]
    assert page.evaluate("document.getElementById('base').width") == round(2 * width)


def test_opacity_shows_the_photo_through_the_depth(open_page) -> None:
    page = six_anchors(open_page)
    page.click("[data-view=depth]")
    painted(page)
    before = page.locator("#base").screenshot()
    page.locator("#blend").fill("60")
    painted(page)
    assert page.locator("#base").screenshot() != before


def test_annotated_image_has_the_photo_and_the_marks(open_page) -> None:
    page = six_anchors(open_page)
    with page.expect_download() as download:
        page.click("[data-file='annotated.png']")
    image = Image.open(io.BytesIO(download.value.path().read_bytes())).convert("RGB")
    assert image.width == 1200
    assert image.height == 900 + 54
    # A ring around the sixth anchor: dark, white, and the colour of its depth.
    u, v = round(300.5 * 1200 / 640), round(155.5 * 900 / 480)
    assert min(image.getpixel((u + 9, v))) > 200
    assert len(set(np.asarray(image)[::50, ::50].reshape(-1, 3).sum(axis=1).tolist())) > 20
