"""Models from user input: Gymnasium's tables, arrays, tables, functions."""

import gymnasium
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from operant import doors
from operant.envs import registry
from operant.envs.grid import GridWorld
from operant.mdp import MDP
from operant.mdp.named_tables import read_csv

ENVIRONMENT = """
import gymnasium
from gymnasium.spaces import Discrete


class Coin(gymnasium.Env):
    observation_space, action_space = Discrete(1), Discrete(1)

    def __init__(self, reward=1.0):
        self.P = {0: {0: [(1.0, 0, reward, True)]}}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 0, self.P[0][0][0][2], True, False, {}
"""


def dense(mdp):
    """Return probabilities and rewards `[S, A, S]`, and the probability of ending `[S, A]`."""
    shape = (mdp.states, mdp.actions, mdp.states)
    index = np.repeat(np.arange(mdp.states * mdp.actions), np.diff(mdp.indptr))
    cells = (*np.divmod(index, mdp.actions), mdp.successors)
    probabilities, rewards, ends = np.zeros(shape), np.zeros(shape), np.zeros(shape[:2])
    np.add.at(probabilities, cells, mdp.probabilities)
    rewards[cells] = mdp.rewards
    np.add.at(ends, cells[:2], mdp.probabilities * mdp.terminates)
    return probabilities, rewards, ends


def optimal_values(mdp, gamma, sweeps):
    probabilities, *_ = dense(mdp)
    probabilities[:, :, mdp.terminal] = 0.0
    values = np.zeros(mdp.states)
    for _ in range(sweeps):
        q = mdp.expected_rewards + gamma * probabilities @ values
        values = np.where(mdp.terminal, 0.0, q.max(axis=1))
    return values


class Table(gymnasium.Env):
    """Environment with a given table."""

    def __init__(self, table, *, actions=2, start=None):
        self.P = table
        self.observation_space = gymnasium.spaces.Discrete(len(table))
        self.action_space = gymnasium.spaces.Discrete(actions)
        if start is not None:
            self.initial_state_distrib = start


class TestGymnasium:
    def test_frozen_lake(self):
        mdp = MDP.from_gymnasium("FrozenLake-v1")
        assert (mdp.states, mdp.actions, mdp.max_steps) == (16, 4, 100)
        assert np.flatnonzero(mdp.terminal).tolist() == [5, 7, 11, 12, 15]
        assert np.flatnonzero(mdp.start).tolist() == [0]
        # Left of the corner bumps twice: Gymnasium lists state 0 twice, the model once.
        assert mdp.successors[mdp.indptr[0] : mdp.indptr[1]].tolist() == [0, 4]
        assert mdp.probabilities[0] == pytest.approx(2 / 3, abs=1e-15)
        values = optimal_values(mdp, 0.99, 2000)
        assert values[0] == pytest.approx(0.5420259320, abs=1e-9)
        assert values.sum() == pytest.approx(6.33981954, abs=1e-8)

    def test_options_make_the_environment(self):
        mdp = MDP.from_gymnasium("FrozenLake-v1", map_name="8x8", is_slippery=False)
        assert optimal_values(mdp, 0.9, 40)[0] == pytest.approx(0.9**13, abs=1e-12)

    def test_the_goal_behind_the_cliff_is_terminal_though_gymnasium_walks_on(self):
        env = gymnasium.make("CliffWalking-v1")
        assert env.unwrapped.P[47][0] == [(1.0, 35, -1, False)]
        mdp = MDP.from_gymnasium(env)
        assert np.flatnonzero(mdp.terminal).tolist() == [47]
        values = optimal_values(mdp, 1.0, 60)
        assert values[36] == -13
        assert values[47] == 0
        assert mdp.max_steps is None

    def test_a_taxi_ends_where_a_passenger_is_delivered(self):
        mdp = MDP.from_gymnasium("Taxi-v4")
        # Passenger and taxi at the destination: R, G, Y and B in rows 0 and 4, columns 0, 4, 0 and 3.
        delivered = [((r * 5 + c) * 5 + d) * 4 + d for d, (r, c) in enumerate([(0, 0), (0, 4), (4, 0), (4, 3)])]
        assert np.flatnonzero(mdp.terminal).tolist() == delivered
        assert mdp.max_steps == 200
        assert np.count_nonzero(mdp.start) == 300

    def test_grid_worlds_are_read_without_building_their_tables(self):
        env = GridWorld("slip: 0.2\nstep: -1\n\nS#.\n..G")
        mdp = MDP.from_gymnasium(env)
        assert "P" not in vars(env)
        table = MDP.from_gymnasium(Table(env.P, actions=4, start=env.initial_state_distrib))
        reachable = [0, 2, 3, 4, 5]
        for one, other in zip(dense(mdp), dense(table), strict=True):
            np.testing.assert_array_equal(one[reachable], other[reachable])
        assert np.flatnonzero(mdp.terminal).tolist() == [1, 5]

    @pytest.mark.parametrize(
        ("table", "start", "terminal"),
        [
            # Staying with termination does not make a state terminal that can also be left.
            ([[[(1.0, 0, 5.0, True)], [(1.0, 1, 0.0, False)]], [[(1.0, 1, 1.0, True)]]], None, [False, False]),
            ([[[(1.0, 0, 5.0, True)], [(1.0, 1, 0.0, True)]], [[(1.0, 0, 0.0, False)]]], None, [False, True]),
            # A state that is entered with and without termination is not terminal.
            ([[[(1.0, 1, 5.0, False)], [(1.0, 1, 0.0, True)]], [[(1.0, 0, 0.0, False)]]], [1, 0], [False, False]),
            # Both states end in the other: if episodes start in 0, only 1 is terminal; otherwise it is undecided.
            ([[[(1.0, 1, 1.0, True)]], [[(1.0, 0, 1.0, True)]]], [1, 0], [False, True]),
            ([[[(1.0, 1, 1.0, True)]], [[(1.0, 0, 1.0, True)]]], None, [False, False]),
        ],
    )
    def test_a_state_is_terminal_if_episodes_only_end_there(self, table, start, terminal):
        mdp = MDP.from_gymnasium(Table(table, start=start))
        assert mdp.terminal.tolist() == terminal
        listed = [[any(outcomes) for outcomes in choices] + [False] * (2 - len(choices)) for choices in table]
        np.testing.assert_array_equal(mdp.feasible, np.array(listed) & ~np.array(terminal)[:, None])

    @pytest.mark.parametrize(
        ("table", "message"),
        [
            ({0: {0: [(0.5, 0, 0.0, False)]}}, "state 0, action 0: the probabilities sum to 0.5"),
            ({0: {0: [(1.0, 1, 0.0, False)]}}, "state 0, action 0: the successor is 1, expected 0 to 0"),
            ({0: {0: [(1.0, 0.5, 0.0, False)]}}, "column s' number 0 is 0.5, expected a whole number"),
            ({0: {2: [(1.0, 0, 0.0, False)]}}, "state 0: the action is 2, expected 0 to 1"),
            ({1: {0: [(1.0, 1, 0.0, False)]}}, "P has 1 states but no state 0"),
            ({0: {0: [(1.0, 0, 0.0)]}}, r"P\[0\]\[0\] holds .*, expected \(probability, successor, reward, term"),
            ({0: {0: [1.0, 0, 0.0, False]}}, r"P\[0\]\[0\] holds 1.0, expected"),
            ({0: {}}, "the table is empty"),
            ({}, "the table is empty"),
        ],
    )
    def test_a_wrong_table_is_rejected(self, table, message):
        env = Table({0: {}})
        env.P = table
        with pytest.raises(ValueError, match=message):
            MDP.from_gymnasium(env)

    def test_a_wrong_start_is_rejected(self):
        table = {0: {0: [(1.0, 0, 0.0, False)]}}
        with pytest.raises(ValueError, match=r"initial_state_distrib has shape \(2,\), expected \(1,\)"):
            MDP.from_gymnasium(Table(table, start=np.array([0.5, 0.5])))

    def test_an_environment_without_a_table_is_rejected(self):
        with pytest.raises(ValueError, match=r"^CartPole-v1 has no transition table"):
            MDP.from_gymnasium("CartPole-v1")

    def test_a_task_has_the_forms_that_training_accepts(self, tmp_path):
        path = tmp_path / "envs.py"
        path.write_text(ENVIRONMENT)
        named = f"{path}:Coin"
        model = MDP.from_gymnasium(named, reward=3.0)
        assert (model.states, model.rewards.tolist()) == (1, [3.0])
        assert MDP.from_gymnasium(registry.specified(named, {"reward": 2.0})).rewards.tolist() == [2.0]
        assert MDP.from_gymnasium(doors.load(named, expected="a class")).rewards.tolist() == [1.0]
        assert MDP.from_gymnasium("FrozenLake-v1", render_mode="ansi", max_episode_steps=7).max_steps == 7
        with pytest.raises(ValueError, match="env must be an environment or an id"):
            MDP.from_gymnasium(3)

    def test_options_need_an_id(self):
        env = gymnasium.make("FrozenLake-v1")
        with pytest.raises(TypeError, match=r"options \(is_slippery\) are for the id"):
            MDP.from_gymnasium(env, is_slippery=False)


def random_arrays(rng, states, actions):
    probabilities = rng.dirichlet(np.ones(states), (states, actions)) * (rng.random((states, actions, states)) < 0.6)
    probabilities[..., 0] += 1 - probabilities.sum(axis=-1)
    return probabilities, rng.normal(size=(states, actions, states))


class TestArrays:
    @settings(deadline=None, max_examples=40)
    @given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32 - 1))
    def test_every_layout_gives_the_same_model(self, states, actions, seed):
        p, r = random_arrays(np.random.default_rng(seed), states, actions)
        flat_p, flat_r = sparse.coo_array(p.reshape(-1, states)), sparse.csc_array(r.reshape(-1, states))
        by_action_p, by_action_r = p.swapaxes(0, 1), r.swapaxes(0, 1)
        tall = sparse.csr_matrix(by_action_p.reshape(-1, states))
        models = [
            MDP.from_arrays(p, r),
            MDP.from_arrays(p.tolist(), sparse.csr_array(flat_r)),
            MDP.from_arrays(flat_p, r),
            MDP.from_arrays(by_action_p, by_action_r, order="ass"),
            MDP.from_arrays(tall, by_action_r, order="ass"),
            MDP.from_arrays([sparse.csr_array(m) for m in by_action_p], list(by_action_r), order="ass"),
            MDP.from_arrays(flat_p, r.reshape(-1, states)),
            MDP.from_arrays(tall, by_action_r.reshape(-1, states), order="ass"),
            MDP.from_arrays(list(by_action_p), [sparse.csr_array(m) for m in by_action_r], order="ass"),
        ]
        for mdp in models:
            np.testing.assert_array_equal(dense(mdp)[0], p)
            np.testing.assert_array_equal(dense(mdp)[1], np.where(p > 0, r, 0))

    def test_rewards_of_states_and_actions(self):
        p = np.array([[[0.5, 0.5], [1, 0]], [[0, 1], [0, 1]]])
        assert MDP.from_arrays(p, [3, 4]).expected_rewards.tolist() == [[3, 3], [4, 4]]
        by_action = p.swapaxes(0, 1)
        for order, array in (("sas", p), ("ass", by_action)):
            mdp = MDP.from_arrays(array, [[1, 2], [3, 4]], order=order)
            assert mdp.expected_rewards.tolist() == [[1, 2], [3, 4]]
        assert MDP.from_arrays(p, -1).expected_rewards.tolist() == [[-1, -1], [-1, -1]]

    def test_rewards_of_what_never_happens_are_not_read(self):
        mdp = MDP.from_arrays([[[1.0, 0.0]], [[0.0, 1.0]]], [[[1.0, np.nan]], [[np.inf, 2.0]]])
        assert mdp.rewards.tolist() == [1, 2]

    @pytest.mark.parametrize("terminal", [[1], np.array([False, True]), (1, 1)])
    def test_rows_of_terminal_states_are_ignored(self, terminal):
        mdp = MDP.from_arrays([[[0.5, 0.5]], [[np.nan, 7.0]]], [1.0, np.inf], terminal=terminal)
        assert mdp.terminal.tolist() == [False, True]
        assert mdp.terminates.tolist() == [False, True]
        assert mdp.start.tolist() == [1, 0]

    def test_rows_of_actions_that_are_not_feasible_are_ignored(self):
        feasible = np.array([[True, False], [True, True]])
        mdp = MDP.from_arrays(
            [[[0, 1], [0, 0]], [[1, 0], [0, 1]]], [[1, -np.inf], [0, 0]], feasible=feasible, order="sas"
        )
        np.testing.assert_array_equal(mdp.feasible, feasible)
        assert mdp.expected_rewards[0].tolist() == [1, -np.inf]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"transitions": np.ones((2, 1, 3))}, r"transitions has shape \(2, 1, 3\), expected \(S, A, S\)"),
            ({"transitions": np.ones((0, 1, 0))}, r"transitions has shape \(0, 1, 0\)"),
            ({"transitions": sparse.csr_array(np.ones((3, 2)))}, r"transitions has shape \(3, 2\), expected \(S \* A"),
            ({"transitions": [sparse.eye_array(2)] * 2}, 'which needs order "ass"'),
            ({"rewards": np.ones(3)}, r"rewards has shape \(3,\), expected a number, \(2,\), \(2, 1\) or \(2, 1, 2\)"),
            ({"rewards": sparse.eye_array(4)}, r"rewards has shape \(4, 4\), expected that of transitions"),
            ({"rewards": [[0], [np.nan]]}, "state 1, action 0: the reward on the way to state 0 is nan"),
            ({"order": "asas"}, 'order is .*, expected "sas" or "ass"'),
            ({"terminal": [2]}, "terminal number 0 is 2, expected 0 to 1"),
            ({"terminal": [True]}, r"terminal has shape \(1,\), expected \(2,\)"),
            ({"terminal": [[0]]}, r"terminal has shape \(1, 1\)"),
            ({"terminal": [0, 1]}, "none of the 2 states has a feasible action"),
            ({"feasible": [True, True]}, r"feasible has shape \(2,\), expected \(2, 1\)"),
            ({"transitions": np.zeros((2, 1, 2))}, r"state 0, action 0: the probabilities sum to 0, .*\(and 1 more"),
            ({"transitions": np.float16([[[0.1, 0.9]], [[0.3, 0.7]]])}, "divide a rounded row by its sum"),
        ],
    )
    def test_wrong_arrays_are_rejected(self, given, message):
        arguments = {"transitions": np.array([[[0.5, 0.5]], [[1, 0]]]), "rewards": [[1], [2]]} | given
        with pytest.raises(ValueError, match=message):
            MDP.from_arrays(**arguments)

    @settings(deadline=None, max_examples=150)
    @given(st.data())
    def test_garbage_is_rejected_or_is_a_model(self, data):
        states, actions = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
        numbers = st.one_of(st.floats(), st.sampled_from([0.0, 0.5, 1.0, 1 - 1e-6]))
        p = data.draw(hnp.arrays(np.float64, (states, actions, states), elements=numbers, fill=st.sampled_from([0, 1])))
        r = data.draw(hnp.arrays(np.float64, (states, actions), elements=st.one_of(st.just(0.0), st.floats())))
        ended = data.draw(hnp.arrays(bool, states))
        allowed = data.draw(hnp.arrays(bool, (states, actions)))
        counts = ~ended[:, None] & allowed
        with np.errstate(invalid="ignore", over="ignore"):
            good = ((p >= 0).all(axis=-1) & (abs(p.sum(axis=-1) - 1) <= 1e-9) & np.isfinite(r)) | ~counts
            assume(not ((abs(p.sum(axis=-1) - 1) < 5e-7) & ~good).any())  # rounding errors of float32 are divided out
        if good.all() and counts.any():
            mdp = MDP.from_arrays(p, r, terminal=ended, feasible=allowed)
            np.testing.assert_array_equal(mdp.feasible, counts)
            np.testing.assert_array_equal(dense(mdp)[0], np.where(counts[..., None], p, 0))
        else:
            with pytest.raises(ValueError, match=r"state \d, action \d: .*expected|none of the"):
                MDP.from_arrays(p, r, terminal=ended, feasible=allowed)

    def test_a_damaged_sparse_matrix_is_rejected(self):
        matrix = sparse.csr_array(np.eye(2))
        matrix.indices[0] = 7
        with pytest.raises(ValueError, match=r"ind(ices|ex values) must be < 2"):
            MDP.from_arrays(matrix, 0.0)


class TestTable:
    def test_csv(self, tmp_path):
        path = tmp_path / "model.csv"
        path.write_text("s,a,s',p,r,terminates\n0,0,0,0.5,1,0\n0,0,1,0.5,-2.5e0,1\n1,1,0,1.0,0,0\n")
        mdp = MDP.from_table(path)
        assert mdp.feasible.tolist() == [[True, False], [False, True]]
        assert mdp.expected_rewards[0, 0] == -0.75
        assert mdp.terminates.tolist() == [False, True, False]
        assert not MDP.from_table(str(path), terminal=[1]).feasible[1].any()

    @pytest.mark.parametrize(
        ("lines", "message"),
        [
            ("0,0,1,1,5\n1,0,,1,1\n", r"line 3: column s' is empty, expected a number or a name"),
            ("a,go,b,1,5\nb,,a,1,1\n", r"line 3: column a is empty"),
            ("0,0,1,1,5\n10,0,2,1,1\n2,0,O,1,1\n", r"line 4 has 'O', but the states before are numbers, not names"),
            ("a,go,b,1,5\nb,go,1,1,1\n", r"line 3 has '1', but the states before are names, not numbers"),
            ("0,0,1,1,5\n1,x,0,1,1\n", r"line 3 has 'x', but the actions before are numbers, not names"),
        ],
    )
    def test_a_mistyped_cell_does_not_rename_all_states(self, tmp_path, lines, message):
        path = tmp_path / "model.csv"
        path.write_text(f"s,a,s',p,r\n{lines}")
        with pytest.raises(ValueError, match=rf"model\.csv cannot be read as a table: {message}"):
            MDP.from_table(path)

    def test_a_spreadsheet_marks_the_order_of_its_bytes(self, tmp_path):
        path = tmp_path / "model.csv"
        path.write_bytes("\ufeffs, a, s', p, r\r\n0,0,0,1,0\r\n".encode())
        assert MDP.from_table(path).states == 1

    def test_an_array_and_columns_say_the_same(self):
        rows = [[0, 0, 1, 1.0, 3.0], [1, 0, 1, 1.0, 0.0]]
        array = MDP.from_table(np.array(rows))
        columns = MDP.from_table(dict(zip(("s", "a", "s'", "p", "r"), zip(*rows, strict=True), strict=True)))
        named = dict(zip(("s", "a", "s'", "p", "r"), zip(*rows, strict=True), strict=True))
        mixed = MDP.from_table({name: named[name] for name in ("r", "s'", "a", "s", "p")})
        np.testing.assert_array_equal(mixed.expected_rewards, columns.expected_rewards)
        for one, other in zip(dense(array), dense(columns), strict=True):
            np.testing.assert_array_equal(one, other)
        assert MDP.from_table(rows, states=5, actions=2).terminal.tolist() == [False, False, True, True, True]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "begins with '', expected the header"),
            ("s,a,p,r\n0,0,1,0\n", "begins with 's,a,p,r', expected the header"),
            ("s,a,s',p,r\n", "has no line below its header"),
            ("s,a,s',p,r\n0,0,0,one,0\n", "cannot be read as a table: line 2: column p is 'one', expected a number"),
            ("s,a,s',p,r\n0,0,0,1,0\n0,0\n", "cannot be read as a table: "),
            ("s,a,s',p,r\n0,0,0,1\n", "cannot be read as a table: line 2 has 4 columns, expected 5"),
            ("s,a,s',p,r\n0,0,0,nan,0\n", "state 0, action 0: the probability of state 0 is nan"),
            ("s,a,s',p,r\n0,0,0,1,1e999\n", "the reward on the way to state 0 is inf"),
            ("s,a,s',p,r\n1e30,0,0,1,0\n", "column s number 0 is 1e\\+30, expected a whole number"),
        ],
    )
    def test_a_wrong_file_is_rejected(self, tmp_path, text, message):
        path = tmp_path / "model.csv"
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            MDP.from_table(path)

    def test_a_file_that_is_no_text_is_rejected(self, tmp_path):
        path = tmp_path / "model.csv"
        path.write_bytes(b"s,a,s',p,r\n\xff\xfe\x00")
        with pytest.raises(ValueError, match=r"model.csv"):
            MDP.from_table(path)

    @pytest.mark.parametrize(
        ("table", "message"),
        [
            ([[0, 0, 0, 1]], r"table has shape \(1, 4\), expected \(n, 5\) or \(n, 6\)"),
            ({"s": [0], "a": [0], "p": [1]}, "table has the columns s, a, p, expected s, a, s', p, r, terminates"),
        ],
    )
    def test_a_wrong_table_is_rejected(self, table, message):
        with pytest.raises(ValueError, match=message):
            MDP.from_table(table)


class TestFunction:
    def test_a_gambler(self):
        """Sutton and Barto's example 4.3 with a goal of 4: bold play wins with probability 0.4 ** 2 from 1."""

        def stake(capital, bet):
            if not 1 <= bet <= min(capital, 4 - capital):
                return None
            win, loss = capital + bet, capital - bet
            return [0.4, 0.6], [win, loss], [float(win == 4), 0.0]

        mdp = MDP.from_function(5, 3, stake, terminal=[0, 4])
        assert mdp.feasible.tolist()[1:4] == [[False, True, False], [False, True, True], [False, True, False]]
        np.testing.assert_allclose(optimal_values(mdp, 1.0, 50), [0, 0.16, 0.4, 0.64, 0], atol=1e-12)
        assert mdp.start.tolist() == [0, 1 / 3, 1 / 3, 1 / 3, 0]

    def test_rewards_and_endings_may_be_single_numbers(self):
        mdp = MDP.from_function(2, 1, lambda s, a: ([0.5, 0.5], [0, 1], -1, s == 1))
        assert mdp.rewards.tolist() == [-1] * 4
        assert mdp.terminates.tolist() == [False, False, True, True]

    @pytest.mark.parametrize(
        ("result", "message"),
        [
            (([1.0], [0]), "state 1, action 0: the function must return None or"),
            (([1.0], [0, 1], 0.0), r"state 1, action 0: .* got: \(1,\) probabilities and \(2,\) successors"),
            (([], [], []), r"state 1, action 0: .* got: \(0,\) probabilities"),
            (([1.0], [0], [1, 2]), "state 1, action 0: the function must return"),
            (7, "state 1, action 0: the function must return"),
            (([0.0], [0], 0.0), "state 1, action 0: the probabilities sum to 0"),
            (([1.0], [2], 0.0), "state 1, action 0: the successor is 2, expected 0 to 1"),
        ],
    )
    def test_a_wrong_answer_is_rejected(self, result, message):
        with pytest.raises(ValueError, match=message):
            MDP.from_function(2, 1, lambda s, a: result if s else ([1.0], [1], 0.0))

    def test_a_function_that_allows_nothing_is_rejected(self):
        with pytest.raises(ValueError, match="returned None for every state and action"):
            MDP.from_function(2, 1, lambda s, a: None)


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("names", [False, True])
def test_separators_are_found_and_states_may_have_names(mark, names, tmp_path):
    lines = ["s,a,s',p,r", "x,go,y,1,0", "y,go,x,0.5,1", "y,stay,y,0.5,2", "y,go,y,0.5,2", "y,stay,x,0.5,1"]
    numbers = {} if names else {"x": "0", "y": "1", "go": "0", "stay": "1"}
    text = "\n".join(mark.join(numbers.get(cell, cell) for cell in line.split(",")) for line in lines)
    path = tmp_path / "table.csv"
    path.write_text(text)
    table = read_csv(path)
    assert (table.states, table.actions) == ((("x", "y"), ("go", "stay")) if names else ((), ()))
    assert table.columns["s"].tolist() == [0, 1, 1, 1, 1]
    assert table.columns["s'"].tolist() == [1, 0, 1, 1, 0]
    assert table.columns["a"].tolist() == [0, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("x,go,y,many,0", "line 2: column p is 'many', expected a number"),
        ("x,go,y,1", "line 2 has 4 columns, expected 5"),
        ("\nx,go,y,many,0", "line 3: column p is 'many', expected a number"),
        ("0,0,0,1,0,1", "line 2 has 6 columns, expected 5"),
    ],
)
def test_a_line_of_names_that_is_wrong(line, said, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(f"s,a,s',p,r\n{line}\n")
    with pytest.raises(ValueError, match=said):
        read_csv(path)


def test_a_mask_of_whole_numbers_is_rejected():
    with pytest.raises(ValueError, match=r"terminal is \[0, 0, 1\], .* looks like a mask: pass a mask as bools"):
        MDP.from_arrays(np.eye(3)[:, None, :], 0.0, terminal=[0, 0, 1])
    assert MDP.from_arrays(np.eye(3)[:, None, :], 0.0, terminal=[False, False, True]).terminal.tolist() == [
        False,
        False,
        True,
    ]
    assert MDP.from_arrays(np.eye(3)[:, None, :], 0.0, terminal=[0, 1]).terminal.tolist() == [True, True, False]


def test_one_terminal_state_can_be_given_by_its_index():
    assert MDP.from_arrays(np.eye(3)[:, None, :], 0.0, terminal=1).terminal.tolist() == [False, True, False]
    with pytest.raises(ValueError, match="terminal number 0 is 3, expected 0 to 2"):
        MDP.from_arrays(np.eye(3)[:, None, :], 0.0, terminal=3)


def test_a_dictionary_of_tuples_starts_in_one_of_them():
    table = {(0, 1): {"on": [(1.0, (1, 0), 1.0, False)]}, (1, 0): {"on": [(1.0, (0, 1), 2.0, True)]}}
    assert MDP.from_dict(table, start=(1, 0)).start.tolist() == [0.0, 1.0]
    assert MDP.from_dict(table, start="(1, 0)").start.tolist() == [0.0, 1.0]
    assert MDP.from_dict(table, start=[1, 0]).start.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"a": {"x": [(0.5, "a", 1.0, False)]}}, "sum to 0.5, .*; states: 0 a; actions: 0 x"),
        ({0: {0: [(1.0, 2, 0.0, False)]}}, "state 1 does not occur, .* add it without actions"),
        ({0: {0: [(1.0, 0, 0.0, False)], 2: [(1.0, 0, 0.0, False)]}}, "action 1 does not occur, .* use names"),
    ],
)
def test_an_error_in_a_dictionary_has_its_names_and_a_remedy(table, message):
    with pytest.raises(ValueError, match=message):
        MDP.from_dict(table)
