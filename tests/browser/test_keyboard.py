"""Journeys with the keyboard alone on the pages whose other tests use a mouse."""

import re

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.slow

MOST_TABS = 120


def reach(page, **attributes):
    """Press Tab until the focus is on an element with these attributes or this text."""
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        here = page.evaluate(
            "() => { const e = document.activeElement; return { id: e.id, text: e.textContent, "
            "label: e.getAttribute('aria-label') ?? '', visible: e.matches(':focus-visible') }; }"
        )
        if all(here[name] == value for name, value in attributes.items()):
            assert here["visible"], "the focus is not shown"
            return
    raise AssertionError(f"Tab does not lead to {attributes}")


def opened(page, address):
    page.goto(address)
    page.locator("main[data-ready]").wait_for()


def test_the_shell(page):
    opened(page, "/map")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("g t")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.goto("about:blank")
    opened(page, "/map")
    reach(page, text="Explorables")
    page.keyboard.press("Enter")
    page.wait_for_url("**/explorables")


def test_runs_are_chosen_and_compared(page):
    opened(page, "/runs#runs=high")
    for name, count in (("high", 0), ("low", 1)):  # time travel, which Space plays, exists for the first run
        reach(page, label=f"Select {name}")
        page.keyboard.press("Space")
        expect(page.locator(".figure .band")).to_have_count(count)
        expect(page.get_by_label(f"Select {name}")).to_be_focused()
    order = page.locator("tr[data-run]").evaluate_all("rows => rows.map((row) => row.dataset.run)")
    steps = order.index("low") - order.index("high")  # runs that began in the same second are in any order
    for _ in range(abs(steps)):
        page.keyboard.press("k" if steps > 0 else "j")
    expect(page.get_by_label("Select high")).to_be_focused()
    page.keyboard.press("x")
    expect(page.locator("#comparison")).to_contain_text("What differs")
    reach(page, text="Seeds")
    page.keyboard.press("Enter")
    expect(page.locator(".figure .curve.faint")).to_have_count(6)


def test_the_map_is_searched_and_read(page):
    opened(page, "/map")
    page.keyboard.press("/")
    page.keyboard.type("double q")
    page.keyboard.press("Enter")
    expect(page.locator(".leaf[aria-current]")).to_be_focused()
    expect(page.locator(".leaf-detail .title")).to_have_text("Double Q-learning")
    expect(page.locator(".kin")).to_contain_text(["Q-learning", "Double DQN"])
    expect(page.locator("[data-kin=base]")).to_have_text("Q-learning")
    expect(page.locator("[data-kin=heir]")).to_have_count(2)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("at=train"))
    while "at=" in page.url:
        page.go_back()
    expect(page.locator(".leaf-detail .title")).to_have_text("Q-learning")


def test_a_knob_is_turned(page):
    opened(page, "/explorables")
    code = page.locator("#clip .command code")
    before = code.inner_text()
    reach(page, id="clip-epsilon")
    page.keyboard.press("ArrowRight")
    expect(code).not_to_have_text(before)
    expect(page).to_have_url(re.compile("clip.epsilon=0.21"))


def test_a_frame_is_stepped_to(page):
    opened(page, "/")
    expect(page.locator(".position")).to_contain_text("0 /")
    page.keyboard.press(".")
    expect(page.locator(".position")).to_contain_text("1 /")
    page.keyboard.press(",")
    expect(page.locator(".position")).to_contain_text("0 /")
    reach(page, label="Algorithm A")
    page.keyboard.press("ArrowDown")
    expect(page).to_have_url(re.compile("a=value-iteration"))


def test_answers_are_labeled(page):
    opened(page, "/labels")
    reach(page, id="annotator")
    page.keyboard.type("keys")
    page.keyboard.press("Enter")
    expect(page.locator(".labels .text").first).not_to_be_empty()
    page.keyboard.press("a")
    expect(page.locator(".saved")).to_contain_text("Saved")
    page.keyboard.press("u")
    expect(page.locator(".saved")).to_contain_text("Undone")
