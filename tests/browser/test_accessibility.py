"""axe-core has no findings on any page, in both themes and four widths, and no page is wider than its window.

Of the time of axe-core, three quarters go into the contrast of colors. No style sheet makes a color depend on the width
of a page (which a test keeps so), so that colors are read on the narrowest and the widest page of each theme.
"""

import json
import re
import shutil
from importlib.resources import files

import pytest
from playwright.sync_api import expect

from operant import api
from operant.language.preferences import PreferenceStore, add_samples

axe = pytest.importorskip("axe_playwright_python.base")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # six readings of a page

WIDTHS = (360, 768, 1280, 1440)
READINGS = [
    *(("light", width, "all" if width in (WIDTHS[0], WIDTHS[-1]) else "but colors") for width in WIDTHS),
    *(("dark", width, "colors") for width in (WIDTHS[0], WIDTHS[-1])),
]
"""Theme, width, and the rules that are read."""
PAGES = {
    "playground": "/",
    "two algorithms": "/#a=q-learning&b=sarsa&view=q",
    "runs": "/runs#runs=low,high",
    "travel": "/runs#runs=low",
    "completions": "/completions#run=words&source=training&seed=0&at=4&with=8",
    "chat": "/chat#a=words&b=words&reward=judge&max_tokens=8&say=1%2B1%3D&say=caf%C3%A9",
    "ledger": "/completions#run=words&source=training&seed=0&at=8",
    "labels": "/labels",
    "labeling": "/labels#run=low&as=axe",
    "agreement": "/labels#run=low&as=bob&overlap=2",
    "ranking": "/labels#run=many&as=axe",
    "explorables": "/explorables",
    "batch of a run": "/explorables#run=pole&seed=1&env=2&bandits.x=log",
    "batch of tokens": "/explorables#run=words",
    "map": "/map",
}
SECTIONS = "[...document.querySelectorAll('main section[id]')].map((section) => [section.id, section.outerHTML])"
RUN = """([context, rules, colors]) => axe.run(context, {
    resultTypes: ['violations'],
    ...(rules === 'colors' && {runOnly: {type: 'rule', values: colors}}),
    ...(rules === 'but colors' && {rules: Object.fromEntries(colors.map((name) => [name, {enabled: false}]))}),
}).then((results) => results.violations)"""
COLORS = ["color-contrast", "link-in-text-block"]
"""The rules that depend on the theme: the others read elements and their places, which are the same in both themes."""


@pytest.fixture(scope="module")
def runs(runs, tmp_path_factory):
    """Return the folder of runs with a run of PPO and a run with answers to rank."""
    path = tmp_path_factory.mktemp("axe") / "runs"
    shutil.copytree(runs, path, ignore=shutil.ignore_patterns("preferences*"))
    small = {"num_envs": 4, "num_steps": 32, "num_minibatches": 2, "hidden_sizes": (8,)}
    api.train("ppo", "CartPole-v1", seeds=2, budget=512, run=path / "pole", progress="silent", **small)
    (path / "many" / "eval").mkdir(parents=True)
    shutil.copy(path / "low" / "config.toml", path / "many")
    samples = path / "many" / "eval" / "samples.jsonl"
    same = {"consumed": 5, "seed": 0, "prompt": "rank these", "reward": 0.0, "truncated": False, "temperature": 0.0}
    samples.write_text("".join(json.dumps(same | {"completion": f"answer {i}"}) + "\n" for i in range(4)), "utf-8")
    with PreferenceStore(path / "many" / "preferences.sqlite") as store:
        add_samples(store, samples, run="many", completions=4)
    return path


@pytest.fixture(scope="module")
def clean():
    """Return the set of sections without findings, with their addresses, themes and widths.

    Most sections of the explorables are the same whichever batch is shown. axe-core takes a second for each of them.
    """
    return set()


def findings(page, *, but=(), rules="all"):
    """Return the findings of axe-core, loaded into the page, outside the sections `but`.

    The rules are `all`, `colors` or `but colors`.
    """
    context = {"include": [["html"]], "exclude": [[f"#{section}"] for section in but]}
    return page.evaluate(RUN, [context, rules, COLORS])


def prepare(page, name):
    """Bring a page into the named state."""
    for summary in page.locator("main summary").all():
        summary.evaluate("(one) => (one.parentElement.open = true)")
    if name == "ledger":
        page.locator("button.open").first.press("Enter")
        expect(page.locator(".ledger table").first).to_be_visible()
    elif name == "ranking":
        page.keyboard.press("2")
        expect(page.get_by_role("button", name="Place 1")).to_be_visible()
    elif name == "agreement":
        expect(page.locator(".overview table").first).to_be_visible()
    elif name.startswith("batch"):
        expect(page.locator("#clip [data-name='ratios beyond the range']")).to_be_visible()


def label_as(page, name):
    """Label two prompts."""
    page.goto(f"/labels#run=low&as={name}&overlap=2")
    for key, said in (("a", "A is better"), ("t", "Tie")):
        expect(page.get_by_role("button", name="Tie")).to_be_visible()
        page.keyboard.press(key)
        expect(page.get_by_role("status").first).to_have_text(f"Saved: {said}")


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(page, name, clean):
    page.emulate_media(reduced_motion="reduce")
    if name == "agreement":
        for annotator in ("ann", "bob"):
            label_as(page, annotator)
            page.goto("about:blank")
    page.goto(PAGES[name])
    page.locator("main[data-ready]").wait_for()
    prepare(page, name)
    page.evaluate(axe.AXE_SCRIPT)
    found = {}
    for theme, width, rules in READINGS:
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(150)
        where = PAGES[name].partition("#")[0], theme, width
        sections = {section: (*where, html) for section, html in page.evaluate(SECTIONS)}
        known = [section for section, state in sections.items() if state in clean]
        violations = findings(page, but=known, rules=rules)
        found |= {(one["id"], node["html"]): (theme, width) for one in violations for node in one["nodes"]}
        clean.update(() if violations else sections.values())
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, f"{width} overflows"
    assert found == {}
    page.faults[:] = [fault for fault in page.faults if "400" not in fault]  # text that the tokenizer does not support


def test_axe_finds_what_is_wrong(page):
    page.goto("/map")
    page.locator("main[data-ready]").wait_for()
    page.evaluate("document.querySelector('main input').removeAttribute('aria-label')")
    page.evaluate("document.querySelector('main input').removeAttribute('placeholder')")
    page.evaluate(
        "document.querySelector('main').prepend(Object.assign(document.createElement('p'), {textContent: 'pale'}))"
    )
    page.evaluate("document.querySelector('main p').style = 'color: #eee; background: #fff'")
    page.evaluate(axe.AXE_SCRIPT)
    assert {one["id"] for one in findings(page)} == {"label", "color-contrast"}
    assert [one["id"] for one in findings(page, rules="colors")] == ["color-contrast"]
    assert [one["id"] for one in findings(page, rules="but colors")] == ["label"]


def test_no_color_depends_on_the_width():
    style = files("operant.web").joinpath("static", "style.css").read_text(encoding="utf-8")
    blocks = re.findall(r"@media \((?:max|min)-width[^{]*\{((?:[^{}]*\{[^}]*\})*)", style)
    assert len(blocks) > 5
    assert not [block for block in blocks if re.search(r"color|background|var\(--|opacity|#[0-9a-f]{3}", block)]
