"""Measurements on the page: exact values, ends that move, names, units, other screens."""

import io
import re

import numpy as np
import pytest
from PIL import Image

from web.conftest import serve
from web.pages import at, distances, drop, hover, painted, place, saved, solved
from web.test_page_projects import as_file
from web.test_page_tools import measure, measured, six_anchors

FIRST_VALUE = "parseFloat(document.querySelector('#measure-list .value').textContent)"


def test_an_anchor_has_its_own_narrow_interval_under_the_pointer(open_page) -> None:
    page = six_anchors(open_page)
    page.mouse.move(*at(page, 360, 270))
    page.wait_for_function(
        """() => {
          const [low, high] = document.querySelector("#readout .note")
            .textContent.match(/[\\d.]+/g);
          return high / low < 1.03;
        }"""
    )
    assert page.inner_text("#readout .value") == "2.96 m"
    page.mouse.click(*at(page, 360, 270))
    assert re.search(r"2\.9\d … 2\.9\d m", page.inner_text("#card-reading"))


def test_enter_ends_a_path_and_adds_no_point(open_page) -> None:
    page = six_anchors(open_page)
    page.click("[data-tool=measure]")
    page.click("[data-kind=path]")
    measure(page, (100, 400), (200, 400), (300, 380))
    page.keyboard.press("Enter")
    assert len(measured(page)) == 1
    with page.expect_download() as download:
        page.click("[data-file='measurements.csv']")
    assert download.value.path().read_text().strip().rsplit(",", 1)[1].count("/") == 2
    # With the keyboard alone, Enter sets points, and a second Enter at the last one ends.
    page.focus("#stage")
    for key in ("ArrowLeft", "Enter", "Shift+ArrowLeft", "Enter", "Enter"):
        page.keyboard.press(key)
    assert len(measured(page)) == 2


def test_ends_are_dragged_and_names_are_kept(open_page) -> None:
    page = six_anchors(open_page)
    page.click("[data-tool=measure]")
    measure(page, (100, 400), (200, 400))
    ((before, *_),) = measured(page)
    page.mouse.move(*at(page, 200, 400))
    page.mouse.down()
    page.mouse.move(*at(page, 250, 390), steps=4)
    page.mouse.move(*at(page, 300, 380))
    page.mouse.up()
    page.wait_for_function(
        f"(wanted) => {FIRST_VALUE} > wanted",
        arg=1.5 * before,
    )
    page.locator("#measure-list .kind").fill("Rug")
    page.keyboard.press("Tab")
    saved(page)
    page.reload()
    page.wait_for_selector("body[data-screen=work]")
    assert page.locator("#measure-list .kind").input_value() == "Rug"
    assert measured(page)[0][0] > 1.5 * before
    page.keyboard.press("Control+z")  # the name
    page.keyboard.press("Control+z")  # the whole drag
    page.wait_for_function(
        f"(wanted) => {FIRST_VALUE} < wanted",
        arg=1.1 * before,
    )


def test_slip_of_the_unit_is_asked_about(open_page) -> None:
    page = open_page()
    place(page, 360, 270, "296")
    page.wait_for_selector("#toast-action:has-text('296 cm')")
    page.click("#toast-action")
    page.wait_for_function("() => document.querySelector('#anchor-list input').value === '296 cm'")
    for u, v, distance in ((60, 420, "2.37"), (300, 155, "4420")):
        place(page, u, v, distance)
    page.locator("#anchor-list .chip:has-text('4420 mm?')").click()
    solved(page, 3)
    page.wait_for_function(
        "() => [...document.querySelectorAll('#anchor-list .chip')].every((chip) => chip.hidden)"
    )
    assert distances(page) == ["296 cm", "2.37", "4420 mm"]
    page.keyboard.press("Control+z")
    page.wait_for_selector("#anchor-list .chip:has-text('4420 mm?')")


def test_annotated_picture_of_the_cloud_is_the_cloud(open_page) -> None:
    page = six_anchors(open_page)
    page.click("[data-view=cloud]")
    painted(page)
    with page.expect_download() as download:
        page.click("[data-file='annotated.png']")
    image = Image.open(io.BytesIO(download.value.path().read_bytes())).convert("RGB")
    box = page.locator("#cloud").bounding_box()
    assert image.width / image.height == pytest.approx(box["width"] / box["height"], rel=0.01)
    pixels = np.asarray(image)
    assert (pixels[:40, :40] == 255).all()  # beside the cloud
    assert np.ptp(pixels[::20, ::20], axis=(0, 1)).min() > 100
    page.click("[data-view=inspect]")
    page.click("[data-inspect=basis]")
    assert page.is_disabled("[data-file='annotated.png']")


def test_phone_held_sideways_keeps_its_tools(open_page) -> None:
    page = open_page(width=844, height=390, has_touch=True)
    for name in ("anchors", "measure", "method", "save"):
        page.click(f"#sheet-tab-{name}")
        assert page.is_visible("[data-tool=measure]"), name
        hidden = page.eval_on_selector_all(
            "#panel-body button, #panel-body select, #panel-body input",
            "all => all.filter((e) => e.offsetParent && "
            "e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML)",
        )
        assert hidden == [], name
    page.click("[data-tool=measure]")
    assert page.is_visible("[data-kind=area]")


def test_photos_can_be_closed_and_the_present_one_is_in_sight(open_page, png) -> None:
    page = open_page(sample=False, width=700, height=700)
    data = png(40, 30)[1]
    drop(page, [as_file(f"made{i}.png", data) for i in range(20)])
    page.wait_for_selector("body[data-screen=work]")
    page.click("#gallery [aria-label^='made19.png']")
    page.wait_for_selector("#gallery [aria-label^='made19.png'][aria-current=true]")
    box = page.locator("[aria-current=true]").bounding_box()
    assert 0 <= box["x"] <= 700 - box["width"]
    page.hover("[aria-current=true]")
    page.click("[aria-label='Close made19.png']")
    page.wait_for_selector("#gallery [aria-label^='made18.png'][aria-current=true]")
    assert page.locator("#gallery .thumb").count() == 19
    page.click("#new-photo")
    page.wait_for_selector("#recent-list .recent:has-text('made19.png')")


def test_panorama_is_warned_of(open_page, png) -> None:
    page = open_page(sample=False)
    drop(page, [as_file("wide.png", png(300, 60)[1])])
    page.wait_for_selector("body[data-screen=work]")
    assert page.is_visible("#fov-panorama")


def test_address_for_a_phone_is_a_code(open_page, browser) -> None:
    import socket

    address = "http://192.168.1.5:8008/?token=abc"
    listening = socket.create_server(("127.0.0.1", 0))
    stop = serve(listening, address=address)
    page = open_page(sample=False, address=f"http://127.0.0.1:{listening.getsockname()[1]}")
    page.click("#phone")
    assert page.inner_text("#phone-address") == address
    page.wait_for_function("() => document.getElementById('phone-code').naturalWidth > 0")
    stop()


def test_a_known_length_gives_metres_and_survives_undo_and_a_project_file(open_page) -> None:
    page = open_page()
    page.click("[data-tool=measure]")
    measure(page, (240, 60), (60, 300))
    page.fill("#measure-list .known", "2.30")
    page.keyboard.press("Enter")
    solved(page, 0)
    page.wait_for_selector("#measure-list .range:text-is('fits')")
    page.click("[data-tool=point]")
    assert hover(page, 300, 155) == pytest.approx(4.42, rel=0.25)
    with page.expect_download() as download:
        page.click("#save-project")
    path = download.value.path()
    page.keyboard.press("Control+z")
    page.wait_for_selector("#measure-list .value:text-is('–')")
    page.set_input_files(
        "#project-file-2", {"name": "p.zip", "mimeType": "x", "buffer": path.read_bytes()}
    )
    page.wait_for_selector("#measure-list .range:text-is('fits')")
    assert page.input_value("#measure-list .known") == "2.30 m"
    page.fill("#measure-list .known", "door")
    page.keyboard.press("Enter")
    page.wait_for_selector("#measure-list .value:text-is('2.00 m')")
    page.select_option("#method", "median")  # which lengths do not count with
    page.wait_for_selector("#measure-list .value:text-is('–')")


def test_a_distance_along_the_slant_is_a_shorter_depth(open_page) -> None:
    page = open_page()
    page.mouse.click(*at(page, 10, 20))
    page.fill("#card-value", "4")
    page.check("#card-slant")
    page.keyboard.press("Enter")
    solved(page, 1)
    assert distances(page) == ["4"]
    focal = 320 / np.tan(np.radians(62.73 / 2))
    ray = np.sqrt(1 + ((10 - 319.5) / focal) ** 2 + ((20 - 239.5) / focal) ** 2)
    page.click("#csv-open")
    u, v, depth_m = map(float, page.input_value("#csv-text").split()[1].split(","))
    assert depth_m * np.sqrt(1 + ((u - 319.5) / focal) ** 2 + ((v - 239.5) / focal) ** 2) == (
        pytest.approx(4)
    )
    assert depth_m == pytest.approx(4 / ray, rel=0.01)
