"""axe-core finds no violation in views and dialogs, light and dark, on desktop and phone."""

import io
import json
from pathlib import Path

import numpy as np
import pytest

from web.pages import at, painted, solved

VIEWS = ("photo", "depth", "uncertainty", "cloud")
INSPECTED = ("mde", "field", "basis")
RUN = """async () => {
  const rules = { "label-content-name-mismatch": { enabled: true } };
  return (await axe.run({ rules })).violations;
}"""
SHEETS = ("anchors", "measure", "method", "save")


@pytest.fixture(scope="module")
def axe(node_modules: Path) -> str:
    return (node_modules / "axe-core" / "axe.min.js").read_text()


class Checker:
    """Runs axe on the page in its present state and keeps the violations by the state's name."""

    def __init__(self, page, axe: str, phone: bool) -> None:
        self.page, self.axe, self.phone = page, axe, phone
        self.found: dict[str, list] = {}

    def check(self, name: str, shown: str) -> None:
        """Check the page while the element of the selector `shown` is visible."""
        assert self.page.locator(shown).first.is_visible(), (name, shown)
        painted(self.page)
        if not self.page.evaluate("typeof axe !== 'undefined'"):
            self.page.evaluate(self.axe)  # not as a script: the page's policy would refuse it
        result = self.page.evaluate(RUN)
        nodes = [(v["id"], [node["html"][:120] for node in v["nodes"]][:3]) for v in result]
        assert name not in self.found
        self.found[name] = nodes

    def sheet(self, name: str) -> None:
        """Bring the controls of that name to the screen; on a desktop they are there."""
        if self.phone:
            self.page.click(f"#sheet-tab-{name}")

    def photo(self) -> None:
        """Bring the photo to the screen."""
        if self.phone and self.page.get_attribute("#sheet-toggle", "aria-expanded") == "true":
            self.page.click("#sheet-toggle")


def check_sample(c: Checker) -> None:
    """The sample with its anchors, one of them wrong, in every view and with every tool."""
    page = c.page
    c.check("start", "#start")
    page.click("#sample")
    page.wait_for_selector("body[data-screen=work]")
    c.check("empty", "#stage")
    c.sheet("anchors")
    page.click("#sample-anchors")
    solved(page, 6)
    page.locator("#anchor-list input").nth(5).fill("44.2")
    page.keyboard.press("Enter")
    page.wait_for_selector("#anchor-list li.suspect")
    page.check("#next")
    page.wait_for_selector("#next-hint:has-text('removes')", state="attached")
    for sheet in SHEETS if c.phone else ():
        c.sheet(sheet)
        c.check(f"sheet {sheet}", f"#panel section[data-sheet={sheet}]")
    c.photo()
    for view in VIEWS:
        page.click(f"[data-view={view}]")
        c.check(view, "#cloud" if view == "cloud" else "#base")
    page.click("[data-view=inspect]")
    for inspected in INSPECTED:
        page.click(f"[data-inspect={inspected}]")
        if inspected == "basis":
            page.wait_for_selector("#basis figure")
        c.check(inspected, "#basis" if inspected == "basis" else "#base")
    page.click("[data-view=depth]")
    c.sheet("method")
    page.select_option("#compare", "median")
    c.photo()
    page.wait_for_selector("#divider:not([hidden])")
    c.check("compare", "#divider")
    page.click("[data-view=photo]")
    page.click("[data-tool=measure]")
    for pixel in ((240, 60), (60, 300)):
        page.mouse.click(*at(page, *pixel))
    page.wait_for_selector("#measure-list li", state="attached")
    c.check("measure", "#measure-options")
    c.sheet("measure")
    c.check("measured", "#measure-list li")
    c.photo()
    page.click("[data-tool=profile]")
    c.check("profile", "#profile")
    page.click("[data-tool=point]")
    if c.phone:
        page.touchscreen.tap(*at(page, 200, 200))
        page.wait_for_selector("#card-set:not([hidden])")
        c.check("card that reads", "#card-set")
        page.click("#card-set")
    else:
        page.mouse.click(*at(page, 200, 200))
    page.fill("#card-value", "2,400 mm")
    page.keyboard.press("Enter")
    page.wait_for_selector("#card-readings button")
    c.check("card with a question", "#card-readings")
    page.keyboard.press("Escape")


def check_dialogs(c: Checker, photo: bytes) -> None:
    """A second photo, without a field of view, and every dialog."""
    page = c.page
    c.sheet("anchors")
    page.click("#csv-open")
    c.check("table", "#csv-dialog")
    page.fill("#csv-text", "u,v,depth_m\n1,2")
    page.click("#csv-ok")
    page.wait_for_selector("#csv-error:not(:empty)")
    c.check("table refused", "#csv-error")
    page.keyboard.press("Escape")
    page.set_input_files("#file", {"name": "made.png", "mimeType": "image/png", "buffer": photo})
    page.wait_for_selector("#photo-name:has-text('made.png')", state="attached")
    page.wait_for_selector("body[data-screen=work]")
    c.photo()
    c.check("gallery", "#gallery")
    page.mouse.click(*at(page, 60, 40, width=120, height=80))
    page.fill("#card-value", "2")
    page.keyboard.press("Enter")
    solved(page, 1)
    page.click("[data-view=cloud]")
    c.check("cloud of an assumed field of view", "#cloud-assumed")
    page.click("[data-view=photo]")
    page.click("[data-tool=measure]")
    for pixel in ((20, 10), (80, 50)):
        page.mouse.click(*at(page, *pixel, width=120, height=80))
    page.wait_for_selector("#fov-dialog[open]")
    c.check("field of view", "#fov-dialog")
    page.click("#fov-assume")
    page.click("[data-tool=point]")
    c.sheet("method")
    page.click("summary")
    page.select_option("#depth-kind", "depth")
    c.check("own depth", "#depth-kind")
    arrays = io.BytesIO()
    np.savez(arrays, depth=np.linspace(1, 4, 9600).reshape(80, 120), mask=np.ones((80, 120)))
    page.set_input_files(
        "#depth-file", {"name": "two.npz", "mimeType": "x", "buffer": arrays.getvalue()}
    )
    page.wait_for_selector("#array-dialog[open]")
    c.check("arrays", "#array-dialog")
    page.click("#array-dialog .quiet")
    page.fill("#fov", "900")
    page.keyboard.press("Enter")
    page.wait_for_selector("#toast:not([hidden])")
    c.check("message", "#toast")
    c.photo()
    page.click("#new-photo")
    page.wait_for_selector("#recent-list li, #back:not([hidden])")
    c.check("start with a way back", "#back")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_axe_finds_no_violation(
    open_page, axe: str, png, scheme: str, width: int, height: int
) -> None:
    still = {"reduced_motion": "reduce"}  # colours change at once
    page = open_page(False, width, height, color_scheme=scheme, has_touch=width < 800, **still)
    c = Checker(page, axe, phone=width < 800)
    check_sample(c)
    check_dialogs(c, png(120, 80)[1])
    assert {name: v for name, v in c.found.items() if v} == {}, json.dumps(c.found, indent=1)
