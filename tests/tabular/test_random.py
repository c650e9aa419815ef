import numpy as np
import pytest
from scipy import stats

from operant.tabular import random
from operant.tabular.numba_config import compiled

from .twin import Stream

N = 20_000


@compiled
def fill(kind, rng, out, a, b):
    for k in range(len(out)):
        if kind == 0:
            out[k] = random.uniform(rng, 1)
        elif kind == 1:
            out[k] = random.below(rng, 1, a)
        elif kind == 2:
            out[k] = random.normal(rng, 1)
        elif kind == 3:
            out[k] = random.gamma(rng, 1, a)
        else:
            out[k] = random.beta(rng, 1, a, b)


def sample(kind, a=1.0, b=1.0, seed=5):
    out = np.zeros(N)
    fill(kind, random.stream_states([0, seed], "test"), out, a, b)
    return out


def test_the_twin_draws_the_same_numbers():
    twin, rng = Stream(3, "test"), random.stream_states([3], "test")
    assert [random.uniform(rng, 0) for _ in range(5)] == [twin.uniform() for _ in range(5)]
    assert [random.below(rng, 0, 7) for _ in range(50)] == [twin.below(7) for _ in range(50)]


@pytest.mark.parametrize(
    ("kind", "a", "b", "law"),
    [
        (0, 1.0, 1.0, stats.uniform()),
        (2, 1.0, 1.0, stats.norm()),
        (3, 1.0, 1.0, stats.gamma(1.0)),
        (3, 4.5, 1.0, stats.gamma(4.5)),
        (4, 1.0, 1.0, stats.beta(1, 1)),
        (4, 3.0, 9.0, stats.beta(3, 9)),
    ],
)
def test_the_distributions_are_right(kind, a, b, law):
    assert stats.kstest(sample(kind, a, b), law.cdf).pvalue > 1e-3


def test_integers_are_uniform():
    counts = np.bincount(sample(1, 7.0).astype(int), minlength=7)
    assert len(counts) == 7
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("size", [2, 5, 17, 40])
def test_inversion_draws_from_a_part_of_an_array(size):
    """Few outcomes are searched linearly, many by bisection."""
    weights = np.random.default_rng(size).dirichlet(np.ones(size))
    cumulative = np.concatenate([[0.3, 1.0], np.cumsum(weights), [0.5]])
    rng, counts = random.stream_states([size], "test"), np.zeros(size)
    for _ in range(4000):
        counts[random.draw(cumulative, 2, 2 + size, rng, 0) - 2] += 1
    assert stats.chisquare(counts, weights * 4000).pvalue > 1e-3


def test_a_single_outcome_needs_no_number():
    rng = random.stream_states([1], "test")
    before = rng.copy()
    assert random.draw(np.array([0.5, 1.0]), 1, 2, rng, 0) == 1
    assert rng == before


def test_rounding_never_leads_out_of_the_array():
    for size in (3, 30):
        cumulative = np.full(size, 1e-300)  # as if the probabilities summed to almost nothing
        assert random.draw(cumulative, 0, size, random.stream_states([1], "test"), 0) == size - 1
