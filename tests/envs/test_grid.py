import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.envs.cells import Grid, Rules
from operant.envs.drawing import parse_grid
from operant.envs.grid import MOVES, GridWorld, grid_transitions

UP, RIGHT, DOWN, LEFT = range(4)


def merged(outcomes):
    """Return the outcomes of an action as {(successor, reward, terminated): probability}."""
    table = {}
    for probability, successor, reward, terminated in outcomes:
        key = int(successor), float(reward), bool(terminated)
        table[key] = table.get(key, 0.0) + probability
    return table


def transposed(drawing):
    return "\n".join(map("".join, zip(*drawing.split(), strict=True)))


@pytest.mark.parametrize("name", ["4x4", "8x8"])
@pytest.mark.parametrize("success", [1.0, 1 / 3, 0.8])
def test_frozen_lake_is_a_grid(name, success):
    theirs = gymnasium.make("FrozenLake-v1", map_name=name, is_slippery=success < 1.0, success_rate=success).unwrapped
    drawing = "\n".join(b"".join(row).decode() for row in theirs.desc)
    ours = GridWorld(drawing, slip=1.0 - success)
    assert np.array_equal(ours.initial_state_distrib, theirs.initial_state_distrib)
    for state in range(ours.transitions.states):
        for mine, action in enumerate((3, 2, 1, 0)):  # of FrozenLake: up, right, down, left
            expected = merged(theirs.P[state][action])
            got = merged(ours.P[state][mine])
            assert got.keys() == expected.keys()
            assert all(abs(got[key] - expected[key]) < 1e-12 for key in got)


@pytest.mark.parametrize("slip", [0.0, 2 / 3])
def test_cliff_walking_is_a_grid(slip):
    theirs = gymnasium.make("CliffWalking-v1", is_slippery=slip > 0).unwrapped
    ours = GridWorld("step: -1\ngoal: -1\n" + "............\n" * 3 + "SCCCCCCCCCCG", slip=slip)
    for state in np.flatnonzero(ours.grid.open):
        for action in range(4):
            expected, got = merged(theirs.P[state][action]), merged(ours.P[state][action])
            assert got.keys() == expected.keys()
            assert all(abs(got[key] - expected[key]) < 1e-12 for key in got)


def brute_force(grid, state, action):
    """Return the outcomes of an action, one direction after another."""
    rules, (rows, columns) = grid.rules, grid.shape
    row, column = divmod(state, columns)
    ways = [(action, 1.0 - rules.slip), ((action - 1) % 4, rules.slip / 2), ((action + 1) % 4, rules.slip / 2)]
    wind = rules.wind[column] if rules.wind else 0
    gusts = [wind - 1, wind, wind + 1] if rules.gusts and wind else [wind]
    table = {}
    for direction, probability in ways[: 1 if rules.slip == 0 else 3]:
        for shift in gusts:
            to = row + MOVES[direction][0] - shift, column + MOVES[direction][1]
            inside = min(max(to[0], 0), rows - 1), min(max(to[1], 0), columns - 1)
            bumped = inside != to
            if grid.symbols[inside] == "#":
                inside, bumped = (row, column), True
            symbol = grid.symbols[inside]
            ends = symbol in "GH+-"
            plain = bumped and not ends and symbol != "C"
            reward = (rules.step if rules.bump is None else rules.bump) if plain else grid.rewards[inside]
            start = np.argwhere(grid.symbols == "S")
            inside = tuple(start[0]) if symbol == "C" else inside
            key = int(inside[0] * columns + inside[1]), float(reward), ends
            table[key] = table.get(key, 0.0) + probability / len(gusts)
    return {key: probability for key, probability in table.items() if probability > 0}


@st.composite
def grids(draw):
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(2, 4))
    cells = draw(st.lists(st.sampled_from(".....##GHC*+"), min_size=rows * columns - 1, max_size=rows * columns - 1))
    symbols = np.array(["S", *cells]).reshape(rows, columns)
    rewards = np.array([draw(st.sampled_from([-1.0, 0.0, 2.0])) for _ in range(rows * columns)]).reshape(rows, columns)
    actions = draw(st.sampled_from([4, 8, 9]))
    rules = Rules(
        bump=draw(st.sampled_from([None, -5.0])),
        slip=draw(st.sampled_from([0.0, 0.3, 1.0])) if actions == 4 else 0.0,
        wind=tuple(draw(st.lists(st.integers(-2, 2), min_size=columns, max_size=columns))),
        gusts=draw(st.booleans()),
        actions=actions,
    )
    return Grid(symbols, rewards, rules)


@settings(max_examples=60, deadline=None)
@given(grids())
def test_the_model_equals_one_written_way_by_way(grid):
    model = grid_transitions(grid)
    for state in range(model.states):
        for action in range(model.actions):
            got = model.outcomes(state, action)
            if not grid.open.flat[state]:
                assert got == []
                continue
            expected = brute_force(grid, state, action)
            assert len(got) == len(expected), "equal outcomes are merged"
            assert {key: pytest.approx(p, abs=1e-12) for key, p in merged(got).items()} == expected


def test_a_wall_and_the_edge_stop_a_move():
    env = GridWorld("step: -1\nbump: -2\nS#\n.G")
    assert env.P[0][UP] == env.P[0][LEFT] == env.P[0][RIGHT] == [(1.0, 0, -2.0, False)]
    assert env.P[0][DOWN] == [(1.0, 2, -1.0, False)]
    assert env.P[2][RIGHT] == [(1.0, 3, 1.0, True)]
    assert env.transitions.feasible().tolist() == [[True] * 4, [False] * 4, [True] * 4, [False] * 4]


def test_the_moves_of_kings():
    env = GridWorld("actions: 9\n...\n.S.\n...")
    landings = [env.P[4][action][0][1] for action in range(9)]
    assert landings == [1, 5, 7, 3, 2, 8, 6, 0, 4]


def test_wind_blows_where_the_step_begins():
    env = GridWorld("wind: 0 2 0\n...\n...\n...\n.S.")
    assert env.P[10][RIGHT] == [(1.0, 5, 0.0, False)]
    assert env.P[9][RIGHT] == [(1.0, 10, 0.0, False)]
    assert env.P[4][RIGHT] == [(1.0, 2, 0.0, False)], "clipped to the grid"


def test_jumps_lead_elsewhere_whatever_the_action():
    env = GridWorld("slip: 0.5\njump: A a +10\nA..\n..a")
    assert [env.P[0][action] for action in range(4)] == [[(1.0, 5, 10.0, False)]] * 4


def test_the_grid_of_a_million_cells_has_twelve_million_transitions():
    model = grid_transitions(Grid.empty(1000, 1000, slip=2 / 3, step=-1.0, goal=0.0))
    assert model.indptr[-1] == len(model.successors)
    assert 11_990_000 < len(model.successors) < 12_000_000
    row_sums = np.add.reduceat(model.probabilities, model.indptr[:-1][model.feasible().ravel()])
    assert np.abs(row_sums - 1.0).max() < 1e-12


def test_text_of_the_map():
    env = GridWorld("S.G\n.#.", render_mode="ansi")
    assert env.render() == "S.G\n.#.\n"
    env.reset(seed=0)
    env.step(RIGHT)
    assert env.render() == "S@G\n.#.\n"


def test_image_of_the_map():
    env = GridWorld("S.G\n.#.", render_mode="rgb_array")
    empty = env.render()
    env.reset(seed=0)
    image = env.render()
    assert image.shape == (48, 72, 3)
    assert image.dtype == np.uint8
    changed = (image != empty).any(axis=2)
    rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (6, 17, 6, 17)
    assert len(np.unique(empty[12, 12::24], axis=0)) == 3


def test_other_settings_with_a_grid_are_rejected():
    with pytest.raises(ValueError, match="a Grid has its own rules: give the drawing as text to change slip"):
        GridWorld(parse_grid("S.G"), slip=0.5)


def test_gymnasium_finds_nothing_wrong():
    check_env(GridWorld("slip: 0.2\nS.\n.G"), skip_render_check=True)


def test_the_transposed_world_is_the_same_world():
    drawing = "S..\n.#H\n..G"
    ours, turned = GridWorld(drawing), GridWorld(transposed(drawing))
    swap = {UP: LEFT, LEFT: UP, DOWN: RIGHT, RIGHT: DOWN}
    for state in range(9):
        row, column = divmod(state, 3)
        for action, other in swap.items():
            flipped = [
                (p, (to % 3) * 3 + to // 3, r, ended) for p, to, r, ended in ours.transitions.outcomes(state, action)
            ]
            assert turned.transitions.outcomes(column * 3 + row, other) == flipped
