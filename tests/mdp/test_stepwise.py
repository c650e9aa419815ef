from dataclasses import replace
from itertools import islice, pairwise
from typing import get_args

import numpy as np
import pytest
from exact import optimum, random_models

from operant import mdp
from operant.envs import GridWorld
from operant.envs.worlds import drawings
from operant.mdp import MDP
from operant.mdp.stepwise import StepMethod, evaluation_sweeps, steps


def grid(drawing=drawings.TRAP_8X8):
    return MDP.from_gymnasium(GridWorld(drawing))


@pytest.mark.parametrize("method", get_args(StepMethod))
def test_every_method_ends_at_the_optimum(method):
    for model, gamma in random_models(6, seed=15):
        *_, last = steps(model, gamma=gamma, method=method, backups=7)
        np.testing.assert_allclose(last.values, optimum(model, gamma), atol=1e-6)


@pytest.mark.parametrize("method", get_args(StepMethod))
def test_every_method_ends_at_the_optimum_without_a_discount(method):
    model = grid(drawings.WINDY)
    *_, last = steps(model, gamma=1.0, method=method, backups=50)
    np.testing.assert_allclose(last.values, mdp.solve(model, gamma=1.0).values, atol=1e-9)


@pytest.mark.parametrize("method", [*get_args(StepMethod), "evaluation"])
def test_every_method_ends_although_values_alternate_by_rounding_errors(method):
    """Two states in turns, whose values reach their limits from both sides."""
    pair = MDP.from_arrays([[[0.0, 1.0]], [[1.0, 0.0]]], [-1e6, 1e6])
    found = (
        evaluation_sweeps(pair, [0, 0], gamma=0.9) if method == "evaluation" else steps(pair, gamma=0.9, method=method)
    )
    *_, last = islice(found, 5000)
    assert next(found, None) is None
    np.testing.assert_allclose(last.values, mdp.solve(pair, gamma=0.9).values, rtol=1e-12)


@pytest.mark.parametrize("method", get_args(StepMethod))
def test_free_loops_without_a_discount_do_not_hide_the_way_out(method):
    model = MDP.from_function(
        2, 2, lambda s, a: None if s == 1 else (([1.0], [0], [0.0]) if a == 0 else ([1.0], [1], [-1.0]))
    )
    *_, last = steps(model, gamma=1.0, method=method)
    np.testing.assert_array_equal(last.values, [-1.0, 0.0])
    assert last.policy.tolist() == [1, -1]


def test_policy_iteration_evaluates_until_nothing_changes_and_then_improves():
    found = list(steps(grid(), gamma=0.9, method="policy-iteration"))
    phases = [step.phase for step in found]
    assert phases[0] == "evaluation"
    assert phases[-1] == "improvement"
    for step, following in pairwise(found):
        if following.phase == "improvement":
            assert step.residual <= 1e-10
            np.testing.assert_array_equal(step.values, following.values)
        else:
            np.testing.assert_array_equal(step.policy, following.policy)
    improvements = [step.policy for step in found if step.phase == "improvement"]
    assert len(improvements) > 3
    np.testing.assert_array_equal(improvements[-1], improvements[-2])


def corridor(states):
    """States in a line, of which the last but one ends the episode with reward 1."""
    return MDP.from_table([[s, 0, s + 1, 1, s == states - 2, s == states - 2] for s in range(states - 1)])


@pytest.mark.parametrize("ended_in", [1, 2])
def test_actions_that_always_end_the_episode_count_as_changes(ended_in):
    """Only a reward at the end: sweeps must continue until it has reached all states, wherever the end is."""
    model = MDP.from_table([[0, 0, 1, 1, 0, 0], [1, 0, ended_in, 1, 1, 1]])
    *_, last = evaluation_sweeps(model, np.zeros(model.states, int), gamma=0.9)
    np.testing.assert_allclose(last.values[:2], [0.9, 1.0])
    *_, last = steps(model, gamma=0.9, method="policy-iteration")
    np.testing.assert_allclose(last.values[:2], [0.9, 1.0])
    *_, last = steps(corridor(7), gamma=0.9, method="policy-iteration")
    np.testing.assert_allclose(last.values, [*0.9 ** np.arange(5, -1, -1), 0.0])


def test_sweeps_agree_with_the_evaluation_of_random_models_with_endings():
    """Rewards are given only at the end."""
    rng = np.random.default_rng(3)
    for seed in range(12):
        states = int(rng.integers(2, 8))
        kept = mdp.random_model(states, 2, min(3, states), seed=seed, infeasible=0.2, termination=0.3)
        ending = np.repeat(rng.random(states * 2) < 0.4, np.diff(kept.indptr))
        ends = kept.terminates | ending
        model = replace(kept, terminates=ends, rewards=np.where(ends, kept.rewards, 0.0))
        policy = np.where(model.terminal, 0, [rng.choice(np.flatnonzero(row | ~row.any())) for row in model.feasible])
        gamma = float(rng.choice([0.0, 0.5, 0.9, 0.99]))
        *_, last = evaluation_sweeps(model, policy, gamma=gamma)
        truth = mdp.policy_evaluation(model, policy, gamma=gamma)
        np.testing.assert_allclose(last.values, truth.values, atol=1e-7)
        *_, last = steps(model, gamma=gamma, method="policy-iteration")
        np.testing.assert_allclose(last.values, optimum(model, gamma), atol=1e-7)


def test_prioritized_sweeping_changes_the_neighbors_of_the_goal_first():
    model = grid()
    before = np.zeros(model.states)
    for step in islice(steps(model, gamma=0.9, method="prioritized-sweeping"), 2):
        assert (step.values != before).sum() == 1
        before = step.values
    assert set(np.flatnonzero(before)) == {6, 15}  # left of and below the corner


def test_prioritized_sweeping_takes_fewer_backups_than_sweeps():
    model = grid()
    backups = {
        method: [*steps(model, gamma=0.9, method=method)][-1].backups
        for method in ("prioritized-sweeping", "value-iteration")
    }
    assert backups["prioritized-sweeping"] < backups["value-iteration"]


def test_orders_are_those_of_the_seed():
    runs = [[*steps(grid(), gamma=0.9, method="random-order", seed=seed)] for seed in (1, 1, 2)]
    np.testing.assert_array_equal(runs[0][0].values, runs[1][0].values)
    assert (runs[0][0].values != runs[2][0].values).any()


def test_sweeps_of_an_evaluation_end_at_the_values_of_the_policy():
    model = grid(drawings.CORNERS_4X4)
    uniform = model.feasible / np.maximum(model.feasible.sum(axis=1, keepdims=True), 1)
    first, *_, last = evaluation_sweeps(model, uniform, gamma=1.0)
    assert first.values[5] == -1.0
    assert last.values[5] == pytest.approx(-18.0)  # Sutton and Barto 2018, figure 4.1
    assert (last.policy == -1).all()


def test_an_evaluation_without_a_discount_needs_an_end():
    model = grid()
    with pytest.raises(ValueError, match="end"):
        evaluation_sweeps(model, np.zeros(model.states, int), gamma=1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"method": "jacobi"}, "method is"), ({"backups": 0}, "backups is 0"), ({"tolerance": 0.0}, "tolerance is 0")],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        steps(grid(), gamma=0.9, **{"method": "value-iteration", **options})


@pytest.mark.parametrize("name", ["backups", "evaluations", "seed"])
def test_counts_are_whole_numbers(name):
    with pytest.raises(TypeError, match=rf"{name} is 1\.5, expected"):
        steps(grid(), gamma=0.9, method="real-time", **{name: 1.5})


def test_backups_along_whole_trajectories_are_counted():
    """Two trajectories of 3 backups make the 4 of as many states, and a sweep another 4."""
    line = MDP.from_function(4, 1, lambda s, _: None if s == 3 else ([1.0], [s + 1], [-1.0]), start=0)
    first, second, *_ = steps(line, gamma=0.9, method="real-time")
    assert (first.backups, second.backups) == (6, 10)


def test_zero_evaluations_are_value_iteration_and_fewer_are_an_error():
    with pytest.raises(ValueError, match="evaluations is -1, expected at least 0"):
        steps(grid(), gamma=0.9, method="modified-policy-iteration", evaluations=-1)
    same = list(steps(grid(), gamma=0.9, method="modified-policy-iteration", evaluations=0))
    assert len(same) == len(list(steps(grid(), gamma=0.9, method="value-iteration")))
