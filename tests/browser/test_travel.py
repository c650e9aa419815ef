"""Time travel on the page of a run, with keys and pointer."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from browser.waiting import route, until  # type: ignore[import-not-found]

pytestmark = pytest.mark.slow

UPDATE = 128


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder with a run of networks and a run of tables."""
    from operant import api

    path = tmp_path_factory.mktemp("travel") / "runs"
    small = {"num_envs": 4, "num_steps": 32, "num_minibatches": 2, "hidden_sizes": (8,), "keep_checkpoints": 4}
    api.train("ppo", "CartPole-v1", seeds=2, budget=2048, run=path / "pole", progress="silent", **small)
    api.train("q-learning", "FrozenLake-v1", seeds=2, budget=4000, run=path / "lake", progress="silent")
    return path


def state(page):
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).fragment).items()}


def opened(page, address):
    page.goto(address)
    page.locator("main[data-ready]").wait_for()
    expect(page.get_by_label("Update, by the budget used")).to_be_visible()
    expect(page.get_by_label("Update, by the budget used")).to_be_enabled()


def arrived(page, at):
    expect(page.locator(".arrival")).to_contain_text(re.compile(rf"Update at {at:,}[,.]"))


def test_one_goes_through_a_run_by_keys_alone(page):
    page.emulate_media(reduced_motion="reduce")  # nothing plays without a request
    opened(page, "/runs#runs=pole")
    page.keyboard.press("t")
    expect(page.get_by_label("Update, by the budget used")).to_be_focused()
    page.keyboard.press("ArrowLeft")  # the end of the run
    arrived(page, 2048)
    expect(page.locator(".badge")).to_have_text("verified")
    page.keyboard.press("ArrowLeft")
    arrived(page, 2048 - UPDATE)
    expect(page.locator(".badge")).to_have_text("not compared")
    page.keyboard.press("v")
    expect(page.locator(".badge")).to_have_text("confirmed at 2,048")
    page.keyboard.press("Shift+ArrowLeft")
    arrived(page, 2048 - 11 * UPDATE)
    page.keyboard.press("ArrowRight")
    arrived(page, 2048 - 10 * UPDATE)
    canvas = page.locator("canvas[data-step]")
    expect(canvas).to_have_attribute("data-step", "0")
    page.keyboard.press(".")
    page.keyboard.press(".")
    expect(canvas).to_have_attribute("data-step", "2")
    page.keyboard.press(",")
    expect(canvas).to_have_attribute("data-step", "1")
    page.keyboard.press("Shift+.")
    expect(canvas).not_to_have_attribute("data-step", "1")
    page.keyboard.press("]")
    expect(page.get_by_label("Speed")).to_have_value("2")
    page.keyboard.press("[")
    page.keyboard.press("[")
    expect(page.get_by_label("Speed")).to_have_value("0.5")
    step = canvas.get_attribute("data-step")
    expect(page.locator("dl.facts").first).to_contain_text(f"Step{step}")
    assert state(page) | {"step": step} == {"runs": "pole", "at": str(2048 - 10 * UPDATE), "step": step, "speed": "0.5"}
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    step = canvas.get_attribute("data-step")
    until(page, lambda: state(page).get("step", "0") == step)
    hash_before = page.locator(".hash").get_attribute("title")
    assert re.fullmatch("[0-9a-f]{64}", hash_before)
    page.reload()
    arrived(page, 2048 - 10 * UPDATE)
    expect(canvas).to_have_attribute("data-step", step)
    expect(page.locator(".hash")).to_have_attribute("title", hash_before)
    expect(page.get_by_label("Speed")).to_have_value("0.5")


def test_a_point_of_the_curve_is_clicked_and_dragged(page, runs):
    opened(page, "/runs#runs=pole")
    chart = page.locator(".stage .chart").first
    box = chart.bounding_box()
    at = lambda share: (box["x"] + 46 + share * (box["width"] - 58), box["y"] + box["height"] / 2)  # noqa: E731
    page.mouse.click(*at(0.5))
    expect(page.locator("canvas[data-step]")).to_be_visible()
    expect(page.locator(".arrival")).to_contain_text(re.compile(r"Update at 1,\d{3}[,.]"))
    expect(page.get_by_label("The policy in this state").locator("tbody tr")).to_have_count(2)
    first = int(state(page)["at"])
    assert first % UPDATE == 0
    page.mouse.move(*at(0.5))
    page.mouse.down()
    for share in (0.4, 0.3, 0.2):
        page.mouse.move(*at(share))
    page.mouse.up()
    expect(page.locator(".arrival")).to_contain_text(re.compile(r"Update at [2-6]\d\d[,.]"))
    last = int(state(page)["at"])
    assert last < first
    watch = page.locator(".travel .command code").first
    expect(watch).to_have_text(re.compile(rf"operant watch \S+pole --at {last}$"))
    page.get_by_role("radio", name="Sampled").click()
    page.get_by_label("Seed", exact=True).select_option("1")
    expect(watch).to_have_text(re.compile(rf"--at {last} --seed-index 1 --sample$"))
    assert state(page)["actions"] == "sampled"
    page.go_back()
    page.go_back()
    expect(page.get_by_role("radio", name="Greedy")).to_be_checked()
    for figure in page.locator(".travel .figure").all():
        if figure.is_visible():
            expect(figure.get_by_text("Table", exact=True)).to_be_visible()


def test_a_drag_that_ends_outside_the_curve_is_a_step_of_the_back_button(page):
    page.emulate_media(reduced_motion="reduce")
    opened(page, "/runs#runs=pole")
    box = page.locator(".stage .chart").first.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.click(x, y)
    arrival = page.locator(".arrival")
    expect(arrival).to_contain_text("Update at")
    until(page, lambda: f"Update at {int(state(page).get('at', 0)):,}" in arrival.inner_text())
    first = page.url
    there = arrival.inner_text()
    page.mouse.down()
    page.mouse.move(x - 150, y)
    until(page, lambda: "Update at" in (now := arrival.inner_text()) and now != there)
    page.wait_for_timeout(400)  # an episode that begins is remembered after a moment
    assert page.url == first
    page.mouse.move(x - 200, box["y"] - 30)
    page.mouse.up()
    expect(page).not_to_have_url(first)
    page.go_back()
    expect(page).to_have_url(first)


def test_the_back_button_returns_to_the_update_of_another_run(page):
    page.emulate_media(reduced_motion="reduce")
    opened(page, "/runs#runs=lake&at=1000")
    arrived(page, 1000)
    watch = page.locator(".travel .command code").first
    page.get_by_role("button", name="pole", exact=True).click()
    expect(watch).not_to_be_visible()
    expect(page.get_by_label("Update, by the budget used")).to_be_visible()
    page.keyboard.press("ArrowLeft")
    arrived(page, 2048)
    expect(watch).to_have_text(re.compile(r"pole --at 2048$"))
    while state(page)["runs"] != "lake":
        page.go_back()
    arrived(page, 1000)
    expect(watch).to_have_text(re.compile(r"lake --at 1000$"))
    expect(page.get_by_label("Update, by the budget used")).to_have_value("1000")


def test_the_table_of_a_grid_stands_next_to_the_exact_values(page):
    page.emulate_media(reduced_motion="reduce")
    opened(page, "/runs#runs=lake&at=1000&seed=1")
    arrived(page, 1000)
    cells = page.locator(".tables .world .cell")
    expect(cells).to_have_count(16)
    expect(page.locator(".tables .facts").first).to_contain_text("Maximum |V − V*|")
    value = cells.first.get_attribute("data-value")
    error = page.locator(".tables .facts dd").first.text_content()
    page.keyboard.press("Shift+ArrowRight")
    arrived(page, 4000)
    expect(cells.first).not_to_have_attribute("data-value", value)
    expect(page.locator(".tables .facts dd").first).not_to_have_text(error)
    page.get_by_role("radio", name="Errors").click()
    expect(page.locator(".tables .world")).to_have_attribute("data-view", "error")
    expect(cells.first).to_have_attribute("aria-label", re.compile("row 1 column 1, start, value .* best action"))


def test_two_runs_have_no_updates_to_go_to_and_a_run_is_left(page):
    opened(page, "/runs#runs=pole&at=512")
    arrived(page, 512)
    page.get_by_label("Select lake").check()
    expect(page.get_by_label("Time travel", exact=True)).to_be_hidden()
    page.get_by_role("button", name="lake", exact=True).first.click()
    expect(page.get_by_label("Time travel", exact=True)).to_be_visible()
    assert "at" not in state(page)


def test_an_update_that_is_not_there_is_named(page):
    opened(page, "/runs#runs=pole&at=999999")
    expect(page.locator(".travel [role=alert]")).to_contain_text("at must be an integer between 0 and 2048")
    page.faults[:] = [fault for fault in page.faults if "400" not in fault]  # the console reports the response


def test_nothing_is_wider_than_a_phone(page):
    page.set_viewport_size({"width": 360, "height": 800})
    page.emulate_media(reduced_motion="reduce")
    opened(page, "/runs#runs=lake&at=2000")
    arrived(page, 2000)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


AGAIN = """async () => {
    const { Theater } = await import("/static/js/theater.js");
    const same = { frame: null, obs: [], score: 0, value: null };
    const waiting = [];
    window.fetch = (_, { body }) => new Promise((resolve) => waiting.push(() => {
        const { start } = JSON.parse(body);
        const scenes = Array.from({ length: 40 }, (_, i) => ({ ...same, step: start + i, ended: start + i === 119 }));
        resolve(new Response(JSON.stringify({ away: false, rate: 30, ended: start === 80, scenes })));
    }));
    const pause = () => new Promise((resolve) => setTimeout(resolve, 20));
    const theater = new Theater({ run: "lake", changed() {}, placed() {}, away() {}, fail(error) { throw error; } });
    theater.name([0]);
    theater.describe = () => {};
    theater.begin(5);
    waiting.shift()();
    await pause();
    theater.begin(5);
    for (; waiting.length; await pause()) waiting.shift()();
    return theater.scenes.map((scene) => scene.step);
}"""


def test_an_episode_that_begins_again_while_it_loads_is_in_order(page):
    page.goto("/map", wait_until="networkidle")
    steps = page.evaluate(AGAIN)
    assert steps == list(range(len(steps)))
    assert len(steps) >= 80


MASKS = """async ([text, actions]) => {
    const { unpack } = await import("/static/js/dom.js");
    const { actionNames, masksOf } = await import("/static/js/gridview.js");
    return [...masksOf(unpack(text, "u1"), actions)].map(actionNames);
}"""


@pytest.mark.parametrize("actions", [4, 20, 70])
def test_policies_of_any_number_of_actions_are_decoded(page, tmp_path, actions):
    from operant import api
    from operant.web.tables import Tables

    task = {"task": "operant/Gambler-v0", "env_kwargs": {"goal": 2 * actions}}
    run = api.train("q-learning", **task, budget=500, run=tmp_path / "run", progress="silent")
    page.goto("/map", wait_until="networkidle")
    found = page.evaluate(MASKS, [Tables(run).show(0)["policy"], actions])
    names = ["up", "right", "down", "left", "up right", "down right", "down left", "up left", "stay"]
    expected = run.experiment.learner.policy()[0] > 0
    assert found == [[name for name, best in zip(names, row, strict=False) if best] for row in expected]


def test_the_slider_of_the_episode_is_moved_by_arrows(page):
    page.emulate_media(reduced_motion="reduce")
    opened(page, "/runs#runs=pole&at=1024")
    arrived(page, 1024)
    canvas = page.locator("canvas[data-step]")
    expect(canvas).to_have_attribute("data-step", "0")
    page.get_by_label("Step of the episode").focus()
    page.keyboard.press("ArrowRight")
    expect(canvas).to_have_attribute("data-step", "1")
    arrived(page, 1024)


def test_the_back_button_leaves_the_update(page):
    opened(page, "/runs#runs=pole")
    box = page.locator(".stage .chart").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator(".arrival")).to_be_visible()
    expect(page).to_have_url(re.compile(r"at=\d+$"))
    page.go_back()
    expect(page.locator(".arrival")).to_be_hidden()
    expect(page.locator(".travel .track .position").first).to_have_text("")
    assert "at" not in state(page)


def test_a_change_during_the_back_button_does_not_undo_it(page):
    opened(page, "/runs#runs=pole")
    page.evaluate("location.hash = 'runs=pole&at=1024'")
    arrived(page, 1024)
    page.get_by_label("Speed").evaluate("""(speed) => addEventListener("popstate", () => {
        speed.value = 2;
        speed.dispatchEvent(new Event("change"));
    })""")
    page.go_back()
    expect(page.locator(".arrival")).to_be_hidden()
    expect(page).to_have_url(re.compile("#runs=pole$"))


def test_an_answer_after_the_back_button_does_not_return_to_the_update(page):
    opened(page, "/runs#runs=pole")
    pending = []
    route(page, "**/travel/go", lambda request: pending.append(request))  # noqa: PLW0108 - a method of C has no attributes
    box = page.locator(".stage .chart").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    until(page, lambda: len(pending) == 1)
    page.wait_for_timeout(500)  # after which the page shows how far the computation is
    pending[0].fulfill(json={"done": False, "consumed": 128})
    expect(page.locator(".arrival")).to_contain_text("Computing again: 128")
    until(page, lambda: len(pending) == 2)
    expect(page).to_have_url(re.compile(r"at=\d+$"))
    page.go_back()
    expect(page.locator(".arrival")).to_be_hidden()
    pending[1].fulfill(json={"done": False, "consumed": 256})
    page.wait_for_timeout(500)
    expect(page.locator(".arrival")).to_be_hidden()
    expect(page.locator(".travel progress")).to_be_hidden()
    assert len(pending) == 2


def test_scenes_that_cannot_be_loaded_stop_the_episode(page):
    opened(page, "/runs#runs=pole&at=1024&actions=sampled")
    arrived(page, 1024)
    asked = []

    def refuse(request):
        asked.append(request)
        request.abort()

    page.get_by_label("Speed").select_option("0.25")
    page.get_by_role("button", name="Play", exact=True).click()
    route(page, "**/travel/scenes", refuse)
    page.get_by_role("radio", name="Greedy").click()
    expect(page.locator(".travel [role=alert]")).to_contain_text("the server does not respond")
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()
    page.wait_for_timeout(500)
    assert len(asked) < 5
    page.faults[:] = [fault for fault in page.faults if "ERR_FAILED" not in fault]


def test_two_windows_do_not_take_the_run_from_each_other(page):
    other = page.context.new_page()
    asked = []
    for one, address in ((page, "/runs#runs=pole&at=1024"), (other, "/runs#runs=lake&at=1000")):
        one.on("request", lambda request: asked.append(request.url) if "/travel/" in request.url else None)
        one.goto(address)
    page.wait_for_timeout(4000)
    asked.clear()
    page.wait_for_timeout(3000)
    assert len(asked) < 30  # more than a hundred if each takes it as soon as it can
