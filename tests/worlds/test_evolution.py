"""CMA-ES: its optimum, exact resume from fitness alone, and independent random numbers."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from operant.state import clone
from operant.worlds.evolution import Evolution

GOAL = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 3.0]], dtype=torch.float64)


def evolution(seeds=(3, 5), population=8):
    found = Evolution(seeds=seeds, population=population, sigma=0.5, size=3)
    found.begin(torch.zeros(len(seeds), 3))
    return found


def generation(found, goal=GOAL):
    asked = found.ask()
    found.tell(-(asked - goal.unsqueeze(1)).square().sum(-1))
    return asked


def test_it_finds_the_maximum():
    found = evolution()
    assert torch.equal(found.mean, torch.zeros(2, 3, dtype=torch.float64))
    for _ in range(120):
        asked = generation(found)
    assert asked.shape == (2, 8, 3)
    assert_close(found.mean, GOAL, atol=1e-3, rtol=0)
    assert (found.spread < 0.01).all()
    assert found.generations == 120


def test_it_resumes_exactly():
    whole = evolution()
    for _ in range(12):
        generation(whole)
    again = Evolution(seeds=(3, 5), population=8, sigma=0.5, size=3)
    again.load_state_dict(clone(whole.state_dict()))
    assert torch.equal(again.mean, whole.mean)
    for _ in range(5):
        assert torch.equal(generation(again), generation(whole))
    assert torch.equal(again.spread, whole.spread)


def test_it_resumes_before_it_has_begun_and_in_a_second_round():
    fresh = Evolution(seeds=(3, 5), population=8, sigma=0.5, size=3)
    again = evolution()
    again.load_state_dict(clone(fresh.state_dict()))
    assert (again.rounds, again.generations) == (0, 0)
    first = evolution()
    beginning = generation(first)
    first.begin(first.mean)
    assert first.generations == 0
    second = generation(first)
    assert not torch.equal(beginning, second), "each round has independent random numbers"
    again.load_state_dict(clone(first.state_dict()))
    assert torch.equal(again.mean, first.mean)


def test_a_state_of_another_population_is_rejected():
    found = evolution()
    generation(found)
    with pytest.raises(ValueError, match="fitness"):
        evolution(population=6).load_state_dict(clone(found.state_dict()))


def test_seeds_are_independent_and_the_global_generator_is_left_alone():
    before = np.random.get_state()[1].copy()
    both, alone = evolution(), evolution(seeds=(5,))
    for _ in range(10):
        generation(both)
        generation(alone, GOAL[1:])
    assert torch.equal(both.mean[1:], alone.mean)
    assert (np.random.get_state()[1] == before).all()


def test_nan_counts_as_the_lowest_fitness():
    found, same = evolution(), evolution()
    found.ask()
    same.ask()
    fitness = torch.arange(16.0).view(2, 8)
    holed = fitness.clone()
    holed[:, 3] = torch.nan
    found.tell(holed)
    fitness[:, 3] = fitness[:, 0]
    same.tell(fitness)
    assert torch.equal(found.mean, same.mean)
    found.ask()
    found.tell(torch.full((2, 8), torch.nan))
    assert found.mean.isfinite().all()


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("operant.runtime.cma_es.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "operant\[worlds\]"'):
        Evolution(seeds=(3,), population=8, sigma=0.5, size=3)
