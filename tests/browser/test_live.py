"""Runs that are trained, deleted, pinned and compared while their page is open."""

import json
import re
import shutil

import pytest
from playwright.sync_api import expect

from browser.waiting import route, until  # type: ignore[import-not-found]
from web.folders import make_run  # type: ignore[import-not-found]

pytestmark = pytest.mark.slow

METRIC = "rollout/exploration_rate"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder with three runs of three seeds, one of them with a constant metric."""
    path = tmp_path_factory.mktemp("live") / "runs"
    for name, gamma in (("one", 0.5), ("two", 0.6), ("three", 0.7)):
        make_run(path / name, [[0.1, 0.2, 0.3], [0.3, 0.4, 0.5]], gamma=gamma)
    records = [json.dumps({"consumed": 10 * i, METRIC: [0.1] * 3}) + "\n" for i in range(1, 6)]
    (path / "one" / "metrics.jsonl").write_text("".join(records), encoding="utf-8")
    return path


def opened(page, address):
    page.goto(address)
    page.locator("main[data-ready]").wait_for()


def grow(run, consumed):
    path = run / "eval" / "evaluations.jsonl"
    record = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record | {"consumed": consumed}) + "\n")


def test_a_constant_metric_of_several_seeds_is_a_flat_line(page):
    opened(page, "/runs#runs=one")
    page.get_by_label("Metric").select_option(METRIC)  # the mean of 0.1, 0.1 and 0.1 is 0.1 and one rounding error
    chart = page.locator(".figure").first
    chart.get_by_text("Table", exact=True).click()
    expect(chart.locator("tbody td").first).to_have_text("0.1")
    assert len(set(re.findall(r" (\d+\.\d)", chart.locator(".curve").get_attribute("d")))) == 1


def test_a_comparison_leaves_out_a_run_that_is_gone(page, runs):
    shutil.copytree(runs / "one", runs / "gone")
    opened(page, "/runs#runs=one,gone,two&pin=gone")
    expect(page.locator("#comparison .pins button")).to_have_text(["gone", "one", "two"])
    shutil.rmtree(runs / "gone")
    expect(page.locator("#comparison .pins button")).to_have_text(["one", "two"])
    expect(page.locator(".list")).to_contain_text("There is no run gone.")
    page.faults[:] = [fault for fault in page.faults if "404" not in fault]  # it may be requested once more


def test_a_pinned_run_is_selected_too(page):
    opened(page, "/runs#runs=one")
    page.get_by_label("Select two").focus()
    page.keyboard.press("p")
    expect(page.get_by_label("Select two")).to_be_checked()
    expect(page.locator("#comparison .pins button")).to_have_text(["two", "one"])
    expect(page.locator(".figure .curve")).to_have_count(2)


def test_keys_of_the_browser_are_left_to_it(page):
    opened(page, "/runs#runs=one")
    page.evaluate("addEventListener('keydown', (event) => (window.prevented = event.defaultPrevented))")
    page.get_by_label("Select two").check()
    for keys in ("Control+p", "Control+c", "Alt+ArrowLeft"):
        page.keyboard.press(keys)
        assert page.evaluate("window.prevented") is False
    assert "pin" not in page.url


def test_a_growing_run_leaves_opened_parts_and_the_focus_alone(page, runs):
    opened(page, "/runs#runs=one")
    page.get_by_text("Sessions", exact=True).click()
    chart = page.locator(".figure").first
    chart.get_by_text("Table", exact=True).click()
    page.get_by_role("button", name="two", exact=True).focus()
    grow(runs / "one", 3000)
    expect(chart.locator("tbody th").last).to_have_text("3,000")
    expect(page.locator("tr[data-run=one] .state")).to_have_text("finished")
    page.wait_for_timeout(2500)  # the list is read again
    expect(page.get_by_role("columnheader", name="Started")).to_be_visible()
    expect(page.get_by_role("button", name="two", exact=True)).to_be_focused()


def test_of_many_selected_runs_some_are_followed(page, runs):
    for i in range(70):
        shutil.copytree(runs / "two", runs / "many" / str(i))
    with page.expect_response(re.compile("/events")) as followed:
        page.goto("/runs#runs=" + ",".join(f"many/{i}" for i in range(70)))
    assert followed.value.status == 200
    expect(page.locator(".figure").first.locator(".curve")).to_have_count(70)
    page.goto("about:blank")
    shutil.rmtree(runs / "many")


def test_events_wait_for_the_answers_to_earlier_ones(page, runs):
    asked, held = [], []

    def hold(request):
        held.append(request)

    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    opened(page, "/runs#runs=one,two")
    expect(page.locator("#comparison .pins")).to_be_visible()
    route(page, "**/api/runs/compare", hold)
    asked.clear()

    def several():
        grow(runs / "two", 4000 + len(asked))
        return asked.count("curves") >= 2 and "compare" in asked

    until(page, several)
    assert asked.count("compare") == 1
    with page.expect_request("**/api/runs/compare"):
        held[0].continue_()
