"""The drawn worlds have their known values."""

import gymnasium
import numpy as np
import pytest
from dense import dense, evaluate, optimal, uniform

import operant.envs  # noqa: F401 - registers the worlds

UP, RIGHT, DOWN, LEFT = range(4)


def model(name, **options):
    return gymnasium.make(f"operant/{name}-v0", **options).unwrapped.transitions


@pytest.mark.parametrize(("gamma", "value"), [(0.9, 0.254187), (0.95, 0.513342), (0.99, 0.877521)])
def test_best_values_of_one_reward_and_one_trap(gamma, value):
    world = model("Trap8x8")
    values = optimal(world, gamma)
    assert world.start.argmax() == 56
    assert values[56] == pytest.approx(gamma**13, abs=1e-12)
    assert values[56] == pytest.approx(value, abs=1e-6)


def test_values_of_the_random_policy_with_one_reward_and_one_trap():
    world = model("Trap8x8")
    values = evaluate(world, uniform(world), 0.9).reshape(8, 8)
    assert values[0, 6] == pytest.approx(0.431295, abs=1e-6)
    assert values[2, 3] == pytest.approx(-0.372553, abs=1e-6)
    assert values[7, 0] == pytest.approx(-0.030325, abs=1e-6)


def test_maze_2x3():
    world = model("Maze2x3")
    assert optimal(world, 0.9).tolist() == pytest.approx([9.0, 10.0, 0.0, 8.1, 9.0, 0.0])
    assert world.rewards[world.terminates].tolist() == [10.0, -10.0]
    assert np.flatnonzero(world.feasible().any(axis=1)).tolist() == [0, 1, 3, 4]


def test_goal_4x4_as_solved():
    world = model("Goal4x4")
    assert optimal(world, 0.99)[0] == pytest.approx(0.901980, abs=1e-6)
    assert optimal(world, 1.0)[0] == pytest.approx(0.95, abs=1e-12)


def test_goal_4x4_as_walked_at_random():
    world = model("Goal4x4")
    going_on, _, feasible = dense(world)
    walk = np.einsum("sa,sat->st", uniform(world), going_on)
    steps = np.linalg.solve(np.eye(16) - walk, feasible.any(axis=1).astype(float))
    assert steps[0] == pytest.approx(59.43, abs=0.005)
    still_there = np.linalg.matrix_power(walk, 200)[0].sum()
    assert still_there == pytest.approx(0.0220, abs=5e-5)


def test_corners_4x4():
    world = model("Corners4x4")
    expected = [[0, -14, -20, -22], [-14, -18, -20, -20], [-20, -20, -18, -14], [-22, -20, -14, 0]]
    assert evaluate(world, uniform(world), 1.0) == pytest.approx(np.ravel(expected), abs=1e-10)


def test_jumps_5x5():
    world = model("Jumps5x5")
    random = evaluate(world, uniform(world), 0.9)
    assert random[:5] == pytest.approx([3.3090, 8.7893, 4.4276, 5.3224, 1.4922], abs=5e-5)
    assert random[24] == pytest.approx(-1.9752, abs=5e-5)
    best = optimal(world, 0.9)
    assert best[:5] == pytest.approx([21.9775, 24.4194, 21.9775, 19.4194, 17.4775], abs=5e-5)
    assert best[24] == pytest.approx(11.6797, abs=5e-5)


@pytest.mark.parametrize(("gamma", "value"), [(1.0, -13.0), (0.99, -12.24789770), (0.9, -7.45813417)])
def test_best_values_of_the_cliff(gamma, value):
    world = model("Cliff")
    assert optimal(world, gamma)[world.start.argmax()] == pytest.approx(value, abs=1e-8)


def along(row, epsilon, off_path=RIGHT):
    """Return the epsilon-soft policy that follows a row of the cliff."""
    policy = np.full((48, 4), epsilon / 4)
    for state in range(48):
        r, c = divmod(state, 12)
        above = RIGHT if r == row else off_path
        policy[state, DOWN if c == 11 else UP if r > row else above] += 1.0 - epsilon
    return policy


@pytest.mark.parametrize(
    ("row", "off_path", "epsilon", "value", "digits"),
    [
        (2, DOWN, 0.1, -51.8132, 4),
        (1, DOWN, 0.1, -21.0534, 4),
        (0, DOWN, 0.1, -22.2728, 4),
        (2, RIGHT, 0.1, -45.8, 1),
        (1, RIGHT, 0.1, -20.8, 1),
        (2, RIGHT, 0.01, -16.1, 1),
        (1, RIGHT, 0.01, -15.5, 1),
        (0, RIGHT, 0.01, -17.5, 1),
    ],
)
def test_exploring_along_the_cliff(row, off_path, epsilon, value, digits):
    world = model("Cliff")
    acting = world.feasible().any(axis=1)
    returns = evaluate(world, along(row, epsilon, off_path) * acting[:, None], 1.0)
    assert returns[36] == pytest.approx(value, abs=0.5 * 10**-digits)


def test_the_best_exploring_policy_of_the_cliff():
    going_on, rewards, feasible = dense(model("Cliff"))
    values = np.zeros(48)
    for _ in range(3000):
        backups = rewards + going_on @ values
        values = np.where(feasible.any(axis=1), 0.9 * backups.max(axis=1) + 0.1 * backups.mean(axis=1), 0.0)
    assert values[36] == pytest.approx(-20.7077, abs=5e-5)


@pytest.mark.parametrize(("actions", "steps"), [(4, 15), (8, 7), (9, 7)])
def test_the_shortest_way_through_the_wind(actions, steps):
    world = model("Windy", actions=actions)
    assert optimal(world, 1.0)[world.start.argmax()] == pytest.approx(-steps, abs=1e-12)


@pytest.mark.parametrize(("name", "steps"), [("DynaMaze", 14), ("BlockingMaze", 10), ("ShortcutMaze", 16)])
def test_the_shortest_way_through_a_maze(name, steps):
    world = model(name)
    assert optimal(world, 0.95)[world.start.argmax()] == pytest.approx(0.95 ** (steps - 1), abs=1e-12)


def test_the_dyna_maze_has_47_cells():
    assert model("DynaMaze").feasible().any(axis=1).sum() == 46  # with the goal
