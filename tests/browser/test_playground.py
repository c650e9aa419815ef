import json
import re

import pytest
from playwright.sync_api import expect

from operant.cli import main
from operant.web.worlds import WORLDS

pytestmark = pytest.mark.slow


def open_at(page, fragment):
    page.goto(f"/#v=1&{fragment}")
    page.locator("main[data-ready]").wait_for()


def values(page, slot="a", kind="value"):
    """Read the numbers of the cells from the page."""
    cells = page.locator(f".panel.{slot} [data-state]")
    return [float(text) for text in cells.evaluate_all(f"cells => cells.map((cell) => cell.dataset.{kind})")]


def state_of(page):
    return page.evaluate("location.hash")


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_the_numbers_of_every_world_are_those_of_solve(page, world, tmp_path, capsys):
    open_at(page, f"world={world.name}&a=value-iteration")
    page.get_by_role("button", name="Last frame").click()
    drawing = tmp_path / "world.txt"
    drawing.write_text(world.drawing, encoding="utf-8")
    assert main(["solve", "--map", str(drawing), "--gamma", str(world.gamma), "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)["values"]
    assert values(page, kind="exact") == pytest.approx(expected, abs=1e-9)
    assert values(page) == pytest.approx(expected, abs=1e-9)


def test_the_trap_is_picked_up_and_put_down(page):
    open_at(page, "world=trap&a=value-iteration")
    before = values(page, kind="exact")
    page.locator('[data-state="27"]').click()
    expect(page.locator('[data-state="27"]')).to_have_class(re.compile("held"))
    page.locator('[data-state="5"]').click()
    expect(page.locator('[data-state="5"]')).to_have_class(re.compile("end"))
    expect(page.locator("main")).to_have_attribute("data-ready", "2")
    after = values(page, kind="exact")
    assert after[27] > 0
    assert after[5] == 0
    assert after[4] < before[4]
    page.keyboard.press("Control+z")
    expect(page.locator("main")).to_have_attribute("data-ready", "3")
    assert values(page, kind="exact") == before
    page.keyboard.press("Control+Shift+z")
    expect(page.locator("main")).to_have_attribute("data-ready", "4")
    assert values(page, kind="exact") == after


def test_the_address_holds_all_of_it(page):
    open_at(page, "world=trap&a=policy-iteration")
    page.get_by_role("radio", name="Wall").click()
    page.locator('[data-state="20"]').click()
    expect(page.locator("main")).to_have_attribute("data-ready", "2")  # edits in quick succession become one
    page.get_by_label("Discount γ", exact=True).fill("0.8")
    expect(page.locator("main")).to_have_attribute("data-ready", "3")
    page.get_by_role("radio", name="Q", exact=True).click()
    page.keyboard.press("End")
    seen, address = values(page), page.url
    assert len(address) < 2000
    page.goto("about:blank")
    page.goto(address)
    page.locator("main[data-ready]").wait_for()
    assert values(page) == seen
    assert page.get_by_role("radio", name="Q", exact=True).get_attribute("aria-checked") == "true"
    page.go_back()


def test_two_algorithms_run_side_by_side_on_one_seed(page):
    open_at(page, "world=dyna&a=q-learning&stride=10&alpha=0.5")
    page.get_by_role("button", name="Compare with another").click()
    page.get_by_label("Algorithm B").get_by_role("combobox").select_option("q-learning")
    expect(page.locator(".panel.b [data-fact]").first).to_be_visible()
    page.keyboard.press("End")
    assert values(page, "a") == values(page, "b")
    page.get_by_label("Algorithm B").get_by_role("combobox").select_option("dyna-q")
    expect(page.locator(".panel.b [data-fact]").first).to_be_visible()
    page.keyboard.press("End")
    errors = [float(page.locator(f'.panel.{slot} [data-fact="Distance to V*"]').inner_text()) for slot in "ab"]
    assert errors[1] < errors[0]
    expect(page.get_by_text("Return of episodes")).to_be_visible()


def test_frames_are_stepped_played_and_scrubbed_by_keys(page):
    open_at(page, "world=trap&a=value-iteration&speed=40")
    position = page.locator(".position")
    for key, where in ((".", "1 / 15"), (".", "2 / 15"), (",", "1 / 15"), (">", "11 / 15"), ("Home", "0 / 15")):
        page.keyboard.press(key)
        expect(position).to_have_text(where)
    page.keyboard.press(" ")
    expect(position).to_have_text("15 / 15")
    assert "frame=15" in state_of(page)
    expect(page.locator(".phase")).to_have_text("Sweep 15: finished")


def test_a_large_grid_has_the_colors_of_a_small_one(page):
    """Blend one pixel per cell like the style of an element in both themes, and map clicks to the visible cells."""
    rows = "/".join(["40."] * 39 + ["39.G"])
    open_at(page, f"world=trap&grid={rows}&a=value-iteration&gamma=0.9")
    page.get_by_role("button", name="Last frame").click()
    numbers = values(page)
    assert numbers[1598] == pytest.approx(1)
    colors = """states => {
      const canvas = document.querySelector(".panel.a .pixels"), pixels = canvas.getContext("2d"), probe = new OffscreenCanvas(1, 1).getContext("2d");
      return states.map(([state, percent]) => {
        const element = document.querySelector(".pixel-probe") ?? document.body.appendChild(Object.assign(document.createElement("i"), { className: "pixel-probe" }));
        element.style.color = `color-mix(in oklab, var(--pos) ${percent}%, var(--cell))`;
        probe.fillStyle = getComputedStyle(element).color;
        probe.fillRect(0, 0, 1, 1);
        const found = pixels.getImageData(state % canvas.width, Math.floor(state / canvas.width), 1, 1).data;
        return [[...found], [...probe.getImageData(0, 0, 1, 1).data]];
      });
    }"""  # noqa: E501
    states = [[state, round(numbers[state] ** 0.75 * 80)] for state in (0, 780, 1200, 1550, 1558, 1598)]
    light = page.evaluate(colors, states)
    assert all(found == expected for found, expected in light)
    assert len({tuple(found) for found, _ in light}) > 3
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(
        "before => document.querySelector('.panel.a .pixels').getContext('2d')"
        ".getImageData(38, 39, 1, 1).data[0] !== before",
        arg=light[-1][0][0],
    )
    assert all(found == expected for found, expected in page.evaluate(colors, states))
    page.locator('[data-state="1599"]').click()
    expect(page.locator('[data-state="1599"]')).to_have_class(re.compile("held"))
    box = page.locator(".panel.a .world").bounding_box()
    page.mouse.click(box["x"] + 10.5 / 40 * box["width"], box["y"] + 20.5 / 40 * box["height"])
    expect(page.locator('[data-state="810"]')).to_have_class(re.compile("end"))


def test_a_world_is_painted_by_the_keyboard_alone(page):
    open_at(page, "world=maze&a=value-iteration")
    page.get_by_role("radio", name="Wall").focus()
    page.keyboard.press("Enter")
    page.locator('[data-state="0"]').focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator('[data-state="1"]')).to_have_attribute("aria-label", re.compile("row 1 column 2, wall"))
    expect(page.locator("main")).to_have_attribute("data-ready", "2")
    assert "grid=" in state_of(page)
    page.keyboard.press("End")
    label = page.locator('[data-state="0"]').get_attribute("aria-label")
    assert re.fullmatch(r"row 1 column 1, start, value [\d.−]+, best action .+", label)


def test_an_error_is_shown_until_it_is_fixed(page):
    open_at(page, "world=trap&a=value-iteration")
    page.get_by_text("Size and rules").click()
    page.get_by_label("Slip").fill("2")
    page.get_by_label("Slip").press("Enter")
    alert = page.locator(".panel [role=alert]")
    expect(alert).to_contain_text("slip must be a probability")
    page.get_by_label("Slip").fill("0.1")
    page.get_by_label("Slip").press("Enter")
    expect(alert).to_be_hidden()
    page.faults[:] = [fault for fault in page.faults if "400" not in fault]  # the browser reports the rejected request


def test_the_model_that_is_saved_is_solved_alike(page, tmp_path, capsys):
    open_at(page, "world=lake&a=value-iteration")
    page.get_by_text("Files and link").click()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save model").click()
    saved.value.save_as(tmp_path / "world.json")
    assert main(["solve", "--mdp", str(tmp_path / "world.json"), "--gamma", "0.99", "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)["values"]
    assert values(page, kind="exact") == pytest.approx(expected, abs=1e-9)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save drawing").click()
    saved.value.save_as(tmp_path / "world.txt")
    command = page.locator(".command code").first.inner_text().replace("world.txt", str(tmp_path / "world.txt"))
    assert main([*command.split()[1:], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["values"]
    assert values(page, kind="exact") == pytest.approx(found, abs=2e-9)


@pytest.mark.parametrize(("width", "dark"), [(360, False), (360, True), (1600, False)])
def test_nothing_sticks_out(browser, server, width, dark):
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light", base_url=server.address
    )
    page = context.new_page()
    page.set_default_timeout(200_000)
    for address in ("/#v=1&world=cliff&a=sarsa&b=q-learning", "/runs", "/map", "/labels"):
        page.goto(address)
        page.locator("main[data-ready]").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, address
    context.close()
