import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.envs.cells import Grid, Jump
from operant.envs.drawing import DrawingError, parse_grid


def rows(grid):
    return ["".join(row) for row in grid.symbols]


def test_the_example_of_the_documentation():
    text = """
    ; lines that begin with a semicolon are comments
    step: -1
    slip: 0.2

    S . . # +10
    . # . .   .
    . . . .  -5
    """
    grid = parse_grid(text)
    assert rows(grid) == ["S..#+", ".#...", "....-"]
    assert grid.rewards[0, 4] == 10.0
    assert grid.rewards[2, 4] == -5.0
    assert grid.rewards[0, 0] == grid.rewards[1, 4] == -1.0
    assert grid.rules.slip == 0.2
    assert grid.ends.sum() == 2
    assert grid.walls.sum() == 2


def test_cells_stand_side_by_side_or_apart():
    assert rows(parse_grid("S.#\nHG.")) == rows(parse_grid("S . #\n  H\tG .  \n")) == ["S.#", "HG."]


@pytest.mark.parametrize("end", ["+1", "-0.5", "(+2)"])
def test_a_column_may_have_numbers(end):
    grid = parse_grid(f" S\n{end}\n .\n")
    assert grid.shape == (3, 1)
    assert grid.rewards[1, 0] == float(end.strip("()"))


def test_maps_of_frozen_lake_are_read():
    grid = parse_grid("SFFF\nFHFH\nFFFH\nHFFG")
    assert rows(grid) == ["S...", ".H.H", "...H", "H..G"]
    assert grid.rewards.sum() == 1.0


def test_every_cell_and_setting():
    rules = "step: -2\ngoal: 7\nhole: -3\ncliff: -9\nbump: -4\nwind: 0 -1 2 0\ngusts: yes\nactions: 9\n"
    grid = parse_grid(f"{rules}S G H C\n. (+1.5) -2e1 #")
    assert rows(grid) == ["SGHC", ".*-#"]
    assert grid.rewards.tolist() == [[-2.0, 7.0, -3.0, -9.0], [-2.0, 1.5, -20.0, -2.0]]
    assert grid.rules.bump == -4.0
    assert grid.rules.wind == (0, -1, 2, 0)
    assert grid.rules.gusts
    assert grid.rules.actions == 9
    assert grid.open.tolist() == [[True, False, False, False], [True, True, False, False]]


def test_jumps():
    grid = parse_grid("jump: A a +10\njump: B b -0.5\n.A.B\n.a.b")
    assert grid.jumps == (Jump(1, 5, 10.0), Jump(3, 7, -0.5))
    assert grid.open.all()


def test_settings_given_by_name_win():
    grid = parse_grid("step: -1\nslip: 0.1\nS.G", step=-3.0, goal=2.0)
    assert grid.rules.slip == 0.1
    assert grid.rewards.tolist() == [[-3.0, -3.0, 2.0]]


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("S.\n.x", 2, 2, "'x' is not a cell; the cells are"),
        ("S . .\n.  +y .", 2, 4, "'+y' is not a cell"),
        ("S+1.", 1, 2, "'+' is not a cell"),
        ("S..\n....", 2, 4, "the row has 4 cells, but the first one has 3"),
        ("S..\n..", 2, 2, "the row has 2 cells, but the first one has 3"),
        ("\n step: -1\n slop: 1\nS.", 3, 2, "'slop' is not a setting; the settings are step, goal"),
        ("slip: 2\nS.", 1, 7, "slip must be a probability between 0 and 1, got 2.0"),
        ("slip: nan\nS.", 1, 7, "'nan' is not a finite number"),
        ("step: 1\nstep: 2\nS.", 2, 1, "'step' is set twice, first in line 1"),
        ("goal: much\nS.", 1, 7, "'much' is not a number"),
        ("wind: 0 1\nS..", 1, 7, "wind needs 3 numbers, one per column, got 2"),
        ("wind: 0 x 1\nS..", 1, 7, "'x' is not a whole number"),
        ("actions: 7\nS.", 1, 10, "actions must be 4, 8 or 9, got 7"),
        ("gusts: maybe\nS.", 1, 8, "'maybe' is neither yes nor no"),
        ("slip: 0.1\nactions: 8\nS.", 1, 7, "slip needs 4 actions"),
        ("jump: A a\nAa", 1, 7, "a jump is two letters and a reward"),
        ("jump: S a 1\nSa", 1, 7, "the letter 'S' has another meaning"),
        ("jump: A a 1\nA.", 1, 7, "the letter 'a' must occur in the map once, but occurs 0 times"),
        ("jump: A a 1\nAaa", 1, 7, "the letter 'a' must occur in the map once, but occurs 2 times"),
        ("jump: A a inf\nAa", 1, 7, "'inf' is not a finite number"),
        ("S . +1e999", 1, 5, "'+1e999' is not a finite number"),
        ("step: -1\n\n ##G", 3, 2, "no open cell is left"),
        ("step: -1\n.CG", 2, 1, "a cliff needs one start S"),
        ("", 1, 1, "the drawing has no map"),
        ("; nothing\nstep: 1", 1, 1, "the drawing has no map"),
    ],
)
def test_an_error_names_its_place(text, line, column, message):
    with pytest.raises(DrawingError, match=re.escape(message)) as caught:
        parse_grid(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert str(caught.value).startswith(f"line {line}, column {column}: ")


@pytest.mark.parametrize("wrong", [{"slip": 2.0}, {"size": 3}, {"wind": (1,)}])
def test_an_error_in_a_setting_by_name_has_no_place(wrong):
    with pytest.raises(ValueError, match=r"slip|size|wind") as caught:
        parse_grid("slip: 0.1\nwind: 0 0\nS.", **wrong)
    assert not isinstance(caught.value, DrawingError)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=".#SGHCF+-(). 015eAa:;\nstepwindjump", max_size=60))
def test_any_text_is_read_or_rejected_with_its_place(text):
    error = None
    try:
        grid = parse_grid(text)
    except DrawingError as refusal:
        error = refusal
    if error is None:
        assert isinstance(grid, Grid)
        assert np.isfinite(grid.rewards).all()
        assert grid.open.any()
    else:
        assert 1 <= error.line <= max(1, len(text.splitlines()))
        assert error.column >= 1
