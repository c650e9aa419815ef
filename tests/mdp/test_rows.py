from fractions import Fraction

import numpy as np

from operant.mdp import MDP
from operant.mdp.examples import random_model, slippery_grid
from operant.mdp.rows import examine, rows_of


def exact_endings(mdp):
    """Return the probability that nothing follows each row, in fractions."""
    indptr, _, probabilities = mdp.continuation
    return [1 - sum(map(Fraction, probabilities[indptr[k] : indptr[k + 1]].tolist())) for k in range(indptr.size - 1)]


def test_the_missing_probability_of_rows_is_accurate_to_its_last_digits():
    for mdp in (random_model(50, 2, 30, seed=0), random_model(30, 2, 7, seed=1, termination=0.3), slippery_grid(4)):
        facts = examine(mdp.rows, mdp.exits.ravel())
        feasible = mdp.feasible.ravel()
        truth = [ending if kept else 0 for ending, kept in zip(exact_endings(mdp), feasible, strict=True)]
        assert mdp.states != 50 or any(0 < abs(ending) < 1e-15 for ending in truth)
        for found, ending in zip(facts.ends.tolist(), truth, strict=True):
            assert abs(Fraction(found) - ending) <= Fraction(1, 2**52) * abs(ending) + Fraction(1, 2**90)
        lowest = facts.ends[feasible].min()
        assert facts.min_end == (lowest if mdp.exits[mdp.feasible].all() else min(lowest, 0.0))
        assert facts.max_end == facts.ends[feasible].max()


def test_rows_whose_probabilities_exceed_one_end_with_less_than_none():
    mdp = MDP.from_table([[0, 0, 0, 0.5 + 2**-52, 1.0], [0, 0, 1, 0.5, 1.0], [1, 0, 0, 1.0, 0.0]])
    assert mdp.facts.min_end == -(2**-52)
    assert mdp.facts.max_end == 0.0


def test_the_facts_leave_out_what_is_not_feasible():
    mdp = MDP.from_table([[0, 0, 1, 0.5, -7.0], [0, 0, 0, 0.5, 3.0], [1, 1, 0, 1.0, 2.0]])
    facts = mdp.facts
    assert facts.smallest == -2.0
    assert facts.largest == 7.0
    assert facts.longest == 2
    assert (facts.min_end, facts.max_end) == (0.0, 0.0)
    assert facts.ends.tolist() == [0.0, 0.0, 0.0, 0.0]


def test_rows_have_the_types_that_kernels_take():
    rows = rows_of(([0, 1], [0], np.array([1.0])), np.array([2.0]), 1, 0.5)
    assert rows.indptr.dtype == np.uint64
    assert rows.successors.dtype == np.uint32
    assert (rows.actions, rows.gamma) == (1, 0.5)


def test_a_rounding_error_is_no_termination():
    probabilities = [1 / 3, 1 / 3, np.nextafter(1 / 3, 0)]
    mdp = MDP.from_arrays([[probabilities]] * 3, 1.0)
    assert 0 < mdp.facts.ends.min() < 1e-15
    assert mdp.facts.min_end == 0
