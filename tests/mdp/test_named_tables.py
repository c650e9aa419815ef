"""Named columns and names of states and actions, from files, data frames, arrays and dictionaries."""

import gymnasium
import numpy as np
import pandas as pd
import pytest

from operant.mdp import MDP, solve
from operant.mdp.maps import read

ROWS = [("home", "go", "work", 0.9, 0.0, False), ("home", "go", "home", 0.1, 0.0, False),
        ("work", "stay", "work", 1.0, 1.0, True)]  # fmt: skip
NAMES = ["s", "a", "s'", "p", "r", "terminates"]
INDICES = {"home": 0, "work": 1, "go": 0, "stay": 1}
NUMBERED = [[INDICES.get(cell, cell) for cell in row] for row in ROWS]


def assert_same(model, other):
    for name in ("indptr", "successors", "probabilities", "rewards", "terminates", "start"):
        np.testing.assert_array_equal(getattr(model, name), getattr(other, name))


def structured():
    kinds = [("s", "U8"), ("a", "U8"), ("s'", "U8"), ("p", float), ("r", float), ("terminates", bool)]
    return np.array(ROWS, dtype=kinds)


@pytest.mark.parametrize("order", [NAMES, ["a", "s", "s'", "p", "r", "terminates"], NAMES[::-1]])
@pytest.mark.parametrize("rows", [ROWS, NUMBERED])
def test_columns_of_data_frames_are_named(rows, order):
    model = MDP.from_table(pd.DataFrame(rows, columns=NAMES)[order])
    assert_same(model, MDP.from_table(np.array(NUMBERED, float)))
    assert model.state_names == (("home", "work") if rows is ROWS else ())
    assert model.action_names == (("go", "stay") if rows is ROWS else ())


@pytest.mark.parametrize(
    "table",
    [
        structured(),
        {name: list(column) for name, column in zip(NAMES, zip(*ROWS, strict=True), strict=True)},
        pd.DataFrame(ROWS, columns=NAMES).astype({"s": "category", "terminates": object, "p": object}),
        pd.DataFrame(ROWS, columns=NAMES).astype({"terminates": "boolean", "r": "Float64", "a": "string"}),
    ],
)
def test_names_and_bools_are_read_from_any_kind_of_columns(table):
    model = MDP.from_table(table)
    assert_same(model, MDP.from_table(np.array(NUMBERED, float)))
    assert model.state_names == ("home", "work")


@pytest.mark.parametrize("order", [NAMES, NAMES[::-1]])
@pytest.mark.parametrize("truth", [("True", "False"), ("true", "FALSE"), ("1", "0")])
def test_a_file_of_pandas_is_read(truth, order, tmp_path):
    frame = pd.DataFrame(ROWS, columns=NAMES)[order]
    frame["terminates"] = [truth[0] if ends else truth[1] for ends in frame["terminates"]]
    frame.to_csv(tmp_path / "n.csv", index=False)
    model = MDP.from_table(tmp_path / "n.csv", start="work")
    assert_same(model, MDP.from_table(np.array(NUMBERED, float), start=1))
    assert [model.action_names[a] for a in solve(model, gamma=0.9).policy] == ["go", "stay"]
    assert read(file=tmp_path / "n.csv").mdp.state_names == ("home", "work")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pd.DataFrame(ROWS), "table has the columns 0, 1, 2, 3, 4, 5, expected s, a, s', p, r, terminates"),
        (pd.DataFrame(ROWS, columns=NAMES).assign(note=1), "table has the columns .*note, expected s"),
        (pd.DataFrame(ROWS, columns=NAMES).replace("stay", None), "row 2: column a is nan, expected a number or a"),
        (
            pd.DataFrame(ROWS, columns=NAMES).replace({"s": {"work": 1}}),
            "row 2 has '1', but the states before are",
        ),
        ({"s": ["x"], "a": [0, 0], "s'": ["x"], "p": [1], "r": [1]}, "table has columns of the shapes"),
        ({"s": ["x"], "a": [0], "s'": ["x"], "p": [0.5], "r": [1]}, "sum to 0.5.*; states: 0 x$"),
    ],
)
def test_wrong_columns_are_named(table, said):
    with pytest.raises(ValueError, match=said):
        MDP.from_table(table)


def test_an_unknown_name_of_the_start_and_a_separator_without_a_file_are_rejected():
    with pytest.raises(ValueError, match="start is 'bed', expected home, work"):
        MDP.from_table(pd.DataFrame(ROWS, columns=NAMES), start="bed")
    with pytest.raises(ValueError, match="start is 'bed', expected an index"):
        MDP.from_table(NUMBERED, start="bed")
    with pytest.raises(ValueError, match="separator is ';', but table is not the path"):
        MDP.from_table(NUMBERED, separator=";")


class TestDictionary:
    @pytest.mark.parametrize("task", ["FrozenLake-v1", "CliffWalking-v1", "Taxi-v4"])
    def test_the_table_of_an_environment_gives_its_model(self, task):
        env = gymnasium.make(task)
        model = MDP.from_dict(env.unwrapped.P, start=env.unwrapped.initial_state_distrib)
        assert_same(model, MDP.from_gymnasium(env))
        assert (model.max_steps, model.state_names, model.action_names) == (None, (), ())

    def test_keys_may_be_names_or_tuples(self):
        table = {"a": {"left": [(1.0, "end", 0, True)], "right": [(0.5, "b", 1, False), (0.5, "a", 0, False)]},
                 "b": {"left": [(1.0, "a", 0, False)]}}  # fmt: skip
        model = MDP.from_dict(table, start="b", max_steps=7)
        assert model.state_names == ("a", "b", "end")
        assert model.action_names == ("left", "right")
        assert model.terminal.tolist() == [False, False, True]
        assert (model.start.tolist(), model.max_steps) == ([0.0, 1.0, 0.0], 7)
        assert model.expected_rewards.tolist() == [[0.0, 0.5], [0.0, -np.inf], [-np.inf, -np.inf]]
        cells = {(0, 0): {"e": [(1.0, (0, 1), -1, True)]}, (0, 1): {}}
        assert MDP.from_dict(cells).state_names == ("(0, 0)", "(0, 1)")

    def test_the_order_of_numbers_and_terminal_states_without_actions(self):
        model = MDP.from_dict({2: {}, 0: {0: [(1.0, 1, 3.0, False)]}, 1: {0: [(1.0, 2, 1.0, False)]}})
        assert model.terminal.tolist() == [False, False, True]
        assert solve(model, gamma=0.5).values == pytest.approx([3.5, 1.0, 0.0])

    @pytest.mark.parametrize(
        ("table", "said"),
        [
            ({0: {0: [(1.0, "end", 0, True)]}}, "the states 0 and 'end' are a number and a name"),
            ({1: {0: [(1.0, 1, 0, True)]}}, "state 0 does not occur, but state 1 does; numbering starts at 0"),
            ({0: {0: [(1.0, 0, 0)]}}, r"table\[0\]\[0\] holds \(1.0, 0, 0\), expected"),
            ({"x": {"y": [1.0]}}, r"table\['x'\]\['y'\] holds 1.0, expected"),
            ({"1": {"y": [(1.0, (1,), 0, True)]}, (1,): {}, "(1,)": {}}, r"state_names has the name '\(1,\)' twice"),
            ({}, "the table is empty"),
            ({0: 5}, "expected a dictionary of this form"),
            (7, "expected a dictionary of this form"),
        ],
    )
    def test_another_form_is_rejected(self, table, said):
        with pytest.raises(ValueError, match=said):
            MDP.from_dict(table)

    def test_a_start_decides_which_states_are_terminal(self):
        turns = {0: {0: [(1.0, 1, 1.0, True)]}, 1: {0: [(1.0, 0, 1.0, True)]}}
        assert MDP.from_dict(turns).terminal.tolist() == [False, False]
        assert MDP.from_dict(turns, start=0).terminal.tolist() == [False, True]
        with pytest.raises(ValueError, match="start is 2, expected 0 to 1"):
            MDP.from_dict(turns, start=2)

    def test_constructors_and_solvers_name_it(self):
        table = {0: {0: [(1.0, 0, 1.0, False)]}}
        for wrong in (
            lambda: MDP.from_gymnasium(table),
            lambda: MDP.from_arrays(table, 0.0),
            lambda: solve((np.eye(1)[None], np.ones(1)), gamma=0.9),
        ):
            with pytest.raises(ValueError, match="from_dict"):
                wrong()

    def test_a_table_lists_what_it_means(self):
        """State 1 is entered by ending alone: terminal in a dictionary, as in Gymnasium, but not in a table."""
        rows = [[0, 0, 1, 1.0, 1.0, 1], [1, 0, 1, 1.0, 5.0, 0]]
        listed = {int(s): {int(a): [(p, int(after), r, bool(end))]} for s, a, after, p, r, end in rows}
        assert MDP.from_table(rows).terminal.tolist() == [False, False]
        assert MDP.from_table(rows).start.tolist() == [0.5, 0.5]
        model = MDP.from_dict(listed)
        assert (model.terminal.tolist(), model.start.tolist()) == ([False, True], [1.0, 0.0])
