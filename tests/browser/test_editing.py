"""Worlds of the playground that are edited, shared and replaced."""

import re

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.slow

OPEN = "text => document.querySelector('main').page.open({ text: async () => text })"


def open_at(page, fragment):
    page.goto("about:blank")
    page.goto(f"/#v=1&{fragment}")
    page.locator("main[data-ready]").wait_for()


def cells(page):
    return page.locator(".panel.a [data-state]")


@pytest.mark.parametrize("separator", [" ", "\n"])
def test_a_long_corridor_is_in_the_address(page, separator):
    open_at(page, "world=maze&a=value-iteration")
    page.evaluate(OPEN, separator.join(["S", *["."] * 298, "G", ""]))
    expect(page).to_have_url(re.compile("grid="))
    page.reload()
    expect(cells(page)).to_have_count(300)
    expect(cells(page).last).to_have_class(re.compile("end"))


def test_an_address_that_is_cut_off_or_unknown_is_reported(page):
    open_at(page, "world=maze&grid=8./8./3&a=value-iteration&frame=1.5")
    expect(cells(page)).to_have_count(6)
    expect(page.locator(".side [role=alert]")).to_contain_text("The world in the address is incomplete")
    expect(page.locator(".position")).to_have_text(re.compile("^1 / "))
    open_at(page, "world=maze&grid=9999999999./9999999999.&a=q-lerning")
    expect(page.locator(".side [role=alert]")).to_contain_text("There is no algorithm q-lerning.")
    expect(page.get_by_label("Algorithm A").get_by_role("combobox")).to_have_value("policy-iteration")


@pytest.mark.parametrize("size", ["Rows", "Columns"])
def test_a_cell_that_was_picked_up_is_put_back_by_another_size(page, size):
    open_at(page, "world=trap&a=value-iteration")
    page.locator('[data-state="27"]').click()
    expect(page.locator(".held")).to_have_count(1)
    page.get_by_text("Size and rules").click()
    page.get_by_label(size, exact=True).fill("3")
    page.get_by_label(size, exact=True).press("Enter")
    expect(cells(page)).to_have_count(24)
    expect(page.locator(".held")).to_have_count(0)
    address = page.url
    page.locator('[data-state="2"]').click()  # floor: nothing to pick up, and nothing to put down
    assert page.url == address


def test_a_stroke_is_undone_by_one_key_and_redone_in_its_world_only(page):
    open_at(page, "world=trap&a=value-iteration")
    walls = page.locator(".world .wall")
    page.get_by_role("radio", name="Wall").click()
    first, last = (page.locator(f'[data-state="{state}"]').bounding_box() for state in (40, 45))
    page.mouse.move(first["x"] + 20, first["y"] + 20)
    page.mouse.down()
    page.mouse.move(last["x"] + 20, last["y"] + 20, steps=30)
    page.mouse.up()
    expect(walls).to_have_count(6)
    page.keyboard.press("Control+z")
    expect(walls).to_have_count(0)
    page.locator("#preset").select_option("maze")
    expect(cells(page)).to_have_count(6)
    address = page.url
    page.keyboard.press("Control+Shift+z")
    expect(cells(page)).to_have_count(6)
    assert page.url == address


def test_the_focus_stays_on_the_algorithm_and_no_grid_stays_in_memory(page):
    open_at(page, "world=trap&a=policy-iteration")
    chooser = page.get_by_label("Algorithm A").get_by_role("combobox")
    chooser.focus()
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    counts = []
    for _ in range(2):
        for _ in range(10):
            for key in ("ArrowDown", "ArrowUp"):
                page.keyboard.press(key)
                expect(chooser).to_be_focused()
        page.wait_for_timeout(500)
        session.send("HeapProfiler.collectGarbage")
        found = session.send("Performance.getMetrics")["metrics"]
        counts.append(next(one["value"] for one in found if one["name"] == "JSEventListeners"))
    assert counts[1] < 1.5 * counts[0]


def test_the_numbers_of_an_earlier_world_are_not_shown_next_to_an_error(page):
    open_at(page, "world=maze&a=value-iteration")
    expect(page.locator(".panel .facts dd")).not_to_have_count(0)
    page.get_by_text("Size and rules").click()
    page.get_by_label("Slip").fill("2")
    page.get_by_label("Slip").press("Enter")
    expect(page.locator(".panel [role=alert]")).to_be_visible()
    expect(page.locator(".panel .facts dd")).to_have_count(0)
    assert not "".join(page.locator(".panel .value").all_text_contents())
    page.faults[:] = [fault for fault in page.faults if "400" not in fault]


def test_a_slider_writes_the_address_rarely_and_the_link_is_that_of_the_page(page):
    open_at(page, "world=trap&a=value-iteration")
    page.evaluate("""() => {
        const replace = history.replaceState.bind(history);
        window.writes = 0;
        history.replaceState = (...given) => { window.writes += 1; replace(...given); };
        navigator.clipboard.writeText = async (text) => { window.copied = text; };
        const slider = document.getElementById("knob-gamma");
        for (let i = 0; i < 200; i++) {
            slider.value = i < 199 ? 0.5 + (i % 40) / 100 : 0.33;
            slider.dispatchEvent(new Event("input"));
        }
    }""")
    page.get_by_text("Files and link").click()
    page.get_by_role("button", name="Copy link").click()
    page.wait_for_function("window.copied?.includes('gamma=0.33')")
    expect(page).to_have_url(re.compile("gamma=0.33"))
    assert page.evaluate("window.writes") < 25


def test_the_last_of_several_frames_is_announced(page):
    open_at(page, "world=trap&a=value-iteration")
    for _ in range(3):
        page.keyboard.press(".")
    expect(page.locator("#announcer")).to_contain_text("Sweep 3;")


def test_a_jump_that_loses_an_end_disappears(page):
    open_at(page, "world=jumps&a=value-iteration")
    jumps = page.locator(".world .jump")
    expect(jumps).to_have_count(4)
    page.get_by_role("radio", name="Wall").click()
    jumps.last.click()
    expect(jumps).to_have_count(2)
    expect(page.locator("main")).to_have_attribute("data-ready", "2")
    page.get_by_text("Size and rules").click()
    page.get_by_label("Rows", exact=True).fill("1")
    page.get_by_label("Rows", exact=True).press("Enter")
    expect(jumps).to_have_count(0)
    expect(page.locator(".panel [role=alert]")).to_be_hidden()
    expect(page.locator("main")).to_have_attribute("data-ready", "3")
    expect(page.locator(".panel .facts dd")).not_to_have_count(0)


def test_the_theme_changes_in_a_window_that_stores_nothing(page):
    page.add_init_script(
        "Storage.prototype.setItem = Storage.prototype.getItem = () => { throw new Error('private'); }"
    )
    open_at(page, "world=maze")
    for theme in ("light", "dark", "auto"):
        page.get_by_role("button", name="Change colors").click()
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
