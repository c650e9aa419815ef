"""Diagrams, gallery and equations of the pages."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from operant import catalog

pytest.importorskip("mkdocs")
pytest.importorskip("latex2mathml")

SITE = Path(__file__).resolve().parents[2] / "docs" / "site"


def hook(name: str) -> ModuleType:
    """Import a file of the site, which is not a package."""
    spec = importlib.util.spec_from_file_location(f"site_{name}", SITE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SITE)  # as mkdocs does while it loads a hook
        spec.loader.exec_module(module)
    return module


diagrams, equations, gallery = map(hook, ("diagrams", "equations", "gallery"))
backups, curves, flows = map(hook, ("backups", "curves", "flows"))
ROOT = SITE.parents[1]


@pytest.mark.parametrize("name", diagrams.DIAGRAMS)
def test_diagrams_are_images_with_labels_within_their_frame(name):
    drawing = diagrams.DIAGRAMS[name]()
    svg = drawing.svg()
    for tag in ("title", "desc"):
        assert re.search(f"<{tag}>.+</{tag}>", svg)
    places = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"', svg)
    assert places
    for x, y in places:
        assert 0 <= float(x) <= drawing.width
        assert 0 <= float(y) <= drawing.height
    for x, y, width, height in re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', svg):
        assert float(x) + float(width) <= drawing.width
        assert float(y) + float(height) <= drawing.height


def test_the_taxonomy_has_every_algorithm_of_its_packages():
    names = re.split(r"[ ,<>]+", diagrams.taxonomy().svg())
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


def test_equations_are_aligned_and_names_have_space():
    rows = (r"a &= \log\pi && \text{by per\_alpha} \\", r"b &\sim \arg\max_x f")
    page = "\n".join(["```math", r"\begin{aligned}", *rows, r"\end{aligned}", "```", ""])
    shown = equations.on_page_markdown(page, page=None, config=None, files=None)
    assert shown.count("<math") == 1
    assert shown.count("<mtr>") == 2
    assert '<mtd columnalign="right">' in shown
    for name in ("log", "arg", "max"):
        assert f'rspace="0.167em">{name}</mo>' in shown
    assert "per&#x0005F;alpha" in shown
    assert "~" not in shown
    assert "&#x0007E;" not in shown


def test_a_paragraph_may_begin_with_an_equation_and_a_long_one_gets_a_line_where_it_is_narrow():
    markdown = pytest.importorskip("markdown")
    page = f"with\n$x$ and\n$y = {'+'.join('x' * 20)}$ too"
    shown = markdown.markdown(equations.on_page_markdown(page, page=None, config=None, files=None))
    assert shown.count("<p>") == 1
    assert shown.count('class="narrow equation"') == shown.count('class="wide equation"') == 1


def test_commands_without_mathml_are_an_error():
    with pytest.raises(ValueError, match=r"no MathML for \\nonsense"):
        equations.typeset(r"a + \nonsense b")


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.stem)
def test_equations_are_typeset(path):
    for section in re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
        if section.startswith("Equations\n"):
            assert "```text" not in section, "write the equations as LaTeX in fences of `math`"
            assert "```math" in section or "|" in section


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "algorithms").glob("*.md")), ids=lambda path: path.stem)
def test_every_algorithm_has_an_image_near_the_top_of_its_page(path):
    high = path.read_text(encoding="utf-8").split("\n## ", 1)[0]
    pictures = re.findall(r"!\[(.+?)\]\((.+?)\)", high)
    assert pictures or diagrams.MARK.search(high)
    for words, place in pictures:
        assert len(words.split()) >= 8, "the alternative text describes the image"
        assert (path.parent / place).is_file()


@pytest.mark.parametrize("name", [*diagrams.BACKUPS, *diagrams.FLOWS, *diagrams.CURVES])
def test_diagrams_are_on_a_page(name):
    mark = f"<!-- diagram: {name} -->"
    assert any(mark in path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))


def test_a_backup_diagram_has_its_nodes():
    tree = backups.parse('a"s, a"(s^(a,a"b",:(T)))')
    assert (tree.kind, tree.label, tree.width, tree.height) == ("a", "s, a", 3, 4)
    below = tree.branches[0]
    assert below.arc
    assert [branch.kind for branch in below.branches] == ["a", "a", ":"]
    assert below.branches[1].label == "b"
    drawn = backups.backup("title", "words", ("s(a(T))", "caption")).svg()
    assert drawn.count("<circle") == 2
    assert drawn.count("<rect") == 1
    for wrong in ("x(a)", "s(a", "s)a"):
        with pytest.raises(ValueError, match="no backup diagram"):
            backups.parse(wrong)


def test_arrows_end_at_their_boxes():
    boxes = {"a": flows.Box(0, 0, "a"), "b": flows.Box(1, 1, "b")}
    drawn = flows.flow("title", "words", boxes, [flows.Arrow("a", "b", "label")]).svg()
    start, corner, end = re.search(r'd="M(\S+ \S+) L(\S+ \S+) L(\S+ \S+)"', drawn).groups()
    rects = re.findall(r'<rect x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)"', drawn)
    (x, y, width, height), (to_x, to_y, to_width, _) = (tuple(map(float, rect)) for rect in rects)
    assert start == f"{x + width:g} {y + height / 2:g}"
    assert corner == f"{to_x + to_width / 2:g} {y + height / 2:g}"
    assert end == f"{to_x + to_width / 2:g} {to_y - 2:g}"


def test_curves_are_those_of_the_equations():
    ratio = curves._grid(0.4, 1.6, 5)
    assert curves._objective(ratio, 1.0) == pytest.approx([0.4, 0.7, 1.0, 1.2, 1.2])
    assert curves._objective(ratio, -1.0) == pytest.approx([-0.8, -0.8, -1.0, -1.3, -1.6])
    axis = curves.Axis("x", 0, 1, (0, 1))
    drawn = curves.plot("title", "words", axis, axis, curves.Curve("name", (0, 0.5, 1), (0, 0.5, 2))).svg()
    line = re.findall(r'points="([^"]+)" fill="none" stroke="currentColor" stroke-width="2"', drawn)[0]
    bottom, middle = (tuple(map(float, point.split(","))) for point in line.split())  # 2 is beyond the axis
    assert bottom == (curves.LEFT, curves.HEIGHT - curves.BOTTOM)
    assert middle[0] == (curves.LEFT + curves.WIDTH - curves.RIGHT) / 2
