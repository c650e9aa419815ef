import re

import pytest
from playwright.sync_api import expect

from browser.waiting import route  # type: ignore[import-not-found]
from operant.runtime.ledger import read_ledger

pytestmark = pytest.mark.slow


def number(page, name):
    return float(page.locator(f"[data-name='{name}']").first.get_attribute("data-value"))


def steps(page, *labels):
    """Wait until these steps and their answers are shown; the label comes first."""
    expect(page.locator(".step[aria-busy=false] .at")).to_have_text(list(labels))


def test_a_journey_through_the_steps_by_keys(page, runs):
    page.goto("/runs#runs=words")
    page.get_by_role("link", name="Completions at every step").press("Enter")
    page.locator("main[data-ready]").wait_for()
    steps(page, "after 8")
    found = read_ledger(runs / "words", 8, 0)
    expect(page.locator(".answer")).to_have_count(len(found.answers))
    (version,) = {answer["version"] for answer in found.answers}
    expect(page.locator(".facts div", has_text="Version of the weights").locator("dd")).to_have_text(str(version))
    assert number(page, "sum-policy") == pytest.approx(found.loss["losses/policy"], abs=1e-6)
    assert number(page, "losses/policy") == found.loss["losses/policy"]
    page.keyboard.press(",")
    steps(page, "after 4")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    rows = page.locator(".ledger tbody tr")
    expect(rows).not_to_have_count(0)
    first = read_ledger(runs / "words", 4, 0)
    shown = {float(cell.get_attribute("data-value")) for cell in rows.locator("td:nth-child(2)").all()}
    assert shown <= set(first.columns["advantage"].tolist())
    page.keyboard.press("c")
    steps(page, "after 4", "after 4")
    expect(page).to_have_url(re.compile("at=4&with=4"))
    page.keyboard.press(".")
    steps(page, "after 4", "after 8")
    page.reload()
    steps(page, "after 4", "after 8")


def test_answers_are_filtered_and_colored(page, runs):
    page.goto("/completions#run=words&source=training&seed=0&at=8")
    page.locator("main[data-ready]").wait_for()
    found = read_ledger(runs / "words", 8, 0)
    lengths = {visit.answer: visit.length for visit in found.visits}
    few = sorted(lengths.values())[len(lengths) // 2]
    page.get_by_label("Length from").fill(str(few))
    expect(page.locator(".answer")).to_have_count(sum(n >= few for n in lengths.values()))
    page.get_by_role("combobox", name="Color").select_option("policy")
    values = [float(one.get_attribute("data-value")) for one in page.locator(".token").all()]
    assert set(values) <= set(found.columns["policy"].tolist())
    page.get_by_label("Contains").fill("nothing has this")
    expect(page.locator(".answer")).to_have_count(0)
    page.get_by_role("radio", name="Held-out answers").click()
    page.locator("main[data-ready]").wait_for()
    expect(page).to_have_url(re.compile("source=held-out"))


def test_a_letter_goes_to_a_page_after_g_alone(page):
    """Press keys at the same time: no letter counts as the second key of `g c` before a `g`."""
    page.add_init_script("performance.now = () => 100")
    page.goto("/explorables")
    page.locator("main[data-ready]").wait_for()
    page.keyboard.press("m")
    assert page.evaluate("location.pathname") == "/explorables"
    page.keyboard.press("g")
    page.keyboard.press("m")
    page.wait_for_url("**/map")


def test_answers_that_cannot_be_loaded_are_reported_and_no_others_shown(page):
    page.goto("/completions#run=lost")
    expect(page.locator(".answer")).not_to_have_count(0)
    expect(page.get_by_text("There are no completions of lost")).to_be_visible()
    page.get_by_role("button", name="Previous step").click()
    steps(page, "after 4")
    route(page, "**/completions/batch", lambda request: request.abort())
    page.keyboard.press(".")
    expect(page.get_by_role("alert")).to_contain_text("the server does not respond")
    page.get_by_label("Contains").fill("1")
    page.wait_for_timeout(400)
    expect(page.locator(".answer")).to_have_count(0)
    expect(page.get_by_role("alert")).to_be_visible()
    route(page, "**/completions/steps", lambda request: request.abort())
    page.get_by_role("radio", name="Held-out answers").click()
    expect(page.locator(".step")).to_have_count(0)
    expect(page.get_by_role("alert")).to_contain_text("the server does not respond")
    page.faults[:] = [fault for fault in page.faults if "ERR_FAILED" not in fault]


def test_a_text_from_right_to_left_begins_on_the_right(page):
    page.goto("/completions#run=words")
    expect(page.locator(".answer")).not_to_have_count(0)
    page.locator(".text.prompt").first.evaluate(
        "place => place.replaceChildren('\u05e9\u05dc\u05d5\u05dd!', '\\nhello!')"
    )
    gaps = page.locator(".text.prompt").first.evaluate("""place => [...place.childNodes].map((node) => {
        const range = document.createRange();
        range.selectNodeContents(node);
        const line = [...range.getClientRects()].filter((box) => box.width > 0).at(-1);
        const box = place.getBoundingClientRect();
        return [line.left - box.left, box.right - line.right];
    })""")
    assert gaps[0][1] < 5 < gaps[0][0]
    assert gaps[1][0] < 5 < gaps[1][1]
