import re
import shlex

import pytest
from playwright.sync_api import expect

from operant.cli import main

pytestmark = pytest.mark.slow


def answers(page, count):
    """Wait until `count` answers are complete and scored."""
    expect(page.locator("main[data-ready]")).to_be_visible()
    expect(page.locator(".turn")).to_have_count(count)
    return page.locator(".said").all_inner_texts()


def test_a_conversation_by_keys_is_that_of_the_command(page, runs, capfd, monkeypatch):
    monkeypatch.chdir(runs.parent)  # where the server was started: the command names runs from there
    page.goto("/runs#runs=words")
    page.get_by_role("link", name="Chat with it here").press("Enter")
    page.locator("main[data-ready]").wait_for()
    page.get_by_label("Second model").select_option("words")
    page.get_by_label("Scored by").select_option("judge")
    page.get_by_label("Longest answer").fill("8")
    page.get_by_label("Longest answer").press("Enter")
    page.get_by_label("Seed").fill("3")
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("/")
    page.keyboard.type("1+1=")
    page.keyboard.press("Enter")
    answers(page, 2)
    page.keyboard.type("it's 2+2=")
    page.keyboard.press("Enter")
    said = answers(page, 4)
    scores = [float(one.get_attribute("data-value")) for one in page.locator(".turn .reward").all()]
    command = shlex.split(page.locator(".chat-main .command code").inner_text())
    assert command[:2] == ["operant", "chat"]
    capfd.readouterr()
    assert main(command[1:]) == 0
    label = "[runs/words] "
    lines = [line.removeprefix(label) for line in capfd.readouterr().out.splitlines()]
    # a page groups the answers by model, the command by prompt
    order = (0, 2, 1, 3)
    assert lines[::2] == [said[i] for i in order]
    assert [float(line.removeprefix("reward: ")) for line in lines[1::2]] == pytest.approx(
        [scores[i] for i in order], 1e-5
    )
    page.reload()
    assert answers(page, 4) == said
    page.keyboard.press("u")
    answers(page, 2)
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("it's 2+2=")
    page.keyboard.press("Escape")
    page.keyboard.press("n")
    answers(page, 0)
    assert "say=" not in page.url


def test_unsupported_characters_are_reported_and_the_next_prompt_is_answered(page):
    page.goto("/chat#a=words&max_tokens=4")
    page.locator("main[data-ready]").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("caf\u00e9")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("no token for 'é'")
    page.keyboard.type("1+1=")
    page.keyboard.press("Enter")
    expect(page.locator(".turn").nth(1).locator(".verdict")).to_contain_text(re.compile("token"))
    page.faults[:] = [fault for fault in page.faults if "400" not in fault]


def test_an_answer_is_stopped(page):
    asked = []

    def hold_the_second(route):
        asked.append(route)
        if len(asked) != 2:  # the first call returns a part of the longest answer
            route.continue_()

    page.route("**/api/chat/answer", hold_the_second)
    page.goto("/chat#a=words&max_tokens=1024&temperature=0")
    page.locator("main[data-ready]").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("1+1=")
    with page.expect_request(lambda request: request.url.endswith("/chat/answer") and len(asked) == 1):
        page.keyboard.press("Enter")  # up to the second call, which comes after the first part of the answer is shown
    text = page.locator(".said").inner_text()
    assert text
    page.keyboard.press("Escape")
    expect(page.locator(".verdict")).to_contain_text("stopped")
    with page.expect_response("**/api/chat/answer") as answered:
        asked[1].continue_()
    assert len(answered.value.json()["text"]) > len(text)
    page.wait_for_timeout(200)
    assert page.locator(".said").inner_text() == text
    assert len(asked) == 2


def test_a_letter_goes_to_the_chat(page):
    page.goto("/map")
    page.locator("main[data-ready]").wait_for()
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/chat")
    page.locator("main[data-ready]").wait_for()


def test_a_prompt_that_is_being_written_is_kept(page):
    page.goto("/chat#a=words&b=lost&max_tokens=4")
    page.locator("main[data-ready]").wait_for()
    expect(page.locator(".chat-main")).to_contain_text("There is no model lost.")
    prompt = page.get_by_label("Prompt", exact=True)
    prompt.fill("1+1=")
    prompt.press("Enter")
    answers(page, 1)
    prompt.fill("2+2=")
    page.get_by_label("Temperature").fill("0.33")
    page.get_by_label("Temperature").press("Enter")
    expect(page).to_have_url(re.compile("temperature=0.33"))
    expect(prompt).to_have_value("2+2=")
    page.get_by_role("button", name="Take back").click()
    expect(prompt).to_have_value("1+1=\n2+2=")
