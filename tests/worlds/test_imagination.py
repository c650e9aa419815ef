"""Actions, and imagined trajectories: against PyTorch's distributions, a loop, and the paths of gradients."""

import gymnasium
import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Independent, Normal
from torch.testing import assert_close

from operant import ops
from operant.worlds.imagination import Agent, AgentShape, CategoricalActions, GaussianActions, action_distribution
from operant.worlds.rssm import RSSMShape, State
from operant.worlds.world_model import WorldShape

S, N, H = 2, 5, 3
CPU = torch.device("cpu")
BOX = gymnasium.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 6.0], np.float32))
WORLD = WorldShape(
    observation=(5,),
    rssm=RSSMShape(actions=2, deter=8, stoch=3, classes=4, units=6, blocks=1, prior_layers=1, unimix=0.01),
    layers=1,
    depth=2,
    bins=11,
)


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def agent(outputs):
    shape = Agent(AgentShape(WORLD, outputs, 1))
    parameters = torch.stack([shape.initial(torch.Generator().manual_seed(seed)) for seed in (3, 5)])
    parameters += 0.3 * drawn(*parameters.shape, seed=9)
    return shape.bind(parameters, ops.symexp_support(11, bound=3.0))


def test_discrete_actions_against_pytorch():
    found = action_distribution(gymnasium.spaces.Discrete(3, start=4), unimix=0.1, device=CPU)
    assert isinstance(found, CategoricalActions)
    outputs, taken = drawn(S, N, 3), torch.tensor([[0, 1, 2, 1, 0]] * S)
    theirs = Categorical(probs=0.9 * outputs.softmax(-1) + 0.1 / 3)
    log_prob, entropy = found.log_prob_entropy(outputs, taken)
    assert_close(log_prob, theirs.log_prob(taken))
    assert_close(entropy, theirs.entropy())
    assert found.encode(taken).argmax(-1).equal(taken)
    assert found.encode(taken).sum(-1).eq(1).all()
    assert found.to_env(taken).unique().tolist() == [4, 5, 6]
    assert found.sample(outputs, None).equal(outputs.argmax(-1))


def test_discrete_actions_are_drawn_with_their_probabilities():
    found = CategoricalActions(gymnasium.spaces.Discrete(2), 0.1)
    outputs = torch.tensor([0.8, 0.2]).log().expand(20_000, 2)
    taken = found.sample(outputs, found.noise((20_000,), torch.Generator().manual_seed(0)))
    assert taken.float().mean().item() == pytest.approx(0.9 * 0.2 + 0.05, abs=0.01)


def test_continuous_actions_against_pytorch():
    found = action_distribution(BOX, unimix=0.1, device=CPU)
    assert isinstance(found, GaussianActions)
    outputs, noise = 3 * drawn(S, N, 4), drawn(S, N, 2, seed=1)
    mean, std = outputs[..., :2].tanh(), 0.9 * (outputs[..., 2:] + 2).sigmoid() + 0.1
    theirs = Independent(Normal(mean, std), 1)
    taken = found.sample(outputs, noise)
    assert_close(taken, mean + std * noise)
    log_prob, entropy = found.log_prob_entropy(outputs, taken)
    assert_close(log_prob, theirs.log_prob(taken))
    assert_close(entropy, theirs.entropy())
    assert_close(found.sample(outputs, None), mean)


def test_actions_out_of_bounds_take_effect_as_their_bounds():
    found = GaussianActions(BOX, CPU)
    taken = torch.tensor([[3.0, -0.5], [-3.0, 1.5]])
    assert found.encode(taken).tolist() == [[1.0, -0.5], [-1.0, 1.0]]
    assert found.to_env(taken).tolist() == [[2.0, 1.5], [-2.0, 6.0]]


@pytest.mark.parametrize("actions", [CategoricalActions(gymnasium.spaces.Discrete(2), 0.01), GaussianActions(BOX, CPU)])
def test_imagination_follows_actor_and_prior_from_where_it_starts(actions):
    found = agent(actions.outputs)
    start = State(drawn(S, N, 8).requires_grad_(), drawn(S, N, 12).requires_grad_())
    chance, noise = drawn(H, S, N, 3, 4, seed=1), drawn(H, S, N, 2, seed=2)
    imagined = found.imagine(start, actions, chance, noise)
    assert imagined.features.shape == (H + 1, S, N, 20)
    assert_close(imagined.features[0], start.features)
    state = start
    for t in range(H):
        taken = actions.sample(found.policy(state.features), noise[t])
        assert_close(imagined.actions[t], taken)
        state = found.world.rssm.imagine(state, actions.encode(taken), chance[t])
        assert_close(imagined.features[t + 1], state.features)
        assert_close(imagined.rewards[t], found.world.rewards(state.features))
        assert_close(imagined.continues[t], found.world.continues(state.features))
    assert not any(part.requires_grad for part in imagined)


def test_actor_and_critic_begin_even():
    shape = Agent(AgentShape(WORLD, 2, 2))
    parameters = torch.stack([shape.initial(torch.Generator().manual_seed(seed)) for seed in (3, 5)])
    found = shape.bind(parameters, ops.symexp_support(11))
    features = drawn(S, N, WORLD.rssm.features)
    assert (ops.symmetric_mean(found.value_logits(features), found.support) == 0).all()
    assert found.policy(features).abs().max() < 0.1
    assert torch.equal(shape.critic_of(parameters), torch.cat([view.flatten(1) for view in found.critic], 1))
