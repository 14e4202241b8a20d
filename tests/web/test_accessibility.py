"""axe-core finds no violation in any view, light and dark, on a desktop and on a phone."""

import json
from pathlib import Path

import pytest

from web.pages import at, painted, solved

VIEWS = ("photo", "depth", "uncertainty", "cloud", "inspect")


@pytest.fixture(scope="module")
def axe(node_modules: Path) -> str:
    return (node_modules / "axe-core" / "axe.min.js").read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_axe_finds_no_violation(open_page, axe: str, scheme: str, width: int, height: int) -> None:
    still = {"reduced_motion": "reduce"}  # colours change at once
    page = open_page(False, width, height, color_scheme=scheme, has_touch=width < 800, **still)
    found: dict[str, list] = {}

    def check(name: str) -> None:
        painted(page)
        if not page.evaluate("typeof axe !== 'undefined'"):
            page.evaluate(axe)  # not as a script: the page's policy would refuse it
        result = page.evaluate("async () => (await axe.run()).violations")
        found[name] = [(v["id"], [node["html"][:120] for node in v["nodes"]][:3]) for v in result]

    check("start")
    page.click("#sample")
    page.wait_for_selector("body[data-screen=work]")
    check("empty")
    phone = width < 800
    if phone:
        page.click("#sheet-tab-anchors")
    page.click("#sample-anchors")
    solved(page, 6)
    if phone:
        page.click("#sheet-toggle")
    for view in VIEWS:
        page.click(f"[data-view={view}]")
        check(view)
    page.click("[data-inspect=basis]")
    page.wait_for_selector("#basis figure")
    check("basis")
    page.click("[data-view=photo]")
    page.click("[data-tool=measure]")
    for pixel in ((240, 60), (60, 300)):
        page.mouse.click(*at(page, *pixel))
    check("measure")
    page.click("[data-tool=profile]")
    check("profile")
    page.click("[data-tool=point]")
    page.mouse.click(*at(page, 200, 200))
    page.fill("#card-value", "2,400 mm")
    page.keyboard.press("Enter")
    check("card")
    page.keyboard.press("Escape")
    if phone:
        for sheet in ("anchors", "measure", "method", "save"):
            page.click(f"#sheet-tab-{sheet}")
            check(f"sheet {sheet}")
        page.click("#sheet-tab-anchors")
    page.click("#csv-open")
    check("table")
    assert {name: v for name, v in found.items() if v} == {}, json.dumps(found, indent=1)
