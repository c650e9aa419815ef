"""Runs that appear and disappear while their page is open."""

import json
import shutil

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder that does not exist yet."""
    return tmp_path_factory.mktemp("appearing") / "runs"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a run somewhere else."""
    from operant import api

    path = tmp_path_factory.mktemp("trained") / "run"
    api.train("q-learning", "FrozenLake-v1", seeds=1, budget=500, run=path, progress="silent")
    return path


def test_the_first_run_appears_on_an_open_page_and_others_are_followed_after_one_is_deleted(page, runs, trained):
    page.goto("/runs")
    expect(page.locator(".empty-page")).to_contain_text("There is no folder of runs yet")
    for name in ("first", "second"):
        shutil.copytree(trained, runs / name)
    expect(page.locator("tr[data-run]")).to_have_count(2)
    expect(page.locator(".figure .curve")).not_to_have_count(0)
    for name in ("first", "second"):
        page.get_by_label(f"Select {name}").check()
    shutil.rmtree(runs / "first")
    expect(page.locator("tr[data-run]")).to_have_count(1)
    chart = page.locator(".figure").first
    chart.get_by_text("Table", exact=True).click()
    path = runs / "second" / "eval" / "evaluations.jsonl"
    record = json.loads(path.read_text().splitlines()[-1])
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record | {"consumed": 600, "iqm": 0.123456}) + "\n")
    expect(chart.locator("tbody tr").last).to_contain_text("0.123456")
    faults = [fault for fault in page.faults if "404" not in fault]
    assert faults == [], "except for a last request of the deleted run"
    page.faults.clear()
