import json
import re
import shutil

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.slow


def test_runs_are_listed_compared_and_pinned(page):
    page.goto("/runs")
    page.locator("main[data-ready]").wait_for()
    expect(page.locator("tr[data-run]")).to_have_count(4)
    page.get_by_label("Select low").check()
    page.get_by_label("Select high").check()
    differ = page.locator(".differ tbody tr")
    expect(differ).to_have_count(1)
    expect(differ).to_contain_text("gamma")
    expect(page.locator(".figure .band")).to_have_count(2)
    page.locator(".pins").get_by_role("button", name="high").click()
    expect(page.locator("#comparison .command code")).to_have_text(re.compile(r"operant compare .*high .*low"))
    assert "pin=high" in page.url
    page.get_by_role("radio", name="Seeds").click()
    expect(page.locator(".figure .curve.faint")).to_have_count(6)
    page.reload()
    expect(page.locator(".figure .curve.faint")).to_have_count(6)


def test_a_curve_grows_while_it_is_looked_at(page, runs):
    page.goto("/runs#runs=high")
    page.locator("main[data-ready]").wait_for()
    chart = page.locator(".figure").first
    chart.get_by_text("Table", exact=True).click()
    rows = chart.locator("tbody tr")
    expect(rows).not_to_have_count(0)
    count = rows.count()
    path = runs / "high" / "eval" / "evaluations.jsonl"
    record = json.loads(path.read_text().splitlines()[-1])
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record | {"consumed": 3000, "iqm": 0.123456}) + "\n")
    expect(rows).to_have_count(count + 1)
    expect(rows.last).to_contain_text("0.123456")


def test_a_damaged_run_is_described_by_its_error(page, runs):
    damaged = runs / "damaged"
    damaged.mkdir()
    try:
        (damaged / "config.toml").write_text("[settings")
        page.goto("/runs#runs=high")
        page.locator("main[data-ready]").wait_for()
        expect(page.get_by_role("region", name="high")).to_be_visible()
        page.get_by_role("button", name="damaged", exact=True).click()
        expect(page.get_by_text("config.toml is not TOML: Expected ']'")).to_be_visible()
        expect(page.get_by_role("region", name="high")).to_have_count(0)
    finally:
        shutil.rmtree(damaged)


def test_the_title_of_the_curves_names_the_metric(page):
    page.goto("/runs#runs=high")
    page.locator("main[data-ready]").wait_for()
    score = "Score of greedy evaluations: IQM and 95 % interval"
    expect(page.locator(".stage .figure strong").first).to_have_text(score)
    expect(page.get_by_role("img", name=score)).to_be_visible()
    page.get_by_role("combobox", name="Metric").select_option(index=1)
    expect(page.get_by_role("img", name=": mean, minimum and maximum of the seeds")).to_be_visible()
    expect(page.get_by_role("img", name=score)).to_have_count(0)


def test_runs_are_filtered(page):
    page.goto("/runs")
    page.locator("main[data-ready]").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("hi frozen")
    expect(page.locator("tr[data-run]")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator("tr[data-run]")).to_have_count(4)


def test_the_map_names_a_command_for_every_leaf(page):
    page.goto("/map")
    page.locator("main[data-ready]").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("clipped objective")
    expect(page.locator(".leaf-detail .command code").first).to_have_text("operant train ppo CartPole-v1")
    leaves = page.locator(".leaf")
    assert leaves.count() > 40
    leaves.first.click()
    expect(page.locator(".leaf-detail .command code").first).to_have_text(
        "operant solve FrozenLake-v1 --method policy-iteration"
    )
    assert "at=solve" in page.url
