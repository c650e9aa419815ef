"""Contents of runs are shown as text, never run as HTML or scripts (row F26)."""

import json

import pytest
from playwright.sync_api import expect

from web.folders import make_run  # type: ignore[import-not-found]

pytestmark = pytest.mark.slow

CORPUS = (
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    '"><svg onload=alert(1)>',
    "javascript:alert(1)",
    "<iframe srcdoc='<script>parent.alert(1)</script>'></iframe>",
    "{{constructor.constructor('alert(1)')()}}",
    "</textarea><details open ontoggle=alert(1)>",
    "' autofocus onfocus=alert(1) x='",
    "\u202e<b>backwards</b>\u2028\u0007",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder with a run whose metrics, settings, answers and reasons are hostile."""
    path = tmp_path_factory.mktemp("hostile") / "runs"
    run = make_run(path / "hostile", [[0.1, 0.2], [0.3, 0.4]], ended=False)
    run.end_session("failed", 2000, CORPUS[0])
    make_run(path / "plain", [[0.1, 0.2], [0.3, 0.4]], gamma=0.5)
    with run.metrics_path.open("w", encoding="utf-8") as file:
        for consumed in (10, 20):
            file.write(json.dumps({"consumed": consumed, **{name: [1.0, 2.0] for name in CORPUS}}) + "\n")
    with run.samples_path.open("w", encoding="utf-8") as file:
        for prompt in CORPUS:
            for text in (prompt, f"not {prompt}"):
                sample = {"consumed": 5, "seed": 0, "prompt": prompt, "completion": text, "reward": 1.0}
                file.write(json.dumps(sample | {"truncated": False, "temperature": 0.0}) + "\n")
    config = run.path / "config.toml"
    text = config.read_text(encoding="utf-8").replace('task = "FrozenLake-v1"', f"task = {json.dumps(CORPUS[2])}")
    notes = "".join(f"note{i} = {json.dumps(value)}\n" for i, value in enumerate(CORPUS) if "\u0007" not in value)
    config.write_text(text.replace("[config]\n", f"[config]\n{notes}"), encoding="utf-8")
    return path


@pytest.fixture
def watched(page):
    """Return a page that counts forbidden events: dialogs and violations of the Content-Security-Policy."""
    bad = []
    page.on("dialog", lambda dialog: (bad.append(dialog.message), dialog.dismiss()))
    page.add_init_script(
        "document.addEventListener('securitypolicyviolation', "
        "(event) => (window.violations ??= []).push(event.violatedDirective))"
    )
    yield page
    assert bad == []


def inert(page):
    assert page.evaluate("window.violations ?? []") == []
    assert (
        page.locator(
            "main img[src=x], main script, main iframe, main svg[onload], main [onfocus], main [ontoggle]"
        ).count()
        == 0
    )


def test_f26_a_run_is_shown_as_text(watched):
    watched.goto("/runs#runs=hostile")
    watched.locator("main[data-ready]").wait_for()
    expect(watched.get_by_role("row", name="hostile")).to_contain_text(CORPUS[2])
    configuration = watched.locator("details", has_text="Configuration").first
    expect(configuration).to_contain_text(CORPUS[1])
    expect(watched.locator(".travel .hint")).to_contain_text("is custom code")
    metrics = watched.get_by_label("Metric")
    for name in CORPUS[:3]:
        metrics.select_option(name)
        expect(watched.locator(".figure strong").first).to_contain_text(name)
        watched.get_by_text("Table", exact=True).first.click()
    inert(watched)
    watched.get_by_label("Select plain").check()
    expect(watched.locator("#comparison")).to_contain_text("What differs")
    inert(watched)


def test_f26_answers_and_prompts_are_shown_as_text(watched):
    watched.goto("/labels")
    watched.locator("main[data-ready], main .card").first.wait_for()
    inert(watched)
    watched.goto("/completions")
    watched.locator("main[data-ready], main .card").first.wait_for()
    inert(watched)


def test_f26_addresses_are_shown_as_text(watched):
    for page in ("/runs", "/completions", "/labels", "/chat", "/explorables", "/map", "/"):
        watched.goto(f"{page}#runs={CORPUS[0]}&q={CORPUS[1]}&metric={CORPUS[0]}&at={CORPUS[2]}&run={CORPUS[0]}")
        watched.locator("main > *").first.wait_for()
        watched.wait_for_timeout(300)
        inert(watched)
    watched.faults[:] = [fault for fault in watched.faults if "40" not in fault]  # paths that do not exist
