import numpy as np
import pytest

from operant.tabular import acting
from operant.tabular.configs import ControlConfig
from operant.tabular.random import stream_states

FEASIBLE = np.array([[True, True, True, True], [False, True, False, True], [True, False, False, False]])
CHOICES = acting.Choices.of(FEASIBLE)


def shares(draw, n=4000):
    return np.bincount([draw() for _ in range(n)], minlength=4) / n


def test_choices_are_the_feasible_actions():
    assert CHOICES.counts.tolist() == [4, 2, 1]
    assert CHOICES.options[0].tolist() == [0, 1, 2, 3]
    assert CHOICES.options[1, :2].tolist() == [1, 3]
    assert CHOICES.options[2, 0] == 0


def test_values_look_at_feasible_actions_alone():
    values = np.array([9.0, 1.0, 9.0, 4.0])
    assert acting.best_value(CHOICES, values, 1) == 4.0
    assert acting.mean_value(CHOICES, values, 1) == 2.5
    assert acting.best_value(CHOICES, values, 2) == acting.mean_value(CHOICES, values, 2) == 9.0


def test_greedy_actions_share_ties_equally():
    rng = stream_states([0, 1], "test")
    found = shares(lambda: acting.greedy(CHOICES, np.array([3.0, 5.0, 5.0, 5.0]), 0, rng, 1))
    np.testing.assert_allclose(found, [0, 1 / 3, 1 / 3, 1 / 3], atol=0.03)
    assert acting.greedy(CHOICES, np.array([9.0, 1.0, 9.0, 2.0]), 1, rng, 1) == 3
    found = shares(lambda: acting.greedy(CHOICES, np.array([9.0, 2.0, 9.0, 2.0]), 1, rng, 1))
    np.testing.assert_allclose(found, [0, 0.5, 0, 0.5], atol=0.03)


def table(epsilon):
    rule = ControlConfig(exploration_initial_eps=epsilon, step_size=0.5).rule(FEASIBLE)
    return rule, acting.Table.new(rule, (3, 4), 3, 4, 0.0)


def test_exploring_takes_any_feasible_action_the_greedy_one_too():
    rule, made = table(0.4)
    made.q[1] = [[0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    found = shares(lambda: acting.epsilon_greedy(rule, made, 1, 0))
    np.testing.assert_allclose(found, [0.1, 0.1, 0.7, 0.1], atol=0.03)
    found = shares(lambda: acting.epsilon_greedy(rule, made, 1, 1))
    np.testing.assert_allclose(found, [0, 0.8, 0, 0.2], atol=0.03)
    assert acting.exploring_value(rule, made, 1, 1) == pytest.approx(0.8)


def test_a_stochastic_policy_is_followed():
    cumulative = np.array([0.0, 1.0, 1.0, 0.25, 0.25, 1.0])
    rng = stream_states([0], "test")
    found = np.bincount([acting.sampled_action(cumulative, 3, rng, 0, 1) for _ in range(4000)], minlength=3) / 4000
    np.testing.assert_allclose(found, [0.25, 0, 0.75], atol=0.03)
    assert {acting.sampled_action(cumulative, 3, rng, 0, 0) for _ in range(50)} == {1}


def test_improving_moves_one_cell_of_one_seed():
    rule, made = table(0.0)
    acting.improve(rule, made, 1, (2, 0), 4.0)
    assert made.q[1, 2, 0] == 2.0
    assert made.visits[1, 2, 0] == made.visits.sum() == 1
    assert np.abs(made.q).sum() == 2.0


def test_ticking_follows_the_schedules():
    config = ControlConfig(
        exploration_initial_eps=1.0,
        exploration_schedule="exponential",
        exploration_factor=0.5,
        step_size_schedule="linear",
        step_size_span=2.0,
    )
    rule = config.rule(FEASIBLE)
    made = acting.Table.new(rule, (3,), 3, 4, 0.0)
    acting.tick(rule, made, 0, False)
    assert (made.clock[0], made.epsilon[0], made.step_size[0]) == (0, 1.0, 0.1)
    acting.tick(rule, made, 0, True)
    assert (made.clock[0], made.epsilon[0], made.step_size[0]) == (1, 0.5, 0.05)
