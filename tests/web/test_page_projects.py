"""Projects are kept after a refresh, a closed tab, a new photo and a restart of the server."""

import base64
import io
import json
import socket
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scalefield import samples
from web.conftest import serve
from web.pages import THREE, at, distances, drop, hover, place, saved, solved

DISTANCES = [str(distance) for _, _, distance in THREE]


def work(open_page, **options):
    """The sample with three anchors, a measurement, another method and view, all kept."""
    page = open_page(**options)
    for u, v, distance in THREE:
        place(page, u, v, str(distance))
    solved(page, 3)
    page.click("[data-tool=measure]")
    for pixel in ((240, 60), (60, 300)):
        page.mouse.click(*at(page, *pixel))
    page.wait_for_selector("#measure-list li")
    page.select_option("#method", "median")
    solved(page, 3, "median")
    page.click("[data-view=depth]")
    saved(page)
    return page


def assert_work_is_there(page) -> None:
    page.wait_for_selector("body[data-screen=work]")
    solved(page, 3, "median")
    assert distances(page) == DISTANCES
    assert page.locator("#measure-list li").count() == 1
    assert page.input_value("#method") == "median"
    assert page.get_attribute("[data-view=depth]", "aria-selected") == "true"


def test_refresh_keeps_the_work_and_undo(open_page) -> None:
    page = work(open_page)
    page.reload()
    assert_work_is_there(page)
    page.keyboard.press("Control+z")
    page.wait_for_selector("#measure-count:text-is('0')")
    page.keyboard.press("Control+z")
    page.wait_for_selector("#anchor-count:text-is('2')")


def test_project_of_a_closed_tab_can_be_continued(open_page, address: str) -> None:
    page = work(open_page)
    context = page.context
    page.close()
    again = context.new_page()
    again.set_default_timeout(600_000)
    again.goto(address)
    again.click("#recent-list .recent")
    assert_work_is_there(again)


def test_session_that_the_server_lost_is_created_again(open_page, address: str) -> None:
    page = work(open_page)
    sent: list[str] = []
    page.on("request", lambda r: sent.append(f"{r.method} {r.url.removeprefix(address)}"))
    session = page.evaluate(
        "Object.entries(sessionStorage).find(([k]) => k.startsWith('scalefield.session'))[1]"
    )
    page.evaluate("id => fetch(`/api/sessions/${id}`, { method: 'DELETE' })", session)
    place_again = page.locator("#anchor-list input").first
    place_again.fill("2.5")
    page.keyboard.press("Enter")
    solved(page, 3, "median")
    assert distances(page)[0] == "2.5"
    assert "POST /api/samples/room" in sent
    assert page.locator("#toast").is_hidden()


def test_session_of_an_uploaded_photo_is_created_again_after_a_restart(
    open_page, address: str
) -> None:
    page = open_page(sample=False)
    page.set_input_files("#file", samples.load("room").image_path)
    page.wait_for_selector("body[data-screen=work]")
    place(page, 360, 270, "2.96")
    solved(page, 1)
    saved(page)
    # A server that knows no session, as after a restart; and silence before it.
    silent = {"left": 2}

    def answer(route) -> None:
        if silent["left"]:
            silent["left"] -= 1
            route.abort("connectionrefused")
        else:
            route.continue_()

    page.route("**/api/sessions/**", answer)
    page.evaluate(
        "() => fetch('/api').then(() => Object.keys(sessionStorage)"
        ".filter((k) => k.startsWith('scalefield.session'))"
        ".forEach((k) => sessionStorage.setItem(k, 'gone')))"
    )
    page.reload()
    page.wait_for_selector("body[data-screen=work]")
    solved(page, 1)
    assert distances(page) == ["2.96"]
    assert page.locator("#offline").is_hidden()
    assert silent["left"] == 0


def test_restarted_server_gets_the_photo_again_and_the_anchors_stay(browser, open_page) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    stop = serve(listening)
    page = open_page(sample=False, address=address)
    page.set_input_files("#file", samples.load("room").image_path)
    page.wait_for_selector("body[data-screen=work]")
    for u, v, distance in THREE:
        place(page, u, v, str(distance))
    solved(page, 3)
    stop()
    stop = serve(socket.create_server(("127.0.0.1", port)))
    page.locator("#anchor-list input").first.fill("2.5")
    page.keyboard.press("Enter")
    solved(page, 3)
    assert distances(page) == ["2.5", *DISTANCES[1:]]
    assert page.locator("#toast").is_hidden()
    assert hover(page, 60, 420) == pytest.approx(2.5, rel=0.15)  # solved with the edited anchor
    page.close()
    stop()


def test_opening_the_same_photo_again_starts_anew_and_undo_returns(open_page) -> None:
    page = work(open_page)
    page.click("#new-photo")
    page.set_input_files("#file", samples.load("room").image_path)
    page.wait_for_selector("#anchor-count:text-is('0')")
    assert page.is_enabled("#undo")
    page.click("#undo")
    page.wait_for_selector("#anchor-count:text-is('3')")
    assert_work_is_there(page)


def test_undo_reaches_over_a_new_photo(open_page, png) -> None:
    page = work(open_page)
    page.click("#new-photo")
    page.wait_for_selector("body[data-screen=start]")
    assert page.inner_text("#back") == "Back to room.jpg"
    page.keyboard.press("Escape")
    page.wait_for_selector("body[data-screen=work]")
    page.click("#new-photo")
    page.set_input_files(
        "#file", {"name": "made.png", "mimeType": "image/png", "buffer": png(200, 150)[1]}
    )
    page.wait_for_selector("#photo-name:has-text('made.png')")
    assert distances(page) == []
    page.click("#undo")
    page.wait_for_selector("#photo-name:has-text('room.jpg')")
    assert_work_is_there(page)
    page.keyboard.press("Control+y")
    page.wait_for_selector("#photo-name:has-text('made.png')")


def test_projects_of_two_tabs_are_separate(open_page, address: str) -> None:
    page = work(open_page)
    # A duplicated tab has the same sessionStorage.
    storage = page.evaluate("JSON.stringify(sessionStorage)")
    copy = page.context.new_page()
    copy.set_default_timeout(600_000)
    copy.add_init_script(f"if (!sessionStorage.length) Object.assign(sessionStorage, {storage})")
    copy.goto(address)
    assert_work_is_there(copy)
    copy.locator("#anchor-list input").first.fill("9")
    copy.keyboard.press("Enter")
    saved(copy)
    page.reload()
    assert_work_is_there(page)
    copy.reload()
    copy.wait_for_selector("body[data-screen=work]")
    solved(copy, 3, "median")
    assert distances(copy)[0] == "9"


def test_project_file_is_saved_and_opened(open_page, tmp_path: Path) -> None:
    page = work(open_page)
    with page.expect_download() as download:
        page.click("#save-project")
    path = tmp_path / "room.scalefield.zip"
    assert download.value.suggested_filename == path.name
    download.value.save_as(path)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        assert {"project.json", "photo.jpg", "anchors.csv", "results/depth.png"} <= set(names)
        assert archive.read("photo.jpg") == samples.load("room").image_path.read_bytes()
        assert Image.open(io.BytesIO(archive.read("results/depth.png"))).size == (640, 480)
        report = json.loads(archive.read("results/report.json"))
        assert report["method"] == "median"
    other = open_page(sample=False)
    other.set_input_files("#project-file", path)
    assert_work_is_there(other)
    (tmp_path / "bad.zip").write_bytes(b"no zip")
    other.set_input_files("#project-file-2", tmp_path / "bad.zip")
    other.wait_for_selector("#toast:not([hidden])")
    assert "not a zip file" in other.inner_text("#toast-text")
    assert distances(other) == DISTANCES


def test_project_file_written_by_another_program_is_opened(open_page, tmp_path: Path) -> None:
    """With deflated entries, and with names of methods and views that are not known here."""
    page = work(open_page)
    with page.expect_download() as download:
        page.click("#save-project")
    download.value.save_as(tmp_path / "saved.zip")
    with (
        zipfile.ZipFile(tmp_path / "saved.zip") as saved,
        zipfile.ZipFile(tmp_path / "edited.zip", "w", zipfile.ZIP_DEFLATED) as edited,
    ):
        project = json.loads(saved.read("project.json"))
        project["settings"] |= {"method": "toString", "compare": "later", "view": "later"}
        edited.writestr("project.json", json.dumps(project))
        edited.writestr("photo.jpg", saved.read("photo.jpg"))
    page.set_input_files("#project-file-2", tmp_path / "edited.zip")
    solved(page, 3)
    assert distances(page) == DISTANCES
    assert page.input_value("#compare") == ""
    assert page.get_attribute("[data-view=photo]", "aria-selected") == "true"
    assert page.locator("#toast").is_hidden()


def test_photo_whose_maps_fail_leaves_the_work_unchanged(open_page, png) -> None:
    page = work(open_page)
    page.route("**/maps", lambda route: route.fulfill(status=500, json={"error": "no maps today"}))
    page.set_input_files(
        "#file", {"name": "made.png", "mimeType": "image/png", "buffer": png(200, 150)[1]}
    )
    page.wait_for_selector("#toast:not([hidden])")
    assert "No maps today" in page.inner_text("#toast-text")
    page.wait_for_selector("body[data-screen=work]")
    assert "room.jpg" in page.inner_text("#photo-name")
    page.locator("#anchor-list input").first.fill("2.5")
    page.keyboard.press("Enter")
    solved(page, 3, "median")
    assert distances(page)[0] == "2.5"


def made_photos(png, count: int) -> list[dict]:
    data = png(40, 30)[1]
    return [as_file(f"made{i}.png", data) for i in range(count)]


def test_work_survives_many_photos_and_new_tabs(open_page, png) -> None:
    """22 photos that were only opened do not push out one that was worked on, or one another."""
    page = open_page()
    place(page, 60, 420, "2.37")
    solved(page, 1)
    other = open_page(sample=False, context=page.context)
    drop(other, made_photos(png, 22))
    other.wait_for_selector("body[data-screen=work]")
    saved(other)
    third = open_page(sample=False, context=page.context)
    assert third.locator("#recent-list li").count() == 23
    with page.expect_download():
        page.click("#save-project")
    page.reload()
    page.wait_for_selector("body[data-screen=work]")
    assert distances(page) == ["2.37"]


def test_photo_and_project_are_written_in_one_transaction(open_page, png) -> None:
    page = open_page(sample=False)
    page.evaluate(
        """() => {
          window.written = [];
          const put = IDBObjectStore.prototype.put;
          IDBObjectStore.prototype.put = function (...given) {
            window.written.push([this.name, [...this.transaction.objectStoreNames]]);
            return put.apply(this, given);
          };
        }"""
    )
    drop(page, made_photos(png, 1))
    page.wait_for_selector("body[data-screen=work]")
    written = page.evaluate("window.written")
    assert written[:2] == [[name, ["photos", "projects"]] for name in ("photos", "projects")]


def test_deleted_project_comes_back_by_undo(open_page, address: str) -> None:
    page = work(open_page)
    context = page.context
    page.close()
    again = open_page(sample=False, context=context)
    again.click("[aria-label='Delete room.jpg from this browser']")
    again.wait_for_selector("#recent", state="hidden")
    assert again.inner_text("#toast-text") == "Room.jpg is deleted."
    third = open_page(sample=False, context=context)  # starting another tab removes nothing
    assert third.locator("#recent-list li").count() == 0
    again.click("#toast-action")
    again.click("#recent-list .recent")
    assert_work_is_there(again)


def test_photo_that_was_worked_on_offers_that_work(open_page, png) -> None:
    page = open_page(sample=False)
    photo = {"name": "made.png", "mimeType": "image/png", "buffer": png(200, 150)[1]}
    page.set_input_files("#file", photo)
    page.wait_for_selector("body[data-screen=work]")
    page.mouse.click(*at(page, 100, 75, 200, 150))
    page.fill("#card-value", "2")
    page.keyboard.press("Enter")
    solved(page, 1)
    saved(page)
    page.set_input_files("#file", photo)
    page.click("#toast-action")
    page.wait_for_selector("#anchor-count:text-is('1')")
    assert distances(page) == ["2"]


def as_file(name: str, data: bytes, kind: str = "image/png") -> dict:
    return {"name": name, "type": kind, "base64": base64.b64encode(data).decode()}


def test_dropped_photos_are_a_gallery(open_page, png) -> None:
    page = open_page(sample=False)
    drop(page, [as_file("one.png", png(200, 150)[1]), as_file("two.png", png(160, 120)[1])])
    page.wait_for_selector("body[data-screen=work]")
    assert page.inner_text("#photo-name") == "one.png · 200×150"
    assert page.locator("#gallery .thumb").count() == 2
    page.click("#gallery [aria-label^='two.png']")
    page.wait_for_selector("#photo-name:not(:has-text('one.png'))")
    assert page.inner_text("#photo-name") == "two.png · 160×120"


def test_thumbnails_on_a_phone_are_whole_and_large_enough_to_tap(open_page, png) -> None:
    page = open_page(sample=False, width=390, height=844, has_touch=True)
    drop(page, [as_file("one.png", png(200, 150)[1]), as_file("two.png", png(160, 120)[1])])
    page.wait_for_selector("body[data-screen=work]")
    for i in range(2):
        box = page.locator("#gallery .thumb").nth(i).bounding_box()
        assert box["width"] >= 44
        assert box["height"] >= 44
        middle = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
        hit = "([x, y]) => Boolean(document.elementFromPoint(x, y)?.closest('.thumb'))"
        assert page.evaluate(hit, middle), box  # not cut off by the row
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_pasted_photo_is_opened(open_page, png) -> None:
    page = open_page(sample=False)
    page.evaluate(
        """({ base64 }) => {
          const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
          const data = new DataTransfer();
          data.items.add(new File([bytes], "image.png", { type: "image/png" }));
          document.body.dispatchEvent(
            new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
        }""",
        as_file("image.png", png(200, 150)[1]),
    )
    page.wait_for_selector("body[data-screen=work]")
    assert page.inner_text("#photo-name") == "image.png · 200×150"
    place(page, 100, 75, "2")  # it is the server's photo, too
    solved(page, 1)
    assert hover(page, 100, 75) == pytest.approx(2, rel=0.02)


def test_heic_photo_is_opened(open_page) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    buffer = io.BytesIO()
    # Without registering its reader with Pillow, which the server has to do.
    pillow_heif.from_pillow(Image.open(samples.load("room").image_path)).save(buffer)
    page = open_page(sample=False)
    page.set_input_files(
        "#file", {"name": "IMG_1.HEIC", "mimeType": "image/heic", "buffer": buffer.getvalue()}
    )
    page.wait_for_selector("body[data-screen=work]")
    assert page.inner_text("#photo-name") == "IMG_1.HEIC · 640×480"
    assert page.locator("#toast").is_hidden()
    # The browser cannot read the file; the picture is the server's.
    colours = page.evaluate("""() => {
      const canvas = document.getElementById("base"), { width, height } = canvas;
      const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
      return new Set(new Uint32Array(data.buffer)).size;
    }""")
    assert colours > 1000


def test_depth_file_of_several_arrays_asks_for_one(open_page, png) -> None:
    page = open_page(sample=False)
    page.set_input_files(
        "#file", {"name": "made.png", "mimeType": "image/png", "buffer": png(640, 480)[1]}
    )
    page.wait_for_selector("body[data-screen=work]")
    buffer, depth = io.BytesIO(), np.linspace(1, 4, 640 * 480).reshape(480, 640)
    np.savez(buffer, depth=depth, mask=np.ones((480, 640)))
    page.click("summary")
    page.select_option("#depth-kind", "depth")
    page.set_input_files(
        "#depth-file", {"name": "two.npz", "mimeType": "x", "buffer": buffer.getvalue()}
    )
    page.wait_for_selector("#array-dialog[open]")
    page.select_option("#array-name", "depth")
    offered = page.eval_on_selector_all("#array-name option", "all => all.map((o) => o.value)")
    assert offered == ["depth", "mask"]
    page.click("#array-dialog .primary")
    page.wait_for_selector("#array-dialog", state="hidden")
    page.wait_for_selector("#depth-source:not(:text-is('lite'))")
    assert page.inner_text("#depth-source") == "two.npz"
    place(page, 600, 440, "8")
    solved(page, 1)
    page.select_option("#method", "median")
    solved(page, 1, "median")
    assert hover(page, 40, 100) == pytest.approx(8 * depth[100, 40] / depth[440, 600], rel=0.02)


def test_link_on_another_page_opens_the_page(open_page, address: str) -> None:
    page = open_page(sample=False)
    other = page.context.new_page()
    other.route("http://elsewhere.test/", lambda r: r.fulfill(
        content_type="text/html", body=f"<a href='{address}/'>open</a>"))  # fmt: skip
    other.goto("http://elsewhere.test/")
    with other.expect_navigation() as navigation:
        other.click("a")
    assert navigation.value.status == 200
    assert other.url == f"{address}/"
    other.wait_for_selector("body[data-ready]")
    assert other.inner_text("h1") == "scalefield"
