"""Editing on the page: the list, the keyboard, lengths, tables and the busy state."""

import json
import re

import numpy as np

from scalefield import samples
from web.pages import at, distances, hover, painted, paste, place, saved, solved

FIRST_IS_READ = "() => document.querySelector('#anchor-list input').value === '2.5146'"


def six_anchors(open_page):
    page = open_page()
    page.click("#sample-anchors")
    solved(page, 6)
    return page


def focused(page) -> str:
    return page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.id")


# A1: the list


def test_list_tab_goes_from_an_edited_row_to_the_next(open_page) -> None:
    page = six_anchors(open_page)
    first = page.locator("#anchor-list input").first
    first.fill("1.25")
    page.keyboard.press("Tab")
    assert focused(page) == "Delete anchor 1"
    solved(page, 6)
    assert focused(page) == "Delete anchor 1"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert focused(page) == "Distance of anchor 2 in m"


def test_list_keeps_what_is_being_typed_when_an_answer_comes(open_page) -> None:
    page = six_anchors(open_page)
    rows = page.locator("#anchor-list input")
    rows.first.fill("1.3")
    page.keyboard.press("Enter")
    rows.nth(1).click()
    page.keyboard.press("Control+a")
    page.keyboard.type("12.")  # while the first edit is solved
    solved(page, 6)
    page.keyboard.type("25")
    assert distances(page)[1] == "12.25"
    page.keyboard.press("Enter")
    assert distances(page)[:2] == ["1.3", "12.25"]
    assert page.locator("#toast").is_hidden()


def test_list_click_after_typing_is_not_lost(open_page) -> None:
    page = six_anchors(open_page)
    page.locator("#anchor-list input").first.fill("1.3")
    page.locator("#anchor-list input").nth(1).click()
    assert focused(page) == "Distance of anchor 2 in m"
    page.locator("#anchor-list input").first.fill("1.4")
    page.locator("[aria-label='Delete anchor 3']").click()
    solved(page, 5)
    assert distances(page) == ["1.4", "2.37", "3.53", "4.26", "4.42"]


def test_list_rows_stay_the_same_elements(open_page) -> None:
    page = six_anchors(open_page)
    page.eval_on_selector_all("#anchor-list li", "rows => rows.forEach((r) => (r.kept = true))")
    page.locator("#anchor-list input").first.fill("1.3")
    page.keyboard.press("Enter")
    solved(page, 6)
    assert page.eval_on_selector_all("#anchor-list li", "r => r.every((x) => x.kept)")


# A2: many anchors


def test_list_of_five_thousand_anchors_reads_no_layout_for_each(open_page) -> None:
    page = open_page()
    page.evaluate(
        """() => {
          window.reads = 0;
          const count = (prototype, name) => {
            const { get } = Object.getOwnPropertyDescriptor(prototype, name);
            Object.defineProperty(prototype, name, { configurable: true,
              get() { window.reads += 1; return get.call(this); } });
          };
          for (const name of ["clientWidth", "clientHeight"]) count(Element.prototype, name);
          for (const name of ["offsetWidth", "offsetHeight", "offsetLeft", "offsetTop"]) {
            count(HTMLElement.prototype, name);
          }
          const box = Element.prototype.getBoundingClientRect;
          Element.prototype.getBoundingClientRect = function () {
            window.reads += 1; return box.call(this); };
        }"""
    )
    rng = np.random.default_rng(0)
    truth = samples.load("room").depth_m
    u, v = rng.integers(0, 640, 5000), rng.integers(0, 480, 5000)
    rows = [f"{a},{b},{truth[b, a]:.3f}" for a, b in zip(u, v, strict=True)]
    paste(page, "u,v,depth_m\n" + "\n".join(rows))
    page.wait_for_selector("#anchor-count:text-is('5000')")
    page.evaluate(
        "() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))"
    )
    assert page.evaluate("window.reads") < 20
    assert page.locator("#anchor-list li").count() < 250  # more are made by scrolling
    page.evaluate("document.getElementById('anchor-list').scrollTo(0, 1e6)")
    page.wait_for_function("() => document.querySelectorAll('#anchor-list li').length > 150")


# A3, A4, A5: nothing misread


def test_pasted_table_with_decimal_commas_and_semicolons_is_read(open_page) -> None:
    page = open_page()
    paste(page, "u;v;depth_m\n10;20;1,5")
    solved(page, 1)
    assert distances(page) == ["1.50"]


def test_pasted_table_with_two_readings_is_refused(open_page) -> None:
    page = open_page()
    for text, words in (
        ("0,0,1;1,1,1", "header wanted u, v, depth_m"),
        ("u;v;depth_m\n1;2;1,200", "can be 1200 m (1200 m) or 1.200 m (1.2 m)"),
        ("10,20,1,5", "depth 1 m with sigma 5 m, or depth 1.5 m"),
    ):
        paste(page, text)
        page.wait_for_function(
            "words => document.getElementById('toast-text').textContent.includes(words)", arg=words
        )
    assert distances(page) == []


def test_typed_length_with_two_readings_is_a_question(open_page) -> None:
    page = open_page()
    page.mouse.click(*at(page, 360, 270))
    page.fill("#card-value", "2,400 mm")
    page.keyboard.press("Enter")
    page.wait_for_selector("#card-readings button")
    assert page.locator("#card-readings button").all_inner_texts() == ["2400 mm", "2.400 mm"]
    page.click("#card-readings button:text-is('2400 mm')")
    solved(page, 1)
    assert distances(page) == ["2400 mm"]  # as it was chosen


def test_typed_lengths_are_read(open_page) -> None:
    page = open_page()
    lengths = {
        "8’3”": "2.5146",
        "5 ft 10": "1.778",
        "10 feet": "3.048",
        "2 metres": "2 metres",
        "2m40": "2m40",
    }
    for i, (text, metres) in enumerate(lengths.items()):
        place(page, 100 + 90 * i, 200, text)
        page.wait_for_selector(f"#anchor-count:text-is('{i + 1}')")
        assert distances(page)[i] == metres, text  # metric ones as they were typed
    page.click("#csv-open")
    rows = page.input_value("#csv-text").split()[1:]
    assert [row.split(",")[2] for row in rows] == ["2.5146", "1.778", "3.048", "2", "2.4"]
    page.keyboard.press("Escape")
    page.mouse.click(*at(page, 100, 400))
    page.fill("#card-value", "far")
    page.keyboard.press("Enter")
    page.wait_for_selector("#card-hint:has-text('A length such as 2.4 m is wanted')")
    assert page.get_attribute("#card-value", "aria-invalid") == "true"


def test_typed_length_is_set_at_its_point_when_the_server_has_read_it(open_page) -> None:
    page = open_page()
    waiting: list = []

    def hold(route) -> None:
        waiting.append(route)

    page.route("**/api/length", hold)

    def answered(text: str, at_u: int) -> None:
        before = len(waiting)
        place(page, at_u, 200, text)
        while len(waiting) == before:
            page.wait_for_timeout(10)

    answered("2 m 40", 100)
    page.mouse.click(*at(page, 400, 300))  # closes the card
    waiting[0].continue_()
    page.wait_for_selector("#anchor-count:text-is('1')")
    assert distances(page) == ["2 m 40"]
    answered("3 m 40", 200)
    page.keyboard.press("Escape")  # gives it up
    waiting[1].continue_()
    answered("4 m 40", 300)
    page.fill("#card-value", "4.5")  # is read at once, before the answer
    page.keyboard.press("Enter")
    waiting[2].continue_()
    painted(page)
    assert distances(page) == ["2 m 40", "4.5"]


def test_list_reads_a_length_with_a_unit_and_restores_a_value_that_is_none(open_page) -> None:
    page = six_anchors(open_page)
    first = page.locator("#anchor-list input").first
    first.fill("8 ft 3")
    page.keyboard.press("Tab")
    page.wait_for_function(FIRST_IS_READ)
    first.fill("far")
    page.keyboard.press("Enter")
    page.wait_for_selector("#anchor-list input[aria-invalid=true]")
    assert "Anchor 1: a length such as 2.4 m is wanted" in page.inner_text("#toast-text")
    page.keyboard.press("Tab")
    assert distances(page)[0] == "2.5146"
    first.fill("far")
    page.keyboard.press("Tab")  # it has lost the focus when the answer comes
    page.wait_for_function(FIRST_IS_READ)
    assert first.get_attribute("aria-invalid") == "false"


def test_card_opened_and_confirmed_keeps_every_digit(open_page) -> None:
    page = open_page()
    for i, text in enumerate(("1.2345", "0.054", "0.0034")):
        place(page, 100 + 150 * i, 200, text)
    for i in range(3):
        page.mouse.click(*at(page, 100 + 150 * i, 200))
        page.keyboard.press("Enter")
    assert distances(page) == ["1.2345", "0.054", "0.0034"]
    page.click("#units label:has([value=ft])")
    page.mouse.click(*at(page, 100, 200))
    page.keyboard.press("Enter")
    page.click("#units label:has([value=m])")
    assert distances(page)[0] == "1.2345"


# A7: the keyboard


def test_keyboard_enter_edits_and_delete_removes_an_anchor(open_page) -> None:
    page = open_page()
    page.focus("#stage")
    for keys in (("ArrowRight", "Enter"), ("Enter",)):
        for key in keys:
            page.keyboard.press(key)
        page.keyboard.type("2" if len(keys) > 1 else "3")
        page.keyboard.press("Enter")
    assert distances(page) == ["3"]  # edited, not doubled
    page.keyboard.press("Delete")
    assert distances(page) == []
    page.keyboard.press("Control+z")
    assert distances(page) == ["3"]


def test_keyboard_redo_and_shortcuts_after_touching_a_radio_or_a_box(open_page) -> None:
    page = six_anchors(open_page)
    page.click("#units label:has([value=ft])")
    page.check("#next")
    page.keyboard.press("Control+z")
    page.wait_for_selector("#anchor-count:text-is('0')")
    page.keyboard.press("Control+y")
    page.wait_for_selector("#anchor-count:text-is('6')")
    page.click("#units label:has([value=m])")
    page.keyboard.press("2")
    assert page.get_attribute("[data-view=depth]", "aria-selected") == "true"


def test_warning_of_two_anchors_on_one_pixel(open_page) -> None:
    page = open_page()
    paste(page, "10,20,1\n10,20,2")
    solved(page, 2)
    assert page.inner_text("#anchor-notes") == "On the same pixel lie #1 and #2."


# A10: numbers


def test_warning_has_the_number_of_the_list_and_the_photo(open_page) -> None:
    page = six_anchors(open_page)
    page.locator("#anchor-list input").nth(5).fill("44.2")
    page.keyboard.press("Enter")
    page.wait_for_selector("#anchor-list li.suspect")
    assert page.inner_text("#anchor-list li.suspect .number") == "6"
    assert "#6" in page.inner_text("#notes")
    assert "#5" not in page.inner_text("#notes")


def test_hovering_a_row_or_a_mark_shows_the_other(open_page) -> None:
    page = six_anchors(open_page)
    page.mouse.move(*at(page, 300, 155))
    page.wait_for_selector("#anchor-list li.hovered")
    assert page.inner_text("#anchor-list li.hovered .number") == "6"

    def mark(u: int, v: int) -> bytes:
        """The picture around an anchor."""
        painted(page)
        x, y = at(page, u, v)
        return page.screenshot(clip={"x": x - 20, "y": y - 20, "width": 40, "height": 40})

    anchors = samples.load("room").anchors
    second, third = ((anchors.u[i], anchors.v[i]) for i in (1, 2))
    page.mouse.move(5, 5)
    plain = mark(*second), mark(*third)
    page.hover("#anchor-list li:nth-child(2)")
    assert mark(*second) != plain[0]
    assert mark(*third) == plain[1]


# A11: busy


def test_busy_state_names_the_method_and_the_last_choice_wins(open_page) -> None:
    page = six_anchors(open_page)
    asked: list[tuple[str, str]] = []

    def hold(route) -> None:
        edit = json.loads(route.request.post_data)
        asked.append((edit["method"], edit["size"]))
        if edit["method"] != "knn":  # which is never answered: the page must abort it
            route.continue_()

    aborted: list[str] = []
    page.on("requestfailed", lambda r: aborted.append(json.loads(r.post_data)["method"]))
    page.route("**/recover", hold)
    page.select_option("#method", "knn")
    page.wait_for_selector("#busy:not([hidden])")
    assert "Computing Nearest measurements" in page.inner_text("#busy-text")
    assert "still showing Gaussian process" in page.inner_text("#busy-text")
    assert page.get_attribute("#stage", "aria-busy") == "true"
    assert "stale" in page.get_attribute("#stage", "class")
    until = "Shown: Gaussian process, until Nearest measurements is computed."
    assert until in page.inner_text("#notes")
    page.select_option("#method", "field")
    solved(page, 6)
    assert asked == [("knn", "preview"), ("field", "preview"), ("field", "full")]
    assert aborted == ["knn"]
    assert page.locator("#busy").is_hidden()
    assert page.inner_text("#notes") == ""
    assert "stale" not in page.get_attribute("#stage", "class")


def test_cancel_returns_to_the_method_that_is_shown(open_page) -> None:
    page = six_anchors(open_page)
    page.route("**/recover", lambda route: None)
    page.select_option("#method", "region")
    page.click("#busy-cancel")
    assert page.input_value("#method") == "field"
    assert page.locator("#busy").is_hidden()
    assert hover(page, 300, 330) > 0


# A14: messages


def test_message_goes_when_its_cause_is_fixed_and_covers_no_control(open_page) -> None:
    page = open_page(width=1280, height=720)
    page.click("#sample-anchors")
    solved(page, 6)
    # Without long timers the message can only go because its cause is fixed.
    page.evaluate(
        """() => {
          const real = window.setTimeout;
          window.setTimeout = (work, ms, ...rest) => (ms >= 3000 ? 0 : real(work, ms, ...rest));
        }"""
    )
    page.locator("#anchor-list input").first.fill("far")
    page.keyboard.press("Enter")
    page.wait_for_selector("#toast:not([hidden])")
    toast, panel = (page.locator(s).bounding_box() for s in ("#toast", "#panel"))
    assert toast["x"] + toast["width"] <= panel["x"]
    page.locator("#anchor-list input").first.fill("1.3")
    page.keyboard.press("Enter")
    page.wait_for_selector("#toast", state="hidden")


# A15, A4: touch


def test_tap_reads_depth_and_a_button_sets_an_anchor(open_page) -> None:
    page = open_page(width=390, height=844, has_touch=True, is_mobile=True)
    page.click("#sheet-tab-anchors")
    page.click("#sample-anchors")
    solved(page, 6)
    page.click("#sheet-toggle")
    page.touchscreen.tap(*at(page, 300, 330))
    page.wait_for_selector("#card:not([hidden])")
    assert re.match(r"[\d.]+", page.inner_text("#card-reading"))
    assert page.locator("#card-form").is_hidden()
    page.click("#card-set")
    for text in ("8", "3"):
        page.keyboard.type(text)
        page.click(f"#card-units button:text-is('{'ft' if text == '8' else 'in'}')")
    page.click("#card-ok")
    solved(page, 7)
    assert distances(page)[6] == "2.5146"
    saved(page)


def test_tap_targets_on_a_phone_are_large_enough(open_page) -> None:
    page = open_page(width=390, height=844, has_touch=True, is_mobile=True)
    page.click("#sheet-tab-anchors")
    page.click("#sample-anchors")
    solved(page, 6)
    small = page.evaluate(
        """() => [...document.querySelectorAll("button, select, .button, .field")]
          .filter((e) => e.checkVisibility() && !e.matches("#sheet-toggle, .number"))
          .map((e) => [e.id || e.className, e.getBoundingClientRect().height])
          .filter(([, height]) => height < 40)"""
    )
    assert small == []
