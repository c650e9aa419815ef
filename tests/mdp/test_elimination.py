import numpy as np
import pytest
from exact import random_models

from operant.mdp.elimination import Improver
from operant.mdp.examples import random_model, slippery_grid
from operant.mdp.iteration import Iteration
from operant.mdp.policies import check_deterministic


def begin(mdp, gamma):
    return Iteration.begin(mdp, gamma=gamma, tolerance=1e-9, limit=1_000)


def some_models():
    yield from random_models(30, seed=40)
    yield random_model(300, 4, 5, seed=0), 0.9
    yield random_model(300, 4, 5, seed=1, termination=0.2, infeasible=0.3), 0.95
    yield slippery_grid(8), 0.99


def test_every_improvement_is_that_of_a_look_at_all_actions():
    """Between improvements values change by sweeps of the chain, and by a constant if that is allowed."""
    for mdp, gamma in some_models():
        solver = begin(mdp, gamma)
        improver, out, greedy = Improver(solver), np.empty(mdp.states), np.full(mdp.states, -1)
        for count in solver.rounds():
            values = solver.values.copy()
            improver.improve()
            change = solver.problem.improve(values, out, greedy)
            np.testing.assert_allclose(solver.values, out, rtol=0, atol=4 * solver.problem.rounding(values))
            assert solver.change == pytest.approx(change, abs=8 * solver.problem.rounding(values))
            check_deterministic(mdp, solver.policy)
            improver.prepare()
            for _ in range(count % 4):
                improver.sweep()
            if count == 25:
                break


def test_it_counts_the_states_that_change_and_soon_looks_at_few():
    solver = begin(random_model(500, 4, 5, seed=0), 0.9)
    improver, looked = Improver(solver), []
    for count in solver.rounds():
        held = solver.policy.copy()
        before = improver._leads.safe.copy()
        improver.improve()
        assert improver.changed == np.count_nonzero(solver.policy != held)
        looked.append(np.count_nonzero(improver._leads.safe != before))
        improver.prepare()
        improver.sweep()
        if count == 30:
            break
    assert looked[0] == 500
    assert looked[-1] < 10


def test_all_states_are_looked_at_again_when_the_values_jump():
    solver = begin(random_model(200, 3, 4, seed=0), 0.9)
    improver, out, greedy = Improver(solver), np.empty(200), np.full(200, -1)
    for _ in range(20):
        improver.improve()
        improver.prepare()
    solver.values += np.random.default_rng(0).normal(size=200) * 10
    improver.forget()
    values = solver.values.copy()
    improver.improve()
    solver.problem.improve(values, out, greedy)
    np.testing.assert_array_equal(solver.policy, greedy)
    np.testing.assert_array_equal(solver.values, out)


def test_the_chain_is_that_of_the_policy():
    solver = begin(random_model(100, 3, 4, seed=0, infeasible=0.2, termination=0.1), 0.9)
    improver = Improver(solver)
    for _ in range(10):
        solver.count += 1
        improver.improve()
        chain, fresh = improver.prepare(), solver.problem.chain(solver.policy)
        for found, expected in zip(chain.rows, fresh.rows, strict=True):
            np.testing.assert_array_equal(found, expected)
        improver.sweep()
