import json
import shutil

import pytest
from playwright.sync_api import expect

from operant.language.preferences import PreferenceStore, add_samples

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(runs, tmp_path_factory):
    """Return a folder in which no answer is labeled or reserved."""
    path = tmp_path_factory.mktemp("labels") / "runs"
    shutil.copytree(runs, path, ignore=shutil.ignore_patterns("preferences*"))
    (path / "many" / "eval").mkdir(parents=True)
    shutil.copy(path / "low" / "config.toml", path / "many")
    samples = path / "many" / "eval" / "samples.jsonl"
    for i, text in enumerate(("first", "second", "third", "fourth")):
        sample = {"consumed": 5, "seed": 0, "prompt": "rank these", "completion": text, "reward": float(i)}
        with samples.open("a", encoding="utf-8") as file:
            file.write(json.dumps(sample | {"truncated": False, "temperature": 0.0}) + "\n")
    with PreferenceStore(path / "many" / "preferences.sqlite") as store:
        add_samples(store, samples, run="many", completions=4)
    return path


def outcomes(runs):
    with PreferenceStore(runs / "low" / "preferences.sqlite") as store:
        return [event.outcome for event in store.labels()]


def test_a_journey_by_keys_survives_the_death_of_the_server(page, server, runs):
    page.goto("/labels")
    page.get_by_label("Your name").fill("ann")
    page.get_by_role("button", name="Begin").click()
    state = page.get_by_role("status")
    expect(page.get_by_role("button", name="Tie")).to_be_visible()
    expect(page.get_by_text("<img src=x onerror=alert(1)>")).to_be_visible()
    for key, said, stored in (("a", "A is better", "A"), ("t", "Tie", "tie"), ("n", "Both bad", "both-bad")):
        page.keyboard.press(key)
        expect(state).to_have_text(f"Saved: {said}")
        assert outcomes(runs)[-1] == stored
    page.keyboard.press("u")
    expect(state).to_have_text("Undone: asked again")
    assert outcomes(runs) == ["A", "tie"]
    server.kill()
    page.keyboard.press("b")
    expect(state).to_contain_text("Not saved yet")
    assert outcomes(runs) == ["A", "tie"]
    server.start()
    expect(state).to_have_text("Saved: B is better")
    assert outcomes(runs) == ["A", "tie", "B"]
    page.keyboard.press("s")
    expect(state).to_have_text("Saved: Skip")
    page.keyboard.press("ArrowLeft")
    expect(state).to_have_text("Saved: A is better")
    expect(page.get_by_text("Nothing is left to label here")).to_be_visible()
    assert outcomes(runs) == ["A", "tie", "B", "skip", "A"]
    expect(page.locator(".command code").last).to_have_text("operant label runs/low --annotator ann")
    page.faults[:] = [fault for fault in page.faults if "ERR_CONNECTION" not in fault]


def test_agreement_is_shown_and_the_labels_are_saved_as_a_file(page, runs, tmp_path):
    page.goto("/labels#run=low&as=bob&overlap=2")
    expect(page.get_by_role("button", name="Tie")).to_be_visible()
    page.locator("summary").press("Enter")
    expect(page.locator(".overview tbody").first).to_contain_text("ann")
    for _ in range(2):
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("1")
        expect(page.get_by_role("status").first).to_have_text("Saved: A is better")
        expect(page.locator("main")).not_to_have_attribute("aria-busy", "true")
    expect(page.locator(".overview tbody").first).to_contain_text("bob2 of 5")
    expect(page.locator(".overview")).to_contain_text("Krippendorff's alpha")
    page.set_viewport_size({"width": 360, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    page.get_by_label("Held-out prompts").select_option("with them")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as a file").press("Enter")
    download.value.save_as(tmp_path / "labels.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    assert download.value.suggested_filename == "low-pairs.jsonl"
    assert {"prompt", "chosen", "rejected"} <= rows[0].keys()
    assert not any(row["annotator"] == "ann" for row in rows)
    expect(page.locator(".overview")).to_contain_text(f"{len(rows)} lines")


def test_several_answers_are_ranked_by_keys(page, runs):
    page.goto("/labels#run=many&as=ann")
    state = page.get_by_role("status").first
    expect(page.get_by_label("Answer D")).to_be_visible()
    shown = page.locator(".side-card .text").all_inner_texts()
    page.keyboard.press("2")
    expect(page.get_by_role("button", name="Place 1")).to_be_visible()
    page.keyboard.press("Backspace")
    expect(page.get_by_role("button", name="Place 1")).to_have_count(0)
    for key in "312":
        page.keyboard.press(key)
    expect(state).to_have_text("Saved: ranking")
    with PreferenceStore(runs / "many" / "preferences.sqlite") as store:
        (event,) = store.labels()
        texts = [completion.text for completion in store.item(event.item_id).completions]
    order = sorted(range(4), key=event.ranks_of_item().__getitem__)
    assert [texts[i] for i in order] == [shown[i] for i in (2, 0, 1, 3)]
    page.get_by_role("button", name="Answer again").press("Enter")
    expect(page.get_by_label("Answer D")).to_be_visible()
    page.keyboard.press("t")
    expect(state).to_have_text("Saved: Tie")


def test_the_focus_stays_on_the_button_and_another_window_is_told_that_it_came_late(page):
    other = page.context.new_page()
    for window in (page, other):
        window.goto("/labels#run=low&as=carol&overlap=3")
        expect(window.get_by_role("button", name="Tie")).to_be_visible()
    page.get_by_role("button", name="Tie").press("Enter")
    expect(page.get_by_role("status").first).to_have_text("Saved: Tie")
    expect(page.get_by_role("button", name="Tie")).to_be_focused()
    other.keyboard.press("a")
    expect(other.get_by_role("status").first).to_have_text(
        "Not saved: carol has labeled this item in another window in the meantime"
    )
