import inspect

import pytest

from operant.cli.canvas import Axes, Figure, new_figure


@pytest.fixture
def figure():
    pytest.importorskip("matplotlib")
    return new_figure((4.0, 2.0), dpi=50)


def test_matplotlib_has_every_declared_member(figure):
    (axes,) = figure.subplots(1, 1, squeeze=False).flat
    for declared, made in ((Axes, axes), (Figure, figure)):
        names = set(inspect.get_annotations(declared))
        assert "legend" in names
        assert [name for name in names if not hasattr(made, name)] == []


def test_a_row_of_panels_can_be_unpacked(figure, tmp_path):
    left, right = figure.subplots(1, 2, width_ratios=[2.0, 1.0])
    left.plot([0, 1], [0, 1])
    right.text(0.5, 0.5, "text")
    figure.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 0


def test_the_size_is_in_inches(figure):
    assert figure.get_size_inches().tolist() == [4.0, 2.0]
