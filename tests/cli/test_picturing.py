import numpy as np
import pytest
from matplotlib.figure import Figure

from operant.cli import picturing
from operant.cli.picturing import draw_tables
from operant.tabular.view import View


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Return a function that draws a view and returns the axes of its panels."""
    figures = []

    class BestPolicy(Figure):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            figures.append(self)

    monkeypatch.setattr("matplotlib.figure.Figure", BestPolicy)

    def call(view):
        draw_tables(view, "title", tmp_path / "picture.png")
        return [axes for axes in figures[-1].axes if axes.get_title()]

    return call


def grid(rows=2, columns=3, **parts):
    """Return a view whose last cell is terminal and whose second cell is a wall."""
    states = rows * columns
    q = np.arange(4.0 * states).reshape(states, 4)
    symbols = np.full((rows, columns), ".")
    symbols[0, 0], symbols[0, 1], symbols[-1, -1] = "S", "#", "G"
    ends, walls = np.zeros((2, states), bool)
    ends[-1] = walls[1] = True
    facts = {"q": q, "values": q.max(axis=1), "policy": np.tile([0.0, 1.0, 0.0, 0.0], (states, 1))}
    facts |= {"visits": np.ones((states, 4), np.int64), "ends": ends, "unreached": walls}
    return View(**(facts | {"shape": (rows, columns), "symbols": symbols, "arrows": "↑→↓←"} | parts))


def texts(axes):
    return [(text.get_text(), *text.get_position()) for text in axes.texts if text.get_text()]


def test_values_and_arrows_stand_in_their_cells(drawn):
    values, actions, visits = drawn(grid())
    found = texts(values)
    assert ("3", 0, -0.28) in found
    assert ("15", 0, 0.72) in found
    assert ("G", 2, 1) in found
    assert not [text for text, x, y in found if (x, round(y)) == (1, 0)]  # a wall
    arrows = [note for note in values.texts if getattr(note, "arrow_patch", None)]
    assert len(arrows) == 4
    for arrow in arrows:
        (x, y), (tip_x, tip_y) = arrow.get_position(), arrow.xy
        assert tip_x > x
        assert tip_y == y
    assert len(actions.collections[0].get_paths()) == 16
    assert ("4", 0, 0) in texts(visits)


def test_triangles_lie_towards_their_actions(drawn):
    _, actions, _ = drawn(grid())
    centers = [path.vertices[:3].mean(axis=0) for path in actions.collections[0].get_paths()[:4]]
    np.testing.assert_allclose(centers, [[0, -1 / 3], [1 / 3, 0], [0, 1 / 3], [-1 / 3, 0]], atol=1e-9)
    np.testing.assert_array_equal(actions.collections[0].get_array()[:4], [0, 1, 2, 3])


def test_tied_actions_are_all_drawn(drawn):
    policy = np.tile([0.5, 0.0, 0.5, 0.0], (6, 1))
    values = drawn(grid(policy=policy))[0]
    assert len([note for note in values.texts if getattr(note, "arrow_patch", None)]) == 8


def test_large_maps_have_no_numbers(drawn):
    values = drawn(grid(50, 50))[0]
    assert not [text for text, *_ in texts(values) if text[:1].isdigit()]


def test_tables_without_a_map_are_heat_maps(drawn):
    view = grid(shape=None, symbols=None, arrows="")
    names = [axes.get_title() for axes in drawn(view)]
    assert names == ["values of actions", "policy", "visits (updates)"]
    assert len(drawn(view)[0].texts) == 16
    prediction = grid(shape=None, symbols=None, arrows="", q=None, visits=None)
    assert [axes.get_title() for axes in drawn(prediction)] == ["values of states", "policy"]


def test_numbers_are_short():
    shown = [picturing._short(value) for value in (0.0, -13.0, -12.345, 123.45, -9999.9, 12345.6, 1.2e6, 1e-5)]
    assert shown == ["0", "-13", "-12.35", "123.5", "-10000", "12k", "1e6", "1e-05"]
