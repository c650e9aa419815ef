from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from operant.cli import plotting
from operant.cli.plotting import COLORS, draw
from operant.runtime.comparison import compare
from operant.runtime.run import Run


@pytest.fixture
def drawn(monkeypatch, tmp_path, run):
    """Return a function that draws the run under several names and returns the figure."""
    figures = []

    class BestPolicy(Figure):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            figures.append(self)

    monkeypatch.setattr("matplotlib.figure.Figure", BestPolicy)

    def call(*names):
        (standing,) = compare([Run.open(run)])
        draw(names, [standing] * len(names), tmp_path / "plot.png")
        return figures[-1], standing

    return call


def test_lines_and_points_are_the_numbers(drawn):
    figure, standing = drawn("a", "b")
    curves, finals, _ = figure.axes
    bold = [line for line in curves.lines if line.get_label() in ("a", "b") or line.get_linewidth() > 2]
    assert len(bold) == 2
    np.testing.assert_array_equal(bold[0].get_ydata(), standing.curve.iqm)
    thin = [line.get_ydata() for line in curves.lines if line not in bold]
    np.testing.assert_array_equal(thin[:2], standing.curve.scores.T)
    np.testing.assert_array_equal(finals.collections[0].get_offsets()[:, 1], sorted(standing.final.scores))
    assert len(figure.legends[0].get_texts()) == 2
    assert curves.get_xlabel() == "environment steps per seed"


def test_names_are_no_formulas_and_all_in_the_legend(drawn):
    names = ["_baseline", "$x^$", "a_b$c"]
    figure, _ = drawn(*names)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [text.partition(":")[0].strip().replace(r"\$", "$") for text in texts] == names


def test_a_plot_that_does_not_fit_on_the_disk_names_its_file_and_keeps_the_one_before(drawn, tmp_path, small_files):
    path = tmp_path / "plot.png"
    path.write_bytes(b"before")
    with small_files(4096), pytest.raises(OSError, match=r"File too large: .*\.plot\.png-"):
        drawn("a")
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"before", [path])


def test_many_runs_are_distinguished(drawn):
    names = [f"run-{i}" for i in range(len(COLORS) * len(plotting.DASHES))]
    figure, _ = drawn(*names)
    bold = [line for line in figure.axes[0].lines if line.get_linewidth() > 2]
    assert len({(line.get_color(), line.get_linestyle()) for line in bold}) == len(names)


@pytest.mark.parametrize("seeds", [9, 10])
def test_a_band_from_ten_seeds_on_and_single_lines_below(seeds):
    axes = Figure().subplots()
    ends = np.zeros(3)
    curve = SimpleNamespace(consumed=np.arange(3), scores=np.zeros((3, seeds)), iqm=ends, low=ends, high=ends)
    plotting._draw_curve(axes, SimpleNamespace(curve=curve), "k", "-", "run")
    assert len(axes.lines) == (1 if seeds == 10 else seeds + 1)
    assert len(axes.collections) == (1 if seeds == 10 else 0)
