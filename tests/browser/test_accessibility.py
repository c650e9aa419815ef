"""No findings of axe-core on any page, in both themes and three widths; no page is wider than its window."""

import pytest

sync_playwright = pytest.importorskip("axe_playwright_python.sync_playwright")

pytestmark = pytest.mark.slow

WIDTHS = (360, 768, 1440)
PAGES = {
    "playground": "/",
    "two algorithms": "/#a=q-learning&b=sarsa&view=q",
    "runs": "/runs#runs=low,high",
    "travel": "/runs#runs=low",
    "completions": "/completions#run=words&source=training&seed=0&at=4&with=8",
    "chat": "/chat#a=words&b=words&reward=judge&max_tokens=8&say=1%2B1%3D&say=caf%C3%A9",
    "labels": "/labels",
    "labeling": "/labels#run=low&as=axe",
    "explorables": "/explorables",
    "map": "/map",
}


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(page, name):
    page.emulate_media(reduced_motion="reduce")
    page.goto(PAGES[name])
    page.locator("main[data-ready]").wait_for()
    for summary in page.locator("main summary").all():
        summary.evaluate("(one) => (one.parentElement.open = true)")
    axe, found = sync_playwright.Axe(), {}
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_timeout(150)
            violations = axe.run(page).response["violations"]
            found |= {(one["id"], node["html"]): (theme, width) for one in violations for node in one["nodes"]}
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, f"{width} overflows"
    assert found == {}
    page.faults[:] = [fault for fault in page.faults if "400" not in fault]  # what the chat cannot tokenize


def test_axe_finds_what_is_wrong(page):
    page.goto("/map")
    page.locator("main[data-ready]").wait_for()
    page.evaluate("document.querySelector('main input').removeAttribute('aria-label')")
    page.evaluate("document.querySelector('main input').removeAttribute('placeholder')")
    assert [one["id"] for one in sync_playwright.Axe().run(page).response["violations"]] == ["label"]
