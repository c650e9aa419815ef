"""The networks of MuZero: their initialization, the range of latent states, and numbers as distributions."""

from dataclasses import replace

import torch
from torch.testing import assert_close

from operant import ops
from operant.worlds.latent_model import LatentShape

SHAPE = LatentShape(inputs=3, actions=2, latent=5, hidden=(8,), activation="relu", support_size=4)


def model(seeds=(3, 5)):
    return SHAPE.bind(SHAPE.initial([torch.Generator().manual_seed(seed) for seed in seeds]))


def test_nothing_is_expected_before_anything_is_learned():
    found = model()
    latent = found.represent(torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(0)))
    policy, value = found.predict(latent)
    after, reward = found.follow(latent, torch.arange(7).remainder(2).expand(2, -1))
    assert (policy == 0).all()
    assert_close(found.number(value), torch.zeros(2, 7), atol=1e-6, rtol=0)
    assert_close(found.number(reward), torch.zeros(2, 7), atol=1e-6, rtol=0)
    assert after.shape == latent.shape == (2, 7, 5)


def test_latent_states_are_between_0_and_1_and_depend_on_the_action():
    found = model()
    latent = found.represent(torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(0)) * 100)
    for _ in range(20):
        assert_close(latent.amin(-1), torch.zeros(2, 7))
        assert_close(latent.amax(-1), torch.ones(2, 7))
        left, right = (found.follow(latent, torch.full((2, 7), action))[0] for action in (0, 1))
        assert not torch.equal(left, right)
        latent = left


def test_each_seed_has_its_own_networks():
    both, alone = model(), model((5,))
    obs = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(0))
    assert_close(both.represent(obs)[1:], alone.represent(obs[1:]))


def test_an_outcome_of_a_game_is_an_atom():
    """So its logits saturate: no other atom has a share of a certain win."""
    found = replace(SHAPE, support_size=1, squashed=False)
    found = found.bind(found.initial([torch.Generator().manual_seed(3)]))
    outcomes = torch.tensor([-1.0, 0.0, 1.0])
    logits = 40 * torch.eye(3)
    assert_close(found.number(logits), outcomes)
    assert_close(found.loss(logits, outcomes), torch.zeros(3))
    assert_close(found.number(torch.zeros(3)), torch.tensor(0.0))


def test_a_distribution_stands_for_the_number_that_it_was_made_of():
    found = model()
    numbers = torch.tensor([-20.0, -1.0, 0.0, 0.3, 7.0, 19.0])
    weights = ops.two_hot(ops.signed_hyperbolic(numbers), found.support)
    assert_close(found.number(weights.log().clamp(min=-100)), numbers, atol=1e-4, rtol=1e-4)
    entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1)
    assert_close(found.loss(weights.clamp(min=1e-30).log(), numbers), entropy, atol=1e-5, rtol=1e-4)
