import numpy as np
import pytest

from operant.mdp import MDP
from operant.mdp.iteration import Iteration

LAKE = MDP.from_gymnasium("FrozenLake-v1")


def test_backups_until_it_is_finished_give_a_certified_solution():
    solver = Iteration.begin(LAKE, gamma=0.9, tolerance=1e-6, limit=10_000)
    for _ in solver.rounds():
        solver.back_up()
        if solver.finished:
            break
    solution = solver.conclude("test")
    assert solution.method == "test"
    assert solution.converged
    assert solution.values[0] == pytest.approx(0.068891, abs=1e-6)
    assert (solution.lower <= solution.upper).all()


def test_the_rounds_are_limited():
    solver = Iteration.begin(LAKE, gamma=0.99, tolerance=1e-9, limit=5)
    for _ in solver.rounds():
        solver.back_up()
    solution = solver.conclude("test")
    assert solution.iterations == 5
    assert not solution.converged
    np.testing.assert_array_less(solution.lower - 1e-12, solution.upper)
