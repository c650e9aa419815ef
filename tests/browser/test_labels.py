import shutil

import pytest
from playwright.sync_api import expect

from operant.language.preferences import PreferenceStore

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(runs, tmp_path_factory):
    """Give a folder in which nobody has labeled or reserved an answer."""
    path = tmp_path_factory.mktemp("labels") / "runs"
    shutil.copytree(runs, path, ignore=shutil.ignore_patterns("preferences*"))
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
    page.faults[:] = [fault for fault in page.faults if "ERR_CONNECTION" not in fault]
