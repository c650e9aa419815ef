import numpy as np
import pytest
from exact import optimum, random_models

from operant import mdp
from operant.mdp.bounds import certified_bounds


def test_bounds_hold_for_any_values():
    rng = np.random.default_rng(3)
    for model, gamma in random_models(10, seed=16):
        truth = optimum(model, gamma)
        for scale in (0.0, 1.0, 100.0):
            lower, upper = certified_bounds(model, rng.normal(scale=scale + 1e-9, size=model.states), gamma=gamma)
            assert (lower <= truth + 1e-9).all()
            assert (upper >= truth - 1e-9).all()


def test_bounds_of_optimal_values_are_tight():
    model = mdp.slippery_grid(5)
    solution = mdp.solve(model, gamma=0.95)
    lower, upper = certified_bounds(model, solution.values, gamma=0.95)
    assert (upper - lower).max() < 1e-9


def test_bounds_of_a_policy():
    model = mdp.slippery_grid(4)
    uniform = model.feasible / np.maximum(model.feasible.sum(axis=1, keepdims=True), 1)
    truth = mdp.policy_evaluation(model, uniform, gamma=0.9).values
    lower, upper = certified_bounds(model, np.full(model.states, -3.0), gamma=0.9, policy=uniform)
    assert (lower <= truth).all()
    assert (truth <= upper).all()
    assert mdp.solve(model, gamma=0.9).values.max() > upper.min()


def test_nothing_is_proved_without_a_discount():
    assert certified_bounds(mdp.slippery_grid(4), np.zeros(16), gamma=1.0) is None


def test_values_must_fit():
    with pytest.raises(ValueError, match="values has the shape"):
        certified_bounds(mdp.slippery_grid(4), np.zeros(3), gamma=0.9)
