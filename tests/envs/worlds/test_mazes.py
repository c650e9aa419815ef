import math

import gymnasium
import numpy as np
import pytest
from dense import optimal

from operant.envs.drawing import parse_grid
from operant.envs.worlds.drawings import WALL_OPEN_LEFT, WALL_OPEN_RIGHT
from operant.envs.worlds.mazes import ChangingMaze

UP, RIGHT, DOWN, LEFT = range(4)


def maze(change_at=3, **settings):
    """Return a maze whose left column closes while its right column opens."""
    return ChangingMaze("..G\n.##\nS..", "..G\n##.\nS..", change_at=change_at, **settings)


def test_the_walls_move_after_the_number_of_steps():
    env = maze(change_at=2)
    env.reset(seed=0)
    first = env.P
    assert env.P[3][UP] == [(1.0, 0, 0.0, False)]
    assert [env.step(action)[0] for action in (DOWN, RIGHT)] == [6, 7]
    assert env.P is first
    assert env.step(LEFT)[0] == 6
    assert env.grid is env.after
    assert env.P[6][UP] == [(1.0, 6, 0.0, False)], "the wall is there"
    assert env.steps == 3


def test_an_agent_can_leave_the_wall_that_is_built_around_it():
    env = maze(change_at=1)
    env.reset(seed=0)
    assert [env.step(action)[0] for action in (UP, LEFT, UP, DOWN)] == [3, 3, 0, 0]


def test_the_same_actions_are_feasible_before_and_after():
    env = maze()
    first, second = env.models
    assert env.transitions is first
    assert first.feasible().tolist() == second.feasible().tolist()
    assert np.flatnonzero(first.feasible().all(axis=1)).tolist() == [0, 1, 3, 5, 6, 7, 8]


def test_steps_are_counted_across_episodes():
    env = maze(change_at=2)
    env.reset(seed=0)
    env.step(RIGHT)
    env.reset(seed=1)
    assert env.grid is env.before
    env.step(RIGHT)
    env.reset(seed=1)
    assert env.grid is env.after


def test_the_count_can_be_set():
    env = maze(change_at=2)
    env.reset(options={"steps": 2})
    assert env.grid is env.after
    env.reset(options={"steps": 0})
    assert env.grid is env.before


@pytest.mark.parametrize("frozen_at", [1, 2])
def test_a_frozen_maze_stays_as_it_is(frozen_at):
    env = maze(change_at=2, frozen_at=frozen_at)
    grid = env.before if frozen_at < 2 else env.after
    assert env.grid is grid
    env.reset(seed=0)
    for _ in range(4):
        env.step(DOWN)
    env.reset(seed=1)
    assert env.grid is grid
    assert env.steps == frozen_at


def test_a_change_at_step_0_is_there_from_the_start():
    env = maze(change_at=0)
    env.reset(seed=0)
    assert env.grid is env.after


@pytest.mark.parametrize(("name", "before", "after"), [("BlockingMaze", 10, 16), ("ShortcutMaze", 16, 10)])
def test_the_shortest_ways_of_the_registered_mazes(name, before, after):
    env = gymnasium.make(f"operant/{name}-v0").unwrapped
    lengths = []
    for steps in (env.change_at - 1, env.change_at):
        obs, _ = env.reset(seed=0, options={"steps": steps})
        values = optimal(env.transitions, 0.95)
        lengths.append(1 + round(math.log(values[obs], 0.95)))
    assert lengths == [before, after]
    assert env.change_at == {"BlockingMaze": 1000, "ShortcutMaze": 3000}[name]


def test_grids_may_be_given_as_read():
    env = ChangingMaze(parse_grid(WALL_OPEN_LEFT), parse_grid(WALL_OPEN_RIGHT), change_at=5)
    assert env.reset(seed=0)[0] == 48


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("S.G", "S.\n.G", 1), "the grids must have the same size and actions"),
        (("S.G", "actions: 8\nS.G", 1), "the grids must have the same size and actions"),
        (("S.G", "S.G", -1), "change_at must not be negative, got -1"),
    ],
)
def test_wrong_mazes_are_rejected(arguments, message):
    before, after, change_at = arguments
    with pytest.raises(ValueError, match=message):
        ChangingMaze(before, after, change_at=change_at)


def test_a_negative_step_is_rejected():
    with pytest.raises(ValueError, match="frozen_at must not be negative, got -1"):
        maze(frozen_at=-1)
