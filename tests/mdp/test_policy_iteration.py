import numpy as np
import pytest
from exact import assert_solved, optimum, random_models, random_walk

from operant.mdp import MDP
from operant.mdp.examples import slippery_grid
from operant.mdp.policy_iteration import inexact_policy_iteration, modified_policy_iteration, policy_iteration


@pytest.mark.parametrize("solver", [policy_iteration, modified_policy_iteration, inexact_policy_iteration])
def test_the_optimum_of_random_models_lies_within_the_bounds(solver):
    for mdp, gamma in random_models(60, seed=2):
        assert_solved(solver(mdp, gamma=gamma, tolerance=1e-5), optimum(mdp, gamma))


@pytest.mark.parametrize("evaluation", ["direct", "krylov"])
def test_both_evaluations_agree(evaluation):
    mdp = slippery_grid(12)
    one = policy_iteration(mdp, gamma=0.99, tolerance=1e-8, evaluation=evaluation)
    two = modified_policy_iteration(mdp, gamma=0.99, tolerance=1e-8)
    np.testing.assert_allclose(one.values, two.values, atol=2e-8)


def test_ties_do_not_make_it_cycle():
    solution = policy_iteration(slippery_grid(20), gamma=0.99)
    assert solution.converged
    assert solution.iterations < 60


def test_the_bounds_include_the_value_of_a_policy_whose_action_is_worse_by_less_than_the_margin():
    mdp = MDP.from_arrays(np.ones((1, 2, 1)), [[1.0, 1.0 + 5e-12]])
    solution = policy_iteration(mdp, gamma=0.999, initial=[0])
    assert solution.policy.tolist() == [0]
    assert solution.lower[0] <= 1000.0 < 1000.0 + 4.9e-9 <= solution.upper[0]
    assert solution.upper[0] - solution.lower[0] < 6e-9


def test_equal_actions_everywhere_end_after_one_iteration():
    mdp = MDP.from_arrays(np.full((3, 4, 3), 1 / 3), np.ones((3, 4)))
    solution = policy_iteration(mdp, gamma=0.9)
    np.testing.assert_allclose(solution.values, 10.0, atol=1e-6)
    assert solution.iterations <= 2


def test_the_cliff_without_a_discount():
    mdp = MDP.from_gymnasium("CliffWalking-v1")
    for solver in (policy_iteration, modified_policy_iteration):
        assert float(mdp.start @ solver(mdp, gamma=1.0).values) == pytest.approx(-13.0, abs=1e-6)


def test_values_of_an_unfinished_krylov_evaluation_do_not_lead_to_a_policy_that_never_ends():
    """Without a discount, values above the optimum make walking in circles look best."""
    side = 100
    solution = inexact_policy_iteration(slippery_grid(side), gamma=1.0)
    assert solution.converged
    assert abs(solution.values[0] + 570.27739817) < 1e-6  # of modified policy iteration


def test_a_policy_that_mixes_slowly_is_evaluated_by_another_method():
    mdp = random_walk(1_200, -1.0)
    solution = inexact_policy_iteration(mdp, gamma=0.999999, tolerance=1e-2, max_iterations=100)
    assert solution.converged
    assert solution.iterations < 100


def test_it_ends_when_only_rounding_errors_change_values():
    mdp = random_walk(1_500, -1000.0)
    solution = inexact_policy_iteration(mdp, gamma=1.0)
    np.testing.assert_allclose(solution.values[0], -1000.0 * 1500 * 1501, rtol=1e-9)
    assert not solution.converged  # 1e-6 of 2e9 is below the rounding errors


def test_numbers_of_sweeps_that_cannot_be_are_rejected():
    mdp = slippery_grid(3)
    for call, error, message in (
        (lambda: modified_policy_iteration(mdp, gamma=0.9, evaluations=1.5), TypeError, "evaluations is 1.5"),
        (lambda: modified_policy_iteration(mdp, gamma=0.9, evaluations=-1), ValueError, "evaluations is -1"),
        (lambda: inexact_policy_iteration(mdp, gamma=0.9, sweeps=2.5), TypeError, "sweeps is 2.5"),
    ):
        with pytest.raises(error, match=message):
            call()
