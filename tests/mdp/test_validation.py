"""Every check and its message: the place, the value, what was expected, and the number of further errors."""

import numpy as np
import pytest

from operant.mdp import MDP
from operant.mdp.validation import (
    booleans,
    check_count,
    check_indices,
    check_size,
    check_start,
    check_sums,
    check_terminal,
    check_transitions,
    floats,
    integers,
    pair,
    raise_if_any,
)


def test_raise_if_any_names_the_first_and_counts_the_rest():
    raise_if_any(np.zeros(3, bool), str)
    with pytest.raises(ValueError, match=r"^entry 1$"):
        raise_if_any(np.array([False, True]), lambda i: f"entry {i}")
    with pytest.raises(ValueError, match=r"^entry 1 \(and 2 more like it\); fix it$"):
        raise_if_any(np.array([False, True, True, False, True]), lambda i: f"entry {i}", "fix it")


@pytest.mark.parametrize("given", [[1, 2], [1.0, 2.0], np.array([1, 2], np.uint8), np.array([1.0, 2.0], np.float32)])
def test_whole_numbers_become_int64(given):
    result = integers(given, "x")
    assert result.dtype == np.int64
    assert result.tolist() == [1, 2]


@pytest.mark.parametrize("given", [1.5, np.nan, np.inf, -np.inf, 1e300, 2.0**63, np.uint64(2**63)])
def test_numbers_beyond_64_bits_are_rejected(given):
    with pytest.raises(ValueError, match=r"x number 1 is .*, expected a whole number"):
        integers(np.array([0, given], type(given)), "x")


@pytest.mark.parametrize("given", [["1"], [None], [1j], [object()], [10**30]])
@pytest.mark.parametrize("convert", [integers, floats, booleans])
def test_values_that_are_not_numbers_are_rejected(convert, given):
    with pytest.raises(TypeError, match=r"x is an array of .*, expected real numbers"):
        convert(given, "x")


def test_ragged_lists_are_rejected():
    with pytest.raises(ValueError, match="x is ragged"):
        floats([[1], [1, 2]], "x")


def test_truth_values_may_be_0_and_1():
    assert booleans([0, 1.0], "x").tolist() == [False, True]
    with pytest.raises(ValueError, match=r"x number 0 is 2, expected true, false, 0 or 1"):
        booleans([2, 1], "x")


@pytest.mark.parametrize("count", [True, 1.0, "1", None])
def test_a_count_is_an_int(count):
    with pytest.raises(TypeError, match=r"n is .*, expected an int"):
        check_count(count, "n")


@pytest.mark.parametrize(("states", "actions", "message"), [(0, 1, "states is 0"), (1, -1, "actions is -1")])
def test_a_model_has_states_and_actions(states, actions, message):
    with pytest.raises(ValueError, match=f"{message}, expected at least 1"):
        check_size(states, actions)


def test_a_model_that_cannot_be_indexed_is_rejected():
    assert check_size(np.int64(2**31 - 1), 2) == (2**31 - 1, 2)
    with pytest.raises(ValueError, match="64-bit indices"):
        check_size(2**40, 2**20)


@pytest.mark.parametrize("index", [-1, 3, 2**62])
def test_indices_are_bounded(index):
    with pytest.raises(ValueError, match=rf"place 1 is {index}, expected 0 to 2"):
        check_indices(np.array([0, index]), 3, lambda i: f"place {i}")


def transitions(**changes):
    columns = {"successors": [0, 1, 2], "probabilities": [1.0, 0.5, 0.5], "rewards": [0.0, 1.0, -1.0]}
    arrays = {name: np.array(changes.get(name, values)) for name, values in columns.items()}
    return np.array([0, 5, 5]), *arrays.values()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"successors": [0, 1, 3]}, "state 2, action 1: the successor is 3, expected 0 to 2$"),
        ({"probabilities": [1, -0.5, 1.5]}, r"state 2, action 1: .* state 1 is -0.5, expected 0 to 1 \(and 1 more"),
        (
            {"probabilities": [np.nan, 0.5, 0.5]},
            "state 0, action 0: the probability of state 0 is nan, expected 0 to 1$",
        ),
        ({"rewards": [0, 1, np.inf]}, "state 2, action 1: the reward on the way to state 2 is inf, expected a finite"),
        ({"rewards": [0, -np.inf, 0]}, "without an infinite reward"),
    ],
)
def test_transitions(changes, message):
    check_transitions(*transitions(), states=3, actions=2)
    with pytest.raises(ValueError, match=message):
        check_transitions(*transitions(**changes), states=3, actions=2)


def test_sums():
    rows, required = np.array([0, 1, 1, 3]), np.array([True, True, False, False])
    check_sums(rows, np.array([1, 0.5, 0.5 + 9e-10, 1]), required, actions=2)
    with pytest.raises(ValueError, match=r"state 0, action 1: the probabilities sum to 1.000000002, expected 1 within"):
        check_sums(rows, np.array([1, 0.5, 0.5 + 2e-9, 1]), required, actions=2)
    with pytest.raises(ValueError, match=r"state 1, action 0: the probabilities sum to 0, .* \(and 1 more like it\)"):
        check_sums(rows, np.array([1, 0.5, 0.5, 0]), ~required | required, actions=2)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ([1, 0], r"start has shape \(2,\), expected \(3,\)"),
        ([1.5, -0.5, 0], "start gives state 1 the probability -0.5"),
        ([np.nan, 1, 0], "start gives state 0 the probability nan"),
        ([0.5, 0.4, 0], "start sums to 0.9, expected 1"),
        ([np.inf, 0, 0], "start sums to inf, expected 1"),
        ([0.5, 0, 0.5], "start gives state 2 the probability 0.5, but this state is terminal"),
    ],
)
def test_start(start, message):
    terminal = np.array([False, False, True])
    check_start(np.array([0.25, 0.75, 0]), terminal)
    with pytest.raises(ValueError, match=message):
        check_start(np.array(start, float), terminal)


def test_a_model_without_a_decision_is_rejected():
    check_terminal(np.array([True, False]))
    with pytest.raises(ValueError, match="none of the 2 states has a feasible action"):
        check_terminal(np.array([True, True]))


def test_pairs_are_counted_by_rows():
    assert pair(7, 3) == "state 2, action 1"


def test_rows_that_float32_has_rounded_are_divided_by_their_sums(caplog):
    exact = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    single = exact.astype(np.float32)
    model = MDP.from_arrays(single[:, None], 0.0)
    assert np.add.reduceat(model.probabilities, model.indptr[:-1]) == pytest.approx(1.0, abs=1e-15)
    assert len(caplog.records) == 1
    assert "only within float32 rounding (state " in caplog.text
    caplog.clear()
    given = MDP.from_arrays(exact[:, None], 0.0)
    assert caplog.text == ""
    assert given.probabilities.tolist() == exact[exact > 0].tolist()
    exact[1, 0] += 2e-6
    with pytest.raises(ValueError, match=r"state 1, action 0: the probabilities sum to 1\.000002"):
        MDP.from_arrays(exact[:, None], 0.0)
