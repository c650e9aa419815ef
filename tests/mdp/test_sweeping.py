import pytest
from exact import assert_solved, optimum, random_models

from operant.mdp import MDP
from operant.mdp.examples import random_model
from operant.mdp.sweeping import prioritized_sweeping


def test_it_finds_the_optimum_of_random_models():
    for mdp, gamma in random_models(40, seed=13):
        assert_solved(prioritized_sweeping(mdp, gamma=gamma, tolerance=1e-5), optimum(mdp, gamma))


def test_the_frozen_lake():
    solution = prioritized_sweeping(MDP.from_gymnasium("FrozenLake-v1"), gamma=0.99)
    assert solution.values[0] == pytest.approx(0.542026, abs=2e-6)


def test_too_few_backups_are_reported():
    assert not prioritized_sweeping(MDP.from_gymnasium("FrozenLake-v1"), gamma=0.99, max_backups=5).converged


def test_a_limit_of_no_backups_is_rejected_by_its_name():
    with pytest.raises(ValueError, match="max_backups is 0, expected at least 1"):
        prioritized_sweeping(random_model(3, 2, 2, seed=0), gamma=0.9, max_backups=0)
