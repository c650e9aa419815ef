import numpy as np
import pytest

from operant.envs.cells import Grid, Rules


def test_an_empty_grid_goes_from_corner_to_corner():
    grid = Grid.empty(3, 4, step=-1.0, goal=2.0)
    assert grid.shape == (3, 4)
    assert ["".join(row) for row in grid.symbols] == ["S...", "....", "...G"]
    assert np.unique(grid.rewards).tolist() == [-1.0, 2.0]
    assert grid.ends.sum() == 1
    assert grid.starts.ravel().tolist() == [True] + [False] * 11
    assert grid.open.sum() == 11
    assert not grid.walls.any()
    assert not grid.cliffs.any()


def test_without_a_mark_episodes_start_on_any_open_cell():
    grid = Grid(np.array([list(".#G")]), np.zeros((1, 3)), Rules())
    assert grid.starts.tolist() == [[True, False, False]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slip": 1.5}, "slip must be a probability between 0 and 1, got 1.5"),
        ({"slip": float("nan")}, "slip must be a probability"),
        ({"step": float("inf")}, "step must be a finite number, got inf"),
        ({"bump": float("nan")}, "bump must be a finite number"),
        ({"actions": 5}, "actions must be 4, 8 or 9, got 5"),
        ({"actions": 8, "slip": 0.1}, "slip needs 4 actions"),
        ({"stepp": 1.0}, "'stepp' is not a setting of a grid; the settings are step, goal"),
        ({"wind": (1, 2)}, "wind needs 3 numbers, one per column, got 2"),
    ],
)
def test_wrong_settings_are_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        Grid.empty(3, 3, **settings)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (-2, -2)])
def test_a_grid_needs_two_cells(shape):
    with pytest.raises(ValueError, match="a grid needs at least two cells"):
        Grid.empty(*shape)


def test_a_grid_needs_an_open_cell():
    with pytest.raises(ValueError, match="no open cell is left"):
        Grid(np.array([list("#G")]), np.zeros((1, 2)), Rules())


@pytest.mark.parametrize("row", [".CG", "SCS"])
def test_a_cliff_needs_one_start(row):
    with pytest.raises(ValueError, match="a cliff needs one start S"):
        Grid(np.array([list(row)]), np.zeros((1, 3)), Rules())
