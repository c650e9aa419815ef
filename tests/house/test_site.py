"""What the pages show beyond their text: diagrams, the gallery, equations."""

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")
pytest.importorskip("latex2mathml")

SITE = Path(__file__).resolve().parents[2] / "docs" / "site"
sys.path.insert(0, str(SITE))
import diagrams
import equations
import gallery

sys.path.remove(str(SITE))

from operant import catalog

ROOT = SITE.parents[1]


@pytest.mark.parametrize("name", diagrams.DIAGRAMS)
def test_diagrams_are_pictures_with_words_within_their_frame(name):
    drawing = diagrams.DIAGRAMS[name]()
    svg = ET.fromstring(drawing.svg()).find("svg")
    assert svg.find("title").text
    assert svg.find("desc").text
    for text in svg.iter("text"):
        assert 0 <= float(text.get("x")) <= drawing.width
        assert 0 <= float(text.get("y")) <= drawing.height
    for rect in svg.iter("rect"):
        assert float(rect.get("x")) + float(rect.get("width")) <= drawing.width
        assert float(rect.get("y")) + float(rect.get("height")) <= drawing.height


def test_the_taxonomy_has_every_algorithm_of_its_packages():
    words = " ".join(t.text for t in ET.fromstring(diagrams.taxonomy().svg()).iter("text"))
    names = [name.strip(",") for name in words.split()]
    wanted = [a.name for a in catalog.ALGORITHMS if a.package in ("tabular", "control", "language")]
    assert [name for name in wanted if name not in names] == []


def test_marks_of_diagrams_are_replaced():
    page = "a\n\n<!-- diagram: dqn -->\n\nb"
    shown = diagrams.on_page_markdown(page, page=None, config=None, files=None)
    assert "<svg" in shown
    assert "<!--" not in shown
    with pytest.raises(KeyError):
        diagrams.on_page_markdown("<!-- diagram: nothing -->", page=None, config=None, files=None)


def test_the_gallery_has_every_experiment_and_its_verdict():
    found = {experiment.name: experiment for experiment in gallery.experiments(ROOT / "experiments")}
    listed = {path.stem for path in (ROOT / "experiments").glob("*.py")}
    assert found.keys() <= listed
    for path in (ROOT / "experiments").glob("*.png"):
        assert path.stem in found, f"{path.name} is in no row of experiments/README.md"
    for name, experiment in found.items():
        file = ROOT / "experiments" / f"{name}.json"
        data = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        claims = data.get("claims") if isinstance(data, dict) else None
        if claims:
            assert experiment.held + len(experiment.failed) == len(claims)
            assert (experiment.verdict.startswith("all") or "the claim holds" in experiment.verdict) == all(
                claims.values()
            )


def test_equations_become_mathml():
    page = "with $\\gamma < 1$ and `$HOME`, 5$ and 6$\n\n```math\nx = \\frac{1}{2}\n\ny\n```\n\n```\n$a$\n```\n"
    shown = equations.on_page_markdown(page, page=None, config=None, files=None)
    assert shown.count("<math") == 3
    assert "<mi>&#x003B3;</mi>" in shown or "<mi>γ</mi>" in shown
    assert "`$HOME`, 5$ and 6$" in shown
    assert "```\n$a$\n```" in shown
    assert shown.count("<mfrac>") == 1
