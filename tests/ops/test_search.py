"""Action selection in a search tree: hand-worked numbers, loops, and invariants."""

import math

import pytest
import torch
from torch.testing import assert_close

from operant import ops


def drawn(seed=0, batch=50, actions=5):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, actions, generator=generator, dtype=torch.float64)
    prior = torch.randn(batch, actions, generator=generator, dtype=torch.float64).softmax(-1)
    visits = torch.randint(0, 4, (batch, actions), generator=generator)
    value = torch.randn(batch, generator=generator, dtype=torch.float64)
    return value, q, prior, visits


def test_puct_by_hand():
    """N = 4: sqrt(4) = 2, and log((4 + 19652 + 1) / 19652) = 0.000254 on top of 1.25."""
    q, prior = torch.tensor([0.5, 0.2], dtype=torch.float64), torch.tensor([0.4, 0.6], dtype=torch.float64)
    found = ops.puct(q, prior, torch.tensor([3, 0]), torch.tensor(4))
    weight = 1.25 + math.log(19657 / 19652)
    assert_close(found, torch.tensor([0.5 + 0.4 * 2 * weight / 4, 0.2 + 0.6 * 2 * weight], dtype=torch.float64))


def test_a_mixed_value_by_hand():
    """Tried with priors 0.2 and 0.3: their mean value is (0.2 · 1 - 0.3 · 1) / 0.5 = -0.2, which counts 1 + 3 times."""
    q = torch.tensor([1.0, -1.0, 99.0])
    prior, visits = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([1, 3, 0])
    found = ops.mixed_value(torch.tensor(0.8), q, prior, visits)
    assert_close(found, torch.tensor((0.8 + 4 * -0.2) / 5))
    assert_close(ops.completed_q(torch.tensor(0.8), q, prior, visits), torch.tensor([1.0, -1.0, float(found)]))


def test_values_against_a_loop():
    value, q, prior, visits = drawn()
    for i in range(len(value)):
        tried = [a for a in range(q.shape[1]) if visits[i, a] > 0]
        mass = sum(float(prior[i, a]) for a in tried)
        mean = sum(float(prior[i, a] * q[i, a]) for a in tried) / mass if tried else 0.0
        total = int(visits[i].sum())
        mixed = (float(value[i]) + total * mean) / (1 + total)
        row = ops.completed_q(value, q, prior, visits)[i]
        for a in range(q.shape[1]):
            assert float(row[a]) == pytest.approx(float(q[i, a]) if a in tried else mixed)


def test_unvisited_actions_change_nothing():
    value, q, prior, _ = drawn()
    none = torch.zeros(q.shape, dtype=torch.int64)
    assert_close(ops.mixed_value(value, q.fill_(torch.nan), prior, none), value)
    improved = (prior.log() + ops.sigma(ops.completed_q(value, q, prior, none), none)).softmax(-1)
    assert_close(improved, prior)


def test_an_improved_policy_is_no_worse_than_the_prior():
    """With exact values of all actions, softmax(log π + σ(q)) is better than π, for any increasing σ."""
    value, q, prior, visits = drawn(batch=2000)
    visits = visits + 1
    improved = (prior.log() + ops.sigma(ops.completed_q(value, q, prior, visits), visits)).softmax(-1)
    assert ((improved * q).sum(-1) >= (prior * q).sum(-1) - 1e-9).all()


def test_sigma_by_hand():
    assert_close(
        ops.sigma(torch.tensor([0.0, 0.5, 1.0]), torch.tensor([2, 6, 0]), scale=0.1), torch.tensor([0.0, 2.8, 5.6])
    )


def test_sequential_halving_by_hand():
    """16 simulations and 4 actions: two each in the first of 2 phases, four each of the better two in the second."""
    first = [0, 0, 0, 0, 1, 1, 1, 1]
    assert ops.sequential_halving(4, 16) == [*first, 2, 2, 3, 3, 4, 4, 5, 5]
    assert ops.sequential_halving(1, 3) == [0, 1, 2]
    assert ops.sequential_halving(3, 2) == [0, 0]


@pytest.mark.parametrize("considered", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("simulations", [1, 2, 7, 16, 50])
def test_every_simulation_finds_an_action_that_was_tried_so_often(considered, simulations):
    visits = [0] * considered
    for wanted in ops.sequential_halving(considered, simulations):
        assert wanted in visits, "some action must have this number of visits"
        visits[visits.index(wanted)] += 1
    assert sum(visits) == simulations


@pytest.mark.parametrize(("considered", "simulations"), [(0, 3), (3, 0)])
def test_halving_without_actions_is_rejected(considered, simulations):
    with pytest.raises(ValueError, match="must be at least 1"):
        ops.sequential_halving(considered, simulations)


def test_visits_follow_a_policy():
    """After n choices, every share of visits differs from the policy by at most about 1 / n."""
    policy = torch.tensor([0.5, 0.3, 0.15, 0.05])
    visits = torch.zeros(4)
    for _ in range(200):
        visits[ops.least_visited_for(policy, visits).argmax()] += 1
    assert ((visits / 200 - policy).abs() < 0.01).all()
