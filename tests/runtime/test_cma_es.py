"""CMA-ES: it finds a minimum with the numbers of its generator alone, and names the missing package."""

import numpy as np
import pytest

from operant.runtime import cma_es
from operant.runtime.cma_es import require_cma, strategy_of


def minimized(seed):
    strategy = strategy_of(np.ones(3), 0.5, np.random.default_rng(seed), popsize=8, maxiter=60)
    while not strategy.stop():
        asked = strategy.ask()
        assert len(asked) == 8
        strategy.tell(asked, [float(((x - [3.0, -1.0, 0.5]) ** 2).sum()) for x in asked])
    return np.array(strategy.mean)


def test_a_minimum_is_found_with_the_given_generator_only():
    before = np.random.get_state()[1].copy()
    found = minimized(0)
    assert found == pytest.approx([3.0, -1.0, 0.5], abs=0.01)
    assert (minimized(0) == found).all()
    assert (minimized(1) != found).any()
    assert (np.random.get_state()[1] == before).all()


def test_a_missing_package_is_named(monkeypatch):
    require_cma("world models need")
    monkeypatch.setattr(cma_es, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="world models need the package cma: pip install"):
        require_cma("world models need")
