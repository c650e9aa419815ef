import math
import re

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder with a run of PPO."""
    from operant import api

    path = tmp_path_factory.mktemp("explorables") / "runs"
    small = {"num_envs": 4, "num_steps": 32, "num_minibatches": 2, "hidden_sizes": (8,)}
    api.train("ppo", "CartPole-v1", seeds=2, budget=1024, run=path / "pole", progress="silent", **small)
    return path


def test_knobs_are_turned_by_keys_and_the_address_remembers_them(page):
    page.goto("/explorables")
    page.locator("main[data-ready]").wait_for()
    expect(page.locator(".explorable")).to_have_count(7)
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


def test_distributions_are_dragged(page):
    page.goto("/explorables")
    page.locator("main[data-ready]").wait_for()
    entropy = page.locator("[data-name='entropy of q, bits']")
    bar = page.get_by_role("slider", name="q, outcome 1")
    bar.focus()
    page.keyboard.press("PageUp")
    expect(bar).to_have_attribute("aria-valuenow", "0.350")
    expect(bar).to_be_focused()
    expect(page).to_have_url(re.compile(r"bits\.q1=0\.35&bits\.q2=0\.2167"))
    expect(entropy).not_to_have_attribute("data-value", "2")
    shares = [0.35, *[0.65 / 3] * 3]
    assert float(entropy.get_attribute("data-value")) == pytest.approx(-sum(p * math.log2(p) for p in shares), abs=1e-3)
    box = page.get_by_role("slider", name="p, outcome 4").locator(".reach").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.8)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.5)
    page.mouse.up()
    found = float(page.get_by_role("slider", name="p, outcome 4").get_attribute("aria-valuenow"))
    assert found == pytest.approx(0.5, abs=0.02)


def test_the_ratios_of_a_batch_are_dots_and_its_rollout_a_curve(page):
    page.goto("/explorables")
    page.locator("main[data-ready]").wait_for()
    page.get_by_label("Batch of a run").select_option("pole")
    expect(page.locator("#clip .dots")).to_have_count(2)
    expect(page.get_by_role("status").filter(has_text="samples")).to_have_text("the update from 896 on, 128 samples")
    expect(page.locator("#lambda svg .tick").filter(has_text="30")).to_have_count(1)
    beyond = page.locator("[data-name='KL of the update, nats']")
    assert float(beyond.get_attribute("data-value")) > 0
    page.get_by_label("Update, by the budget used").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("status").filter(has_text="samples")).to_contain_text("from 768 on")
    expect(page.get_by_label("Update, by the budget used")).to_be_focused()
    page.reload()
    page.locator("main[data-ready]").wait_for()
    expect(page.get_by_role("status").filter(has_text="samples")).to_contain_text("from 768 on")
    shown = page.locator("#clip .dots").first.get_attribute("d")
    page.get_by_label("Seed", exact=True).select_option("1")
    expect(page.locator("#clip .dots").first).not_to_have_attribute("d", shown)
    page.get_by_label("Rollout of environment").select_option("3")
    expect(page).to_have_url(re.compile(r"seed=1&env=3"))
    page.reload()
    page.locator("main[data-ready]").wait_for()
    expect(page.get_by_label("Seed", exact=True)).to_have_value("1")
    expect(page.get_by_label("Rollout of environment")).to_have_value("3")
    page.locator("#clip summary").press("Enter")
    expect(page.locator("#clip tbody th").filter(has_text="samples to be raised")).to_be_visible()
    page.get_by_label("Batch of a run").select_option("none")
    expect(page.locator("#clip .dots")).to_have_count(0)
    expect(page).to_have_url(re.compile(r"/explorables$"))


def test_the_line_of_lai_and_robbins_is_straight_on_a_logarithmic_axis(page):
    page.goto("/explorables")
    page.locator("main[data-ready]").wait_for()
    line = page.locator("#bandits .curve").first
    before = places(line)
    page.get_by_label("Logarithmic axis").press("Space")
    expect(line).not_to_have_attribute("d", path_of(before))
    points = places(line)
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(points, points[5::5], strict=False)]
    assert slopes == pytest.approx([slopes[0]] * len(slopes), rel=0.1)
    expect(page).to_have_url(re.compile(r"bandits\.x=log"))
    page.reload()
    page.locator("main[data-ready]").wait_for()
    expect(page.get_by_label("Logarithmic axis")).to_be_checked()
    expect(line).to_have_attribute("d", path_of(points))


def places(line):
    return [tuple(map(float, point.split())) for point in line.get_attribute("d")[1:].split("L")]


def path_of(points):
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def test_a_batch_of_a_diverged_run_is_an_error(page):
    def diverge(route):
        response = route.fetch()
        answer = response.json()
        if answer["done"]:
            answer["log_probs"] = [None] * len(answer["log_probs"])  # NaN in JSON
        route.fulfill(response=response, json=answer)

    page.route("**/travel/batch", diverge)
    page.goto("/explorables#run=pole")
    expect(page.locator("#clip [role=alert]")).to_contain_text("numbers, not NaN or Inf")
    expect(page.locator("#clip .dots")).to_have_count(0)
    page.faults[:] = [fault for fault in page.faults if "400" not in fault]


def test_a_run_in_training_is_followed_when_it_progresses(page):
    progress = {"consumed": 1024}

    def train(route):
        response = route.fetch()
        runs = [run | progress | {"outcome": "running"} for run in response.json()["runs"]]
        route.fulfill(response=response, json={"runs": runs})

    asked = []
    page.route("**/runs/index", train)
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("travel/batch") else None)
    page.clock.install()
    page.goto("/explorables#run=pole")
    expect(page.get_by_role("status").filter(has_text="samples")).to_be_visible()
    for consumed, loads in ((1024, True), (1024, False), (2048, True)):
        progress["consumed"] = consumed
        asked.clear()
        with page.expect_response("**/travel/batch" if loads else "**/runs/index"):
            page.clock.run_for(5100)
        page.wait_for_timeout(1000)
        assert bool(asked) == loads


def test_a_number_between_the_steps_of_a_knob_is_taken(page):
    page.goto("/explorables")
    page.locator("main[data-ready]").wait_for()
    page.get_by_label("ε above, as a number").fill("0.275")
    expect(page.locator("#clip .command code")).to_contain_text("clip_high=0.275,")
