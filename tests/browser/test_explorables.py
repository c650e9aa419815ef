import re

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.slow


def test_knobs_are_turned_by_keys_and_the_address_remembers_them(page):
    page.goto("/explorables")
    page.locator("main[data-ready]").wait_for()
    expect(page.locator(".explorable")).to_have_count(6)
    code = page.locator("#clip .command code")
    expect(code).to_contain_text("clip_high=0.2,")
    page.get_by_label("ε above", exact=True).focus()
    page.keyboard.press("ArrowRight")
    expect(code).to_contain_text("clip_high=0.21,")
    expect(page).to_have_url(re.compile(r"clip\.epsilon_high=0\.21"))
    entropy = page.locator("[data-name='entropy of q, bits']")
    assert float(entropy.get_attribute("data-value")) == pytest.approx(2)
    page.reload()
    page.locator("main[data-ready]").wait_for()
    expect(code).to_contain_text("clip_high=0.21,")
