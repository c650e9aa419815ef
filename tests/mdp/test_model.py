"""Constructors, their checks, and derived arrays."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.mdp import MDP


def parts(**changes):
    """Return columns: in state 0, action 0 stays or ends in state 1, and action 1 goes to state 2, which leads back."""
    return {
        "states": 3,
        "actions": 2,
        "indptr": [0, 2, 3, 3, 3, 4, 4],
        "successors": [0, 1, 2, 0],
        "probabilities": [0.25, 0.75, 1.0, 1.0],
        "rewards": [4.0, -4.0, 1.0, 3.0],
        "terminates": [False, False, False, False],
        "start": [1.0, 0.0, 0.0],
        **changes,
    }


def test_derived_arrays():
    mdp = MDP(**parts(terminates=[False, False, True, False]))
    assert mdp.feasible.tolist() == [[True, True], [False, False], [True, False]]
    assert mdp.terminal.tolist() == [False, True, False]
    assert mdp.expected_rewards.tolist() == [[-2, 1], [-np.inf, -np.inf], [3, -np.inf]]
    indptr, successors, probabilities = mdp.continuation
    assert indptr.tolist() == [0, 1, 1, 1, 1, 2, 2]
    assert successors.tolist() == [0, 0]
    assert probabilities.tolist() == [0.25, 1]


def test_without_an_ending_everything_continues():
    mdp = MDP(**parts(indptr=[0, 2, 3, 4, 4, 5, 5], successors=[0, 1, 2, 1, 0], probabilities=[0.25, 0.75, 1, 1, 1],
                      rewards=[0] * 5, terminates=[False] * 5))  # fmt: skip
    assert mdp.continuation[1] is mdp.successors


def test_entering_a_terminal_state_terminates():
    assert MDP(**parts()).terminates.tolist() == [False, True, False, False]


def test_arrays_get_the_types_that_kernels_expect():
    mdp = MDP(**parts(successors=np.array([0, 1, 2, 0], np.int32), rewards=[4, -4, 1, 3], terminates=[0, 1, 0, 0]))
    dtypes = {field.name: getattr(mdp, field.name).dtype for field in dataclasses.fields(MDP)[2:8]}
    assert set(map(str, dtypes.values())) == {"int64", "float64", "bool"}
    assert all(getattr(mdp, name).flags.c_contiguous for name in dtypes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"states": 0}, "states is 0"),
        ({"actions": 3}, r"indptr has shape \(7,\), expected \(10,\)"),
        ({"indptr": [0, 2, 3, 2, 3, 4, 4]}, "indptr decreases from 3 to 2"),
        ({"indptr": [0, 2, 3, 3, 3, 4, 5]}, "indptr runs from 0 to 5, expected 0 to 4"),
        ({"indptr": [1, 2, 3, 3, 3, 4, 4]}, "indptr runs from 1 to 4"),
        ({"rewards": [1.0]}, r"rewards has shape \(1,\), expected \(4,\)"),
        ({"successors": [0, 1, 3, 0]}, "state 0, action 1: the successor is 3, expected 0 to 2"),
        ({"probabilities": [0.25, 0.75, 0.5, 1]}, "state 0, action 1: the probabilities sum to 0.5, expected 1"),
        ({"probabilities": [0, 1, 1, 1]}, "transition 0 has probability 0"),
        ({"rewards": [0, 0, np.nan, 0]}, "state 0, action 1: the reward on the way to state 2 is nan"),
        ({"start": [0, 1, 0]}, "start gives state 1 the probability 1, but this state is terminal"),
        ({"max_steps": 0}, "max_steps is 0, expected at least 1"),
    ],
)
def test_invalid_models_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        MDP(**parts(**changes))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"state_names": ["a", "b"]}, "state_names has 2 names, expected 3"),
        ({"action_names": ["x", "x"]}, "action_names has the name 'x' twice"),
    ],
)
def test_names_are_different_and_as_many_as_states_and_actions(names, message):
    with pytest.raises(ValueError, match=message):
        MDP(**parts(**names))
    for wrong in ("xy", [1, 2], None):
        with pytest.raises(TypeError, match=r"action_names is .*, expected strings"):
            MDP(**parts(action_names=wrong))


def test_a_model_without_transitions_is_rejected():
    empty = {"indptr": [0, 0], "successors": [], "probabilities": [], "rewards": [], "terminates": []}
    with pytest.raises(ValueError, match="none of the 1 states has a feasible action"):
        MDP(**parts(states=1, actions=1, start=[1], **empty))


def full_table(rng, states, actions):
    """Return columns in which every action can lead to every state and to one more, the terminal state `states`."""
    rows = np.arange(states * actions).repeat(states + 1)
    return {
        "s": rows // actions,
        "a": rows % actions,
        "s'": np.tile(np.arange(states + 1.0), states * actions),
        "p": rng.dirichlet(np.ones(states + 1), states * actions).ravel(),
        "r": rng.normal(size=rows.size),
    }


WRONG = {
    "nan": ("p", lambda p, size, states: np.nan),
    "infinite": ("p", lambda p, size, states: np.inf),
    "negative": ("p", lambda p, size, states: -size),
    "too large": ("p", lambda p, size, states: p + size),
    "too small": ("p", lambda p, size, states: p - min(size, 1e-6)),
    "below the states": ("s'", lambda s, size, states: -1 - np.floor(size)),
    "above the states": ("s'", lambda s, size, states: states + 1 + np.floor(size)),
    "between two states": ("s'", lambda s, size, states: s + 0.5),
    "no reward": ("r", lambda r, size, states: np.nan),
    "a reward without end": ("r", lambda r, size, states: -np.inf),
}


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(list(WRONG)), st.integers(0, 2**32 - 1), st.floats(-5.9, 300))
def test_one_wrong_number_never_passes(kind, seed, exponent):
    """Try errors above those of float32, which may be up to 8.4e-7 in rows of six probabilities and are reported."""
    rng = np.random.default_rng(seed)
    states, actions = (int(n) for n in rng.integers(1, 6, 2))
    table = full_table(rng, states, actions)
    MDP.from_table(table, states=states + 1)
    column, change = WRONG[kind]
    place = rng.integers(table["s"].size)
    table[column][place] = change(table[column][place], 10.0**exponent, states)
    s, a = table["s"][place], table["a"][place]
    with pytest.raises(ValueError, match=rf"state {s}, action {a}: .*expected|number {place} is .*, expected a whole"):
        MDP.from_table(table, states=states + 1)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from([np.nan, np.inf, -0.1, 1.1, 1 + 1e-8, 1 - 1e-8]), st.integers(1, 5))
def test_a_start_that_is_no_distribution_never_passes(value, states):
    table = full_table(np.random.default_rng(states), states, 2)
    start = np.zeros(states + 1)
    start[states - 1] = 1.0
    MDP.from_table(table, start=start)
    start[states - 1] = value
    with pytest.raises(ValueError, match=r"start (sums to|gives state) .*, expected"):
        MDP.from_table(table, start=start)


def test_from_function_and_from_table_and_from_arrays_agree():
    rng = np.random.default_rng(0)
    dense, rewards = rng.dirichlet(np.ones(4), (4, 3)), rng.normal(size=(4, 3, 4))
    s, a, successor = np.indices(dense.shape).reshape(3, -1)
    columns = {"s": s, "a": a, "s'": successor, "p": dense.ravel(), "r": rewards.ravel()}
    models = [
        MDP.from_arrays(dense, rewards, start=2, max_steps=9),
        MDP.from_table(columns, start=[0, 0, 1, 0], max_steps=9),
        MDP.from_function(4, 3, lambda s, a: (dense[s, a], np.arange(4), rewards[s, a]), start=2, max_steps=9),
    ]
    for mdp in models:
        for field in dataclasses.fields(MDP):
            np.testing.assert_array_equal(getattr(mdp, field.name), getattr(models[0], field.name))
